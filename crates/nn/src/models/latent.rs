//! Latent attention behind any model, as NV-Embed pools: the last states ask a learned set of vectors, and what they are told goes
//! through a gated product. Whoever averages states averages these.

use super::architecture::{Architecture, Setting, Stage};
use super::cost::{Cost, Segment, Sizes};
use super::head::{Head, States};
use super::network::{Activations, Cache, Network, Run};
use super::qwen2_vl::Marks;
use crate::error::{Error, Result};
use crate::layers::{LayerNorm, Linear, Parts};
use crate::parallel::Parallel;
use crate::param::{Adaptable, Cut, Init, Module, Param, ParamKind, ParamSpec};
use crate::table::Table;
use planaria_tensor::Tensor;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The key of `config.json` that says how many vectors there are (`latents`) and by how many `heads` they are asked.
pub const LATENT_ATTENTION: &str = "latent_attention";
/// What the names of its parameters begin with.
pub const LATENT: &str = "latent_attention.";
/// How many times wider the gated product is inside.
const WIDER: usize = 4;
/// Under the roots of norms.
const EPS: f64 = 1e-5;

/// A model with latent attention behind its last states.
#[derive(Clone, Debug)]
pub struct Latent {
    base: Arc<dyn Architecture>,
    latents: usize,
    heads: usize,
    width: usize,
}

impl Latent {
    /// As the entry of a `config.json` says.
    pub(super) fn open(base: Arc<dyn Architecture>, about: &Value) -> Result<Arc<dyn Architecture>> {
        let width = base.width()?;
        let number = |key: &str| about.get(key).and_then(Value::as_u64).map_or(0, |number| number as usize);
        let (latents, heads) = (number("latents"), number("heads"));
        if latents == 0 || heads == 0 || !width.is_multiple_of(heads) {
            let what = format!(
                "{LATENT_ATTENTION} is {about}; at least one of `latents`, and `heads` that divide the width {width}, are expected"
            );
            return Err(Error::Sizes { what });
        }
        Ok(Arc::new(Latent { base, latents, heads, width }))
    }

    /// Its own parameters, in the order in which [`Asking`] shows them.
    fn table(&self) -> Result<Vec<ParamSpec>> {
        let mut table = Table::new(0.02);
        let (width, inner) = (self.width, WIDER * self.width);
        let named = |name: &str| format!("{LATENT}{name}");
        table.add(&named("latents"), &[self.latents, width], ParamKind::Matrix, Cut::Whole)?;
        for name in ["query_norm", "latent_norm"] {
            table.norm(&named(name), width)?;
            table.bias(&named(name), width, Cut::Whole)?;
        }
        table.matrix(&named("query"), [width, width], Cut::Whole)?;
        table.matrix(&named("key_value"), [2 * width, width], Cut::Whole)?;
        table.matrix(&named("out"), [width, width], Cut::Whole)?;
        table.norm(&named("mlp_norm"), width)?;
        table.bias(&named("mlp_norm"), width, Cut::Whole)?;
        table.matrix(&named("up"), [2 * inner, width], Cut::Whole)?;
        table.matrix(&named("down"), [width, inner], Cut::Whole)?;
        Ok(table.into_specs())
    }
}

impl Architecture for Latent {
    fn model_type(&self) -> &str {
        self.base.model_type()
    }

    fn to_value(&self) -> Value {
        let mut value = self.base.to_value();
        value[LATENT_ATTENTION] = json!({ "latents": self.latents, "heads": self.heads });
        value
    }

    fn blocks(&self) -> usize {
        self.base.blocks()
    }

    fn vocab_size(&self) -> usize {
        self.base.vocab_size()
    }

    fn positions(&self) -> usize {
        self.base.positions()
    }

    fn parameters(&self, stage: &Stage) -> Result<Vec<ParamSpec>> {
        let mut table = self.base.parameters(stage)?;
        if stage.head {
            table.extend(self.table()?);
        }
        Ok(table)
    }

    fn build(&self, stage: &Stage, parallel: Option<&Parallel>, init: &Init) -> Result<Box<dyn Network>> {
        let base = self.base.build(stage, parallel, init)?;
        if !stage.head {
            return Ok(base);
        }
        let parallel = parallel.filter(|parallel| parallel.mesh.size() > 1).map(Parallel::on_purpose);
        let parts = Parts::new(self.table()?, init, parallel.as_ref())?.at(LATENT.trim_end_matches('.'));
        Ok(Box::new(Asking {
            base,
            heads: self.heads,
            latents: parts.take("latents")?,
            query_norm: parts.layer_norm("query_norm", EPS)?,
            latent_norm: parts.layer_norm("latent_norm", EPS)?,
            query: parts.linear("query")?,
            key_value: parts.linear("key_value")?,
            out: parts.linear("out")?,
            mlp_norm: parts.layer_norm("mlp_norm", EPS)?,
            up: parts.linear("up")?,
            down: parts.linear("down")?,
        }))
    }

    fn reach(&self) -> usize {
        self.base.reach()
    }

    fn check_parallel(&self, parallel: &Parallel) -> Result<()> {
        self.base.check_parallel(parallel)
    }

