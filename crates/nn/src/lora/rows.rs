//! The parameters of an adapter: names, shapes, first values, and cuts that follow from those of the weight they stand on.
//!
//! A product's weight is `[out, in]`, its factors are `[rank, in]` and `[out, rank]`. What cuts `out` cuts the second factor,
//! what cuts `in` the first; the rank is never cut. Then the result of both lies as the product's own does, and no activation
//! moves that would not move without an adapter.

use super::config::{Factors, LoraConfig};
use super::targets::{Target, Targets, module_of};
use crate::error::Result;
use crate::models::{Architecture, Stage};
use crate::param::{Cut, ParamKind, ParamSpec, Role, Start};
use planaria_array::DType;
use planaria_layout::Shape;

/// What stands before the names of modules in the files of peft.
pub const PREFIX: &str = "base_model.model.";

/// What the factors of one module stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// A product, `[out, in]`.
    Product,
    /// A product that lies `[in, out]`.
    Turned,
    /// A table of rows by token, `[vocabulary, width]`.
    Table,
}

/// The rows of one module's adapter, in the order in which its layer shows them.
#[derive(Clone, Debug)]
pub(super) struct AdapterRows {
    pub(super) down: ParamSpec,
    pub(super) up: ParamSpec,
    pub(super) up_bias: Option<ParamSpec>,
    pub(super) magnitude: Option<ParamSpec>,
}

impl AdapterRows {
    pub(super) fn into_specs(self) -> impl Iterator<Item = ParamSpec> {
        [Some(self.down), Some(self.up), self.up_bias, self.magnitude].into_iter().flatten()
    }
}

/// How a cut of the weight cuts something that has its dim `from` as dim `to`.
fn along(cut: Cut, from: usize, to: usize) -> Cut {
    match cut {
        Cut::Dim(dim) if dim == from => Cut::Dim(to),
        Cut::Heads { dim, heads } if dim == from => Cut::Heads { dim: to, heads },
        _ => Cut::Whole,
    }
}

/// The adapter's rows for a weight.
pub(super) fn of(
    weight: &ParamSpec,
    base: Ground,
    target: &Target,
    config: &LoraConfig,
) -> Result<AdapterRows> {
    let first = usize::from(weight.is_stacked());
    let (out, inner) = match base {
        Ground::Product => (first, first + 1),
        Ground::Turned => (first + 1, first),
        // Tokens are what goes in.
        Ground::Table => (first + 1, first),
    };
    let (rank, start) = (target.rank, config.factors()?);
    let (width, inputs) = (weight.shape[out], weight.shape[inner]);
    let module = module_of(&weight.name);
    let experts = |dims: &[usize]| Shape::new(&[&weight.shape[..first], dims].concat());
    let row = |name: &str, shape: Shape, kind: ParamKind, tp: Cut, start: Start| ParamSpec {
        name: format!("{module}.{name}"),
        role: Role::Added(format!("{PREFIX}{module}.{name}")),
        shape,
        kind,
        start,
        tp,
        ep: weight.ep,
        tied: None,
        block: weight.block,
        // As peft holds factors, also of narrow models.
        dtype: Some(DType::F32),
    };
    let (down_start, up_start) = first_values(start, base, inputs, rank);
    let (down, up) = match base {
        Ground::Table => ("lora_embedding_A", "lora_embedding_B"),
        _ => ("lora_A.weight", "lora_B.weight"),
    };
    let columns = along(weight.tp, out, first);
    let bias_start = if start == Factors::Random { uniform(rank) } else { Start::Zeros };
    Ok(AdapterRows {
        down: row(
            down,
            experts(&[rank, inputs])?,
            ParamKind::Matrix,
            along(weight.tp, inner, first + 1),
            down_start,
        ),
        up: row(up, experts(&[width, rank])?, ParamKind::Matrix, columns, up_start),
        up_bias: match config.lora_bias && base != Ground::Table {
            true => Some(row("lora_B.bias", experts(&[width])?, ParamKind::Bias, columns, bias_start)),
            false => None,
        },
        magnitude: match config.use_dora {
            true => {
                Some(row("lora_magnitude_vector", experts(&[width])?, ParamKind::Norm, columns, Start::Ones))
            }
            false => None,
        },
    })
}

/// How both factors start.
fn first_values(start: Factors, base: Ground, inputs: usize, rank: usize) -> (Start, Start) {
    match (start, base) {
        (_, Ground::Table) => (Start::Zeros, Start::Normal { std: 1.0 }),
        (Factors::Gaussian, _) => (Start::Normal { std: 1.0 / rank as f64 }, Start::Zeros),
        (Factors::Random, _) => (uniform(inputs), uniform(rank)),
        _ => (uniform(inputs), Start::Zeros),
    }
}

