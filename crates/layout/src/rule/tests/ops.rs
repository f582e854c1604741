//! Small ops with their rules, evaluated plainly.

use super::super::*;
use crate::Shape;
use proptest::prelude::*;

/// A dense tensor.
#[derive(Clone, Debug)]
pub(super) struct Nd {
    pub(super) shape: Shape,
    pub(super) data: Vec<f64>,
}

impl Nd {
    pub(super) fn new(shape: &Shape, data: Vec<f64>) -> Nd {
        assert_eq!(shape.numel(), data.len());
        Nd { shape: shape.clone(), data }
    }

    /// The element at an index, size-1 dims standing for every index.
    fn at(&self, index: &[usize]) -> f64 {
        let dims = self.shape.iter().zip(index);
        self.data[dims.fold(0, |at, (&n, &i)| at * n + if n == 1 { 0 } else { i })]
    }

    fn make(shape: &Shape, mut value: impl FnMut(&[usize]) -> f64) -> Nd {
        let mut data = Vec::with_capacity(shape.numel());
        crate::layout::each_index(shape, |index| data.push(value(index)));
        Nd::new(shape, data)
    }
}

/// An op of the tests.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// Products of the inputs, summed over what the output lacks; extents per letter.
    Einsum { inputs: Vec<&'static str>, output: &'static str, extents: Vec<usize> },
    /// `x + y`, sizes of 1 broadcast.
    Add { x: Vec<usize>, y: Vec<usize> },
    /// `max(x, y)`.
    Max { x: Vec<usize>, y: Vec<usize> },
    /// Over one dim.
    Reduction { shape: Vec<usize>, dim: usize, reduce: Reduce },
    /// `[a*b, c] -> [a, b*c]` and such, also back to front.
    Reshape { parts: Vec<usize>, from: Vec<usize>, to: Vec<usize>, turned: bool },
    /// Running sums along a dim.
    Cumsum { shape: Vec<usize>, dim: usize },
    /// Two alike, side by side.
    Concat { shape: Vec<usize>, dim: usize },
    /// `x @ w + bias`.
    Linear { m: usize, k: usize, n: usize },
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let extents = || prop::collection::vec(1usize..9, 4);
    let einsums = prop::sample::select(vec![
        (vec!["ab", "bc"], "ac"),
        (vec!["abc", "acd"], "abd"),
        (vec!["ab", "ab"], ""),
        (vec!["ab", "b"], "a"),
        (vec!["a", "b"], "ab"),
        (vec!["abc", "cd", "bd"], "ad"),
        (vec!["ab"], "ba"),
        (vec!["aab"], "b"),
    ]);
    let two = || (1usize..9, 1usize..9, 0usize..6);
    let pairs = |(a, b, cut): (usize, usize, usize)| {
        let y = [vec![a, b], vec![1, b], vec![a, 1], vec![a, b], vec![a, b], vec![1, 1]][cut].clone();
        (vec![a, b], y)
    };
    let grouping = prop::sample::select(vec![vec![1, 2], vec![2, 1], vec![1, 1, 1], vec![3]]);
    let dim = || (prop::collection::vec(0usize..9, 1..4), any::<prop::sample::Index>());
    prop_oneof![
        4 => (einsums, extents()).prop_map(|((inputs, output), extents)| Op::Einsum { inputs, output, extents }),
        2 => two().prop_map(pairs).prop_map(|(x, y)| Op::Add { x, y }),
        1 => two().prop_map(pairs).prop_map(|(x, y)| Op::Max { x, y }),
        2 => (dim(), 0usize..5).prop_filter_map("extremes of nothing", |((shape, dim), r)| {
            let (dim, reduce) = (dim.index(shape.len()), Reduce::EVERY[r]);
            (!shape.contains(&0)).then_some(Op::Reduction { shape, dim, reduce })
        }),
        2 => (prop::collection::vec(1usize..7, 3), grouping.clone(), grouping, any::<bool>())
            .prop_map(|(parts, from, to, turned)| Op::Reshape { parts, from, to, turned }),
        1 => dim().prop_map(|(shape, dim)| Op::Cumsum { dim: dim.index(shape.len()), shape }),
        1 => dim().prop_map(|(shape, dim)| Op::Concat { dim: dim.index(shape.len()), shape }),
        1 => (1usize..7, 1usize..7, 1usize..7).prop_map(|(m, k, n)| Op::Linear { m, k, n }),
    ]
}

