//! The mesh that a run continues with, where the job is `planaria train`.

use crate::args::Cli;
use crate::commands::{Command, train};
use anyhow::Result;
use clap::Parser;
use planaria::nn::models::Models;
use planaria::train::Config;
use planaria::train::plan::{Choice, choose, model_of};

/// True for a job that is a run of ours.
pub(super) fn trains(command: &[String]) -> bool {
    command.first().is_some_and(|first| first == "planaria") && parse(command).is_some()
}

fn parse(command: &[String]) -> Option<train::Args> {
    match Cli::try_parse_from(command).ok()?.command {
        Command::Train(args) => Some(args),
        _ => None,
    }
}

/// The configuration of a job that is a run of ours.
pub(super) fn config(command: &[String]) -> Option<Result<Config>> {
    let args = parse(command).filter(|_| trains(command))?;
    Some(args.config().and_then(|config| {
        config.check(&Models::default())?;
        Ok(config)
    }))
}

/// A mesh and the command that runs on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fitted {
    pub(super) ranks: u32,
    pub(super) mesh: String,
    pub(super) command: Vec<String>,
}

/// The run on at most `ranks` ranks; nothing where the job is not a run of ours.
pub(super) fn fit(command: &[String], ranks: u32, least: u32) -> Result<Option<Fitted>> {
    let Some(args) = parse(command).filter(|_| trains(command)) else { return Ok(None) };
    let config = args.config()?;
    let model = model_of(&config, &Models::default())?;
    let choice = Choice { least: least as usize, memory: config.heal.memory };
    let mesh = choose(&config, &*model, ranks as usize, &choice)?;
    let set = format!("mesh={mesh}");
    let command = command.iter().cloned().chain(["--set".to_string(), set]).collect();
    Ok(Some(Fitted { ranks: mesh.ranks() as u32, mesh: mesh.to_string(), command }))
}
