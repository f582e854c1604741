//! A slow reading of index expressions, one coordinate at a time, random expressions, and random calls.

use planaria_array::ops::{self, OwnValue, Put, ScatterReduce};
use planaria_array::{Array, DType, Index};

/// A small generator, so that failures repeat.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % n.max(1) as u64) as usize
    }

    fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as usize) as i64
    }
}

/// One entry of an expression, in plain data.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Int(i64),
    Slice(Option<i64>, Option<i64>, i64),
    New,
    Dots,
    Flag(bool),
    Mask(Vec<usize>, Vec<bool>),
    Take(Vec<usize>, Vec<i64>),
}

/// A shape and an expression that fits it.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) shape: Vec<usize>,
    pub(crate) items: Vec<Item>,
}

impl Item {
    fn index(&self) -> Index {
        match self {
            Item::Int(i) => Index::Int(*i),
            Item::Slice(start, stop, step) => Index::slice(*start, *stop, Some(*step)),
            Item::New => Index::NewAxis,
            Item::Dots => Index::Ellipsis,
            Item::Flag(keep) => Index::Bool(*keep),
            Item::Mask(shape, bits) => {
                let bits: Vec<i64> = bits.iter().map(|&b| i64::from(b)).collect();
                Array::from_slice(&bits, shape).unwrap().cast(DType::Bool).unwrap().into()
            }
            Item::Take(shape, values) => Array::from_slice(values, shape).unwrap().into(),
        }
    }
}

impl Case {
    pub(crate) fn expression(&self) -> Vec<Index> {
        self.items.iter().map(Item::index).collect()
    }

    /// No masks and no index arrays: the result is a view.
    pub(crate) fn is_basic(&self) -> bool {
        self.items.iter().all(|item| match item {
            Item::Flag(_) | Item::Mask(..) => false,
            Item::Take(shape, _) => shape.is_empty(),
            _ => true,
        })
    }

    pub(crate) fn random(rng: &mut Rng) -> Case {
        let ndim = 1 + rng.below(4);
        let shape: Vec<usize> =
            (0..ndim).map(|_| if rng.below(12) == 0 { 0 } else { 1 + rng.below(4) }).collect();
        let mut items = Vec::new();
        // Index arrays broadcast to [outer, count]; a mask decides the count.
        let (outer, mut count) = (1 + rng.below(2), rng.below(4));
        let (mut d, mut masked) = (0, false);
        let mut pending = Vec::new();
        while d < ndim {
            match rng.below(12) {
                0 => items.push(Item::New),
                1 => items.push(Item::Flag(true)),
                2 if rng.below(3) == 0 => break,
                3 | 4 if shape[d] > 0 => {
                    items.push(Item::Int(rng.between(-(shape[d] as i64), shape[d] as i64 - 1)));
                    d += 1;
                }
                5 if !masked => {
                    let dims = shape[d..d + 1 + rng.below(ndim - d)].to_vec();
                    let bits: Vec<bool> =
                        (0..dims.iter().product::<usize>()).map(|_| rng.below(2) == 0).collect();
                    (count, masked) = (bits.iter().filter(|&&b| b).count(), true);
                    d += dims.len();
                    items.push(Item::Mask(dims, bits));
                }
                6..=8 if shape[d] > 0 => {
                    pending.push((items.len(), shape[d]));
                    items.push(Item::New);
                    d += 1;
                }
                _ => {
                    let mut bound = || (rng.below(3) > 0).then(|| rng.between(-6, 6));
                    let (start, stop) = (bound(), bound());
                    let step = 1 + rng.below(3) as i64;
                    items.push(Item::Slice(start, stop, if rng.below(3) == 0 { -step } else { step }));
                    d += 1;
                }
            }
        }
        if d < ndim || rng.below(4) == 0 {
            items.push(Item::Dots);
        }
        for (at, size) in pending {
            items[at] = random_take(rng, size, outer, count);
        }
        Case { shape, items }
    }
}