    fn cost(&self, segment: Segment, sizes: &Sizes) -> Result<Cost> {
        let mut cost = self.base.cost(segment, sizes)?;
        if segment == Segment::Head {
            let (width, inner) = (self.width as u64, (WIDER * self.width) as u64);
            let asked = 2 * width * self.latents as u64;
            cost.operations += 2.0 * (sizes.tokens * (2 * width * width + asked + 3 * inner * width)) as f64;
            // Two norms, queries, what they were told, and the gated product; shares of the vectors, in f32 at most.
            let kept = (6 * width + 3 * inner) * sizes.size + 4 * (self.heads * self.latents) as u64;
            cost.kept += sizes.tokens * kept;
            cost.forward += sizes.tokens * kept;
            cost.backward = cost.backward.max(sizes.tokens * 2 * inner * sizes.size);
        }
        Ok(cost)
    }

    fn settings(&self) -> Vec<Setting> {
        let mut settings = self.base.settings();
        let value = self.to_value()[LATENT_ATTENTION].to_string();
        settings.push(Setting { key: LATENT_ATTENTION.into(), value, effect: super::Effect::Function });
        settings
    }

    fn is_turned(&self, weight: &ParamSpec) -> bool {
        !weight.name.starts_with(LATENT) && self.base.is_turned(weight)
    }

    fn sight(&self) -> Option<Marks> {
        self.base.sight()
    }

    fn other_names(&self) -> &[(&str, &str)] {
        self.base.other_names()
    }

    fn width(&self) -> Result<usize> {
        Ok(self.width)
    }
}

/// The last stage of a model, and what its states ask.
#[derive(Debug)]
struct Asking {
    base: Box<dyn Network>,
    heads: usize,
    latents: Param,
    query_norm: LayerNorm,
    latent_norm: LayerNorm,
    query: Linear,
    key_value: Linear,
    out: Linear,
    mlp_norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Asking {
    /// States `[batch, sequence, width]` after they have asked; each for itself.
    fn ask(&self, states: &Tensor) -> planaria_tensor::Result<Tensor> {
        let (shape, heads) = (states.shape().to_vec(), self.heads);
        let (width, tokens) = (shape[2], shape[0] * shape[1]);
        let dim = width / heads;
        // Heads first, so that one product has all tokens of one head.
        let apart = |x: &Tensor, rows: usize| x.reshape(&[rows, heads, dim])?.transpose(0, 1);
        let queries = apart(&self.query.forward(&self.query_norm.forward(states)?)?, tokens)?;
        let both = self.key_value.forward(&self.latent_norm.forward(&self.latents.value()?)?)?;
        let latents = both.shape()[0];
        let keys = apart(&both.narrow(1, 0, width)?, latents)?;
        let values = apart(&both.narrow(1, width, width)?, latents)?;
        let scores = queries.matmul(&keys.transpose(1, 2)?)?.mul_scalar((dim as f64).powf(-0.5))?;
        let told = scores.softmax(-1)?.matmul(&values)?.transpose(0, 1)?.reshape(&shape)?;
        let states = states.add(&self.out.forward(&told)?)?;
        let inner = self.up.forward(&self.mlp_norm.forward(&states)?)?;
        let half = inner.shape()[2] / 2;
        let gated = inner.narrow(2, 0, half)?.mul(&inner.narrow(2, half, half)?.gelu()?)?;
        states.add(&self.down.forward(&gated)?)
    }
}

impl Network for Asking {
    fn stage(&self) -> &Stage {
        self.base.stage()
    }

    fn forward(&self, input: Activations, run: &Run<'_>) -> Result<Activations> {
        self.base.forward(input, run)
    }

    fn head(&self, hidden: &Tensor) -> Result<Head> {
        self.base.head(hidden)
    }

    fn states(&self, hidden: &Tensor) -> Result<States> {
        let States { states, lanes } = self.base.states(hidden)?;
        Ok(States { states: self.ask(&states)?, lanes })
    }

    fn cache(&self, capacity: usize) -> Cache {
        self.base.cache(capacity)
    }

    fn own_loss(&self, last: &Activations, tokens: usize) -> Result<Option<Tensor>> {
        self.base.own_loss(last, tokens)
    }
}

impl Module for Asking {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.base.visit(f);
        f(&self.latents);
        self.query_norm.visit(f);
        self.latent_norm.visit(f);
        self.query.visit(f);
        self.key_value.visit(f);
        self.out.visit(f);
        self.mlp_norm.visit(f);
        self.up.visit(f);
        self.down.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.base.visit_mut(f);
        f(&mut self.latents);
        self.query_norm.visit_mut(f);
        self.latent_norm.visit_mut(f);
        self.query.visit_mut(f);
        self.key_value.visit_mut(f);
        self.out.visit_mut(f);
        self.mlp_norm.visit_mut(f);
        self.up.visit_mut(f);
        self.down.visit_mut(f);
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        self.base.visit_layers(f);
    }
}

/// Takes the entry out of a `config.json`.
pub(super) fn entry(config: &mut Map<String, Value>) -> Option<Value> {
    config.remove(LATENT_ATTENTION).filter(|entry| !entry.is_null())
}
