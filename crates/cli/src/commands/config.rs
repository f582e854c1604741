//! `planaria config`: the values of a configuration with their origins, and the schema of all keys.

use crate::exit::Exit;
use crate::table::Table;
use crate::terminal::Terminal;
use anyhow::Result;
use planaria::train::config::{Sources, schema};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// Show a configuration as it is resolved, or the schema of its keys
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Print every value and where it was set
    Show {
        /// The configuration
        #[arg(value_name = "CONFIG.toml")]
        config: PathBuf,
        /// Change a value, as in `optim.lr=3e-4`; may be repeated
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
    /// Print the JSON schema of all keys
    Schema,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    match &args.what {
        What::Schema => terminal.line(serde_json::to_string_pretty(schema())?)?,
        What::Show { config, set } => {
            let sources = Sources::file(config).variables(std::env::vars()).set(set.iter().cloned());
            let list = sources.resolve()?.list();
            if terminal.json {
                let entry = |(key, value, origin): (String, Value, _)| {
                    (key, json!({ "value": value, "origin": format!("{origin}") }))
                };
                let values: Map<String, Value> = list.into_iter().map(entry).collect();
                terminal.object("planaria/config/1", &json!({ "values": values }))?;
            } else {
                print(list, terminal)?;
            }
        }
    }
    Ok(Exit::Success)
}

fn print(list: Vec<(String, Value, planaria::train::config::Origin)>, terminal: &mut Terminal) -> Result<()> {
    let mut table = Table::new(&[]);
    for (key, value, origin) in list {
        table.row([key, value.to_string(), origin.to_string()]);
    }
    table.lines().collect::<Vec<_>>().iter().try_for_each(|line| terminal.line(line))
}