/// As `torch.nn.Linear` draws: between plus and minus one over the root of the inputs.
fn uniform(inputs: usize) -> Start {
    Start::Uniform { bound: 1.0 / (inputs.max(1) as f64).sqrt() }
}

/// The row of tokens' own vectors for a table of token vectors.
pub(super) fn tokens(weight: &ParamSpec, count: usize) -> Result<ParamSpec> {
    let name = format!("{}.token_adapter.trainable_tokens_delta", module_of(&weight.name));
    Ok(ParamSpec {
        role: Role::Added(format!("{PREFIX}{name}")),
        name,
        shape: Shape::new(&[count, weight.shape[1]])?,
        kind: ParamKind::Embedding,
        start: Start::Zeros,
        tp: Cut::Whole,
        ep: None,
        tied: None,
        block: weight.block,
        dtype: Some(DType::F32),
    })
}

/// The same for a head that shares the vectors of the table `twin`.
pub(super) fn twin_tokens(weight: &ParamSpec, twin: &str, count: usize) -> Result<ParamSpec> {
    let name = format!("{twin}.token_adapter.trainable_tokens_delta");
    Ok(ParamSpec { role: Role::Added(format!("{PREFIX}{name}")), tied: Some(name), ..tokens(weight, count)? })
}

/// What the weight of a module is to its adapter.
pub(super) fn base_of(weight: &ParamSpec, is_turned: bool) -> Ground {
    match weight.kind == ParamKind::Embedding && weight.tied.is_none() {
        true => Ground::Table,
        false if is_turned => Ground::Turned,
        false => Ground::Product,
    }
}

/// The model's own row under an adapter.
fn own(mut spec: ParamSpec, targets: &Targets, config: &LoraConfig) -> ParamSpec {
    let (module, last) =
        (module_of(&spec.name).to_string(), spec.name.rsplit('.').next().unwrap_or_default());
    let adapted = targets.of(&module).is_some();
    let infix = if adapted { ".base_layer" } else { "" };
    let file = format!("{PREFIX}{module}{infix}.{last}");
    let twin_saved = spec.tied.as_ref().is_some_and(|twin| targets.saved.contains(twin));
    spec.role = match () {
        () if targets.saved.contains(&spec.name) || targets.biases.contains(&spec.name) => {
            Role::Retrained(file)
        }
        // As peft, which counts on new tokens there.
        () if adapted && last == "weight" && has_vocabulary(&module) => Role::Copied(file),
        () => Role::Base,
    };
    let taken = adapted && config.factors().is_ok_and(Factors::changes_base);
    if twin_saved && config.ensure_weight_tying {
        spec.role = Role::Retrained(file_of_twin(&spec));
    } else if twin_saved != targets.saved.contains(&spec.name) || taken {
        // One of the two changes, and is no longer the other.
        spec.tied = None;
    }
    spec
}

fn file_of_twin(spec: &ParamSpec) -> String {
    format!("{PREFIX}{}", spec.tied.as_ref().unwrap_or(&spec.name))
}

fn has_vocabulary(module: &str) -> bool {
    ["embed_tokens", "lm_head"].contains(&module.rsplit('.').next().unwrap_or(module))
}

/// The table of a model with an adapter: after the rows of each module those that are added to it.
pub(super) fn table(
    model: &dyn Architecture,
    stage: &Stage,
    targets: &Targets,
    config: &LoraConfig,
) -> Result<Vec<ParamSpec>> {
    let base = model.parameters(stage)?;
    let mut all = Vec::with_capacity(base.len());
    for (at, spec) in base.iter().enumerate() {
        let module = module_of(&spec.name);
        all.push(own(spec.clone(), targets, config));
        if base.get(at + 1).is_some_and(|next| module_of(&next.name) == module) {
            continue;
        }
        let weight = base[..=at].iter().rev().take_while(|row| module_of(&row.name) == module);
        let Some(weight) = weight.into_iter().find(|row| row.name.ends_with(".weight")) else { continue };
        if let Some(target) = targets.of(module) {
            all.extend(of(weight, base_of(weight, model.is_turned(weight)), target, config)?.into_specs());
        }
        if let Some(ids) = targets.tokens.get(module) {
            all.push(tokens(weight, ids.len())?);
        }
        if let Some((twin, ids)) = tied_tokens(weight, targets) {
            all.push(twin_tokens(weight, twin, ids.len())?);
        }
    }
    Ok(all)
}

/// The tokens of the table that a head is tied to: it scores them by their new vectors.
pub(super) fn tied_tokens<'a>(weight: &ParamSpec, targets: &'a Targets) -> Option<(&'a str, &'a [usize])> {
    let twin = weight.tied.as_deref()?;
    let (module, ids) = targets.tokens.get_key_value(module_of(twin))?;
    Some((module, ids))
}
