//! Parameters that training leaves as they are.

use crate::error::{Error, Result};
use planaria_nn::models::{Architecture, Stage};
use planaria_nn::{Module, ParamSpec};
use planaria_store::pattern::matches;
use std::collections::BTreeSet;

/// The frozen parameters of a model, by the names of its table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frozen {
    names: BTreeSet<String>,
}

impl Frozen {
    /// Those under an adapter, and those that the patterns fit. Every pattern must fit one, some parameter must be left, and experts that are one
    /// parameter are frozen together. A tied pair is frozen by either name.
    pub(crate) fn new(patterns: &[String], model: &dyn Architecture) -> Result<Frozen> {
        let table = model.parameters(&Stage::whole(model))?;
        let refuse = |found: &str, expected: String| {
            Err(Error::Value { key: "train.freeze".into(), found: found.into(), expected })
        };
        let under = table.iter().filter(|spec| !spec.role.is_trained());
        let mut names: BTreeSet<String> = under.map(|spec| spec.name.clone()).collect();
        for pattern in patterns {
            let mut fitted = false;
            for spec in &table {
                let files = spec.files();
                let fitting = files.iter().filter(|file| matches(pattern, file)).count();
                if fitting > 0 && fitting < files.len() && !matches(pattern, &spec.name) {
                    let expected = format!("all {} experts of `{}` or none", files.len(), spec.name);
                    return refuse(pattern, expected);
                }
                if fitting > 0 || matches(pattern, &spec.name) {
                    fitted = true;
                    names.insert(spec.name.clone());
                    names.extend(spec.tied.clone());
                }
            }
            if !fitted {
                let example = table.first().map_or("", |spec| &spec.name);
                return refuse(pattern, format!("a pattern that fits a parameter, such as `{example}`"));
            }
        }
        let ties = table.iter().filter(|spec| spec.tied.as_ref().is_some_and(|twin| names.contains(twin)));
        let twins: Vec<String> = ties.map(|spec| spec.name.clone()).collect();
        names.extend(twins);
        if table.iter().all(|spec| names.contains(&spec.name)) {
            return refuse(&format!("{patterns:?}"), "patterns that leave a parameter to train".into());
        }
        Ok(Frozen { names })
    }

    /// Whether a parameter is one of them.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Elements of a model that are left to train; tied ones count once.
    pub(crate) fn trained(&self, model: &dyn Architecture) -> Result<u64> {
        let table = model.parameters(&Stage::whole(model))?;
        let counts = |spec: &&ParamSpec| spec.tied.is_none() && !self.contains(&spec.name);
        Ok(table.iter().filter(counts).map(|spec| spec.shape.numel() as u64).sum())
    }

    /// Marks them in a part of the model.
    pub(crate) fn mark(&self, model: &mut dyn Module) {
        model.visit_mut(&mut |param| {
            if self.names.contains(param.name()) {
                param.set_trainable(false);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_nn::models::Models;
    use std::sync::Arc;

    fn model(more: &str) -> Arc<dyn Architecture> {
        let text = format!(
            r#"{{"model_type": "qwen2_moe", "vocab_size": 9, "hidden_size": 4, "intermediate_size": 4,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_experts": 3, "num_experts_per_tok": 1,
            "moe_intermediate_size": 4, "shared_expert_intermediate_size": 4 {more}}}"#
        );
        Models::default().open_json(&text).unwrap()
    }

    fn frozen(patterns: &[&str], model: &dyn Architecture) -> Result<Frozen> {
        Frozen::new(&patterns.iter().map(ToString::to_string).collect::<Vec<_>>(), model)
    }

    #[test]
    fn patterns_fit_or_are_refused() {
        let plain = model("");
        assert!(frozen(&[], &*plain).unwrap().names.is_empty());
        let experts = frozen(&["model.layers.0.mlp.experts.*"], &*plain).unwrap().names;
        assert!(experts.iter().all(|name| name.contains("layers.0.mlp.experts.*")), "{experts:?}");
        let text = |patterns: &[&str]| frozen(patterns, &*plain).unwrap_err().to_string();
        assert!(text(&["model.layer.*"]).contains("model.embed_tokens.weight"));
        assert!(text(&["*experts.1.*"]).contains("all 3 experts"), "{}", text(&["*experts.1.*"]));
        assert!(text(&["*"]).contains("leave a parameter"));
    }

    #[test]
    fn a_tied_pair_is_frozen_by_either_name() {
        let tied = model(r#", "tie_word_embeddings": true"#);
        let both = frozen(&["lm_head.weight"], &*tied).unwrap();
        assert_eq!(both, frozen(&["model.embed_tokens.*"], &*tied).unwrap());
        assert_eq!(both.names.len(), 2);
    }
}
