//! One store made of the folders of several hosts: every file lies whole on some of them, and is found wherever it lies.

use crate::error::{Error, Result};
use crate::store::{Entry, PutMode, Reader, Sharing, Store, Writer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What one host has.
#[derive(Clone, Debug)]
pub struct Part {
    /// The host's name, which decides what lies there.
    pub host: String,
    /// Its folder, as it is reached from here.
    pub store: Arc<dyn Store>,
}

/// The folders of several hosts as one. Files that are written at offsets lie on `copies` hosts, which follow from the names of file
/// and hosts alone; small files that are put whole lie on all of them. Files are read from this host where it has them.
///
/// Of several that create a file, the host that comes first for its name decides who succeeds.
#[derive(Clone, Debug)]
pub struct Spread {
    parts: Vec<Part>,
    /// This host's number.
    own: usize,
    copies: usize,
}

impl Spread {
    /// Over these hosts, of which the one with the number `own` is this one. There are no more copies than hosts.
    ///
    /// # Panics
    /// Without hosts, or where `own` is none of them.
    pub fn new(parts: Vec<Part>, own: usize, copies: usize) -> Spread {
        assert!(own < parts.len(), "host {own} of {}", parts.len());
        let copies = copies.clamp(1, parts.len());
        Spread { parts, own, copies }
    }

    /// The hosts in the order in which a file asks for them. Without a host the others stay in their order, so that a second copy is
    /// where the file is looked for when the first is lost.
    fn order(&self, name: &str) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.parts.len()).collect();
        order.sort_by_key(|&part| (std::cmp::Reverse(weight(&self.parts[part].host, name)), part));
        order
    }

    /// Calls a part, and says in an error which host it was.
    fn on<T>(&self, part: usize, call: impl FnOnce(&dyn Store) -> Result<T>) -> Result<T> {
        let part = &self.parts[part];
        call(&*part.store).map_err(|error| of_host(error, &part.host))
    }
}

