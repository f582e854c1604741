//! The agent of one machine: starts the ranks that the launcher asks for, watches them, and passes on what they say.

use super::super::hang;
use super::super::job::{BEATS, Rank};
use super::super::rank::{Copies, Tell};
use super::super::stop::send;
use super::super::{ENGINE, MEETING, Notes};
use super::wire::{Ask, Begin, Told};
use crate::exit::Exit;
use anyhow::{Context, Result};
use planaria::comm::sockets::{address_file, write_address};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

/// Time between two looks at the ranks.
const PULSE: Duration = Duration::from_millis(20);

/// A rank of this machine.
struct Member {
    child: Child,
    copies: Option<Copies>,
    ended: bool,
    address: bool,
    /// The last that was passed on.
    beat: String,
}

/// Runs until all ranks of this machine have ended.
pub(in super::super) fn run() -> Result<Exit> {
    tell(&Told::hello());
    let asked = listen();
    let Ok(Ask::Begin(begin)) = asked.recv() else { return Ok(Exit::Success) };
    let notes = Notes::new("host")?;
    let mut members = match start(&begin, &notes) {
        Ok(members) => members,
        Err(error) => {
            tell(&Told::Failed { why: format!("{error:#}") });
            return Ok(Exit::Negative);
        }
    };
    let mut alone = false;
    while members.values().any(|member| !member.ended) {
        loop {
            match asked.try_recv() {
                Ok(ask) => answer(&ask, &mut members, &notes),
                Err(TryRecvError::Empty) => break,
                // Ranks see that they are alone when their standard input ends, save and stop.
                Err(TryRecvError::Disconnected) => {
                    if !std::mem::replace(&mut alone, true) {
                        members.values_mut().for_each(|member| drop(member.child.stdin.take()));
                    }
                    break;
                }
            }
        }
        for (&rank, member) in &mut members {
            look(rank, member, &notes)?;
        }
        std::thread::sleep(PULSE);
    }
    Ok(Exit::Success)
}

/// Lines of the launcher; they end when it does.
fn listen() -> Receiver<Ask> {
    let (to, from) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
            let Ok(ask) = serde_json::from_str(&line) else { return };
            if to.send(ask).is_err() {
                return;
            }
        }
    });
    from
}

/// Says a line; one that cannot be said has nobody to hear it.
fn tell(told: &Told) {
    let text = serde_json::to_string(told).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

fn start(begin: &Begin, notes: &Notes) -> Result<BTreeMap<usize, Member>> {
    let folder = &begin.folder;
    std::env::set_current_dir(folder).with_context(|| format!("cannot work in '{folder}'"))?;
    let mut members = BTreeMap::new();
    for (local, rank) in begin.ranks.clone().enumerate() {
        let one = Rank {
            rank,
            size: begin.size,
            local: local as u32,
            local_size: begin.ranks.len() as u32,
            host: begin.number,
        };
        let mut command = one.command(&begin.command)?;
        command.envs(begin.variables.iter().map(|(name, value)| (name, value)));
        command.env(ENGINE, "processes").env(MEETING, notes.path()).env(BEATS, notes.path());
        let mut child = command.spawn().with_context(|| format!("cannot start rank {rank}"))?;
        let rank = rank as usize;
        let line: Tell =
            Arc::new(move |error, text: &str| tell(&Told::Line { rank, error, text: text.into() }));
        let copies = Some(Copies::start(&mut child, line));
        members.insert(rank, Member { child, copies, ended: false, address: false, beat: String::new() });
    }
    Ok(members)
}

fn answer(ask: &Ask, members: &mut BTreeMap<usize, Member>, notes: &Notes) {
    match ask {
        Ask::Begin(_) => {}
        Ask::Address { rank, address } => {
            if let Err(error) = write_address(notes.path(), *rank, address) {
                tell(&Told::Failed { why: format!("cannot note where rank {rank} listens: {error}") });
            }
        }
        Ask::Signal { rank, signal } => {
            if let Some(member) = members.get_mut(rank).filter(|member| !member.ended) {
                match signal.as_str() {
                    "KILL" => drop(member.child.kill()),
                    other => send(member.child.id(), other),
                }
            }
        }
        Ask::Look { rank } => {
            let text = members.get(rank).map(|member| hang::inside(member.child.id())).unwrap_or_default();
            tell(&Told::Inside { rank: *rank, text });
        }
    }
}

/// Passes on what is new of a rank.
fn look(rank: usize, member: &mut Member, notes: &Notes) -> Result<()> {
    if member.ended {
        return Ok(());
    }
    if !member.address
        && let Ok(address) = std::fs::read_to_string(address_file(notes.path(), rank))
    {
        member.address = true;
        tell(&Told::Address { rank, address });
    }
    let beat = std::fs::read_to_string(notes.path().join(format!("rank-{rank:05}.beat"))).unwrap_or_default();
    let beat = beat.trim_end();
    if beat != member.beat && !beat.is_empty() {
        member.beat = beat.into();
        tell(&Told::Beat { rank, text: beat.into() });
    }
    if let Some(status) = member.child.try_wait()? {
        member.ended = true;
        let last = member.copies.take().map(Copies::finish).unwrap_or_default();
        let (code, signal) = parts(status);
        tell(&Told::Ended { rank, code, signal, last });
    }
    Ok(())
}

fn parts(status: ExitStatus) -> (Option<i32>, Option<i32>) {
    (status.code(), status.signal())
}
