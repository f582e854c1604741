//! Methods that are made of several ops, against the array's own and against its gradients.

use planaria_array::ops::scatter_reduce_grad;
use planaria_array::{Array, DType, Scalar};
use planaria_comm::threads;
use planaria_layout::{Mesh, Placement};
use planaria_tensor::ops::{OwnValue, PadMode, ScatterReduce, add_n, concat, stack};
use planaria_tensor::{GradOptions, Keep, Result, Tensor, World, grad};

fn numbers(shape: &[usize]) -> Array {
    let count = shape.iter().product::<usize>();
    let values: Vec<f64> = (0..count).map(|i| ((i * 7) % 11) as f64 - 4.5).collect();
    Array::from_slice(&values, shape).unwrap()
}

fn whole(values: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape).unwrap()
}

fn list(array: &Array) -> (Vec<usize>, Vec<f64>) {
    (array.shape().to_vec(), array.cast(DType::F64).unwrap().to_vec::<f64>().unwrap())
}

/// Runs `work` on a value as one rank has it and as three ranks have it in every way of cutting one dim; all give
/// `expected`.
#[track_caller]
fn everywhere(x: &Array, expected: &[&Array], work: impl Fn(&Tensor) -> Result<Vec<Tensor>> + Sync) {
    let alone = work(&Tensor::new(x.clone())).unwrap();
    let expected: Vec<_> = expected.iter().map(|a| list(a)).collect();
    assert_eq!(alone.iter().map(|t| list(t.local())).collect::<Vec<_>>(), expected);
    let mesh: Mesh = "x=3".parse().unwrap();
    threads::run(3, |comm| {
        let world = World::new(comm);
        for dim in 0..x.ndim() {
            let placed = Tensor::place(x, &mesh, &[Placement::shard(dim)], &world).unwrap();
            let found = work(&placed).unwrap_or_else(|e| panic!("dim {dim}: {e}"));
            let found: Vec<_> = found.iter().map(|t| list(&t.whole().unwrap())).collect();
            assert_eq!(found, expected, "cut along dim {dim}");
        }
    });
}

#[test]
fn parts_of_a_tensor_are_those_of_an_array() {
    let x = numbers(&[4, 6]);
    for (parts, of_x) in [
        (x.split(4, 1).unwrap(), (|t: &Tensor| t.split(4, 1)) as fn(&Tensor) -> Result<Vec<Tensor>>),
        (x.split_sizes(&[1, 0, 3], 0).unwrap(), |t| t.split_sizes(&[1, 0, 3], 0)),
        (x.chunk(4, -1).unwrap(), |t| t.chunk(4, -1)),
        (x.unbind(0).unwrap(), |t| t.unbind(0)),
    ] {
        everywhere(&x, &parts.iter().collect::<Vec<_>>(), of_x);
    }
}

#[test]
fn joined_tensors_are_joined_arrays() {
    let x = numbers(&[2, 3]);
    let y = x.add(&x).unwrap();
    let expected = [
        planaria_array::ops::concat(&[&x, &y, &x], 1).unwrap(),
        planaria_array::ops::stack(&[&x, &y], -1).unwrap(),
        x.add(&y).unwrap().add(&x).unwrap(),
    ];
    everywhere(&x, &expected.iter().collect::<Vec<_>>(), |t| {
        let y = t.add(t)?;
        Ok(vec![concat(&[t, &y, t], 1)?, stack(&[t, &y], -1)?, add_n(&[t, &y, t])?])
    });
    assert!(stack(&[&Tensor::new(x.clone()), &Tensor::new(numbers(&[3]))], 0).is_err());
    assert!(concat(&[], 0).is_err() && stack(&[], 0).is_err() && add_n(&[]).is_err());
}

#[test]
fn rearranged_tensors_are_rearranged_arrays() {
    let x = numbers(&[3, 4]);
    let margins = [(1, 2), (-1, 1)];
    let expected = [
        x.roll(&[i64::MIN, 5], &[0, 1]).unwrap(),
        x.roll(&[3], &[]).unwrap(),
        x.flip(&[0, -1]).unwrap(),
        x.repeat(&[2, 1, 3]).unwrap(),
        x.repeat(&[2]).unwrap(),
        x.repeat_interleave(&[2, 0, 1], 0).unwrap(),
        x.pad(&margins, PadMode::Constant(Scalar::Float(2.5))).unwrap(),
        x.pad(&[(1, 1)], PadMode::Reflect).unwrap(),
        x.triu(-1).unwrap(),
        x.tril(1).unwrap(),
    ];
    everywhere(&x, &expected.iter().collect::<Vec<_>>(), |t| {
        Ok(vec![
            t.roll(&[i64::MIN, 5], &[0, 1])?,
            t.roll(&[3], &[])?,
            t.flip(&[0, -1])?,
            t.repeat(&[2, 1, 3])?,
            t.repeat(&[2])?,
            t.repeat_interleave(&[2, 0, 1], 0)?,
            t.pad(&[(1, 2), (-1, 1)], PadMode::Constant(Scalar::Float(2.5)))?,
            t.pad(&[(1, 1)], PadMode::Reflect)?,
            t.triu(-1)?,
            t.tril(1)?,
        ])
    });
    let t = Tensor::new(x);
    assert!(t.pad(&[(0, 0); 3], PadMode::Reflect).is_err() && t.roll(&[1, 2], &[0]).is_err());
    assert!(t.repeat_interleave(&[1, 2], 0).is_err() && t.repeat(&[usize::MAX, 2]).is_err());
}