fn random_take(rng: &mut Rng, size: usize, outer: usize, count: usize) -> Item {
    let shape = match rng.below(5) {
        0 => vec![],
        1 => vec![1],
        2 => vec![outer, 1],
        3 => vec![outer, count],
        _ => vec![count],
    };
    let values = (0..shape.iter().product::<usize>()).map(|_| rng.between(-(size as i64), size as i64 - 1));
    Item::Take(shape.clone(), values.collect())
}

/// What one axis of the indexed view stands for.
enum Axis {
    Range {
        dim: usize,
        start: i64,
        step: i64,
        len: usize,
    },
    New,
    /// Chosen by the index arrays.
    Picked,
}

/// An index array: its shape, and for each element the source positions it fixes.
struct Picks {
    shape: Vec<usize>,
    fixes: Vec<Vec<(usize, i64)>>,
}

fn unravel(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut coord = vec![0; shape.len()];
    for d in (0..shape.len()).rev() {
        coord[d] = i % shape[d];
        i /= shape[d];
    }
    coord
}

fn wrap(i: i64, size: usize) -> i64 {
    if i < 0 { i + size as i64 } else { i }
}

/// What `list(range(size))[start:stop:step]` begins with, and its length, by walking the list.
fn python_slice(start: Option<i64>, stop: Option<i64>, step: i64, size: usize) -> (i64, usize) {
    let size = size as i64;
    let from_start = |bound: i64| if bound < 0 { bound + size } else { bound };
    let taken = (0..size).filter(|&at| match step > 0 {
        true => {
            let first = from_start(start.unwrap_or(0)).max(0);
            at >= first && at < from_start(stop.unwrap_or(size)) && (at - first) % step == 0
        }
        false => {
            let first = start.map_or(size - 1, from_start).min(size - 1);
            at <= first && stop.is_none_or(|stop| at > from_start(stop)) && (first - at) % step == 0
        }
    });
    let taken: Vec<i64> = taken.collect();
    let first = if step > 0 { taken.first() } else { taken.last() };
    (first.copied().unwrap_or(0), taken.len())
}

/// Axes of the view, fixed source positions, and index arrays.
fn read_items(case: &Case) -> (Vec<Axis>, Vec<(usize, i64)>, Vec<Picks>) {
    let shape = &case.shape;
    let used: usize = case
        .items
        .iter()
        .map(|item| match item {
            Item::Mask(dims, _) => dims.len(),
            Item::Int(_) | Item::Slice(..) | Item::Take(..) => 1,
            _ => 0,
        })
        .sum();
    let (mut axes, mut fixed, mut picks, mut d) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let whole = |dim: usize| Axis::Range { dim, start: 0, step: 1, len: shape[dim] };
    for item in &case.items {
        match item {
            Item::Int(i) => fixed.push((d, wrap(*i, shape[d]))),
            Item::Take(dims, values) if dims.is_empty() => fixed.push((d, wrap(values[0], shape[d]))),
            Item::Slice(start, stop, step) => {
                let (start, len) = python_slice(*start, *stop, *step, shape[d]);
                axes.push(Axis::Range { dim: d, start, step: *step, len });
            }
            Item::New => axes.push(Axis::New),
            Item::Dots => axes.extend((d..d + shape.len() - used).map(whole)),
            Item::Flag(keep) => {
                axes.push(Axis::Picked);
                let fixes = if *keep { vec![vec![]] } else { vec![] };
                picks.push(Picks { shape: vec![usize::from(*keep)], fixes });
            }
            Item::Mask(dims, bits) => {
                axes.push(Axis::Picked);
                let kept = (0..bits.len()).filter(|&i| bits[i]);
                let fixes: Vec<Vec<(usize, i64)>> = kept
                    .map(|i| unravel(i, dims).iter().enumerate().map(|(k, &c)| (d + k, c as i64)).collect())
                    .collect();
                picks.push(Picks { shape: vec![fixes.len()], fixes });
            }
            Item::Take(dims, values) => {
                axes.push(Axis::Picked);
                let fixes = values.iter().map(|&v| vec![(d, wrap(v, shape[d]))]).collect();
                picks.push(Picks { shape: dims.clone(), fixes });
            }
        }
        d += match item {
            Item::Int(_) | Item::Slice(..) | Item::Take(..) => 1,
            Item::Mask(dims, _) => dims.len(),
            Item::Dots => shape.len() - used,
            _ => 0,
        };
    }
    axes.extend((d..shape.len()).map(whole));
    (axes, fixed, picks)
}

