//! A whole training step: 4-layer pre-norm transformer, d=256, 4 heads, ff=1024, vocabulary 4096, batch 8 x 128.
//! The attention is written out, as on the peers' side, so that every library runs the same graph.

use super::{Built, Run};
use crate::inputs::{integers, normal};
use planaria_array::ops::{AdamW, AdamWArrays};
use planaria_array::{Array, DType, Error as ArrayError};
use planaria_tensor::ops::{CrossEntropyOptions, cross_entropy, embedding, layer_norm, linear};
use planaria_tensor::{Error, Result, Tensor, no_grad};

const VOCABULARY: usize = 4096;
const WIDTH: usize = 256;
const HEADS: usize = 4;
const LAYERS: usize = 4;
const INNER: usize = 1024;
const BATCH: usize = 8;
const LENGTH: usize = 128;
const EPS: f64 = 1e-5;

pub(super) fn build(case: &str) -> Built {
    let (model, ids, labels) = match case {
        "train_step" | "train_fwd" => inputs().map_err(as_array_error)?,
        _ => return Ok(None),
    };
    let run: Run = if case == "train_fwd" {
        Box::new(move || {
            let loss = no_grad(|| model.loss(&ids, &labels)).map_err(as_array_error)?;
            Ok(vec![loss.local().clone()])
        })
    } else {
        let mut trainer = Trainer::new(model)?;
        Box::new(move || Ok(vec![trainer.step(&ids, &labels).map_err(as_array_error)?]))
    };
    Ok(Some(run))
}

fn as_array_error(error: Error) -> ArrayError {
    match error {
        Error::Array(error) => error,
        other => ArrayError::Argument { op: "train", what: other.to_string() },
    }
}

/// A weight and a bias.
struct Pair(Tensor, Tensor);

struct Block {
    norms: [Pair; 2],
    qkv: Pair,
    out: Pair,
    up: Pair,
    down: Pair,
}

struct Model {
    tokens: Tensor,
    positions: Tensor,
    blocks: Vec<Block>,
    norm: Pair,
    head: Tensor,
    bias: Tensor,
}

/// Makes parameters one after the other.
struct Make(u32);

impl Make {
    fn normal(&mut self, shape: &[usize], scale: f64) -> Result<Tensor> {
        self.0 += 1;
        let values = normal(self.0, shape)?.mul(&Array::scalar(scale, DType::F32)?)?;
        Ok(Tensor::new(values).requires_grad())
    }

    fn constant(value: f64, len: usize) -> Result<Tensor> {
        Ok(Tensor::new(Array::full(&[len], value, DType::F32)?).requires_grad())
    }

    fn linear(&mut self, from: usize, to: usize) -> Result<Pair> {
        Ok(Pair(self.normal(&[to, from], 1.0 / (from as f64).sqrt())?, Make::constant(0.0, to)?))
    }

    fn norm() -> Result<Pair> {
        Ok(Pair(Make::constant(1.0, WIDTH)?, Make::constant(0.0, WIDTH)?))
    }
}

fn inputs() -> Result<(Model, Tensor, Tensor)> {
    let make = &mut Make(0);
    let block = |make: &mut Make| {
        Ok(Block {
            norms: [Make::norm()?, Make::norm()?],
            qkv: make.linear(WIDTH, 3 * WIDTH)?,
            out: make.linear(WIDTH, WIDTH)?,
            up: make.linear(WIDTH, INNER)?,
            down: make.linear(INNER, WIDTH)?,
        })
    };
    let model = Model {
        tokens: make.normal(&[VOCABULARY, WIDTH], 1.0)?,
        positions: make.normal(&[LENGTH, WIDTH], 0.02)?,
        blocks: (0..LAYERS).map(|_| block(make)).collect::<Result<_>>()?,
        norm: Make::norm()?,
        head: make.normal(&[VOCABULARY, WIDTH], 1.0 / 16.0)?,
        bias: Tensor::new(Array::full(&[LENGTH, LENGTH], f64::NEG_INFINITY, DType::F32)?.triu(1)?),
    };
    let ids = || -> Result<Tensor> { Ok(Tensor::new(integers(500, VOCABULARY as u32, &[BATCH, LENGTH])?)) };
    Ok((model, ids()?, ids()?))
}