fn letter(c: char) -> usize {
    c as usize - 'a' as usize
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

/// Products of neighbouring parts.
fn grouped(parts: &[usize], groups: &[usize]) -> Vec<usize> {
    let mut rest = parts;
    let take = |&n: &usize| {
        let (head, tail) = rest.split_at(n);
        rest = tail;
        head.iter().product()
    };
    groups.iter().map(take).collect()
}

impl Op {
    /// The same with every extent so many times as long.
    pub(super) fn times(mut self, times: usize) -> Op {
        let grow = |list: &mut Vec<usize>| list.iter_mut().for_each(|n| *n *= times);
        match &mut self {
            Op::Einsum { extents, .. } => grow(extents),
            Op::Add { x, y } | Op::Max { x, y } => {
                // Dims of 1, which are repeated, would not divide.
                grow(x);
                y.clone_from(x);
            }
            Op::Reduction { shape, .. } | Op::Cumsum { shape, .. } | Op::Concat { shape, .. } => grow(shape),
            Op::Reshape { parts, .. } => grow(parts),
            Op::Linear { m, k, n } => [m, k, n].into_iter().for_each(|n| *n *= times),
        }
        self
    }

    pub(super) fn inputs(&self) -> Vec<Shape> {
        match self {
            Op::Einsum { inputs, extents, .. } => {
                let dims = |text: &&str| text.chars().map(|c| extents[letter(c)]).collect::<Vec<_>>();
                inputs.iter().map(|text| shape(&dims(text))).collect()
            }
            Op::Add { x, y } | Op::Max { x, y } => vec![shape(x), shape(y)],
            Op::Reduction { shape: s, .. } | Op::Cumsum { shape: s, .. } => vec![shape(s)],
            Op::Reshape { parts, from, .. } => vec![shape(&grouped(parts, from))],
            Op::Concat { shape: s, .. } => vec![shape(s), shape(s)],
            Op::Linear { m, k, n } => vec![shape(&[*m, *k]), shape(&[*k, *n]), shape(&[*n])],
        }
    }

    pub(super) fn outputs(&self) -> Vec<Shape> {
        let one = match self {
            Op::Einsum { output, extents, .. } => output.chars().map(|c| extents[letter(c)]).collect(),
            Op::Add { x, .. } | Op::Max { x, .. } => x.clone(),
            Op::Reduction { shape, dim, .. } => {
                let mut dims = shape.clone();
                dims.remove(*dim);
                dims
            }
            Op::Cumsum { shape, .. } => shape.clone(),
            Op::Reshape { parts, to, turned, .. } => {
                let parts = if *turned { parts.iter().rev().copied().collect() } else { parts.clone() };
                grouped(&parts, to)
            }
            Op::Concat { shape, dim } => {
                let mut dims = shape.clone();
                dims[*dim] *= 2;
                dims
            }
            Op::Linear { m, n, .. } => vec![*m, *n],
        };
        vec![shape(&one)]
    }

    pub(super) fn rule(&self) -> Rule {
        let (inputs, outputs) = (self.inputs(), self.outputs());
        let shapes: Vec<&Shape> = inputs.iter().collect();
        let out = &outputs[0];
        let mut rule = match self {
            Op::Einsum { inputs, output, .. } => by_letters(inputs, output, &shapes),
            Op::Add { .. } | Op::Max { .. } => elementwise(&shapes, out),
            Op::Reduction { dim, reduce, .. } => reduction(shapes[0], &[*dim], out, *reduce),
            Op::Cumsum { dim, .. } => along(&shapes, &[out], &[*dim]),
            Op::Reshape { .. } => reshape(shapes[0], out),
            Op::Concat { dim, .. } => concat(&shapes, out, *dim),
            Op::Linear { .. } => {
                let mut rule = by_letters(&["ab", "bc", "c"], "ac", &shapes);
                rule.count_once(1, 2);
                rule
            }
        };
        match self {
            Op::Einsum { inputs, .. } => (0..inputs.len()).for_each(|i| rule.pass(&[i], LINEAR)),
            Op::Add { .. } => rule.pass(&[0, 1], LINEAR),
            Op::Max { .. } => rule.pass(&[0, 1], &[Reduce::Max]),
            Op::Cumsum { .. } => rule.pass(&[0], LINEAR),
            Op::Reshape { .. } => rule.pass(&[0], &Reduce::EVERY),
            Op::Concat { .. } => rule.pass(&[0, 1], &Reduce::EVERY),
            Op::Reduction { reduce, .. } => match Reduce::EVERY.iter().position(|r| r == reduce) {
                Some(at) if at > 1 => rule.pass(&[0], &Reduce::EVERY[at..=at]),
                _ => rule.pass(&[0], LINEAR),
            },
            Op::Linear { .. } => {
                rule.pass(&[0, 2], LINEAR);
                rule.pass(&[1, 2], LINEAR);
            }
        }
        rule
    }

    /// The results of these sizes, from inputs that may be pieces.
    pub(super) fn run(&self, inputs: &[Nd], outputs: &[Shape]) -> Vec<Nd> {
        let out = &outputs[0];
        let (x, y) = (&inputs[0], inputs.get(1).unwrap_or(&inputs[0]));
        vec![match self {
            Op::Einsum { inputs: texts, output, .. } => products(texts, output, inputs, out),
            Op::Add { .. } => Nd::make(out, |i| x.at(i) + y.at(i)),
            Op::Max { .. } => Nd::make(out, |i| x.at(i).max(y.at(i))),
            Op::Reduction { dim, reduce, .. } => Nd::make(out, |i| reduced(x, i, *dim, *reduce)),
            Op::Cumsum { dim, .. } => Nd::make(out, |i| {
                let mut at = i.to_vec();
                (0..=i[*dim])
                    .map(|j| {
                        at[*dim] = j;
                        x.at(&at)
                    })
                    .sum()
            }),
            Op::Reshape { .. } => Nd::new(out, x.data.clone()),
            Op::Concat { dim, .. } => Nd::make(out, |i| {
                let mut at = i.to_vec();
                let n = x.shape[*dim];
                at[*dim] = i[*dim] % n;
                if i[*dim] < n { x.at(&at) } else { y.at(&at) }
            }),
            Op::Linear { .. } => Nd::make(out, |i| {
                let products = (0..x.shape[1]).map(|k| x.at(&[i[0], k]) * y.at(&[k, i[1]]));
                products.sum::<f64>() + inputs[2].at(&[i[1]])
            }),
        }]
    }
}

/// One letter per dim; what the output lacks is summed. Factors are in the order of their first mention.
fn by_letters(inputs: &[&str], output: &str, shapes: &[&Shape]) -> Rule {
    let mut rule = Rule::default();
    let mut letters: Vec<char> = Vec::new();
    for (text, shape) in inputs.iter().zip(shapes) {
        for (c, &n) in text.chars().zip(shape.iter()) {
            if !letters.contains(&c) {
                letters.push(c);
                let kind =
                    if output.contains(c) { FactorKind::Free } else { FactorKind::Reduce(Reduce::Sum) };
                rule.factor(n, kind, Cuts::Any);
            }
        }
    }
    let dims = |text: &str| -> Vec<Option<FactorId>> {
        text.chars().map(|c| letters.iter().position(|&known| known == c)).collect()
    };
    inputs.iter().for_each(|text| rule.input(&dims(text)));
    rule.output(&dims(output));
    rule
}

fn reduced(x: &Nd, index: &[usize], dim: usize, reduce: Reduce) -> f64 {
    let mut at = index.to_vec();
    at.insert(dim, 0);
    let n = x.shape[dim];
    let values = (0..n).map(|j| {
        at[dim] = j;
        x.at(&at)
    });
    match reduce {
        Reduce::Sum => values.sum(),
        Reduce::Avg => values.sum::<f64>() / n as f64,
        Reduce::Max => values.reduce(f64::max).expect("not empty"),
        Reduce::Min => values.reduce(f64::min).expect("not empty"),
        _ => values.product(),
    }
}

fn products(texts: &[&str], output: &str, inputs: &[Nd], out: &Shape) -> Nd {
    let mut extents = [1usize; 4];
    for (text, input) in texts.iter().zip(inputs) {
        text.chars().zip(input.shape.iter()).for_each(|(c, &n)| extents[letter(c)] = n);
    }
    let product = |index: &[usize]| -> f64 {
        let one = |(text, input): (&&str, &Nd)| {
            let at: Vec<usize> = text.chars().map(|c| index[letter(c)]).collect();
            input.data[at.iter().zip(input.shape.iter()).fold(0, |o, (&i, &n)| o * n + i)]
        };
        texts.iter().zip(inputs).map(one).product()
    };
    let mut data = vec![0.0; out.numel()];
    crate::layout::each_index(&extents, |index| {
        let at = output.chars().zip(out.iter()).fold(0, |o, (c, &n)| o * n + index[letter(c)]);
        data[at] += product(index);
    });
    Nd::new(out, data)
}
