//! A model with adapters on it, as an architecture of its own.

use super::adapter::{Adapter, Switch, TokenRows};
use super::config::LoraConfig;
use super::rows;
use super::targets::{self, Target, Targets, module_of};
use crate::error::{Error, Result};
use crate::layers::Dropout;
use crate::models::{Architecture, Cost, Network, Segment, Setting, Sizes, Stage};
use crate::parallel::Parallel;
use crate::param::{Adaptable, Init, Param, ParamSpec};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A model with one adapter or several that add up.
#[derive(Clone, Debug)]
pub struct Adapted {
    base: Arc<dyn Architecture>,
    adapters: Vec<Placed>,
}

/// One of the adapters.
#[derive(Clone, Debug)]
struct Placed {
    config: LoraConfig,
    targets: Targets,
    switch: Switch,
}

impl Adapted {
    /// A model with one adapter; refuses one that does not fit the model.
    pub fn new(base: Arc<dyn Architecture>, config: LoraConfig) -> Result<Adapted> {
        Adapted::several(base, vec![config])
    }

    /// A model with several adapters, to compute with: their parameters after the first's have a number behind their names.
    pub fn several(base: Arc<dyn Architecture>, configs: Vec<LoraConfig>) -> Result<Adapted> {
        let place = |config: LoraConfig| {
            let targets = targets::find(&config, &*base)?;
            Ok(Placed { config, targets, switch: Switch::default() })
        };
        let adapters = configs.into_iter().map(place).collect::<Result<Vec<_>>>()?;
        let whole = |placed: &&Placed| !placed.targets.saved.is_empty() || !placed.targets.biases.is_empty();
        if adapters.len() > 1 && adapters.iter().filter(whole).count() > 0 {
            let what = "one of several adapters has modules of the model that it saves whole; merge it into the model first";
            return Err(Error::Adapter { what: what.into() });
        }
        if adapters.len() > 1 && adapters.iter().any(|placed| !placed.targets.tokens.is_empty()) {
            let what = "one of several adapters has vectors of tokens; merge it into the model first";
            return Err(Error::Adapter { what: what.into() });
        }
        Ok(Adapted { base, adapters })
    }

    /// The model under the adapters.
    pub fn base(&self) -> &Arc<dyn Architecture> {
        &self.base
    }

    /// What the adapter of this number says of itself.
    pub fn config(&self, number: usize) -> &LoraConfig {
        &self.adapters[number].config
    }

    /// What the adapter of this number does to the model.
    pub fn targets(&self, number: usize) -> &Targets {
        &self.adapters[number].targets
    }

    /// How many adapters there are.
    pub fn count(&self) -> usize {
        self.adapters.len()
    }

    /// Turns an adapter on or off in every network that was built from this.
    pub fn switch(&self, number: usize) -> &Switch {
        &self.adapters[number].switch
    }

    /// The number of the adapter that a parameter of the table belongs to, by the name of the parameter.
    pub fn owner(name: &str) -> usize {
        name.rsplit_once('#').and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
    }

    fn spec_of(&self, number: usize, spec: ParamSpec) -> ParamSpec {
        if number == 0 { spec } else { ParamSpec { name: format!("{}#{number}", spec.name), ..spec } }
    }

    /// The adapters of a weight.
    fn layers(&self, weight: &Param, init: &Init, turned: bool) -> Result<Vec<Adapter>> {
        let module = module_of(weight.name());
        let mut made = Vec::new();
        for (number, Placed { config, targets, switch }) in self.adapters.iter().enumerate() {
            let Some(target) = targets.of(module) else { continue };
            let rows = rows::of(weight.spec(), rows::base_of(weight.spec(), turned), target, config)?;
            let near = beside(weight);
            let param = |spec: ParamSpec| Param::new(self.spec_of(number, spec), init, near.as_ref());
            made.push(Adapter {
                down: param(rows.down)?,
                up: param(rows.up)?,
                up_bias: rows.up_bias.map(&param).transpose()?,
                magnitude: rows.magnitude.map(&param).transpose()?,
                scale: target.scale,
                dropout: Dropout { p: config.lora_dropout },
                turned,
                switch: switch.clone(),
            });
        }
        Ok(made)
    }

    /// The new vectors of tokens of a table, or of the head that shares it.
    fn tokens(&self, weight: &Param, embed: Option<&TokenRows>, init: &Init) -> Result<Option<TokenRows>> {
        let Placed { targets, switch, .. } = &self.adapters[0];
        let own = targets.tokens.get(module_of(weight.name()));
        let (row, ids) = match (own, rows::tied_tokens(weight.spec(), targets)) {
            (Some(ids), _) => (rows::tokens(weight.spec(), ids.len())?, ids.clone()),
            (None, Some((twin, ids))) => (rows::twin_tokens(weight.spec(), twin, ids.len())?, ids.to_vec()),
            (None, None) => return Ok(None),
        };
        let rows = match embed.filter(|_| row.tied.is_some()) {
            Some(twin) => Param::tied_to(row, &twin.rows),
            None => Param::new(row, init, beside(weight).as_ref())?,
        };
        Ok(Some(TokenRows { rows, ids, switch: switch.clone() }))
    }

