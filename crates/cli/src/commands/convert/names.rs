//! `--names`: the two ways in which the tensors of some models are named.

use crate::failure::Failure;
use anyhow::Result;
use clap::ValueEnum;
use planaria::ckpt::convert::{To, companion};
use planaria::ckpt::formats::{Key, Source};
use planaria::nn::models::Models;

pub(super) const CONFIG: &str = "config.json";

/// Which names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Names {
    /// As the model was published: `visual.`, `model.`
    Published,
    /// As libraries have them today: `model.visual.`, `model.language_model.`
    Today,
}

impl Names {
    /// Gives the tensors of a source these names, whichever they have; the configuration that goes with them.
    pub(super) fn give(self, source: &mut Source, path: &str, to: To) -> Result<Vec<u8>> {
        if to != To::HuggingFace {
            let hint = "our own folders and those of others keep the published names; leave `--names` out";
            return Err(Failure::usage("`--names` is for `--to hf`").hint(hint).into());
        }
        let Some(config) = companion(source, CONFIG)? else {
            let message = format!("'{path}' has no {CONFIG}, which says what model this is");
            return Err(Failure::usage(message).hint("put it beside the weights").into());
        };
        let model = Models::default().open_json(&String::from_utf8_lossy(&config))?;
        let pairs = model.other_names();
        let other = model.other_config().filter(|_| !pairs.is_empty());
        let Some(other) = other else {
            let message =
                format!("tensors of a model of type `{}` have one kind of name", model.model_type());
            return Err(Failure::usage(message).hint("leave `--names` out").into());
        };
        let begins = |name: &str| pairs.iter().any(|(_, theirs)| name.starts_with(theirs));
        let today = source.tensors.keys().any(|key| begins(&key.name));
        if today != (self == Names::Today) {
            let turned = |(ours, theirs): &(&str, &str)| match today {
                true => (theirs.to_string(), ours.to_string()),
                false => (ours.to_string(), theirs.to_string()),
            };
            let pairs: Vec<(String, String)> = pairs.iter().map(turned).collect();
            let renamed = |name: &str| {
                let found = pairs.iter().find_map(|(from, to)| Some((to, name.strip_prefix(from.as_str())?)));
                found.map_or_else(|| name.to_string(), |(to, rest)| format!("{to}{rest}"))
            };
            let all = std::mem::take(&mut source.tensors);
            let rename = |(key, entry): (Key, _)| (Key { name: renamed(&key.name), ..key }, entry);
            source.tensors = all.into_iter().map(rename).collect();
        }
        let config = if self == Names::Today { other } else { model.to_value() };
        Ok(format!("{config:#}\n").into_bytes())
    }
}
