//! Runs that continue with other data: the weights, the optimizer and the steps of a checkpoint, and a corpus from its beginning.

use anyhow::{Context, Result, ensure};
use planaria_e2e::{Run, Sandbox};
use planaria_train::{Error, Trainer};
use std::path::{Path, PathBuf};

fn checkpoint(sandbox: &Sandbox, name: &str, run: &Run) -> Result<PathBuf> {
    Ok(sandbox.run_dir(name).join(run.outcome.checkpoint.as_ref().context("it was saved")?))
}

fn text(error: &Error) -> String {
    format!("{error}; {}", error.hint().unwrap_or_default())
}

#[test]
fn other_data_begins_at_its_first_sample_and_the_optimizer_goes_on() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let first = sandbox.train("first", "tp=2", &[])?;
    let folder = checkpoint(&sandbox, "first", &first)?;
    let from = format!("checkpoint.from={}", folder.display());
    // Longer sequences with other rotary frequencies, as a long-context stage has them.
    let longer = ["data.sequence=32", "model.rope_theta=50000", "train.steps=8", "optim.horizon=8"];
    let config = sandbox.config("second", "", &[&longer[..], &[&from, "model.rope_theta=10000"]].concat())?;
    let refused = text(&Trainer::new(config).check(1).unwrap_err());
    ensure!(refused.contains("data.sequence was 16, now 32"), "{refused}");
    ensure!(refused.contains("data.continue = \"new\"") && !refused.contains("another `name`"), "{refused}");
    let stage = [&longer[..], &[&from, "data.continue=new"]].concat();
    let whole = sandbox.train("second", "", &stage)?;
    ensure!(whole.outcome.step == 8 && whole.outcome.losses.len() == 4, "{:?}", whole.outcome);
    // Weights alone, on the same data from its beginning: the first loss is the same, not the steps after it.
    let init = format!("model.init={}", folder.display());
    let tuned = sandbox.train("tuned", "", &["data.sequence=32", "model.rope_theta=50000", &init])?;
    let (kept, fresh) = (&whole.outcome.losses, &tuned.outcome.losses);
    ensure!(kept[0].to_bits() == fresh[0].to_bits() && kept[1] != fresh[1], "{kept:?} and {fresh:?}");
    // Stopped and started again with the same keys it continues where it was, on another mesh too.
    sandbox.train_until(6, "cut", "dp=2", &stage)?;
    let cut = sandbox.train("cut", "pp=2", &stage)?;
    ensure!(cut.outcome.losses == kept[2..], "{:?} and {kept:?}", cut.outcome.losses);
    cut.same_tensors(&whole)
}

#[test]
fn another_text_is_refused_unless_it_is_said_to_be_new() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let first = sandbox.train("first", "", &[])?;
    let folder = checkpoint(&sandbox, "first", &first)?;
    let other = sandbox.path().join("other.txt");
    let lines: String = (0..400).map(|i| format!("another text, line {i}\n")).collect();
    std::fs::write(&other, lines)?;
    let source = format!("data.source.0.path={}", other.display());
    let from = format!("checkpoint.from={}", folder.display());
    let stage = [&source, &from, "train.steps=6", "optim.horizon=6"];
    let refused = text(&Trainer::new(sandbox.config("second", "", &stage)?).check(1).unwrap_err());
    ensure!(refused.contains("data.continue = \"new\""), "{refused}");
    let second = sandbox.train("second", "", &[&stage[..], &["data.continue=new"]].concat())?;
    let init = format!("model.init={}", folder.display());
    let tuned = sandbox.train("tuned", "", &[&source, &init])?;
    let (kept, fresh) = (&second.outcome.losses, &tuned.outcome.losses);
    ensure!(kept.len() == 2 && kept[0].to_bits() == fresh[0].to_bits(), "{kept:?} and {fresh:?}");
    ensure!(kept[1] != fresh[1], "the optimizer was not kept: {kept:?} and {fresh:?}");
    Ok(())
}

#[test]
fn a_folder_that_no_run_wrote_is_named_with_what_it_is() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let first = sandbox.train("first", "", &["train.steps=1"])?;
    let folder = checkpoint(&sandbox, "first", &first)?;
    let plain = sandbox.path().join("plain");
    std::fs::create_dir_all(&plain)?;
    for entry in std::fs::read_dir(&folder)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("model") || name == "config.json" {
            std::fs::copy(entry.path(), plain.join(&name))?;
        }
    }
    let torch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/torch-dcp/repeated");
    for (number, (folder, called)) in [(&plain, "plain'"), (&torch, "repeated'")].into_iter().enumerate() {
        let from = format!("checkpoint.from={}", folder.display());
        let config = sandbox.config(&format!("second{number}"), "", &[&from])?;
        let refused = text(&Trainer::new(config).check(1).unwrap_err());
        let words = [called, "a checkpoint of a run", "planaria convert"];
        ensure!(words.iter().all(|word| refused.contains(word)), "{refused}");
    }
    Ok(())
}
