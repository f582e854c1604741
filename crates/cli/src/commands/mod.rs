//! The verbs, one file each: its arguments and what it does.

mod agent;
mod average;
mod board;
mod chat;
mod completions;
mod config;
mod convert;
mod data;
mod diff;
mod drill;
mod embed;
mod eval;
mod explain;
mod export;
mod generate;
mod inspect;
mod launch;
mod lora;
mod measure;
mod merge;
mod new;
mod plan;
mod plot;
mod program;
mod quickstart;
mod ranks;
mod reshard;
mod selftest;
mod simulate;
mod tokenize;
mod top;
mod train;
mod tune;
mod verify;

use crate::exit::Exit;
use crate::terminal::Terminal;
use anyhow::Result;
use clap::Subcommand;

/// A verb; its description stands at the arguments in its file.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Agent(agent::Args),
    Average(average::Args),
    Board(board::Args),
    Chat(chat::Args),
    Completions(completions::Args),
    Config(config::Args),
    Convert(convert::Args),
    Data(data::Args),
    Diff(diff::Args),
    Drill(drill::Args),
    Embed(embed::Args),
    Eval(eval::Args),
    Explain(explain::Args),
    Export(export::Args),
    Generate(generate::Args),
    Inspect(inspect::Args),
    Launch(launch::Args),
    Lora(lora::Args),
    Measure(measure::Args),
    Merge(merge::Args),
    New(new::Args),
    Plan(plan::Args),
    Plot(plot::Args),
    Program(program::Args),
    Quickstart(quickstart::Args),
    Reshard(reshard::Args),
    Selftest(selftest::Args),
    Simulate(simulate::Args),
    Tokenize(tokenize::Args),
    Top(top::Args),
    Train(train::Args),
    Tune(tune::Args),
    Verify(verify::Args),
}

impl Command {
    /// Runs the verb.
    pub(crate) fn run(&self, terminal: &mut Terminal) -> Result<Exit> {
        match self {
            Command::Agent(args) => agent::run(args, terminal),
            Command::Average(args) => average::run(args, terminal),
            Command::Board(args) => board::run(args, terminal),
            Command::Chat(args) => chat::run(args, terminal),
            Command::Completions(args) => completions::run(args, terminal),
            Command::Config(args) => config::run(args, terminal),
            Command::Convert(args) => convert::run(args, terminal),
            Command::Data(args) => data::run(args, terminal),
            Command::Diff(args) => diff::run(args, terminal),
            Command::Drill(args) => drill::run(args, terminal),
            Command::Embed(args) => embed::run(args, terminal),
            Command::Eval(args) => eval::run(args, terminal),
            Command::Explain(args) => explain::run(args, terminal),
            Command::Export(args) => export::run(args, terminal),
            Command::Generate(args) => generate::run(args, terminal),
            Command::Inspect(args) => inspect::run(args, terminal),
            Command::Launch(args) => launch::run(args, terminal),
            Command::Lora(args) => lora::run(args, terminal),
            Command::Measure(args) => measure::run(args, terminal),
            Command::Merge(args) => merge::run(args, terminal),
            Command::New(args) => new::run(args, terminal),
            Command::Plan(args) => plan::run(args, terminal),
            Command::Plot(args) => plot::run(args, terminal),
            Command::Program(args) => program::run(args, terminal),
            Command::Quickstart(args) => quickstart::run(args, terminal),
            Command::Reshard(args) => reshard::run(args, terminal),
            Command::Selftest(args) => selftest::run(args, terminal),
            Command::Simulate(args) => simulate::run(args, terminal),
            Command::Tokenize(args) => tokenize::run(args, terminal),
            Command::Top(args) => top::run(args, terminal),
            Command::Train(args) => train::run(args, terminal),
            Command::Tune(args) => tune::run(args, terminal),
            Command::Verify(args) => verify::run(args, terminal),
        }
    }
}

/// Dtype of weights and activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PrecisionName {
    /// 32 bits
    F32,
    /// 16 bits with the range of f32
    Bf16,
    /// 16 bits with more digits
    F16,
}

impl From<PrecisionName> for planaria::train::config::Precision {
    fn from(name: PrecisionName) -> Self {
        match name {
            PrecisionName::F32 => Self::F32,
            PrecisionName::Bf16 => Self::Bf16,
            PrecisionName::F16 => Self::F16,
        }
    }
}
