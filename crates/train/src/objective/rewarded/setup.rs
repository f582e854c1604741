//! What a run says of rewards, checked before anything is read: its updates, critic, reference and reward models.

use super::{Algorithm, Rewarded, refuse};
use crate::config::Config;
use crate::error::Result;
use crate::objective::{Objective, Second};
use crate::pretrained::Pretrained;
use crate::rl::{
    Compared, Reference, Reward, RewardKind, RolloutBatching, RolloutGeometry, ScoreModel, is_valued, nearest,
};
use serde_json::{Map, Value, json};

impl Rewarded {
    pub(super) fn check_run(&self, config: &Config) -> Result<()> {
        let name = self.name();
        if self.kind == Algorithm::Ppo && self.section.advantage != Compared::Group {
            return refuse("rl.advantage", "given", "none with `ppo`, which compares with its critic");
        }
        if config.train.eval_every > 0 {
            let expected = format!("0 with `{name}`: its rewards are told in every step");
            return refuse("train.eval_every", config.train.eval_every, expected);
        }
        Ok(())
    }

    /// Functions that the program gives and no `[[rl.reward]]` names are sources like the others, of weight 1.
    pub(super) fn name_functions(&mut self) {
        let list = &mut self.section.reward;
        for name in self.functions.keys() {
            if !list.iter().any(|reward| reward.kind == RewardKind::Function && reward.name == *name) {
                list.push(Reward { kind: RewardKind::Function, name: name.clone(), ..Reward::default() });
            }
        }
    }

    /// Refuses functions that the configuration names and the program does not give.
    pub(super) fn check_functions(&self) -> Result<()> {
        let unknown = |reward: &&Reward| {
            reward.kind == RewardKind::Function && !self.functions.contains_key(&reward.name)
        };
        if let Some(reward) = self.section.reward.iter().find(unknown) {
            let given: Vec<String> = self.functions.keys().map(|name| format!("'{name}'")).collect();
            let given = if given.is_empty() { "no function".to_string() } else { given.join(", ") };
            let expected = format!(
                "the name of a function that the program gives, and it gives {given}; train from Python with `Trainer(config, rewards={{...}})`"
            );
            return refuse("rl.reward.name", format!("'{}'", reward.name), expected);
        }
        Ok(())
    }

    /// The updates of a pass over a rollout, checked before anything is read.
    pub(super) fn find_updates(&mut self) -> Result<()> {
        let prompts = self.section.prompts_per_rollout.unwrap_or(self.update);
        let geometry = RolloutGeometry::derive(&RolloutBatching {
            prompts_per_rollout: prompts as i64,
            samples_per_prompt: self.group as i64,
            prompts_per_update: Some(self.update as i64),
            data_ranks: 1,
            per_device: self.group as i64,
            epochs: Some(self.epochs as i64),
            ..RolloutBatching::default()
        });
        match geometry {
            Ok(geometry) => self.updates = geometry.updates_per_epoch,
            Err(_) => {
                let (update, below) = (self.update, prompts / self.update.max(1) * self.update);
                let lower = if below > 0 { format!("{below} or ") } else { String::new() };
                let expected = format!(
                    "a multiple of `train.global_batch`, the {update} prompts of an update: {lower}{}; or `train.global_batch` {}",
                    below + update,
                    nearest(prompts as i64, update as i64)
                );
                return refuse("rl.prompts_per_rollout", prompts, expected);
            }
        }
        Ok(())
    }

    /// Where the critic begins: its own folder, or that of the policy with a new head.
    pub(super) fn find_critic(&self, config: &Config) -> Result<Second> {
        let Some(folder) = self.ppo.critic.as_ref().or(config.model.init.as_ref()) else {
            return refuse("model.init", "missing", "a folder of weights with `ppo`");
        };
        let has_head = is_valued(&Pretrained::find(folder)?.model_config()?);
        let fresh = if has_head { Vec::new() } else { vec!["score.weight".to_string()] };
        Ok(Second { folder: folder.clone(), fresh, optim: self.ppo.optim(&config.optim) })
    }

    pub(super) fn find_reference(&self, config: &Config) -> Result<Option<Reference>> {
        let in_reward = self.kind == Algorithm::Ppo && self.ppo.kl_coef > 0.0;
        if !in_reward && !self.loss_has_reference() {
            return Ok(None);
        }
        Reference::find("rl.reference", self.section.reference.as_ref(), config).map(Some)
    }

    pub(super) fn find_scorers(&self, config: &Config) -> Result<Vec<Option<ScoreModel>>> {
        let open = |reward: &Reward| match reward.kind {
            RewardKind::Model => ScoreModel::open(&reward.path, config).map(Some),
            _ => Ok(None),
        };
        self.section.reward.iter().map(open).collect()
    }
}

/// The same model with a head of values.
pub(super) fn valued(mut config: Map<String, Value>) -> Value {
    if !is_valued(&config) {
        let named = config.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        let base = named.map_or("", |name| name.split("For").next().unwrap_or(name));
        let name = format!("{}ForSequenceClassification", base.trim_end_matches("Model"));
        config.insert("architectures".into(), json!([name]));
        config.insert("id2label".into(), json!({ "0": "LABEL_0" }));
        config.insert("tie_word_embeddings".into(), json!(false));
    }
    Value::Object(config)
}
