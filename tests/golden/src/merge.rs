//! Kind `merge`: recipes with their inputs and answers, `PATH/models` and `PATH/cases`.
//!
//! What a case means is in its `case.json`: which tool runs the recipe, whether it must be refused, and how close the tensors
//! must come. Files that end in `.gz` are unpacked first.

mod compare;
mod tokens;
pub(crate) mod unpack;

use crate::cases::{Outcome, Verdict};
use anyhow::{Context, Result, bail, ensure};
use compare::Tokens;
pub(crate) use compare::numbers;
use planaria_ckpt::convert::{ConvertOptions, To};
use planaria_ckpt::{Existing, OutputFolder};
use planaria_merge::{
    ExtractOptions, Merge, Missing, Options, Root, extract, plan, plan_moe, plan_paddle, plan_raw,
};
use serde_json::Value;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

pub(crate) fn run(path: &Path) -> Result<Outcome> {
    let unpacked = unpack::unpacked(path)?;
    let root = unpacked.path();
    let cases = root.join("cases");
    let entries = fs::read_dir(&cases).with_context(|| format!("reading {}", cases.display()))?;
    let mut folders: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<_>>()?;
    folders.retain(|folder| folder.is_dir());
    folders.sort();
    ensure!(!folders.is_empty(), "no case in {}", cases.display());
    let mut outcome = Outcome::default();
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let verdict = match catch_unwind(AssertUnwindSafe(|| check(root, &folder))) {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(error)) => Verdict::Failed(format!("{error:#}")),
            Err(_) => Verdict::Failed("panicked".to_string()),
        };
        outcome.add(&name, verdict);
    }
    Ok(outcome)
}

/// A case with its folder.
struct Case<'a> {
    root: &'a Path,
    folder: &'a Path,
    about: Value,
}

fn check(root: &Path, folder: &Path) -> Result<Verdict> {
    let about = serde_json::from_slice(&fs::read(folder.join("case.json"))?)?;
    let case = Case { root, folder, about };
    let planned = case.plan();
    if case.about["status"] == "error" {
        return case.refused(planned);
    }
    let merge = planned?;
    case.warned(&merge)?;
    let out = tempfile::tempdir()?;
    let target = out.path().join("out");
    case.write(&merge, &target)?;
    let expected = folder.join("expected");
    let made = match case.text("recipe.yml") {
        Ok(text) if text.contains("tokenizer") => Tokens::Made,
        _ => Tokens::Copied,
    };
    let consistent = compare::folders(&target, folder, &expected, &case.about, made)?;
    for (name, stage) in merge.stages() {
        let wanted = expected.join(format!("stage-{name}"));
        if wanted.is_dir() {
            let target = out.path().join(format!("stage-{name}"));
            case.write(stage, &target)?;
            compare::folders(&target, &wanted, &wanted, &case.about, made)
                .with_context(|| format!("stage '{name}'"))?;
        }
    }
    Ok(match consistent {
        true => Verdict::Passed,
        false => {
            Verdict::PassedAlone("values agree; the expected config.json contradicts the tensors beside it")
        }
    })
}

impl Case<'_> {
    fn text(&self, name: &str) -> Result<String> {
        let path = self.folder.join(name);
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    }

    fn options(&self) -> Options {
        Options {
            root: Root::new(self.root),
            truncate_embeddings: self.about["options"]["unsafe_truncate_embeddings"] == true,
            allow_crimes: self.about["options"]["allow_crimes"] == true,
            ..Options::default()
        }
    }

    fn plan(&self) -> Result<Merge> {
        let options = self.options();
        let given = &self.about["options"];
        match self.about["tool"].as_str().unwrap_or("merge") {
            "merge" | "multi" => Ok(plan(&self.text("recipe.yml")?, &options)?),
            "moe" => Ok(plan_moe(&self.text("recipe.yml")?, &options)?),
            "raw" => {
                let missing = match (given["intersection"] == true, given["union"] == true) {
                    (true, _) => Missing::Skip,
                    (_, true) => Missing::Take,
                    _ => Missing::Refuse,
                };
                Ok(plan_raw(&self.text("recipe.yml")?, missing, &options)?)
            }
            "paddle" => Ok(plan_paddle(&self.text("merge_config.json")?, &options)?),
            "extract-lora" => {
                let text = |field: &str| given[field].as_str().unwrap_or_default().to_string();
                let list = |field: &str| {
                    let list = given[field].as_array().into_iter().flatten();
                    list.filter_map(Value::as_str).map(str::to_string).collect()
                };
                let defaults = ExtractOptions::default();
                let asked = ExtractOptions {
                    max_rank: given["max_rank"].as_u64().map_or(defaults.max_rank, |rank| rank as usize),
                    distribute_scale: given["distribute_scale"]
                        .as_bool()
                        .unwrap_or(defaults.distribute_scale),
                    embed_lora: given["embed_lora"].as_bool().unwrap_or(defaults.embed_lora),
                    include: list("include_regexes"),
                    exclude: list("exclude_regexes"),
                    ..defaults
                };
                Ok(extract(&text("model"), &text("base"), &asked, &options)?)
            }
            other => bail!("unknown tool '{other}'"),
        }
    }

    fn write(&self, merge: &Merge, target: &Path) -> Result<()> {
        let mut options = ConvertOptions::default();
        if let Some(size) = self.about["options"]["out_shard_size"].as_u64() {
            options.max_shard_size = size;
        }
        let conversion = merge.conversion(To::HuggingFace, &options)?;
        let path = target.to_str().context("a path that is text")?;
        let files = conversion.files().map(|(name, _)| name);
        let folder = OutputFolder::check(merge.places(), path, Existing::Refuse, files)?;
        conversion.write_to(&folder, None, &(), None)?;
        Ok(())
    }

    /// A recipe that must be refused, by a message that names what is wrong. Some refusals come when values are seen; then too
    /// nothing may be there.
    fn refused(&self, planned: Result<Merge>) -> Result<Verdict> {
        let out = tempfile::tempdir()?;
        let target = out.path().join("out");
        let made = planned.and_then(|merge| self.write(&merge, &target));
        let Err(error) = made else { bail!("accepted, and must be refused: {}", self.about["why"]) };
        ensure!(!target.exists(), "refused, and something was written all the same: {error:#}");
        let (message, why) = (format!("{error:#}"), self.about["why"].as_str().unwrap_or_default());
        // What stands behind a semicolon speaks of the other tool. Names of keys and files must be in the message.
        let why = why.split(';').next().unwrap_or_default();
        let names = why.split_whitespace().map(|word| word.trim_matches([',', '.', '(', ')']));
        for name in names.filter(|word| word.contains(['_', '/'])) {
            ensure!(message.contains(name), "the message does not name '{name}': {message}");
        }
        Ok(Verdict::Passed)
    }

    fn warned(&self, merge: &Merge) -> Result<()> {
        for word in self.about["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let said = merge.warnings().iter().any(|warning| warning.contains(word));
            ensure!(said, "no warning speaks of '{word}': {:?}", merge.warnings());
        }
        Ok(())
    }
}
