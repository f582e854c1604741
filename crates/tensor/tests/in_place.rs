//! Writes in place: through views, after views, into slices of a mesh; values and gradients are those of the same
//! program written without them.

use planaria_array::{Array, DType};
use planaria_comm::threads;
use planaria_layout::{Mesh, Placement};
use planaria_tensor::ops::{Put, concat};
use planaria_tensor::{Error, GradOptions, Index, Keep, Result, Tensor, World, grad, no_grad, trace};

const DIFFERENTIABLE: GradOptions = GradOptions { keep_history: true, differentiable: true };

fn numbers(start: f64, step: f64, shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let values: Vec<f64> = (0..count).map(|i| start + step * i as f64).collect();
    Tensor::from_slice(&values, shape).unwrap()
}

fn total(x: &Tensor) -> Result<Tensor> {
    x.sum(&[], Keep::No)
}

/// Value, gradients, and the gradients of the sum of squared gradients.
fn orders(
    program: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>,
    x: &Tensor,
    w: &Tensor,
) -> Result<Vec<Vec<f64>>> {
    let (x, w) = (x.requires_grad(), w.requires_grad());
    let loss = program(&x, &w)?;
    let zeros = |g: Option<Tensor>, of: &Tensor| g.map_or_else(|| of.zeros_like(), Ok);
    let first = grad(&[&loss], &[None], &[&x, &w], DIFFERENTIABLE)?;
    let mut all = vec![loss.to_vec::<f64>()?];
    let mut norm = Tensor::scalar(0.0, DType::F64)?;
    for (g, of) in first.into_iter().zip([&x, &w]) {
        let g = zeros(g, of)?;
        all.push(g.to_vec::<f64>()?);
        norm = norm.add(&total(&g.square()?)?)?;
    }
    for (g, of) in grad(&[&norm], &[None], &[&x, &w], GradOptions::default())?.into_iter().zip([&x, &w]) {
        all.push(zeros(g, of)?.to_vec::<f64>()?);
    }
    Ok(all)
}

type Program<'a> = &'a dyn Fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Both programs give the same value, gradients and second gradients.
#[track_caller]
fn alike(in_place: Program<'_>, functional: Program<'_>) {
    let (x, w) = (numbers(0.5, 0.25, &[4, 3]), numbers(-1.0, 0.75, &[3]));
    let (found, expected) = (orders(in_place, &x, &w).unwrap(), orders(functional, &x, &w).unwrap());
    for (what, (f, e)) in ["value", "dx", "dw", "ddx", "ddw"].iter().zip(found.iter().zip(&expected)) {
        let same =
            f.len() == e.len() && f.iter().zip(e).all(|(a, b)| (a - b).abs() <= 1e-12 * b.abs().max(1.0));
        assert!(same, "{what} is {f:?} instead of {e:?}");
    }
}

/// Something written to that is not a leaf.
fn base(x: &Tensor) -> Result<Tensor> {
    x.mul_scalar(2.0)
}

/// A loss in which every element counts differently, to third order.
fn loss(b: &Tensor) -> Result<Tensor> {
    let weights = numbers(1.0, 0.5, b.shape());
    total(&b.mul(&b.square()?)?.mul(&weights)?)
}

#[test]
fn a_write_is_differentiable_in_what_is_written_and_in_what_is_left() {
    alike(
        &|x, w| {
            let b = base(x)?;
            b.set(&[1.into()], w)?;
            loss(&b)
        },
        &|x, w| loss(&base(x)?.with_set(&[1.into()], w)?),
    );
}

#[test]
fn a_write_through_a_view_reaches_the_base() {
    alike(
        &|x, w| {
            let b = base(x)?;
            b.get(&[(1..3).into()])?.set(&[0.into()], w)?;
            loss(&b)
        },
        &|x, w| loss(&base(x)?.with_set(&[1.into()], w)?),
    );
}

