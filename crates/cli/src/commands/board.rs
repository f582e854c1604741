//! `planaria board`: a page to watch runs, served locally or written as one file.

use crate::exit::Exit;
use crate::failure::Failure;
use crate::signals::Signals;
use crate::target::{self, Existing};
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use planaria_board::{Access, Board, Server, export};
use serde_json::json;
use std::io::Read;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Serve a page with the curves, checkpoints, configurations and logs of runs
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The page is read-only and needs no network. It listens on the loopback address; on any other one a token is part of \
    the address to open.\nRuns that start later appear by themselves. Ctrl-C ends it."
)]
pub(crate) struct Args {
    /// Folders of runs, or folders that hold some
    #[arg(value_name = "RUNS", default_value = "runs")]
    runs: Vec<PathBuf>,
    /// Port to listen on; 0 for any free one
    #[arg(long, default_value_t = 8321)]
    port: u16,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Who knows it may look; made up for addresses other than the loopback if not given
    #[arg(long, env = "PLANARIA_BOARD_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Write the page with its data to a file instead
    #[arg(long, value_name = "FILE.html")]
    export: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "export")]
    yes: bool,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    if let Some(missing) = args.runs.iter().find(|path| !path.is_dir()) {
        let message = format!("there is no folder '{}'", missing.display());
        return Err(Failure::usage(message).hint("give folders of runs, such as `runs`").into());
    }
    let board = Board::new(&args.runs);
    if let Some(path) = &args.export {
        let existing = Existing::from_yes(args.yes);
        target::check(path, existing)?;
        target::write(path, existing, export(&board).as_bytes())?;
        terminal.line(path.display())?;
        return Ok(Exit::Success);
    }
    let token = match &args.token {
        Some(token) if !is_plain(token) => {
            let message = "a token is made of letters, digits, '-' and '_'";
            return Err(Failure::usage(message).hint("leave it out to have one made").into());
        }
        None if !args.host.is_loopback() => Some(random_token()?),
        given => given.clone(),
    };
    let access = token.clone().map_or(Access::Loopback, Access::Token);
    let signals = Signals::watch()?;
    let server = Server::start(board, &std::net::SocketAddr::new(args.host, args.port).to_string(), access)?;
    let query = token.map_or(String::new(), |token| format!("?token={token}"));
    let address = format!("http://{}/{query}", server.address());
    match terminal.json {
        true => terminal.object("planaria/board/1", &json!({ "address": address }))?,
        false => terminal.line(&address)?,
    }
    terminal.flush()?;
    while signals.came().is_none() {
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(Exit::Success)
}

/// Whether a token can stand in an address and in a cookie as it is.
fn is_plain(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

fn random_token() -> Result<String> {
    let mut bytes = [0u8; 16];
    let drawn = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    drawn.context("cannot draw a token from /dev/urandom; give one by `--token`")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
