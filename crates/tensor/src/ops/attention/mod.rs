//! Scaled-dot-product attention with grouped heads, cut by batch, heads, queries or value dim; on request inside
//! documents only, and with dropout.

mod documents;
mod pieces;

pub use documents::Documents;

use self::pieces::{Here, Operands};
use crate::attributes::{Attr, Attributes};
use crate::dispatch::apply;
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::compose;
use crate::ops::moments::wide;
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops::{self, Attended, Span};
use planaria_array::random::Key;
use planaria_array::{Array, DType};
use planaria_layout::Reduce;
use planaria_layout::rule::{Cuts, DimFactors, FactorId, FactorKind, LINEAR, Rule};
use smallvec::smallvec;

/// `softmax(q · kᵀ * scale + mask) · v`. Inputs: q, k, v, and a mask when there is one. Outputs: the result and the
/// logsumexp of the scores.
#[derive(Debug, Clone)]
struct Attention {
    scale: Option<f64>,
    span: Span,
    drop: Option<Drop>,
    documents: Option<Documents>,
}

/// Dropout on the weights of the values.
#[derive(Debug, Clone, Copy)]
struct Drop {
    p: f64,
    key: Key,
}

/// The factors of one call.
struct Factors {
    batch: FactorId,
    /// Heads of keys, then query heads of each of them; a factor of 1 is left out.
    heads: DimFactors,
    groups: DimFactors,
    queries: Option<FactorId>,
    values: FactorId,
}

impl Attention {
    fn options<'a>(&self, mask: Option<&'a Array>) -> ops::AttentionOptions<'a> {
        ops::AttentionOptions { scale: self.scale, span: self.span, mask, bounds: None }
    }

    fn check(&self, rows: usize, queries: usize, keys: usize) -> Result<()> {
        let refuse = |message| Err(Error::Argument { op: "attention", message });
        if let Some(Drop { p, .. }) = self.drop.filter(|drop| !(0.0..=1.0).contains(&drop.p)) {
            return refuse(format!("dropout must be between 0 and 1, got {p}"));
        }
        if self.documents.as_ref().is_some_and(|d| d.window().is_some()) && self.span != Span::Causal {
            return refuse("a window goes with causal attention only".into());
        }
        match &self.documents {
            Some(d) if (d.rows(), d.length(), d.length()) != (rows, queries, keys) => refuse(format!(
                "documents of {} rows of {} tokens for {rows} rows of {queries} queries and {keys} keys",
                d.rows(),
                d.length()
            )),
            _ => Ok(()),
        }
    }

    /// True when one call of the kernel does it.
    fn is_fused(&self) -> bool {
        self.drop.is_none() && self.documents.is_none()
    }

    fn here<'a>(
        &'a self,
        of: Operands<'_>,
        mask: Option<&'a Array>,
        at: &Local<'_>,
        first: usize,
    ) -> Result<Here<'a>> {
        Here::new(self.options(mask), (self.drop, self.documents.as_ref()), of, at, first)
    }

    /// `reduce` where the gradient's factors add up contributions to gradients of keys and values.
    fn factors(&self, q: &Spec, k: &Spec, v: &Spec, added: FactorKind, rule: &mut Rule) -> Factors {
        let (heads, keys) = (q.shape[1], k.shape[1]);
        let group = heads.checked_div(keys).unwrap_or(1);
        let batch = rule.free(q.shape[0]);
        let of_keys = if keys > 1 || group == 1 {
            smallvec![rule.factor(keys, FactorKind::Free, Cuts::Even)]
        } else {
            smallvec![]
        };
        let of_group = if group > 1 { smallvec![rule.factor(group, added, Cuts::Even)] } else { smallvec![] };
        // A causal query must know its place.
        let queries =
            (self.span == Span::All && self.is_fused()).then(|| rule.factor(q.shape[2], added, Cuts::Any));
        let values = rule.factor(v.shape[3], added, Cuts::Any);
        Factors { batch, heads: of_keys, groups: of_group, queries, values }
    }

    fn mask_dims(factors: &Factors, q: &Spec, mask: &Spec) -> Vec<DimFactors> {
        let skip = 4 - mask.shape.ndim();
        let full = [one(Some(factors.batch)), factors.query_heads(), one(factors.queries), DimFactors::new()];
        let fits = |d: usize| d < 3 && mask.shape[d - skip] == q.shape[d];
        (skip..4).map(|d| if fits(d) { full[d].clone() } else { DimFactors::new() }).collect()
    }

    /// The same with simple ops.
    fn plain(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let dtype = wide(inputs[0].dtype());
        let [batch, heads, queries, dim] = inputs[0].shape()[..] else { return Err(SHAPES) };
        let [_, of_keys, keys, _] = inputs[1].shape()[..] else { return Err(SHAPES) };
        let group = heads / of_keys.max(1);
        let scale = self.scale.unwrap_or_else(|| 1.0 / (dim.max(1) as f64).sqrt());
        let q = inputs[0].cast(dtype)?.reshape(&[batch, of_keys, group, queries, dim])?;
        let (k, v) = (inputs[1].cast(dtype)?.unsqueeze(2)?, inputs[2].cast(dtype)?.unsqueeze(2)?);
        let mut scores = q.matmul(&k.transpose(-1, -2)?)?.mul_scalar(scale)?;
        let full = [batch, heads, queries, keys];
        let grouped = |t: &Tensor| t.broadcast_to(&full)?.reshape(scores.shape());
        let mut keep = Array::full_on(&[queries, keys], true, DType::Bool, inputs[0].local().device())?;
        if self.span == Span::Causal {
            keep = keep.tril(0)?;
        }
        let mut keep = Tensor::new(keep);
        if let Some(documents) = &self.documents {
            let same = documents.mask()?.to(inputs[0].local().device())?;
            keep = keep.logical_and(&grouped(&Tensor::new(same))?)?;
            if let Some(band) = documents.band(inputs[0].local().device())? {
                keep = keep.logical_and(&Tensor::new(band))?;
            }
        }
        match inputs.get(3) {
            Some(mask) if mask.dtype() == DType::Bool => keep = keep.logical_and(&grouped(mask)?)?,
            Some(mask) => scores = scores.add(&grouped(&mask.cast(dtype)?)?)?,
            None => {}
        }
        let hidden = keep.logical_not()?.broadcast_to(scores.shape())?;
        // Finite, so that a query that sees nothing has gradients of 0 and not NaN.
        let scores = scores.masked_fill(&hidden, -1e30)?;
        let lse = scores.logsumexp(&[-1], planaria_array::ops::Keep::Yes)?;
        let mut p = scores.sub(&lse)?.exp()?.masked_fill(&hidden, 0.0)?;
        if let Some(Drop { p: rate, key }) = self.drop {
            // Drawn by query head: grouped or not, they stand in the same order.
            p = super::dropout_with(&p.reshape(&full)?, rate, key)?.reshape(p.shape())?;
        }
        let out = p.matmul(&v)?.reshape(&[batch, heads, queries, inputs[2].shape()[3]])?;
        Ok(vec![out.cast(inputs[0].dtype())?, lse.reshape(&[batch, heads, queries])?])
    }
}

