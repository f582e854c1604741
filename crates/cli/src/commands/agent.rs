//! `planaria agent`: holds checkpoints of other processes in its memory.

use crate::exit::Exit;
use crate::failure::Failure;
use crate::quantity::Bytes;
use crate::signals::Signals;
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use planaria::store::{Agent, PEER_TOKEN, peer_token};
use serde_json::json;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Hold checkpoints of other processes in memory: the peer tier of a run
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Prints its address, to be given as `path = \"peer://HOST:PORT/RUN\"` of a tier with `kind = \"peer\"`.\nWhat it holds is lost \
    when it ends: with Ctrl-C, SIGTERM or, with --with-parent, with the end of its standard input.\nClients give the same \
    PLANARIA_PEER_TOKEN as the agent; on any address but the loopback one it must be set."
)]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 for any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: String,
    /// Most bytes to hold
    #[arg(long, value_name = "SIZE", default_value = "8GiB")]
    memory: Bytes,
    /// End when standard input does, as it does when the process that started this one is gone
    #[arg(long)]
    with_parent: bool,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let token = peer_token()?;
    check_address(&args.listen, &token)?;
    let signals = Signals::watch()?;
    let agent = Agent::listen(&args.listen, args.memory.0, &token)?;
    let address = agent.address();
    match terminal.json {
        true => {
            let about = json!({ "address": address.to_string(), "memory": args.memory.0 });
            terminal.object("planaria/agent/1", &about)?;
        }
        false => terminal.line(format!("peer://{address}"))?,
    }
    terminal.flush()?;
    let parent = Arc::new(AtomicBool::new(true));
    if args.with_parent {
        watch_parent(parent.clone())?;
    }
    while signals.came().is_none() && parent.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let held = agent.room();
    terminal.detail(format!("ended with {} files, {} in memory", held.files, Bytes(held.used)));
    Ok(Exit::Success)
}

/// Other machines may come in only with a token.
fn check_address(listen: &str, token: &str) -> Result<()> {
    let found = listen.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let Ok(addresses) = found else {
        let message = format!("'{listen}' is no address to listen on");
        return Err(Failure::usage(message).hint("give one such as `127.0.0.1:0` or `0.0.0.0:7070`").into());
    };
    if token.is_empty() && addresses.iter().any(|address| !address.ip().is_loopback()) {
        let message = format!("other machines reach '{listen}', and {PEER_TOKEN} is not set");
        let hint = format!("set {PEER_TOKEN} to a random word here and for the run");
        return Err(Failure::usage(message).hint(hint).into());
    }
    Ok(())
}

/// Notes the end of standard input, from a thread that waits for nothing else.
fn watch_parent(parent: Arc<AtomicBool>) -> Result<()> {
    let wait = move || {
        // An error is an end as well.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        parent.store(false, Ordering::Release);
    };
    let thread = std::thread::Builder::new().name("planaria-parent".to_string()).spawn(wait);
    thread.map(|_| ()).context("cannot start a thread that watches standard input")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_loopback_address_needs_no_token() {
        check_address("127.0.0.1:0", "").unwrap();
        check_address("[::1]:0", "").unwrap();
        check_address("0.0.0.0:0", "secret").unwrap();
        for (listen, token, words) in
            [("0.0.0.0:0", "", PEER_TOKEN), ("127.0.0.1", "", "no address"), ("", "secret", "no address")]
        {
            let message = check_address(listen, token).unwrap_err().to_string();
            assert!(message.contains(words), "{listen}: {message}");
        }
    }
}
