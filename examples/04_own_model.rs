//! A model of one's own: trained on a mesh with a pipeline, resumed on another mesh, asked for text.
//!
//! `cargo run --example 04_own_model`. Nothing of planaria knows the model, which is in `own_model/side_by_side.rs`; it is a row
//! in the table of models that this program hands to the trainer and to the generator.

use planaria::train::config::{Config, Sources};
use planaria::train::{Generator, Sampling, Trainer};
pub use side_by_side::SideBySide;
use std::path::Path;

#[path = "own_model/side_by_side.rs"]
mod side_by_side;

/// A run of it in a folder, on a mesh.
pub fn config(folder: &Path, mesh: &str, more: &[&str]) -> planaria::train::Result<Config> {
    let (text, runs) = (folder.join("text.txt"), folder.join("runs"));
    let base = format!(
        r#"
        name = "own"
        mesh = "{mesh}"
        [model]
        kind = "side_by_side"
        [model.own]
        width = 16
        inner = 32
        blocks = 4
        heads = 4
        [data]
        sequence = 16
        source = [{{ path = {text:?} }}]
        [optim]
        lr = 1e-2
        [train]
        steps = 8
        global_batch = 8
        seed = 7
        [log]
        dir = {runs:?}
        tensorboard = false
        "#
    );
    let set = more.iter().map(ToString::to_string);
    Ok(Sources::text("own.toml", &base).models(SideBySide::models()).set(set).resolve()?.config)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    std::fs::write(
        folder.path().join("text.txt"),
        "cut the worm anywhere, it grows back whole. ".repeat(60),
    )?;
    let train = |mesh: &str, until: u64| {
        Trainer::new(config(folder.path(), mesh, &[])?).models(SideBySide::models()).until(until).run(None)
    };
    // Two stages of two ranks that share each matrix; then two data ranks, from the same checkpoint.
    let begun = train("pp=2 tp=2", 5)?;
    let ended = train("dp=2", 8)?;
    println!("loss {:.3} at step 1, {:.3} at step 8", begun.losses[0], ended.losses[2]);
    assert_eq!((begun.step, ended.step, ended.losses.len()), (5, 8, 3));
    assert!(ended.losses[2] < begun.losses[0] - 0.5);

    let generator = Generator::open_with(&folder.path().join("runs/own"), &SideBySide::models())?;
    let sampling = Sampling { tokens: 12, temperature: 0.0, ..Sampling::default() };
    let text = generator.generate("cut the worm", &sampling, 1, &|_| {})?;
    println!("cut the worm{text}");
    assert_eq!(text, generator.generate("cut the worm", &sampling, 2, &|_| {})?);
    Ok(())
}
