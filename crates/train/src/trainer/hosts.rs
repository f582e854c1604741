//! Checkpoints without a file system that all hosts share: one rank of each host serves the run's folder there to the others, and all of
//! these folders together are one store.

use super::Job;
use super::start::CHECKPOINTS;
use crate::error::{Error, Result};
use crate::pretrained::together;
use planaria_comm::Comm;
use planaria_comm::value::{self, Value};
use planaria_store::{Agent, Local, Part, Peer, PeerOptions, Spread, Store};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// The folders of all hosts, while this is held.
#[derive(Debug)]
pub(super) struct Folders {
    pub(super) store: Arc<dyn Store>,
    /// Of the rank that serves its host's folder.
    _agent: Option<Agent>,
}

/// The name of this machine, where nobody said by which one others know it.
pub(super) fn name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Some(name.trim().to_string()).filter(|name| !name.is_empty()).unwrap_or_else(|| "localhost".into())
}

/// Puts the run's folders of all hosts together, `copies` of each file in them; `host` is the name that others reach this one by.
/// Collective.
pub(super) fn gather(job: &Job, comm: &dyn Comm, host: &str, copies: usize) -> Result<Folders> {
    let hosts = texts(comm, host)?;
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (rank, host) in hosts.iter().enumerate() {
        first.entry(host).or_insert(rank);
    }
    let token = together(comm, if comm.rank() == 0 { token() } else { Ok(String::new()) })?;
    let token = texts(comm, &token)?.swap_remove(0);
    let dir = job.config.run_dir();
    let serves = first.get(host) == Some(&comm.rank());
    let agent = together(comm, if serves { serve(&dir, &token).map(Some) } else { Ok(None) })?;
    let port = agent.as_ref().map_or(String::new(), |agent| agent.address().port().to_string());
    let ports = texts(comm, &port)?;
    let reach = |(host, rank): (&&str, &usize)| -> Result<Part> {
        let store: Arc<dyn Store> = match *host == hosts[comm.rank()] {
            true => Arc::new(Local::new(&dir)),
            false => {
                let brackets = host.contains(':') && !host.starts_with('[');
                let address = if brackets { format!("[{host}]") } else { host.to_string() };
                let options = PeerOptions { token: token.clone(), ..PeerOptions::default() };
                Arc::new(Peer::with(&format!("peer://{address}:{}", ports[*rank]), options)?)
            }
        };
        Ok(Part { host: host.to_string(), store })
    };
    let parts = together(comm, first.iter().map(reach).collect::<Result<Vec<Part>>>())?;
    let own = parts.iter().position(|part| part.host == host).unwrap_or(0);
    Ok(Folders { store: Arc::new(Spread::new(parts, own, copies)), _agent: agent })
}

/// Serves the run's folder of this host. What is left of saves that this host did not see committed is no part of any checkpoint.
fn serve(dir: &Path, token: &str) -> Result<Agent> {
    let io = |source| Error::Io { path: dir.display().to_string(), source };
    std::fs::create_dir_all(dir).map_err(io)?;
    let local = Arc::new(Local::new(dir));
    planaria_ckpt::remove_leftovers(&*local, CHECKPOINTS)?;
    let agent = Agent::serve("[::]:0", local.clone(), token);
    Ok(agent.or_else(|_| Agent::serve("0.0.0.0:0", local, token))?)
}

/// What every rank says. Collective.
fn texts(comm: &dyn Comm, text: &str) -> Result<Vec<String>> {
    let all = value::all_gather(comm, &Value::Text(text.to_string()))?;
    let text = |value| if let Value::Text(text) = value { text } else { String::new() };
    Ok(all.into_iter().map(text).collect())
}

/// A word that nobody can guess.
fn token() -> Result<String> {
    let path = "/dev/urandom";
    let mut bytes = [0; 32];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|source| Error::Io { path: path.into(), source })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
