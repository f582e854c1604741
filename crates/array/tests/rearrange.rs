//! Joining, padding, rolling, flipping and repeating against references that work one coordinate at a time.

use planaria_array::ops::{PadMode, concat, pad_grad, repeat_grad, repeat_interleave_grad, stack};
use planaria_array::{Array, DType, Scalar, Shape};
use proptest::prelude::*;

/// 1, 2, 3, ... in the given shape and dtype; a transposed view when there are dims to swap.
fn counted(shape: &[usize], dtype: DType) -> Array {
    let numel: usize = shape.iter().product();
    let values: Vec<i64> = (1..=numel as i64).map(|i| i % 100).collect();
    let reversed: Vec<usize> = shape.iter().rev().copied().collect();
    let order: Vec<i64> = (0..shape.len() as i64).rev().collect();
    let x = Array::from_slice(&values, &reversed).unwrap().permute(&order).unwrap();
    // Casting makes a view contiguous, so the view is taken afterwards.
    let x = Array::from_slice(&x.to_vec::<i64>().unwrap(), shape).unwrap().cast(dtype).unwrap();
    if shape.len() < 2 { x } else { x.transpose(0, -1).unwrap().copy().unwrap().transpose(0, -1).unwrap() }
}

fn ints(x: &Array) -> Vec<i64> {
    x.cast(DType::I64).unwrap().to_vec().unwrap()
}

/// All coordinates of a shape in row-major order.
fn coordinates(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &size in shape {
        all = all.iter().flat_map(|c| (0..size).map(move |i| [&c[..], &[i]].concat())).collect();
    }
    all
}

fn at(x: &[i64], shape: &[usize], coord: &[usize]) -> i64 {
    x[coord.iter().zip(shape).fold(0, |flat, (&i, &size)| flat * size + i)]
}

/// Checks that `result` shows, at each coordinate, the source position `from(dim, i)` gives, or `fill`.
fn check(x: &Array, result: &Array, fill: i64, from: impl Fn(usize, usize) -> Option<usize>) {
    let (values, shape) = (ints(x), x.shape().to_vec());
    let want: Vec<i64> = coordinates(result.shape())
        .iter()
        .map(|c| c.iter().enumerate().map(|(d, &i)| from(d, i)).collect::<Option<Vec<_>>>())
        .map(|c| c.map_or(fill, |c| at(&values, &shape, &c)))
        .collect();
    assert_eq!(ints(result), want, "{} to {}", x.shape(), result.shape());
    assert_eq!(result.dtype(), x.dtype());
}

/// `<f(x), g> = <x, f_grad(g)>` for a linear f; exact, since all values are small integers.
fn check_adjoint(x: &Array, forward: &Array, grad: impl Fn(&Array) -> Array) {
    let g: Vec<f64> = (0..forward.numel()).map(|i| (i * 7 % 5) as f64 - 2.0).collect();
    let g = Array::from_slice(&g, forward.shape()).unwrap();
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
        let back = grad(&g.cast(dtype).unwrap());
        assert_eq!((back.shape(), back.dtype()), (x.shape(), dtype));
        let dot = |a: &Array, b: &Array| ints(a).iter().zip(ints(b)).map(|(a, b)| a * b).sum::<i64>();
        assert_eq!(dot(forward, &g), dot(x, &back), "{dtype}");
    }
}

fn any_dtype() -> impl Strategy<Value = DType> {
    prop::sample::select(vec![DType::U8, DType::I16, DType::BF16, DType::F32, DType::I64, DType::F64])
}

fn any_shape(max: usize) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..max, 1..4)
}