/// The shape of `x[...]` and the row-major position in x of each of its elements.
pub(crate) fn reference_positions(case: &Case) -> (Vec<usize>, Vec<i64>) {
    let (axes, fixed, picks) = read_items(case);
    let width = picks.iter().map(|p| p.shape.len()).max().unwrap_or(0);
    let mut common = vec![1; width];
    for p in &picks {
        for (k, &n) in p.shape.iter().rev().enumerate() {
            if n != 1 {
                common[width - 1 - k] = n;
            }
        }
    }
    // The picked dims go where the arrays stand, or in front when a dim separates them.
    let places: Vec<usize> = (0..axes.len()).filter(|&i| matches!(axes[i], Axis::Picked)).collect();
    let adjacent = places.windows(2).all(|w| w[1] == w[0] + 1);
    let first = if adjacent { places.first().copied().unwrap_or(0) } else { 0 };
    let plain: Vec<usize> = (0..axes.len()).filter(|i| !places.contains(i)).collect();
    let len = |i: usize| if let Axis::Range { len, .. } = axes[i] { len } else { 1 };
    let split = plain.iter().filter(|&&i| i < first).count();
    let mut shape: Vec<usize> = plain[..split].iter().map(|&i| len(i)).collect();
    shape.extend(&common);
    shape.extend(plain[split..].iter().map(|&i| len(i)));
    let positions = (0..shape.iter().product::<usize>()).map(|i| {
        let coord = unravel(i, &shape);
        let mut source = vec![0; case.shape.len()];
        fixed.iter().for_each(|&(d, at)| source[d] = at);
        for (k, &axis) in plain.iter().enumerate() {
            let c = coord[if k < split { k } else { k + width }] as i64;
            if let Axis::Range { dim, start, step, .. } = axes[axis] {
                source[dim] = start + step * c;
            }
        }
        for p in &picks {
            let at = p.shape.iter().enumerate().fold(0, |at, (k, &n)| {
                let c = coord[split + width - p.shape.len() + k];
                at * n + if n == 1 { 0 } else { c }
            });
            p.fixes[at].iter().for_each(|&(d, position)| source[d] = position);
        }
        source.iter().zip(&case.shape).fold(0, |at, (&c, &n)| at * n as i64 + c)
    });
    let positions = positions.collect();
    (shape, positions)
}

fn random_array(rng: &mut Rng, dtype: DType) -> Array {
    let ndim = rng.below(4);
    let shape: Vec<usize> = (0..ndim).map(|_| rng.below(4)).collect();
    let values: Vec<i64> = (0..shape.iter().product::<usize>()).map(|_| rng.between(-3, 4)).collect();
    let array = Array::from_slice(&values, &shape).unwrap().cast(dtype).unwrap();
    match rng.below(4) {
        0 if ndim > 0 => array.slice(0, Some(rng.between(-4, 4)), None, 1 + rng.below(2) as i64).unwrap(),
        1 => array.transpose(0, -1).unwrap(),
        2 if ndim > 0 && shape[0] == 1 => {
            let wide: Vec<usize> = [3].iter().chain(&shape[1..]).copied().collect();
            array.broadcast_to(&wide).unwrap()
        }
        _ => array,
    }
}

