//! `planaria top`: the ranks of a run in a terminal, as they are now.

mod draw;
mod look;
mod screen;

use crate::exit::Exit;
use crate::signals::Signals;
use crate::terminal::Terminal;
use anyhow::Result;
use draw::{Order, View};
use look::Look;
use screen::{Key, Screen};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Show the ranks of a run: step, memory, and bytes sent along each axis of the mesh, live
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Ranks write where they are every `log.every` steps. Keys: q quits, s changes the order (rank, steps behind, memory, bytes \
    sent),\nj and k or the arrows scroll. Where standard output is no terminal, and with --json, one snapshot is printed."
)]
pub(crate) struct Args {
    /// Folder of a run
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Print one snapshot and end
    #[arg(long)]
    once: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    every: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number such as 0.5".to_string())?;
    if (0.1..=3600.0).contains(&value) { Ok(value) } else { Err("expected 0.1 to 3600".to_string()) }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let mut look = Look::open(&args.run)?;
    if args.once || terminal.json || !std::io::stdout().is_terminal() {
        let seen = look.now()?;
        if terminal.json {
            terminal.object("planaria/top/1", &seen)?;
        } else {
            let view = View { width: usize::MAX, height: usize::MAX, ..View::default() };
            draw::lines(&seen, &view, terminal).iter().try_for_each(|line| terminal.line(line))?;
        }
        return Ok(Exit::Success);
    }
    let signals = Signals::watch()?;
    let screen = Screen::open()?;
    let (mut view, every) = (View::default(), Duration::from_secs_f64(args.every));
    while signals.came().is_none() {
        let seen = look.now()?;
        let due = Instant::now() + every;
        loop {
            (view.width, view.height) = screen.size();
            view.first = view.first.min(seen.ranks.len().saturating_sub(1));
            terminal.frame(&draw::lines(&seen, &view, terminal))?;
            match screen.key(due.saturating_duration_since(Instant::now())) {
                Some(Key::Quit) => return Ok(Exit::Success),
                Some(Key::Down) => view.first += 1,
                Some(Key::Up) => view.first = view.first.saturating_sub(1),
                Some(Key::Order) => view.order = view.order.next(),
                None => {}
            }
            if Instant::now() >= due || signals.came().is_some() {
                break;
            }
        }
    }
    Ok(Exit::Success)
}

impl Order {
    fn next(self) -> Order {
        match self {
            Order::Rank => Order::Behind,
            Order::Behind => Order::Memory,
            Order::Memory => Order::Sent,
            Order::Sent => Order::Rank,
        }
    }
}