/// Source position of position `i` of a padded dim.
fn padded(mode: PadMode, size: usize, before: i64, i: usize) -> Option<usize> {
    let (n, j) = (size as i64, i as i64 - before);
    let j = match mode {
        PadMode::Constant(_) => return usize::try_from(j).ok().filter(|&j| j < size),
        PadMode::Reflect if n == 1 => 0,
        PadMode::Reflect => {
            let period = 2 * (n - 1);
            let k = j.rem_euclid(period);
            k.min(period - k)
        }
        PadMode::Replicate => j.clamp(0, n - 1),
        PadMode::Circular => j.rem_euclid(n),
    };
    Some(j as usize)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn concat_undoes_split(shape in any_shape(6), dim in 0usize..3, cuts in prop::collection::vec(0.0..1.0f64, 0..4), dtype in any_dtype()) {
        let (x, dim) = (counted(&shape, dtype), dim % shape.len());
        let mut bounds: Vec<usize> = cuts.iter().map(|c| (c * (shape[dim] + 1) as f64) as usize).collect();
        bounds.extend([0, shape[dim]]);
        bounds.sort_unstable();
        let sizes: Vec<usize> = bounds.windows(2).map(|w| w[1] - w[0]).collect();
        let parts = x.split_sizes(&sizes, dim as i64).unwrap();
        prop_assert!(parts.iter().all(|p| p.shares_storage(&x)));
        let joined = concat(&parts.iter().collect::<Vec<_>>(), dim as i64 - shape.len() as i64).unwrap();
        prop_assert_eq!(ints(&joined), ints(&x));
        let chunks = x.chunk(sizes.len(), dim as i64).unwrap();
        prop_assert!(chunks.len() <= sizes.len());
        prop_assert_eq!(ints(&concat(&chunks.iter().collect::<Vec<_>>(), dim as i64).unwrap()), ints(&x));
        let slices = x.unbind(dim as i64).unwrap();
        prop_assert_eq!(slices.len(), shape[dim]);
        prop_assert_eq!(ints(&stack(&slices.iter().collect::<Vec<_>>(), dim as i64).unwrap()), ints(&x));
    }

    #[test]
    fn pad_reads_where_the_mode_says(
        dims in prop::collection::vec((1usize..6, -6i64..7, -6i64..7), 1..4), skip in 0usize..3, mode in 0usize..4, dtype in any_dtype()
    ) {
        let mode = [PadMode::Constant(Scalar::Int(77)), PadMode::Reflect, PadMode::Replicate, PadMode::Circular][mode];
        let shape: Vec<usize> = dims.iter().map(|d| d.0).collect();
        let first = skip.min(dims.len() - 1);
        let margin = |size: usize, m: i64| match mode {
            PadMode::Reflect => m.min(size as i64 - 1),
            PadMode::Circular => m.min(size as i64),
            _ => m,
        };
        let margins: Vec<(i64, i64)> = dims[first..].iter().map(|d| (margin(d.0, d.1), margin(d.0, d.2))).collect();
        let x = counted(&shape, dtype);
        let negative = margins.iter().zip(&shape[first..]).any(|(m, &size)| size as i64 + m.0 + m.1 < 0);
        let padded_x = x.pad(&margins, mode);
        prop_assert_eq!(padded_x.is_err(), negative);
        let Ok(y) = padded_x else { return Ok(()) };
        check(&x, &y, 77, |d, i| padded(mode, shape[d], d.checked_sub(first).map_or(0, |k| margins[k].0), i));
        // The constant itself must not reach the gradient.
        let forward = if let PadMode::Constant(_) = mode { x.pad(&margins, PadMode::Constant(Scalar::Int(0))).unwrap() } else { y };
        check_adjoint(&x, &forward, |g| pad_grad(g, x.shape(), &margins, mode).unwrap());
        let meta = x.to_meta().pad(&margins, mode).unwrap();
        prop_assert!(meta.is_meta() && meta.shape() == forward.shape());
    }

    #[test]
    fn roll_and_flip_move_every_element(shape in any_shape(7), shifts in prop::collection::vec(-20i64..20, 3), dtype in any_dtype()) {
        let x = counted(&shape, dtype);
        let dims: Vec<i64> = (0..shape.len() as i64).collect();
        let rolled = x.roll(&shifts[..shape.len()], &dims).unwrap();
        check(&x, &rolled, 0, |d, i| Some((i as i64 - shifts[d]).rem_euclid(shape[d] as i64) as usize));
        let flat = x.roll(&shifts[..1], &[]).unwrap();
        let mut want = ints(&x);
        let turn = shifts[0].rem_euclid(want.len() as i64) as usize;
        want.rotate_right(turn);
        prop_assert_eq!(ints(&flat), want);
        let flipped: Vec<i64> = dims.iter().copied().filter(|d| shifts[*d as usize] > 0).collect();
        let y = x.flip(&flipped).unwrap();
        check(&x, &y, 0, |d, i| Some(if flipped.contains(&(d as i64)) { shape[d] - 1 - i } else { i }));
    }

    #[test]
    fn repeats_are_copies_of_the_source(shape in any_shape(5), times in prop::collection::vec(0usize..4, 0..5), dtype in any_dtype()) {
        let x = counted(&shape, dtype);
        let y = x.repeat(&times).unwrap();
        let long = [&vec![1; times.len().saturating_sub(shape.len())][..], &shape].concat();
        check(&x.reshape(&long).unwrap(), &y, 0, |d, i| Some(i % long[d]));
        if !shape.is_empty() {
            check_adjoint(&x, &y, |g| repeat_grad(g, x.shape(), &times).unwrap());
        }
        for (d, &size) in shape.iter().enumerate() {
            let counts: Vec<usize> = (0..size).map(|i| times.get(i).copied().unwrap_or(2)).collect();
            let from: Vec<usize> = (0..size).flat_map(|i| vec![i; counts[i]]).collect();
            let z = x.repeat_interleave(&counts, d as i64).unwrap();
            prop_assert_eq!(z.shape()[d], from.len());
            check(&x, &z, 0, |k, i| Some(if k == d { from[i] } else { i }));
            check_adjoint(&x, &z, |g| repeat_interleave_grad(g, x.shape(), &counts, d as i64).unwrap());
            let thrice = x.repeat_interleave(&[3], d as i64).unwrap();
            check(&x, &thrice, 0, |k, i| Some(if k == d { i / 3 } else { i }));
        }
    }
}

