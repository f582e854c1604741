//! A model with a second one beside it, such as a policy with its critic: trained, divided and saved as one.

use super::architecture::{Architecture, Setting, Stage};
use super::cost::{Cost, Segment, Sizes};
use super::head::{Head, States};
use super::network::{Activations, Cache, Decode, Network, Run};
use super::qwen2_vl::Marks;
use crate::error::Result;
use crate::parallel::{Lanes, Parallel};
use crate::param::{Adaptable, Init, Module, Param, ParamSpec};
use planaria_tensor::Tensor;
use serde_json::Value;
use std::sync::Arc;

/// What the names of the second model's parameters begin with.
pub const BESIDE: &str = "critic.";

/// A model with a second one beside it, whole where the first one has its head. To everybody who does not ask for the second it is
/// the first.
#[derive(Clone, Debug)]
pub struct Beside {
    first: Arc<dyn Architecture>,
    second: Arc<dyn Architecture>,
}

impl Beside {
    /// Puts the second beside the first.
    pub fn new(first: Arc<dyn Architecture>, second: Arc<dyn Architecture>) -> Beside {
        Beside { first, second }
    }

    /// The parameters of the second under their names beside the first.
    fn second_parameters(&self) -> Result<Vec<ParamSpec>> {
        let second = self.second.parameters(&Stage::whole(&*self.second))?;
        let named = |spec: ParamSpec| ParamSpec {
            name: format!("{BESIDE}{}", spec.name),
            tied: spec.tied.map(|twin| format!("{BESIDE}{twin}")),
            // Blocks are counted on, so that none has parameters of both.
            block: spec.block.map(|block| self.first.blocks() + block),
            ..spec
        };
        Ok(second.into_iter().map(named).collect())
    }
}

impl Architecture for Beside {
    fn model_type(&self) -> &str {
        self.first.model_type()
    }

    fn to_value(&self) -> Value {
        self.first.to_value()
    }

    fn blocks(&self) -> usize {
        self.first.blocks()
    }

    fn vocab_size(&self) -> usize {
        self.first.vocab_size()
    }

    fn positions(&self) -> usize {
        self.first.positions()
    }

    fn parameters(&self, stage: &Stage) -> Result<Vec<ParamSpec>> {
        let mut table = self.first.parameters(stage)?;
        if stage.head {
            table.extend(self.second_parameters()?);
        }
        Ok(table)
    }

    fn build(&self, stage: &Stage, parallel: Option<&Parallel>, init: &Init) -> Result<Box<dyn Network>> {
        let first = self.first.build(stage, parallel, init)?;
        if !stage.head {
            return Ok(first);
        }
        let mut second = self.second.build(&Stage::whole(&*self.second), parallel, init)?;
        let mut names = self.second_parameters()?.into_iter();
        let mut failed = None;
        second.visit_mut(&mut |param| {
            let named = names.next().map_or(Ok(()), |spec| param.become_of(spec));
            failed = failed.take().or_else(|| named.err());
        });
        failed.map_or(Ok(()), Err)?;
        Ok(Box::new(Pair { first, second }))
    }

    fn reach(&self) -> usize {
        self.first.reach().min(self.second.reach())
    }

    fn check_parallel(&self, parallel: &Parallel) -> Result<()> {
        self.first.check_parallel(parallel)?;
        self.second.check_parallel(parallel)
    }

    fn cost(&self, segment: Segment, sizes: &Sizes) -> Result<Cost> {
        let mut cost = self.first.cost(segment, sizes)?;
        if segment == Segment::Head {
            let blocks = (0..self.second.blocks()).map(Segment::Block);
            for segment in [Segment::Embed, Segment::Head].into_iter().chain(blocks) {
                let more = self.second.cost(segment, sizes)?;
                cost.operations += more.operations;
                cost.kept += more.kept;
                cost.forward += more.kept;
                cost.backward = cost.backward.max(more.backward);
                cost.crossings = [0, 1].map(|way| cost.crossings[way] + more.crossings[way]);
                cost.routed += more.routed;
            }
        }
        Ok(cost)
    }

    fn settings(&self) -> Vec<Setting> {
        // What a checkpoint says of its model is said of the first; the shapes of the second are compared as tensors.
        self.first.settings()
    }