fn random_dtype(rng: &mut Rng) -> DType {
    DType::ALL[rng.below(DType::ALL.len())]
}

fn random_index(rng: &mut Rng) -> Index {
    let mut extreme = || match rng.below(6) {
        0 => i64::MIN,
        1 => i64::MAX,
        _ => rng.between(-4, 4),
    };
    let (a, b, c) = (extreme(), extreme(), extreme());
    match rng.below(9) {
        0 => Index::Int(a),
        1 => Index::slice(Some(a), Some(b), Some(c)),
        2 => Index::slice((a > 0).then_some(a), None, (b > 0).then_some(c)),
        3 => Index::NewAxis,
        4 => Index::Ellipsis,
        5 => Index::Bool(a > 0),
        6 => Index::Mask(random_array(rng, DType::Bool)),
        7 => {
            let dtype = random_dtype(rng);
            Index::Mask(random_array(rng, dtype))
        }
        _ => {
            let dtype = if rng.below(4) == 0 { random_dtype(rng) } else { DType::I64 };
            Index::Take(random_array(rng, dtype))
        }
    }
}

/// One call with arguments that may or may not fit; only panics count.
pub(crate) fn fuzz_once(rng: &mut Rng) {
    let dtype = random_dtype(rng);
    let x = random_array(rng, dtype);
    let value = random_array(rng, dtype);
    let kind = if rng.below(8) == 0 { random_dtype(rng) } else { DType::I64 };
    let index = random_array(rng, kind);
    let mask = random_array(rng, DType::Bool);
    let expression: Vec<Index> = (0..rng.below(5)).map(|_| random_index(rng)).collect();
    let arrays: Vec<Option<Array>> = expression
        .iter()
        .map(|i| if let Index::Take(a) | Index::Mask(a) = i { Some(a.clone()) } else { None })
        .collect();
    let dim = rng.between(-4, 3);
    let put = if rng.below(2) == 0 { Put::Replace } else { Put::Accumulate };
    let own = if rng.below(2) == 0 { OwnValue::Include } else { OwnValue::Exclude };
    let reduction = [
        ScatterReduce::Sum,
        ScatterReduce::Prod,
        ScatterReduce::Mean,
        ScatterReduce::Max,
        ScatterReduce::Min,
    ][rng.below(5)];
    let shape = value.shape().to_vec();
    match rng.below(20) {
        0 => drop(x.get(&expression)),
        1 => drop(x.set(&expression, &value)),
        2 => drop(x.set_scalar(&expression, -1)),
        3 => drop(x.index_put(&arrays, &value, put)),
        4 => drop(x.index_put_assign(&arrays, &value, put)),
        5 => drop(x.masked_select(&mask)),
        6 => drop(x.masked_fill(&mask, 2.5)),
        7 => drop(x.masked_scatter(&mask, &value)),
        8 => drop(x.masked_scatter_assign(&mask, &value)),
        9 => drop(x.gather(dim, &index)),
        10 => drop(x.scatter(dim, &index, &value)),
        11 => drop(x.scatter_add_assign(dim, &index, &value)),
        12 => drop(x.scatter_reduce(dim, &index, &value, reduction, own)),
        13 => drop(x.index_select(dim, &index)),
        14 => drop(x.index_add(dim, &index, &value)),
        15 => drop(x.index_copy_assign(dim, &index, &value)),
        16 => drop(x.index_fill_assign(dim, &index, true)),
        17 => drop(x.take_along_dim(&index, dim).and_then(|_| x.put_along_dim(&index, &value, dim))),
        18 => {
            drop((ops::get_grad(&value, &expression, &shape), ops::set_value_grad(&x, &expression, &shape)))
        }
        _ => drop((x.nonzero(), ops::index_put_value_grad(&x, &arrays, &shape), ops::sum_to(&x, &shape))),
    }
}