const SHAPES: Error = Error::Bug("attention's shapes were checked");

fn one(factor: Option<FactorId>) -> DimFactors {
    factor.into_iter().collect()
}

impl Factors {
    fn query_heads(&self) -> DimFactors {
        self.heads.iter().chain(&self.groups).copied().collect()
    }

    fn queries(&self, last: Option<FactorId>) -> Vec<DimFactors> {
        vec![one(Some(self.batch)), self.query_heads(), one(self.queries), one(last)]
    }

    fn keys(&self, last: Option<FactorId>) -> Vec<DimFactors> {
        vec![one(Some(self.batch)), self.heads.clone(), DimFactors::new(), one(last)]
    }

    fn rows(&self) -> Vec<DimFactors> {
        vec![one(Some(self.batch)), self.query_heads(), one(self.queries)]
    }
}

impl Op for Attention {
    fn name(&self) -> &'static str {
        "flash_attention"
    }

    fn attributes(&self) -> Attributes {
        let scale = self.scale.map_or(Attr::List(Vec::new()), Attr::Float);
        let mut all = Attributes::new().with("scale", scale).with("causal", self.span == Span::Causal);
        if let Some(Drop { p, key }) = self.drop {
            all = all.with("p", p).with("seed", key.seed as i64).with("stream", key.stream as i64);
        }
        match &self.documents {
            Some(documents) => {
                let all = all.with("documents", documents.attribute()).with("length", documents.length());
                match documents.window() {
                    Some(window) => all.with("window", window),
                    None => all,
                }
            }
            None => all,
        }
    }

    /// Keys and documents change on every call and say nothing about layouts.
    fn layout_attributes(&self) -> Attributes {
        let causal = self.span == Span::Causal;
        Attributes::new().with("causal", causal).with("fused", self.is_fused())
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let f = self.factors(&inputs[0], &inputs[1], &inputs[2], FactorKind::Free, &mut rule);
        rule.inputs = vec![f.queries(None), f.keys(None), f.keys(Some(f.values))];
        rule.inputs.extend(inputs.get(3).map(|mask| Self::mask_dims(&f, &inputs[0], mask)));
        rule.outputs = vec![f.queries(Some(f.values)), f.rows()];
        // The result is a weighted mean of the values, the logsumexp has nothing of them.
        rule.through.push(planaria_layout::rule::Through {
            inputs: smallvec![2],
            outputs: smallvec![0],
            reduces: LINEAR,
        });
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (of, mask) = (Operands { q: inputs[0], k: inputs[1], v: inputs[2] }, inputs.get(3).copied());
        let done = match self.is_fused() || of.q.is_meta() {
            true => ops::attention(of.q, of.k, of.v, &self.options(mask))?,
            false => self.here(of, mask, local, 0)?.forward(of)?,
        };
        Ok(smallvec![done.out, done.lse])
    }

    fn saves(&self, _: &Places) -> Saves {
        compose::saves_inputs(4).and_outputs(&[0, 1])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let fused = grads[1].is_none() && !at.needs(3) && !at.is_differentiable();
        let Some(dy) = grads[0].as_ref().filter(|_| fused) else {
            return compose::gradient(at, grads, |inputs| self.plain(inputs));
        };
        let inputs = (0..at.inputs()).map(|i| at.input(i)).collect::<Result<Vec<_>>>()?;
        let (out, lse) = (at.output(0)?, at.output(1)?);
        let mut all = vec![dy, &inputs[0], &inputs[1], &inputs[2], &out, &lse];
        all.extend(inputs.get(3));
        let mut grads: Grads = apply(AttentionGrad(self.clone()), &all)?.into_iter().map(Some).collect();
        grads.resize(at.inputs(), None);
        Ok(grads)
    }
}