#[test]
fn a_write_through_a_view_of_a_view_reaches_the_base() {
    alike(
        &|x, w| {
            let b = base(x)?;
            let view = b.transpose(0, 1)?.get(&[(1..).into(), Index::slice(None, None, Some(2))])?;
            view.set(&[0.into()], &w.narrow(0, 0, 2)?)?;
            loss(&b)
        },
        &|x, w| {
            let column = [Index::slice(None, None, Some(2)), 1.into()];
            loss(&base(x)?.with_set(&column, &w.narrow(0, 0, 2)?)?)
        },
    );
}

#[test]
fn the_base_may_be_used_before_and_after_the_write() {
    alike(
        &|x, w| {
            let b = base(x)?;
            let before = total(&b)?;
            b.select(0, 2)?.set(&[], w)?;
            before.mul(&loss(&b)?)
        },
        &|x, w| {
            let b = base(x)?;
            total(&b)?.mul(&loss(&b.with_set(&[2.into()], w)?)?)
        },
    );
}

#[test]
fn a_view_sees_later_writes_to_its_base() {
    alike(
        &|x, w| {
            let b = base(x)?;
            let view = b.get(&[(1..).into()])?;
            b.set(&[2.into()], w)?;
            loss(&view)
        },
        &|x, w| loss(&base(x)?.with_set(&[2.into()], w)?.get(&[(1..).into()])?),
    );
}

#[test]
fn overlapping_views_see_each_others_writes() {
    alike(
        &|x, w| {
            let b = base(x)?;
            let (low, high) = (b.get(&[(..3).into()])?, b.get(&[(1..).into()])?);
            low.set(&[1.into()], w)?;
            high.set(&[1.into()], &w.mul_scalar(3.0)?)?;
            loss(&low)?.add(&loss(&high)?)
        },
        &|x, w| {
            let b = base(x)?.with_set(&[1.into()], w)?.with_set(&[2.into()], &w.mul_scalar(3.0)?)?;
            loss(&b.get(&[(..3).into()])?)?.add(&loss(&b.get(&[(1..).into()])?)?)
        },
    );
}

#[test]
fn parts_of_a_split_can_be_written_to() {
    alike(
        &|x, w| {
            let b = base(x)?;
            b.split(2, 0)?[1].set(&[1.into()], w)?;
            b.unbind(0)?[0].set(&[], w)?;
            loss(&b)
        },
        &|x, w| loss(&base(x)?.with_set(&[3.into()], w)?.with_set(&[0.into()], w)?),
    );
}

#[test]
fn a_tensor_without_history_gets_one_from_what_is_written_into_it() {
    alike(
        &|x, w| {
            let out = Tensor::zeros(&[4, 3], DType::F64)?;
            let view = out.get(&[(1..).into()])?;
            view.set(&[0.into()], w)?;
            out.set(&[0.into()], &x.get(&[3.into()])?)?;
            loss(&out)?.add(&loss(&view)?)
        },
        &|x, w| {
            let row = |t: &Tensor| t.reshape(&[1, 3]);
            let rest = Tensor::zeros(&[2, 3], DType::F64)?;
            let out = concat(&[&row(&x.get(&[3.into()])?)?, &row(w)?, &rest], 0)?;
            loss(&out)?.add(&loss(&out.get(&[(1..).into()])?)?)
        },
    );
}

#[test]
fn a_part_can_be_written_with_another_part_of_the_same_tensor() {
    alike(
        &|x, w| {
            let b = base(x)?;
            b.set(&[(1..3).into()], &b.get(&[(2..4).into()])?)?;
            loss(&b.mul(w)?)
        },
        &|x, w| {
            let b = base(x)?;
            let moved = b.with_set(&[(1..3).into()], &b.get(&[(2..4).into()])?)?;
            loss(&moved.mul(w)?)
        },
    );
}

fn rows() -> Tensor {
    Tensor::from_slice(&[3i64, 0, 3], &[3]).unwrap()
}