#[test]
fn slices_named_by_rows_of_an_index() {
    let x = numbers(&[3, 4]);
    let rows = || whole(&[2, -1, 0, 3, 2, -1], &[3, 2]);
    let picked = x
        .get(&[
            Array::from_slice(&[2i64, 0, 2], &[3]).unwrap().into(),
            Array::from_slice(&[-1i64, 3, -1], &[3]).unwrap().into(),
        ])
        .unwrap();
    let mut added = x.to_vec::<f64>().unwrap();
    added[11] += 10.0 + 30.0;
    added[3] += 20.0;
    let added = Array::from_slice(&added, &[3, 4]).unwrap();
    everywhere(&x, &[&picked, &added], |t| {
        let value = Tensor::from_slice(&[10.0, 20.0, 30.0], &[3])?;
        Ok(vec![t.gather_nd(&rows())?, t.scatter_nd_add(&rows(), &value)?])
    });
    assert!(Tensor::new(x).gather_nd(&whole(&[0, 0, 0], &[3])).is_err());
}

#[test]
fn positions_along_a_dim_are_written() {
    let x = numbers(&[2, 3]);
    let expected = x.copy().unwrap();
    expected
        .put_along_dim(
            &Array::from_slice(&[-1i64, 0], &[1, 2]).unwrap(),
            &Array::scalar(9.0, DType::F64).unwrap(),
            1,
        )
        .unwrap();
    everywhere(&x, &[&expected], |t| {
        let t = t.copy()?;
        t.put_along_dim(&whole(&[-1, 0], &[1, 2]), &Tensor::scalar(9.0, DType::F64)?, 1)?;
        Ok(vec![t])
    });
}

#[test]
fn scattered_reductions_and_their_gradients_are_those_of_the_array() {
    let kinds = [
        ScatterReduce::Sum,
        ScatterReduce::Prod,
        ScatterReduce::Mean,
        ScatterReduce::Max,
        ScatterReduce::Min,
    ];
    // With equal values and zeros, which share or block gradients.
    let x = Array::from_slice(&[1.0, 0.0, -2.0, 3.0, 0.0, 5.0], &[2, 3]).unwrap();
    let src = Array::from_slice(&[1.0, 0.0, 4.0, 3.0, -1.0, 0.0, 2.0, 2.0], &[2, 4]).unwrap();
    let index = Array::from_slice(&[0i64, 1, 0, 2, 0, 1, 0, 0], &[2, 4]).unwrap();
    for kind in kinds {
        for own in [OwnValue::Include, OwnValue::Exclude] {
            let expected = x.scatter_reduce(1, &index, &src, kind, own).unwrap();
            let (tx, ts) = (Tensor::new(x.clone()).requires_grad(), Tensor::new(src.clone()).requires_grad());
            let found = tx.scatter_reduce(1, &Tensor::new(index.clone()), &ts, kind, own).unwrap();
            assert_eq!(list(found.local()), list(&expected), "{kind:?} {own:?}");
            let dy = numbers(&[2, 3]);
            let grads =
                grad(&[&found], &[Some(&Tensor::new(dy.clone()))], &[&tx, &ts], GradOptions::default())
                    .unwrap();
            let (dx, ds) = scatter_reduce_grad(&dy, &x, 1, &index, &src, kind, own).unwrap();
            for (f, e) in grads.iter().zip([dx, ds]) {
                let f = f.as_ref().unwrap().to_vec::<f64>().unwrap();
                let e = e.to_vec::<f64>().unwrap();
                assert!(
                    f.iter().zip(&e).all(|(a, b)| (a - b).abs() < 1e-12),
                    "{kind:?} {own:?}: {f:?} {e:?}"
                );
            }
        }
    }
}

#[test]
fn masked_values_are_selected_and_found() {
    let x = numbers(&[3, 4]);
    let mask = x.gt(&Array::scalar(0.0, DType::F64).unwrap()).unwrap();
    let (picked, found) = (x.masked_select(&mask).unwrap(), mask.nonzero().unwrap());
    everywhere(&x, &[&picked, &found], |t| {
        let mask = t.gt(&Tensor::scalar(0.0, DType::F64)?)?;
        Ok(vec![t.masked_select(&mask)?, mask.nonzero()?])
    });
    // The gradient goes back to where each came from.
    let t = Tensor::new(x).requires_grad();
    t.masked_select(&Tensor::new(mask.clone())).unwrap().sum(&[], Keep::No).unwrap().backward().unwrap();
    assert_eq!(list(t.grad().unwrap().local()).1, list(&mask).1);
}