/// How much a file wants to lie on a host: FNV-1a of both names, with its bits mixed.
fn weight(host: &str, name: &str) -> u64 {
    let bytes = host.bytes().chain([0]).chain(name.bytes());
    let sum = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = (sum ^ (sum >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

fn of_host(error: Error, host: &str) -> Error {
    let at = |message: String| format!("{message}, on host '{host}'");
    match error {
        Error::Io { name, op, kind, message } => Error::Io { name, op, kind, message: at(message) },
        Error::Remote { name, op, message, transient } => {
            Error::Remote { name, op, message: at(message), transient }
        }
        other => other,
    }
}

impl Store for Spread {
    fn address(&self) -> String {
        let hosts: Vec<&str> = self.parts.iter().map(|part| part.host.as_str()).collect();
        format!("{} of {}", self.parts[self.own].store.address(), hosts.join(", "))
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        let mut found: BTreeMap<String, (usize, Entry)> = BTreeMap::new();
        for part in 0..self.parts.len() {
            for entry in self.on(part, |store| store.list(folder))? {
                let place = self.order(&entry.name).iter().position(|&one| one == part).unwrap_or(part);
                let known = found.get(&entry.name).map(|(place, _)| *place);
                if known.is_none_or(|known| place < known) {
                    found.insert(entry.name.clone(), (place, entry));
                }
            }
        }
        Ok(found.into_values().map(|(_, entry)| entry).collect())
    }

    fn reader(&self, name: &str) -> Result<Box<dyn Reader>> {
        let order = self.order(name).into_iter().filter(|&part| part != self.own);
        let mut failed = None;
        for part in std::iter::once(self.own).chain(order) {
            match self.on(part, |store| store.reader(name)) {
                Ok(reader) => return Ok(reader),
                Err(Error::NotFound { .. }) => {}
                // Another host may have a copy that can be read.
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        Err(failed.unwrap_or_else(|| Error::NotFound { name: name.to_string() }))
    }

    fn writer(&self, name: &str, len: u64, sharing: Sharing) -> Result<Box<dyn Writer>> {
        let parts = self.order(name).into_iter().take(self.copies);
        let begin = |part: usize| {
            let writer = self.on(part, |store| store.writer(name, len, sharing))?;
            Ok((self.parts[part].host.clone(), writer))
        };
        let writers = parts.map(begin).collect::<Result<_>>()?;
        Ok(Box::new(Copies { name: name.to_string(), writers }))
    }

    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<()> {
        let mut mode = mode;
        for part in self.order(name) {
            self.on(part, |store| store.put(name, bytes, mode))?;
            mode = PutMode::Replace;
        }
        Ok(())
    }

    fn delete(&self, name: &str) -> Result<()> {
        let mut any = false;
        // The host that decides who may create it forgets it last.
        for part in self.order(name).into_iter().rev() {
            match self.on(part, |store| store.delete(name)) {
                Ok(()) => any = true,
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if any { Ok(()) } else { Err(Error::NotFound { name: name.to_string() }) }
    }
}

/// The same file on several hosts.
#[derive(Debug)]
struct Copies {
    name: String,
    writers: Vec<(String, Box<dyn Writer>)>,
}

impl Writer for Copies {
    fn name(&self) -> &str {
        &self.name
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let write = |(host, writer): &(String, Box<dyn Writer>)| {
            writer.write_at(offset, bytes).map_err(|error| of_host(error, host))
        };
        self.writers.iter().try_for_each(write)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let mut writers = self.writers.into_iter();
        writers.try_for_each(|(host, writer)| writer.finish().map_err(|error| of_host(error, &host)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Agent, Local, Object, Peer, PeerOptions, StoreExt};

    /// Three hosts: a folder, a folder behind an agent, and memory.
    fn hosts() -> (Vec<Part>, Agent, Vec<tempfile::TempDir>) {
        let folders: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
        let local = |at: usize| Arc::new(Local::new(folders[at].path()));
        let agent = Agent::serve("127.0.0.1:0", local(1), "").unwrap();
        let url = format!("peer://{}", agent.address());
        let options = PeerOptions { token: String::new(), ..PeerOptions::default() };
        let stores: [Arc<dyn Store>; 3] =
            [local(0), Arc::new(Peer::with(&url, options).unwrap()), Arc::new(Object::memory())];
        let parts = stores.into_iter().zip(["a", "b", "c"]);
        (parts.map(|(store, host)| Part { host: host.into(), store }).collect(), agent, folders)
    }

    #[test]
    fn folders_of_several_hosts_conform_as_one_store() {
        let (parts, _agent, _folders) = hosts();
        crate::conformance::all(&*parts[1].store, "alone").unwrap();
        for copies in 1..=3 {
            crate::conformance::all(&Spread::new(parts.clone(), 0, copies), "all").unwrap();
        }
    }

    #[test]
    fn every_file_lies_whole_on_as_many_hosts_as_there_are_copies_and_survives_the_loss_of_one() {
        let (parts, _agent, _folders) = hosts();
        let all = Spread::new(parts.clone(), 0, 2);
        let names: Vec<String> = (0..24).map(|i| format!("step/{i}.safetensors")).collect();
        for name in &names {
            all.write(name, name.as_bytes()).unwrap();
        }
        all.put("step/COMMIT", b"", PutMode::Create).unwrap();
        for name in &names {
            let holding: Vec<bool> = parts.iter().map(|part| part.store.exists(name).unwrap()).collect();
            assert_eq!(holding.iter().filter(|has| **has).count(), 2, "{name}: {holding:?}");
        }
        for part in &parts {
            let count = part.store.file_names("step").unwrap().len();
            assert!((9..=25).contains(&count), "host '{}' has {count} of 24 files", part.host);
            assert!(part.store.exists("step/COMMIT").unwrap());
        }
        for lost in 0..3 {
            let mut left = parts.clone();
            left.remove(lost);
            let left = Spread::new(left, 0, 2);
            assert_eq!(left.file_names("step").unwrap().len(), 25);
            assert!(names.iter().all(|name| left.read(name, 99).unwrap() == name.as_bytes()));
            assert!(left.put("step/COMMIT", b"", PutMode::Create).is_err(), "a mark is set once");
        }
    }

    #[test]
    fn an_error_names_the_host() {
        let (mut parts, agent, _folders) = hosts();
        drop(agent);
        parts.remove(2);
        let error = Spread::new(parts, 0, 2).write("x", b"y").unwrap_err().to_string();
        assert!(error.contains("on host 'b'"), "{error}");
    }
}
