//! Ranks as processes without MPI: sockets carry the letters of a [`Depot`], Unix sockets on one machine, TCP between machines.
//!
//! Every rank listens at a socket of its own in a folder that only its user can enter, and has one connection to each other
//! rank. A process that ends without saying goodbye, however it ends, is noticed at once by all others. Ranks of several machines
//! listen to the network too; whoever started them brings the file that says where to the folders of the others, or the first rank tells
//! all that call it at an address that all of them know.

mod gathering;
mod meeting;
#[cfg(target_os = "linux")]
mod near;
mod post;
mod stream;

pub use meeting::{SECRET, address_file, write_address};
pub use post::Meter;

use crate::comm::Comm;
use crate::error::{Error, Result};
use crate::letters::{Depot, Options, words};
use planaria_layout::Rank;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long letters may take to leave a process that gives up.
const GRACE: Duration = Duration::from_secs(1);

/// Where a process stands among the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// This rank.
    pub rank: Rank,
    /// Ranks in all.
    pub size: usize,
    /// The folder of their sockets; empty for one that each rank makes for itself, where the first one brings them together.
    pub folder: PathBuf,
    /// How ranks of other machines reach this one, where there are any.
    pub network: Option<Network>,
}

/// What a rank needs to meet ranks of other machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The name or address that others know this machine by.
    pub address: String,
    /// What ranks of the same job know and nobody else does. It is sent as it is: a network that others listen to needs a tunnel.
    pub secret: [u8; SECRET],
    /// Where the first rank takes calls, as `HOST:PORT`, if nobody else brings ranks together. The first rank makes a secret of its own
    /// then, which those get that know this one.
    pub first: Option<String>,
}

/// Runs `work` as this process's rank; every process of the job calls this with its own place. An error or a panic
/// reaches the other ranks by name.
pub fn run<R, E: Display>(
    place: &Place,
    options: &Options,
    work: impl FnOnce(Arc<dyn Comm>) -> std::result::Result<R, E>,
) -> Result<R> {
    run_metered(place, options, |comm, _| work(comm))
}

/// The same, with a count of what goes to each rank.
pub fn run_metered<R, E: Display>(
    place: &Place,
    options: &Options,
    work: impl FnOnce(Arc<dyn Comm>, Arc<Meter>) -> std::result::Result<R, E>,
) -> Result<R> {
    let own = place.folder.as_os_str().is_empty().then(|| Own::make(place.rank)).transpose()?;
    let folder = own.as_ref().map_or(&place.folder, |own| &own.0);
    let place = &Place { folder: folder.clone(), ..place.clone() };
    let company = meeting::connect(place, options.timeout)?;
    let meter = Arc::new(Meter::new(company.hosts.clone()));
    #[cfg(target_os = "linux")]
    let shortcut = near::Near::of(place.rank, &company, &meter);
    #[cfg(not(target_os = "linux"))]
    let shortcut = None;
    let depot = Depot::beside(place.rank, company.hosts.clone(), shortcut)?;
    let gone = post::carry(&depot, company, &meter)?;
    let connection = depot.connect(options)?;
    let comm = connection.comm();
    let fail = |reason: String| comm.abort(&reason);
    let end = catch_unwind(AssertUnwindSafe(|| work(comm.clone(), meter)));
    let end = match end {
        Ok(Ok(result)) => Ok(comm.barrier().map(|()| result)),
        Ok(Err(error)) => {
            fail(error.to_string());
            // The first failure of all, which may be another's.
            let own = || Error::Aborted { rank: place.rank, reason: error.to_string() };
            Ok(Err(comm.barrier().err().unwrap_or_else(own)))
        }
        Err(panic) => {
            fail(format!("panic: {}", words(panic.as_ref())));
            Err(panic)
        }
    };
    drop(connection);
    // A peer that stands still must not keep this process.
    let _ = gone.recv_timeout(GRACE);
    end.unwrap_or_else(|panic| resume_unwind(panic))
}

/// A folder of this rank alone, which only its user can enter. It goes when this is dropped.
#[derive(Debug)]
struct Own(PathBuf);

impl Own {
    fn make(rank: Rank) -> Result<Own> {
        use std::os::unix::fs::DirBuilderExt;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let name = format!("planaria-rank-{rank}-{}-{}", std::process::id(), now.as_nanos());
        let path = std::env::temp_dir().join(name);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| failed(format!("cannot create '{}': {error}", path.display())))?;
        Ok(Own(path))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn failed(what: impl Into<String>) -> Error {
    Error::Engine { engine: "sockets", what: what.into() }
}
