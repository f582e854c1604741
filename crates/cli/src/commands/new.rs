//! `planaria new`: a configuration with comments to begin with, which trains as it is.

use crate::exit::Exit;
use crate::failure::Failure;
use crate::target::{self, Existing};
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use serde_json::json;
use std::path::{Component, Path, PathBuf};

/// Write a starter configuration
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The file trains as it is, on its own text where `--data` names none; change it from there."
)]
pub(crate) struct Args {
    /// The file to write; the run is called after it
    #[arg(value_name = "NAME.toml")]
    file: PathBuf,
    /// Text to learn from: a file, a folder, or a pattern with `*`, `?` and `**`; may be repeated
    #[arg(long, value_name = "PATH")]
    data: Vec<String>,
    /// Start from the weights of this folder instead of random ones
    #[arg(long, value_name = "FOLDER")]
    init: Option<String>,
    /// Replace the file if it exists
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let file = &args.file;
    if file.extension().is_none_or(|ending| ending != "toml") {
        let message = format!("'{}' does not end in .toml", file.display());
        return Err(Failure::usage(message).hint("give a name such as first.toml").into());
    }
    let existing = Existing::from_yes(args.yes);
    target::check(file, existing)?;
    let own = file.display().to_string();
    let name = file.file_name().map_or_else(|| own.clone(), |name| name.to_string_lossy().into_owned());
    let seen = |path: &String| seen_from(file.parent().unwrap_or(Path::new("")), path);
    let sources = match args.data.is_empty() {
        true => source(&name, "   # this file itself, so that the run works as it is: name your text here"),
        false => args.data.iter().map(|path| source(&seen(path), "")).collect::<Vec<_>>().join("\n"),
    };
    let model = args.init.as_ref().map_or_else(|| MODEL.to_string(), |init| pretrained(&seen(init)));
    let text = TEMPLATE.replace("{{MODEL}}", &model).replace("{{SOURCES}}", &sources);
    if let Some(folder) = file.parent().filter(|folder| *folder != Path::new("")) {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create '{}'", folder.display()))?;
    }
    target::write(file, existing, text.as_bytes())?;
    if terminal.json {
        terminal.object("planaria/new/1", &json!({ "path": own }))?;
    } else {
        terminal.line(&own)?;
        let word = if own.contains(char::is_whitespace) { format!("'{own}'") } else { own };
        terminal.note(format!("train it with `planaria train {word}`"));
    }
    Ok(Exit::Success)
}

/// A path of the current folder as a file in `folder` names it.
fn seen_from(folder: &Path, path: &str) -> String {
    let parts = || folder.components().filter(|part| *part != Component::CurDir);
    if Path::new(path).is_absolute() || parts().next().is_none() {
        return path.to_string();
    }
    let below = parts().all(|part| matches!(part, Component::Normal(_)));
    let back = if below { Ok(parts().map(|_| "..").collect()) } else { std::path::absolute("") };
    back.map_or_else(|_| path.to_string(), |back: PathBuf| back.join(path).display().to_string())
}

/// A value in the quotes of TOML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn source(path: &str, comment: &str) -> String {
    format!("[[data.source]]\npath = {}{comment}", quoted(path))
}

fn pretrained(folder: &str) -> String {
    format!(
        "init = {}   # weights, architecture and tokenizer: a folder of weights, or a run's folder",
        quoted(folder)
    )
}

const MODEL: &str = r#"kind = "llama"                # or qwen2, qwen2_moe; the other keys are those of its Hugging Face config.json
hidden_size = 64
intermediate_size = 176
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
tie_word_embeddings = true
# init = "Qwen2-0.5B"         # start from these weights instead; the keys above then come from its folder"#;

const TEMPLATE: &str = r#"# Train it with `planaria train`; `planaria plan` says what it would need, `planaria config schema` lists every key.
# Lines that begin with `# ` and a key are settings that are often wanted. Paths are relative to this file.

mesh = "dp=1"                 # thread ranks: data, tensor, pipeline and expert parallel, as in "dp=2 tp=2"

[model]
{{MODEL}}

[data]
sequence = 64                 # tokens of a sample
held_out = 0.1                # share of the samples that is evaluated and never trained on
# tokenizer = "bytes"         # or a folder with a tokenizer.json; bytes where the model has none
# cache = "tokens"            # folder for tokenised text, so that it is done once
{{SOURCES}}

[optim]
lr = 3e-3                     # highest learning rate
min_lr = 3e-4                 # at the end of the cosine
warmup = 5                    # steps
# weight_decay = 0.1
# clip = 1.0                  # largest norm of the gradient
# ema = 0.999                 # also keep a running average of the weights

[train]
steps = 60
global_batch = 8              # samples of a step, over all ranks
micro_batch = 4               # samples a rank computes at a time
eval_every = 20               # steps
# precision = "bf16"          # f32, bf16 or f16
# zero = 1                    # what data ranks divide: 1 optimizer state, 2 also gradients, 3 also weights
# recompute = "full"          # less memory, a third more computing
# seed = 1

[checkpoint]
every = 20                    # steps; a run that was stopped resumes from the newest one, on any mesh
keep = 2                      # how many of the newest stay
# keep_best = true            # and that of the lowest evaluation loss

[log]
every = 5                     # steps between lines
# dir = "runs"                # the run's folder is DIR/NAME; without this line `runs` in the current folder
"#;