fn normed(x: &Tensor, Pair(weight, bias): &Pair) -> Result<Tensor> {
    layer_norm(x, &[WIDTH], Some(weight), Some(bias), EPS)
}

fn affine(x: &Tensor, Pair(weight, bias): &Pair) -> Result<Tensor> {
    linear(x, weight, Some(bias))
}

impl Block {
    fn forward(&self, x: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let head = WIDTH / HEADS;
        let qkv = affine(&normed(x, &self.norms[0])?, &self.qkv)?;
        let qkv = qkv.reshape(&[BATCH, LENGTH, 3, HEADS, head])?.permute(&[2, 0, 3, 1, 4])?;
        let (q, k, v) = (qkv.select(0, 0)?, qkv.select(0, 1)?, qkv.select(0, 2)?);
        let scores = q.matmul(&k.transpose(-1, -2)?)?.mul_scalar((head as f64).powf(-0.5))?.add(bias)?;
        let mixed = scores.softmax(-1)?.matmul(&v)?.transpose(1, 2)?.reshape(&[BATCH, LENGTH, WIDTH])?;
        let x = x.add(&affine(&mixed, &self.out)?)?;
        let inner = affine(&normed(&x, &self.norms[1])?, &self.up)?.gelu_tanh()?;
        x.add(&affine(&inner, &self.down)?)
    }
}

impl Model {
    fn loss(&self, ids: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let mut x = embedding(&self.tokens, ids, None)?.add(&self.positions)?;
        for block in &self.blocks {
            x = block.forward(&x, &self.bias)?;
        }
        let logits = linear(&normed(&x, &self.norm)?, &self.head, None)?;
        let logits = logits.reshape(&[BATCH * LENGTH, VOCABULARY])?;
        cross_entropy(&logits, &labels.reshape(&[BATCH * LENGTH])?, &CrossEntropyOptions::default())
    }

    fn parameters(&self) -> Vec<&Tensor> {
        fn pair(Pair(weight, bias): &Pair) -> [&Tensor; 2] {
            [weight, bias]
        }
        let mut list = vec![&self.tokens, &self.positions, &self.head];
        list.extend(pair(&self.norm));
        for b in &self.blocks {
            list.extend(
                [&b.norms[0], &b.norms[1], &b.qkv, &b.out, &b.up, &b.down].into_iter().flat_map(pair),
            );
        }
        list
    }
}

/// The model with its optimizer state.
struct Trainer {
    model: Model,
    moments: Vec<[Array; 2]>,
    steps: u64,
}

impl Trainer {
    fn new(model: Model) -> std::result::Result<Trainer, ArrayError> {
        let zeros = |p: &Tensor| Ok([p.local().zeros_like()?, p.local().zeros_like()?]);
        let moments =
            model.parameters().into_iter().map(zeros).collect::<std::result::Result<Vec<_>, ArrayError>>()?;
        Ok(Trainer { model, moments, steps: 0 })
    }

    fn step(&mut self, ids: &Tensor, labels: &Tensor) -> Result<Array> {
        let loss = self.model.loss(ids, labels)?;
        loss.backward()?;
        self.steps += 1;
        let params = self.model.parameters();
        let grads: Vec<Array> = params.iter().filter_map(|p| Some(p.take_grad()?.local().clone())).collect();
        let list: Vec<AdamWArrays<'_>> = params
            .iter()
            .zip(&grads)
            .zip(&self.moments)
            .map(|((param, grad), [exp_avg, exp_avg_sq])| AdamWArrays {
                param: param.local(),
                grad,
                exp_avg,
                exp_avg_sq,
                max_exp_avg_sq: None,
                master: None,
            })
            .collect();
        AdamW::default().step(self.steps, &list)?;
        Ok(loss.local().clone())
    }
}