    fn is_turned(&self, weight: &ParamSpec) -> bool {
        match weight.name.strip_prefix(BESIDE) {
            Some(name) => self.second.is_turned(&ParamSpec { name: name.into(), ..weight.clone() }),
            None => self.first.is_turned(weight),
        }
    }

    fn adapted(&self) -> Option<&crate::lora::Adapted> {
        self.first.adapted()
    }

    fn first(&self) -> Option<&Arc<dyn Architecture>> {
        Some(&self.first)
    }

    fn sight(&self) -> Option<Marks> {
        self.first.sight()
    }

    fn other_names(&self) -> &[(&str, &str)] {
        self.first.other_names()
    }
}

/// The last stage of the first model, and the second.
#[derive(Debug)]
struct Pair {
    first: Box<dyn Network>,
    second: Box<dyn Network>,
}

impl Network for Pair {
    fn stage(&self) -> &Stage {
        self.first.stage()
    }

    fn forward(&self, input: Activations, run: &Run<'_>) -> Result<Activations> {
        self.first.forward(input, run)
    }

    fn head(&self, hidden: &Tensor) -> Result<Head> {
        self.first.head(hidden)
    }

    fn states(&self, hidden: &Tensor) -> Result<States> {
        self.first.states(hidden)
    }

    fn beside(&self) -> Option<&dyn Network> {
        Some(&*self.second)
    }

    fn cache(&self, capacity: usize) -> Cache {
        self.first.cache(capacity)
    }

    fn decoding(&self) -> Option<&dyn Decode> {
        self.first.decoding()
    }

    fn rows_apart(&self, positions: usize) -> Option<&Lanes> {
        self.first.rows_apart(positions)
    }

    fn own_loss(&self, last: &Activations, tokens: usize) -> Result<Option<Tensor>> {
        self.first.own_loss(last, tokens)
    }
}

impl Module for Pair {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.first.visit(f);
        self.second.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.first.visit_mut(f);
        self.second.visit_mut(f);
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        self.first.visit_layers(f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Models, ties};
    use serde_json::json;

    fn open(architecture: &str, layers: usize) -> Arc<dyn Architecture> {
        let config = json!({
            "model_type": "qwen2", "architectures": [architecture], "vocab_size": 11, "hidden_size": 8,
            "intermediate_size": 12, "num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 1,
        });
        Models::default().open(config).unwrap()
    }

    #[test]
    fn a_pair_has_the_parameters_of_both_and_computes_as_the_first() {
        let (policy, critic) = (open("Qwen2ForCausalLM", 1), open("Qwen2ForSequenceClassification", 2));
        let pair = Beside::new(policy.clone(), critic.clone());
        let whole = Stage::whole(&pair);
        let table = pair.parameters(&whole).unwrap();
        let network = pair.build(&whole, None, &Init::default()).unwrap();
        let names: Vec<String> = network.params().iter().map(|param| param.name().to_string()).collect();
        assert_eq!(names, table.iter().map(|spec| spec.name.clone()).collect::<Vec<_>>());
        let score = table.iter().find(|spec| spec.name == "critic.score.weight").unwrap();
        assert_eq!(score.shape[..], [1, 8]);
        assert!(table.iter().all(|spec| spec.name != "critic.lm_head.weight"));
        assert_eq!(ties(&pair).unwrap(), ties(&*policy).unwrap());
        let alone = policy.build(&whole, None, &Init::default()).unwrap();
        let tokens = Tensor::from_slice(&[1i64, 5, 3], &[1, 3]).unwrap();
        let scores = |network: &dyn Network| {
            let last = network.forward((&tokens).into(), &Run::default()).unwrap();
            network.logits(&last.hidden).unwrap().local().to_vec::<f32>().unwrap()
        };
        assert_eq!(scores(&*network), scores(&*alone));
        let values = scores(network.beside().unwrap());
        assert_eq!(values.len(), 3);
        // A value does not see what comes after it.
        assert!(values[0] != values[1]);
    }

    #[test]
    fn a_model_of_several_labels_is_refused() {
        let config = json!({
            "model_type": "qwen2", "architectures": ["Qwen2ForSequenceClassification"], "vocab_size": 11,
            "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 3,
        });
        let error = Models::default().open(config).unwrap_err().to_string();
        assert!(error.contains("3 labels"), "{error}");
    }
}