#[test]
fn large_copies_are_cut_among_threads_correctly() {
    let n = 300_000usize;
    let x = Array::arange(0, n, 1, DType::I32).unwrap();
    let want = |from: &dyn Fn(usize) -> usize| (0..n).map(|i| from(i) as i32).collect::<Vec<_>>();
    assert_eq!(x.flip(&[0]).unwrap().to_vec::<i32>().unwrap(), want(&|i| n - 1 - i));
    assert_eq!(x.roll(&[123_457], &[0]).unwrap().to_vec::<i32>().unwrap(), want(&|i| (i + n - 123_457) % n));
    let rows = x.reshape(&[3000, 100]).unwrap();
    let flipped = rows.flip(&[0]).unwrap().reshape(&[n]).unwrap();
    assert_eq!(flipped.to_vec::<i32>().unwrap(), want(&|i| (2999 - i / 100) * 100 + i % 100));
    let twice = rows.repeat_interleave(&[2], 0).unwrap().reshape(&[2 * n]).unwrap().to_vec::<i32>().unwrap();
    assert!(twice.iter().enumerate().all(|(i, &v)| v as usize == i / 200 * 100 + i % 100));
    let columns = rows.transpose(0, 1).unwrap();
    let joined = concat(&[&columns, &columns.flip(&[1]).unwrap()], 1).unwrap();
    let (shape, values) = (joined.shape().to_vec(), joined.to_vec::<i32>().unwrap());
    assert_eq!(shape, [100, 6000]);
    let source = |row: usize, c: usize| if c < 3000 { c * 100 + row } else { (5999 - c) * 100 + row };
    assert!(values.iter().enumerate().all(|(i, &v)| v as usize == source(i / 6000, i % 6000)));
}