    /// Puts the adapters onto the layers of a stage, and says of every parameter what it is.
    fn attach(&self, network: &mut dyn Network, init: &Init) -> Result<()> {
        let table = self.parameters(network.stage())?;
        let mut specs: BTreeMap<String, ParamSpec> =
            table.into_iter().map(|spec| (spec.name.clone(), spec)).collect();
        let (mut failed, mut embed) = (None, None);
        let mut put = |layer: Adaptable<'_>| -> Result<()> {
            match layer {
                Adaptable::Linear(linear) => {
                    linear.adapters = self.layers(&linear.weight, init, linear.turned)?;
                    linear.tokens = self.tokens(&linear.weight, embed.as_ref(), init)?;
                }
                Adaptable::Experts(experts) => {
                    experts.adapters = self.layers(&experts.weight, init, false)?
                }
                Adaptable::Embedding(table) => {
                    table.adapters = self.layers(&table.weight, init, false)?;
                    table.tokens = self.tokens(&table.weight, None, init)?;
                    embed = embed.take().or_else(|| table.tokens.clone());
                }
            }
            Ok(())
        };
        network.visit_layers(&mut |layer| failed = failed.take().or_else(|| put(layer).err()));
        network.visit_mut(&mut |param| {
            let told = specs.remove(param.name()).map_or(Ok(()), |spec| param.become_of(spec));
            failed = failed.take().or_else(|| told.err());
        });
        if let Some(lost) = specs.into_keys().next() {
            let what = format!("the layer of `{lost}` takes no adapter; choose others in `target_modules`");
            return Err(failed.unwrap_or(Error::Adapter { what }));
        }
        failed.map_or(Ok(()), Err)
    }

    /// Refuses what cannot be cut: lengths of experts' rows would need sums over ranks.
    fn check_cut(&self, parallel: &Parallel) -> Result<()> {
        let experts = |placed: &Placed| {
            placed.config.use_dora
                && placed.targets.adapted.iter().any(|Target { module, .. }| module.contains('*'))
        };
        if parallel.size("tp") > 1 && self.adapters.iter().any(experts) {
            let what =
                "`use_dora` on experts does not go with `tp`; use `ep`, or leave the experts out".to_string();
            return Err(Error::Adapter { what });
        }
        Ok(())
    }
}

/// The ranks that a weight lies on.
fn beside(weight: &Param) -> Option<Parallel> {
    let (layout, world) = (weight.leaf().layout()?, weight.leaf().world()?);
    Some(Parallel { world: world.clone(), mesh: layout.mesh().clone(), sequence: false })
}

impl Architecture for Adapted {
    fn model_type(&self) -> &str {
        self.base.model_type()
    }

    fn to_value(&self) -> Value {
        self.base.to_value()
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
        let Placed { config, targets, .. } = &self.adapters[0];
        let mut table = rows::table(&*self.base, stage, targets, config)?;
        for (number, Placed { config, targets, .. }) in self.adapters.iter().enumerate().skip(1) {
            let mut merged = Vec::with_capacity(table.len());
            let further = rows::table(&*self.base, stage, targets, config)?;
            let of_module = |name: &str| {
                let rows = further.iter().filter(|spec| !spec.role.is_of_model());
                rows.filter(|spec| added_to(&spec.name) == name).cloned().collect::<Vec<_>>()
            };
            let mut rest = table.into_iter().peekable();
            while let Some(spec) = rest.next() {
                let module = added_to(&spec.name).to_string();
                merged.push(spec);
                if rest.peek().is_none_or(|next| added_to(&next.name) != module) {
                    merged.extend(of_module(&module).into_iter().map(|spec| self.spec_of(number, spec)));
                }
            }
            table = merged;
        }
        Ok(table)
    }

    fn build(&self, stage: &Stage, parallel: Option<&Parallel>, init: &Init) -> Result<Box<dyn Network>> {
        let mut network = self.base.build(stage, parallel, init)?;
        self.attach(&mut *network, init)?;
        Ok(network)
    }

    fn reach(&self) -> usize {
        self.base.reach()
    }

    fn check_parallel(&self, parallel: &Parallel) -> Result<()> {
        self.check_cut(parallel)?;
        self.base.check_parallel(parallel)
    }

    fn cost(&self, segment: Segment, sizes: &Sizes) -> Result<Cost> {
        self.base.cost(segment, sizes)
    }

    fn settings(&self) -> Vec<Setting> {
        self.base.settings()
    }

    fn is_turned(&self, weight: &ParamSpec) -> bool {
        self.base.is_turned(weight)
    }

    fn sight(&self) -> Option<crate::models::qwen2_vl::Marks> {
        self.base.sight()
    }

    fn other_names(&self) -> &[(&str, &str)] {
        self.base.other_names()
    }

    fn adapted(&self) -> Option<&Adapted> {
        Some(self)
    }
}

/// The module of the model that a row of the table belongs to.
fn added_to(name: &str) -> &str {
    let cut = [
        "lora_A",
        "lora_B",
        "lora_embedding_A",
        "lora_embedding_B",
        "lora_magnitude_vector",
        "token_adapter",
    ];
    let at = cut.iter().filter_map(|part| name.find(&format!(".{part}"))).min();
    at.map_or_else(|| module_of(name), |at| &name[..at])
}