#[test]
fn positions_and_masks_are_written_in_place_as_in_copies() {
    let mask = || Tensor::from_slice(&[1i64, 0, 1], &[3])?.cast(DType::Bool);
    alike(
        &|x, w| {
            let b = base(x)?;
            b.set(&[rows().into(), 1.into()], &w.square()?)?;
            b.index_put_assign(&[Some(rows())], w, Put::Accumulate)?;
            b.masked_fill_assign_with(&mask()?, &w.get(&[2.into()])?)?;
            b.index_add_assign(0, &rows(), &x.narrow(0, 0, 3)?)?;
            b.transpose(0, 1)?.masked_scatter_assign(&mask()?.reshape(&[3, 1])?, &x.neg()?)?;
            b.index_fill_assign(1, &Tensor::from_slice(&[-1i64], &[1])?, 0.5)?;
            b.scatter_assign(0, &rows().reshape(&[1, 3])?, &w.reshape(&[1, 3])?)?;
            loss(&b)
        },
        &|x, w| {
            let b = base(x)?.with_set(&[rows().into(), 1.into()], &w.square()?)?;
            let b = b.index_put(&[Some(rows())], w, Put::Accumulate)?;
            let b = b.masked_fill_with(&mask()?, &w.get(&[2.into()])?)?;
            let b = b.index_add(0, &rows(), &x.narrow(0, 0, 3)?)?;
            let turned = b.transpose(0, 1)?.masked_scatter(&mask()?.reshape(&[3, 1])?, &x.neg()?)?;
            let b = turned.transpose(0, 1)?.index_fill(1, &Tensor::from_slice(&[-1i64], &[1])?, 0.5)?;
            loss(&b.scatter(0, &rows().reshape(&[1, 3])?, &w.reshape(&[1, 3])?)?)
        },
    );
}

#[test]
fn second_gradients_of_an_indexed_write_are_differences_of_first_ones() {
    let program = |x: &Tensor, w: &Tensor| {
        let b = base(x)?;
        b.get(&[(1..).into()])?
            .set(&[rows().sub(&Tensor::scalar(1i64, DType::I64)?)?.into(), 0.into()], w)?;
        loss(&b)
    };
    let (x, w) = (numbers(0.5, 0.25, &[4, 3]), numbers(-1.0, 0.75, &[3]));
    let norm = |x: &Tensor| -> f64 {
        let all = orders(&program, x, &w).unwrap();
        all[1].iter().chain(&all[2]).map(|g| g * g).sum()
    };
    let second = orders(&program, &x, &w).unwrap().swap_remove(3);
    for (i, &found) in second.iter().enumerate() {
        let moved = |by: f64| {
            let mut values = x.to_vec::<f64>().unwrap();
            values[i] += by;
            norm(&Tensor::from_slice(&values, &[4, 3]).unwrap())
        };
        let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
        assert!(
            (found - expected).abs() <= 1e-5 * expected.abs().max(1.0),
            "{i}: {found} instead of {expected}"
        );
    }
}

#[test]
fn a_saved_value_that_was_overwritten_is_an_error() {
    let x = numbers(1.0, 1.0, &[3]).requires_grad();
    let b = base(&x).unwrap();
    let squares = total(&b.square().unwrap()).unwrap();
    b.get(&[(1..).into()]).unwrap().set_scalar(&[0.into()], 7.0).unwrap();
    let error = squares.backward().unwrap_err();
    assert!(matches!(error, Error::Stale { op: "square", saved: 0, now: 1, .. }), "{error}");
}

#[test]
fn leaves_are_written_only_where_nothing_is_recorded() {
    let x = numbers(1.0, 1.0, &[3]).requires_grad();
    let row = x.get(&[(..2).into()]).unwrap();
    for refused in [
        x.set_scalar(&[0.into()], 5.0),
        row.set_scalar(&[0.into()], 5.0),
        x.masked_fill_assign(&x.gt(&x).unwrap(), 1.0),
    ] {
        assert!(matches!(refused, Err(Error::LeafWrite { .. })), "{refused:?}");
    }
    assert_eq!(x.to_vec::<f64>().unwrap(), [1.0, 2.0, 3.0]);
    no_grad(|| x.set_scalar(&[0.into()], 5.0)).unwrap();
    assert_eq!(x.to_vec::<f64>().unwrap(), [5.0, 2.0, 3.0]);
    assert!(x.is_leaf());
}

