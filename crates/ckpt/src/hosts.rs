//! Ranks on several hosts that share no file system: one rank of each host serves a folder there to the others, and all of these folders
//! together are one store.

use crate::error::Result;
use crate::talk;
use planaria_comm::Comm;
use planaria_store::{Agent, Local, Part, Peer, PeerOptions, Spread, Store};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Which rank is on which host.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// By rank, the name that others reach its host by.
    names: Vec<String>,
    rank: usize,
    /// What only these ranks know.
    token: String,
}

/// The folders of all hosts as one, for as long as this is held by all ranks.
#[derive(Debug)]
pub struct Folders {
    /// All of them.
    pub store: Arc<dyn Store>,
    /// Of the rank that serves its host's folder.
    _agent: Option<Agent>,
}

/// A folder of the first rank, as another one reaches it.
#[derive(Debug)]
pub(crate) struct Reached {
    pub(crate) folders: Folders,
    /// It has the same path here.
    pub(crate) seen: bool,
}

impl Hosts {
    /// Tells all ranks that this one is on the host that others reach by this name. Collective.
    pub fn meet(world: &dyn Comm, name: &str) -> Result<Hosts> {
        let names = talk::all_gather(world, name.to_string())?;
        let token = talk::from_first(world, token)?;
        Ok(Hosts { names, rank: world.rank(), token })
    }

    /// The name of this machine, where nobody said by which one others know it.
    pub fn own_name() -> String {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Some(name.trim().to_string()).filter(|name| !name.is_empty()).unwrap_or_else(|| "localhost".into())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.first().len()
    }

    /// Whether this rank is the first of its host, which does there what only one of them does.
    pub fn is_first(&self) -> bool {
        self.first().get(self.own()) == Some(&self.rank)
    }

    fn own(&self) -> &str {
        &self.names[self.rank]
    }

    /// The first rank of each host, by name.
    fn first(&self) -> BTreeMap<&str, usize> {
        let ranks = self.names.iter().enumerate().rev();
        ranks.map(|(rank, name)| (name.as_str(), rank)).collect()
    }

    /// Puts folders of all hosts together, `copies` of each file in them; `folder` is that of this host, and there. Collective.
    pub fn folders(&self, world: &dyn Comm, folder: &Path, copies: usize) -> Result<Folders> {
        let agent = if self.is_first() { self.serve(folder).map(Some) } else { Ok(None) };
        let agent = talk::agree(world, agent)?;
        let ports = talk::all_gather(world, agent.as_ref().map_or(0, |agent| agent.address().port()))?;
        let first = self.first();
        let reach = |(host, rank): (&&str, &usize)| -> Result<Part> {
            let store: Arc<dyn Store> = match *host == self.own() {
                true => Arc::new(Local::new(folder)),
                false => Arc::new(self.peer(host, ports[*rank])?),
            };
            Ok(Part { host: host.to_string(), store })
        };
        let parts = talk::agree(world, first.iter().map(reach).collect::<Result<Vec<Part>>>())?;
        let own = parts.iter().position(|part| part.host == self.own()).unwrap_or(0);
        Ok(Folders { store: Arc::new(Spread::new(parts, own, copies)), _agent: agent })
    }

    /// The folders of all hosts that hold what a path names there, and its name in them: empty where the path is that of a folder. Reads
    /// take what this host has from it, and the rest from others. Collective.
    pub fn locate(&self, world: &dyn Comm, path: &Path) -> Result<(Folders, String)> {
        let kinds = talk::all_gather(world, (path.is_dir(), path.is_file()))?;
        let is_folder = kinds.iter().any(|(folder, _)| *folder);
        if !is_folder && !kinds.iter().any(|(_, file)| *file) {
            let name = path.display().to_string();
            return Err(planaria_store::Error::NotFound { name }.into());
        }
        let name = path.file_name().and_then(|name| name.to_str()).filter(|_| !is_folder).unwrap_or_default();
        let folder = if is_folder { path } else { path.parent().unwrap_or(Path::new("")) };
        Ok((self.folders(world, folder, 1)?, name.to_string()))
    }

    /// A folder that the first rank has, for all ranks: those that do not see it as it is are served. Collective.
    pub(crate) fn of_first(&self, world: &dyn Comm, folder: &Path) -> Result<Reached> {
        let mark = folder.join(format!("seen-{}", &self.token[..16]));
        let io = |op: &'static str, error: std::io::Error| planaria_store::Error::Io {
            name: mark.display().to_string(),
            op,
            kind: error.kind(),
            message: error.to_string(),
        };
        talk::from_first(world, || Ok(std::fs::write(&mark, "").map_err(|error| io("write", error))?))?;
        let seen = mark.exists();
        let all = talk::all_gather(world, seen)?.into_iter().all(|seen| seen);
        talk::from_first(world, || Ok(std::fs::remove_file(&mark).map_err(|error| io("remove", error))?))?;
        let serves = self.rank == 0 && !all;
        let agent = talk::agree(world, if serves { self.serve(folder).map(Some) } else { Ok(None) })?;
        let port = talk::from_first(world, || Ok(agent.as_ref().map_or(0, |agent| agent.address().port())))?;
        let store: Arc<dyn Store> = match seen {
            true => Arc::new(Local::new(folder)),
            false => Arc::new(self.peer(&self.names[0], port)?),
        };
        Ok(Reached { folders: Folders { store, _agent: agent }, seen })
    }

    fn serve(&self, folder: &Path) -> Result<Agent> {
        let local = Arc::new(Local::new(folder));
        let agent = Agent::serve("[::]:0", local.clone(), &self.token);
        Ok(agent.or_else(|_| Agent::serve("0.0.0.0:0", local, &self.token))?)
    }

    fn peer(&self, host: &str, port: u16) -> Result<Peer> {
        let brackets = host.contains(':') && !host.starts_with('[');
        let address = if brackets { format!("[{host}]") } else { host.to_string() };
        let options = PeerOptions { token: self.token.clone(), ..PeerOptions::default() };
        Ok(Peer::with(&format!("peer://{address}:{port}"), options)?)
    }
}

/// A word that nobody can guess.
fn token() -> Result<String> {
    let path = "/dev/urandom";
    let mut bytes = [0; 32];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| planaria_store::Error::Io {
        name: path.into(),
        op: "read",
        kind: error.kind(),
        message: error.to_string(),
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