/// The fused gradients of q, k and v, from that of the result, the inputs, the result and its logsumexp.
#[derive(Debug, Clone)]
struct AttentionGrad(Attention);

impl Op for AttentionGrad {
    fn name(&self) -> &'static str {
        "flash_attention_grad"
    }

    fn attributes(&self) -> Attributes {
        self.0.attributes()
    }

    fn layout_attributes(&self) -> Attributes {
        self.0.layout_attributes()
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let sum = FactorKind::Reduce(Reduce::Sum);
        let f = self.0.factors(&inputs[1], &inputs[2], &inputs[3], sum, &mut rule);
        let (result, rows) = (f.queries(Some(f.values)), f.rows());
        let values = f.keys(Some(f.values));
        rule.inputs = vec![result.clone(), f.queries(None), f.keys(None), values.clone(), result, rows];
        rule.inputs.extend(inputs.get(6).map(|mask| Attention::mask_dims(&f, &inputs[1], mask)));
        rule.outputs = vec![f.queries(None), f.keys(None), values];
        rule.pass(&[0], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let result = Attended { out: inputs[4].clone(), lse: inputs[5].clone() };
        let (dy, of) = (inputs[0], Operands { q: inputs[1], k: inputs[2], v: inputs[3] });
        let mask = inputs.get(6).copied();
        let found = match self.0.is_fused() || of.q.is_meta() {
            true => ops::attention_grad(dy, of.q, of.k, of.v, &result, &self.0.options(mask))?,
            false => self.0.here(of, mask, local, 1)?.backward(dy, of, &result)?,
        };
        Ok([found.q, found.k, found.v].into_iter().collect())
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, _: &[Option<Tensor>]) -> Result<Grads> {
        Err(super::fused_only(self.name()))
    }
}