#[test]
fn a_refused_write_changes_nothing() {
    let x = numbers(1.0, 1.0, &[2, 2]);
    let (far, wide) = (Tensor::from_slice(&[0i64, 9], &[2]).unwrap(), numbers(0.0, 1.0, &[3]));
    assert!(x.set(&[far.into()], &numbers(0.0, 1.0, &[2])).is_err());
    assert!(x.set(&[0.into()], &wide).is_err());
    assert!(x.set(&[0.into()], &Tensor::zeros(&[2], DType::F32).unwrap()).is_err());
    let repeated = numbers(1.0, 0.0, &[1]).broadcast_to(&[4]).unwrap();
    assert!(repeated.set_scalar(&[], 2.0).is_err());
    assert_eq!(x.to_vec::<f64>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
}

/// One program of writes on every placement of its tensors, against the same on one rank.
fn on_mesh(x: &Tensor, w: &Tensor) -> Result<(Array, Vec<Option<Tensor>>)> {
    let (x, w) = (x.requires_grad(), w.requires_grad());
    let b = base(&x)?;
    b.set(&[(1..4).into(), Index::slice(None, None, Some(2))], &w.narrow(0, 0, 2)?)?;
    b.set(&[Tensor::from_slice(&[4i64, 0], &[2])?.into()], &w)?;
    b.set(&[Index::all(), Tensor::from_slice(&[2i64, 2], &[2])?.into()], &w.narrow(0, 1, 2)?)?;
    b.set(&[(2..).into(), Tensor::from_slice(&[1i64], &[1])?.into()], &w.narrow(0, 0, 1)?)?;
    b.masked_fill_assign(&b.gt(&Tensor::scalar(4.0, DType::F64)?)?, 0.25)?;
    let value = b.whole()?.copy()?;
    let grads = grad(&[&loss(&b)?], &[None], &[&x, &w], GradOptions::default())?;
    Ok((value, grads))
}

#[test]
fn writes_on_a_mesh_are_those_on_one_rank() {
    let (x, w) = (numbers(-1.0, 0.25, &[5, 3]), numbers(0.5, 0.75, &[3]));
    let (value, grads) = on_mesh(&x, &w).unwrap();
    let mesh: Mesh = "x=3".parse().unwrap();
    threads::run(3, |comm| {
        let world = World::new(comm);
        let some = [
            Placement::Replicate,
            Placement::shard(0),
            Placement::shard(1),
            Placement::Partial(planaria_layout::Reduce::Sum),
        ];
        for px in some {
            for pw in [Placement::Replicate, Placement::shard(0)] {
                let x = Tensor::place(x.local(), &mesh, &[px], &world).unwrap();
                let w = Tensor::place(w.local(), &mesh, &[pw], &world).unwrap();
                let (found, found_grads) = on_mesh(&x, &w).unwrap_or_else(|e| panic!("{px} {pw}: {e}"));
                assert_eq!(found.to_vec::<f64>().unwrap(), value.to_vec::<f64>().unwrap(), "{px} {pw}");
                for (f, e) in found_grads.iter().zip(&grads) {
                    let f = f.as_ref().unwrap().whole().unwrap().to_vec::<f64>().unwrap();
                    let e = e.as_ref().unwrap().to_vec::<f64>().unwrap();
                    assert!(f.iter().zip(&e).all(|(a, b)| (a - b).abs() < 1e-9), "{px} {pw}: {f:?} {e:?}");
                }
            }
        }
    });
}

#[test]
fn writes_into_a_cut_dim_send_nothing() {
    let mesh: Mesh = "x=2".parse().unwrap();
    threads::run(2, |comm| {
        let world = World::new(comm);
        let x =
            Tensor::place(numbers(0.0, 1.0, &[6, 2]).local(), &mesh, &[Placement::shard(0)], &world).unwrap();
        trace::strict(|| {
            x.set(&[(1..5).into()], &numbers(-1.0, -1.0, &[4, 2])).unwrap();
            x.set(&[Tensor::from_slice(&[0i64, 5], &[2]).unwrap().into()], &numbers(9.0, 0.0, &[1])).unwrap();
        });
        let expected = [9.0, 9.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0, 9.0, 9.0];
        assert_eq!(x.whole().unwrap().to_vec::<f64>().unwrap(), expected);
    });
}