#[test]
fn empty_and_scalar_arrays_go_through() {
    let empty = Array::zeros(&[2, 0, 3], DType::F32).unwrap();
    assert_eq!(concat(&[&empty, &empty], 1).unwrap().shape().dims(), [2, 0, 3]);
    assert_eq!(concat(&[&empty, &Array::ones(&[2, 4, 3], DType::F32).unwrap()], 1).unwrap().numel(), 24);
    assert_eq!(stack(&[&empty, &empty], -1).unwrap().shape().dims(), [2, 0, 3, 2]);
    assert_eq!(empty.split(5, 1).unwrap().len(), 1);
    assert_eq!(empty.chunk(4, 1).unwrap().len(), 4);
    assert_eq!(empty.unbind(1).unwrap().len(), 0);
    assert_eq!(empty.roll(&[3], &[1]).unwrap().shape(), empty.shape());
    assert_eq!(empty.flip(&[0, 1]).unwrap().shape(), empty.shape());
    assert_eq!(empty.repeat(&[2, 2, 2]).unwrap().shape().dims(), [4, 0, 6]);
    assert_eq!(repeat_grad(&empty, empty.shape(), &[]).unwrap().shape(), empty.shape());
    let filled = empty.pad(&[(1, 0), (0, 0)], PadMode::Constant(Scalar::Float(2.5))).unwrap();
    assert_eq!(filled.to_vec::<f32>().unwrap(), vec![2.5; 6]);
    let scalar = Array::scalar(5, DType::I32).unwrap();
    assert_eq!(scalar.roll(&[1], &[]).unwrap().ndim(), 0);
    assert_eq!(scalar.flip(&[]).unwrap().ndim(), 0);
    assert_eq!(scalar.pad(&[], PadMode::Reflect).unwrap().ndim(), 0);
    assert_eq!(scalar.repeat(&[2, 3]).unwrap().to_vec::<i32>().unwrap(), vec![5; 6]);
    assert_eq!(stack(&[&scalar, &scalar], 0).unwrap().to_vec::<i32>().unwrap(), [5, 5]);
}

#[test]
fn bad_input_is_named() {
    let (x, y) = (counted(&[2, 3], DType::F32), counted(&[2, 3], DType::F64));
    let says = |r: planaria_array::Result<Array>, text: &str| {
        let message = r.map(|a| a.shape().clone()).unwrap_err().to_string();
        assert!(message.contains(text), "{message}");
    };
    says(concat(&[], 0), "at least one array");
    says(concat(&[&x, &y], 0), "f32 and f64");
    says(concat(&[&x, &counted(&[3, 3], DType::F32)], 1), "[2,3] and [3,3]");
    says(concat(&[&x, &x.to_meta()], 1), "live on cpu and meta");
    says(concat(&[&x], 2), "dim 2");
    says(concat(&[&Array::scalar(1, DType::F32).unwrap()], 0), "0 dims");
    says(stack(&[&x, &counted(&[3, 2], DType::F32)], 0), "equal");
    says(x.pad(&[(0, 0); 3], PadMode::Reflect), "3 pairs");
    says(x.pad(&[(3, 0)], PadMode::Reflect), "below the size");
    says(x.pad(&[(0, 4)], PadMode::Circular), "at most the size");
    says(x.pad(&[(-2, -2)], PadMode::Replicate), "negative size");
    says(x.pad(&[(i64::MAX, i64::MAX)], PadMode::Constant(Scalar::Int(0))), "too many elements");
    says(x.pad(&[(i64::MIN, i64::MIN)], PadMode::Constant(Scalar::Int(0))), "negative size");
    let empty = Array::zeros(&[0], DType::F32).unwrap();
    says(empty.pad(&[(1, 0)], PadMode::Replicate), "at least one position");
    says(empty.pad(&[(1, 0)], PadMode::Reflect), "below the size");
    says(pad_grad(&x, x.shape(), &[(1, 1)], PadMode::Reflect), "result's shape");
    says(pad_grad(&counted(&[2, 3], DType::I32), x.shape(), &[], PadMode::Reflect), "dtype i32");
    says(x.roll(&[1, 2], &[0]), "2 shifts");
    says(x.flip(&[0, -2]), "twice");
    says(x.repeat(&[usize::MAX, 2]), "too many elements");
    says(x.repeat_interleave(&[1, 2], 1), "give 1 or 3");
    says(x.repeat_interleave(&[usize::MAX], 1), "too many elements");
    says(repeat_grad(&x, &Shape::new(&[3]).unwrap(), &[3]), "result's shape");
    assert!(x.split(0, 0).unwrap_err().to_string().contains("size 0"));
    assert!(x.split_sizes(&[1, usize::MAX, 2], 0).unwrap_err().to_string().contains("add up"));
    assert!(x.chunk(0, 0).is_err() && x.unbind(5).is_err());
}