/// What [`attention`] computes besides the product of its operands.
#[derive(Clone, Copy, Debug)]
pub struct AttentionOptions<'a> {
    /// Factor of the scores; one over the root of the dim of the queries where `None`.
    pub scale: Option<f64>,
    /// Which keys a query may see.
    pub span: Span,
    /// Broadcast to `[batch, query heads, queries, keys]`. Booleans say which keys to keep; floats are added to the
    /// scaled scores. Asking for a mask's gradient computes all scores at once.
    pub mask: Option<&'a Tensor>,
    /// A query sees keys of its own document only, and of its window. There are as many keys as queries.
    pub documents: Option<&'a Documents>,
    /// Sets weights of values to 0 and divides the others, as [`super::dropout_with`] does with `[batch, query heads,
    /// queries, keys]` of them. Scores are then computed some queries at a time, in backward again.
    pub dropout: Option<(f64, Key)>,
}

impl Default for AttentionOptions<'_> {
    fn default() -> Self {
        Self { scale: None, span: Span::All, mask: None, documents: None, dropout: None }
    }
}

/// `softmax(q · kᵀ * scale + mask) · v` for `q` `[batch, heads, queries, dim]`, `k` and `v` `[batch, kv heads, keys,
/// ..]`, where each key head serves `heads / kv heads` consecutive query heads.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, options: &AttentionOptions<'_>) -> Result<Tensor> {
    let op = Attention {
        scale: options.scale,
        span: options.span,
        drop: options.dropout.map(|(p, key)| Drop { p, key }),
        documents: options.documents.cloned(),
    };
    let meta = |t: &Tensor| Array::meta(t.shape(), t.dtype());
    let mask = options.mask.map(meta).transpose()?;
    // Checked on the global shapes: the rule speaks of their dims.
    ops::attention(&meta(q)?, &meta(k)?, &meta(v)?, &op.options(mask.as_ref()))?;
    op.check(q.shape()[0], q.shape()[2], k.shape()[2])?;
    let mut inputs = vec![q, k, v];
    inputs.extend(options.mask);
    apply(op, &inputs)?.into_iter().next().ok_or(Error::Bug("attention gave no output"))
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    if name != "flash_attention" && name != "flash_attention_grad" {
        return None;
    }
    let span = if at.truth("causal")? { Span::Causal } else { Span::All };
    let drop = match at.real("p") {
        None => None,
        Some(p) => Some(Drop { p, key: Key::new(at.int("seed")? as u64, at.int("stream")? as u64) }),
    };
    let documents = match at.list("documents") {
        None => None,
        Some(rows) => Some(Documents::read(&rows, at.size("length")?, at.size("window"))?),
    };
    let of = Attention { scale: at.maybe("scale", Attr::real)?, span, drop, documents };
    if name == "flash_attention" { found(of) } else { found(AttentionGrad(of)) }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let (batch, of_keys, group) = (draw.size(), draw.pick(&[1, 2, 4]), draw.pick(&[1, 1, 2, 3]));
    let (queries, mut keys, dim, values) = (draw.size(), draw.size(), 1 + draw.below(4), draw.size());
    let drop = (draw.below(3) == 0).then(|| Drop { p: 0.4, key: Key::new(5, draw.below(100) as u64) });
    let mut documents = None;
    if draw.below(3) == 0 {
        keys = queries;
        let starts = (0..batch).map(|_| (1..queries).filter(|_| draw.coin()).collect()).collect();
        documents = Some(Documents::new(starts, queries)?);
    }
    let (scale, span) = (draw.pick(&[None, Some(0.7)]), draw.pick(&[Span::All, Span::Causal]));
    if span == Span::Causal && draw.coin() {
        documents = documents.map(|documents| documents.within(1 + draw.below(queries))).transpose()?;
    }
    let heads = of_keys * group;
    let mut inputs = vec![
        draw.normal(&[batch, heads, queries, dim])?,
        draw.normal(&[batch, of_keys, keys, dim])?,
        draw.normal(&[batch, of_keys, keys, values])?,
    ];
    let shape = draw.broadcastable(&[batch, heads, queries, keys]);
    match draw.below(3) {
        0 => inputs.push(draw.normal(&shape)?),
        // The logsumexp of nothing has no difference: the first key is seen by all, where all can see it.
        1 if documents.is_none() => {
            let mask = draw.mask(&shape)?;
            if mask.ndim() > 0 {
                mask.narrow(-1, 0, 1)?.fill(true)?;
            } else {
                mask.fill(true)?;
            }
            inputs.push(mask);
        }
        _ => {}
    }
    Ok(Sample::new(Attention { scale, span, drop, documents }, inputs))
}
