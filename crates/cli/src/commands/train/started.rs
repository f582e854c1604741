//! Who started this process, and which rank it is.

use super::outside::{self, Outside};
use crate::commands::launch::hosts::{ADDRESS, SECRET_WORD, unhex};
use crate::commands::launch::{ENGINE, MEETING};
use crate::failure::Failure;
use anyhow::Result;
use planaria::ckpt::Hosts;
use planaria::comm::sockets::{Network, Place, SECRET};
use std::path::PathBuf;

/// How this process was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Started {
    /// By hand.
    Alone,
    /// By `planaria launch`, to run this many thread ranks.
    Threads { ranks: usize, restarts: u64 },
    /// By `mpirun`, as one of this many processes.
    Mpi { rank: usize, ranks: usize, restarts: u64 },
    /// By `planaria launch` or another launcher, as one of several processes that sockets connect.
    Processes { place: Place, restarts: u64 },
}

impl Started {
    pub(in crate::commands) fn find() -> Result<Started> {
        Started::told_by(|name| std::env::var(name).ok())
    }

    fn told_by(variable: impl Fn(&str) -> Option<String>) -> Result<Started> {
        let number = |name: &str| variable(name).and_then(|text| text.parse::<usize>().ok());
        let restarts = number("TORCHELASTIC_RESTART_COUNT").unwrap_or(0) as u64;
        let engine = variable(ENGINE);
        match (number("WORLD_SIZE"), engine.as_deref(), variable(MEETING)) {
            (Some(ranks), Some("threads"), _) => return Ok(Started::Threads { ranks, restarts }),
            (Some(size), Some("processes"), Some(folder)) => {
                let network = variable(ADDRESS).zip(variable(SECRET_WORD).and_then(|text| unhex(&text)));
                let network = network.map(|(address, secret)| Network { address, secret, first: None });
                let rank = number("RANK").unwrap_or(0);
                let place = Place { rank, size, folder: folder.into(), network };
                return Ok(Started::Processes { place, restarts });
            }
            _ => {}
        }
        let Some(outside) = outside::find(&variable)? else { return Ok(Started::Alone) };
        let Outside { rank, size, by_mpi, .. } = outside;
        if by_mpi
            && engine.as_deref() != Some("processes")
            && (cfg!(feature = "mpi") || outside.first.is_none())
        {
            return Ok(Started::Mpi { rank, ranks: size, restarts });
        }
        let first = outside.first.ok_or_else(|| outside::nowhere(rank, size))?;
        let secret = match variable(SECRET_WORD) {
            None => [0; SECRET],
            Some(text) => unhex(&text).ok_or_else(|| {
                let message = format!("{SECRET_WORD} has {} characters that are no secret", text.len());
                Failure::usage(message).hint("give all ranks the same 64 hexadecimal digits")
            })?,
        };
        let address = variable(ADDRESS).unwrap_or_else(Hosts::own_name);
        let network = Some(Network { address, secret, first: Some(first) });
        let place = Place { rank, size, folder: PathBuf::new(), network };
        Ok(Started::Processes { place, restarts })
    }

    /// Whether the end of standard input says that whoever started this process is gone.
    pub(in crate::commands) fn is_watched(&self) -> bool {
        matches!(self, Started::Processes { .. }) && !self.meets_alone()
    }

    /// Whether nobody brings this process and the others together.
    fn meets_alone(&self) -> bool {
        let Started::Processes { place, .. } = self else { return false };
        place.network.as_ref().is_some_and(|network| network.first.is_some())
    }

    pub(in crate::commands) fn threads(&self) -> Option<usize> {
        if let Started::Threads { ranks, .. } = self { Some(*ranks) } else { None }
    }

    pub(in crate::commands) fn processes(&self) -> Option<usize> {
        match self {
            Started::Mpi { ranks, .. } => Some(*ranks),
            Started::Processes { place, .. } => Some(place.size),
            _ => None,
        }
    }

    /// The rank that this process is, among others.
    pub(in crate::commands) fn rank(&self) -> usize {
        match self {
            Started::Mpi { rank, .. } => *rank,
            Started::Processes { place, .. } => place.rank,
            _ => 0,
        }
    }

    /// The name that ranks of other machines reach this one by.
    pub(in crate::commands) fn host(&self) -> String {
        let told = match self {
            Started::Processes { place, .. } => place.network.as_ref().map(|network| network.address.clone()),
            _ => std::env::var(ADDRESS).ok(),
        };
        told.unwrap_or_else(Hosts::own_name)
    }

    /// Only one process of a job prints what the job has to say.
    pub(in crate::commands) fn is_first(&self) -> bool {
        self.rank() == 0
    }

    pub(in crate::commands) fn restarts(&self) -> u64 {
        match self {
            Started::Alone => 0,
            Started::Threads { restarts, .. }
            | Started::Mpi { restarts, .. }
            | Started::Processes { restarts, .. } => *restarts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_started_the_process_is_told_by_its_variables() {
        let told = |list: &[(&str, &str)]| {
            let list: Vec<(String, String)> =
                list.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            Started::told_by(|name| list.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()))
        };
        assert_eq!(told(&[]).unwrap(), Started::Alone);
        assert_eq!(told(&[("WORLD_SIZE", "1"), ("RANK", "0")]).unwrap(), Started::Alone);
        let threads =
            told(&[("WORLD_SIZE", "4"), ("PLANARIA_ENGINE", "threads"), ("TORCHELASTIC_RESTART_COUNT", "2")]);
        assert_eq!(threads.unwrap(), Started::Threads { ranks: 4, restarts: 2 });
        let mpi = told(&[("OMPI_COMM_WORLD_SIZE", "3"), ("WORLD_SIZE", "3"), ("RANK", "1")]).unwrap();
        assert_eq!((mpi.processes(), mpi.threads(), mpi.rank()), (Some(3), None, 1));
        let list = [
            ("WORLD_SIZE", "4"),
            ("RANK", "2"),
            ("PLANARIA_ENGINE", "processes"),
            ("PLANARIA_MEETING", "/x"),
        ];
        let one = told(&list).unwrap();
        assert_eq!((one.processes(), one.rank(), one.is_first()), (Some(4), 2, false));
        assert!(one.is_watched() && !one.meets_alone());
        let torch = [("WORLD_SIZE", "8"), ("RANK", "3"), ("MASTER_ADDR", "node1"), ("MASTER_PORT", "5000")];
        let one = told(&torch).unwrap();
        assert_eq!((one.processes(), one.rank(), one.is_watched()), (Some(8), 3, false));
        let Started::Processes { place, .. } = one else { panic!("{one:?}") };
        assert_eq!(place.network.unwrap().first.as_deref(), Some("node1:5000"));
        let wrong = [&torch[..], &[("PLANARIA_SECRET", "abc")]].concat();
        assert!(told(&wrong).unwrap_err().to_string().contains("PLANARIA_SECRET has 3 characters"));
    }
}
