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
    /// `[a*b, c] -> [a, b*c]` and such.
    Reshape { parts: Vec<usize>, from: Vec<usize>, to: Vec<usize> },
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
        2 => (prop::collection::vec(1usize..7, 3), grouping.clone(), grouping)
            .prop_map(|(parts, from, to)| Op::Reshape { parts, from, to }),
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
            Op::Reshape { parts, to, .. } => grouped(parts, to),
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
        let mut rule = Rule::default();
        match self {
            Op::Einsum { inputs, output, extents } => {
                let kind = |i| {
                    if output.chars().any(|c| letter(c) == i) {
                        Kind::Free
                    } else {
                        Kind::Reduce(Reduce::Sum)
                    }
                };
                extents.iter().enumerate().for_each(|(i, &n)| {
                    rule.factor(n, kind(i), Cuts::Any);
                });
                let dims = |text: &str| text.chars().map(|c| Some(letter(c))).collect::<Vec<_>>();
                inputs.iter().for_each(|text| rule.input(&dims(text)));
                rule.output(&dims(output));
                (0..inputs.len()).for_each(|i| rule.pass(&[i], LINEAR));
            }
            Op::Add { x, y } | Op::Max { x, y } => {
                let factors: Vec<_> = x.iter().map(|&n| rule.free(n)).collect();
                let broadcast = |y: &[usize]| -> Vec<_> {
                    y.iter().zip(x).zip(&factors).map(|((a, b), &f)| (a == b).then_some(f)).collect()
                };
                rule.input(&broadcast(x));
                rule.input(&broadcast(y));
                rule.output(&broadcast(x));
                rule.pass(&[0, 1], if matches!(self, Op::Add { .. }) { LINEAR } else { &[Reduce::Max] });
            }
            Op::Reduction { shape, dim, reduce } => {
                let factors: Vec<_> = shape.iter().map(|&n| Some(rule.free(n))).collect();
                rule.factors[*dim].kind = Kind::Reduce(*reduce);
                rule.input(&factors);
                let mut kept = factors;
                kept.remove(*dim);
                rule.output(&kept);
                let at = Reduce::EVERY.iter().position(|r| r == reduce).unwrap();
                rule.pass(&[0], if at < 2 { LINEAR } else { &Reduce::EVERY[at..=at] });
            }
            Op::Cumsum { shape, dim } => {
                let mut factors: Vec<_> = shape.iter().map(|&n| Some(rule.free(n))).collect();
                factors[*dim] = None;
                rule.input(&factors);
                rule.output(&factors);
                rule.pass(&[0], LINEAR);
            }
            Op::Reshape { parts, from, to } => {
                parts.iter().for_each(|&n| {
                    rule.free(n);
                });
                rule.inputs.push(composed(from));
                rule.outputs.push(composed(to));
                rule.pass(&[0], &Reduce::EVERY);
            }
            Op::Concat { shape, dim } => {
                let factors: Vec<_> = shape.iter().map(|&n| Some(rule.free(n))).collect();
                let two = rule.free(2);
                rule.input(&factors);
                rule.input(&factors);
                rule.output(&factors);
                rule.outputs[0][*dim].insert(0, two);
                rule.pass(&[0, 1], &Reduce::EVERY);
            }
            Op::Linear { m, k, n } => {
                let (m, k, n) = (rule.free(*m), rule.reduced(*k, Reduce::Sum), rule.free(*n));
                rule.input(&[Some(m), Some(k)]);
                rule.input(&[Some(k), Some(n)]);
                rule.input(&[Some(n)]);
                rule.output(&[Some(m), Some(n)]);
                rule.count_once(k, 2);
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
            Op::Einsum { inputs: texts, output, .. } => einsum(texts, output, inputs, out),
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

/// Neighbouring factors, so many per dim.
fn composed(groups: &[usize]) -> Vec<DimFactors> {
    let mut next = 0;
    let take = |&n: &usize| {
        next += n;
        (next - n..next).collect()
    };
    groups.iter().map(take).collect()
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

fn einsum(texts: &[&str], output: &str, inputs: &[Nd], out: &Shape) -> Nd {
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
