//! Ranks over sockets: the conformance suite, the bits of thread ranks, a process that goes without a word, a peer that never comes.

use planaria_array::{Array, DType};
use planaria_comm::letters::Options;
use planaria_comm::sockets::{self, Network, Place};
use planaria_comm::{Comm, CommExt, Error, Recv, Visit, Watch, conformance, threads, watched};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn options(seconds: u64) -> Options {
    Options { timeout: Duration::from_secs(seconds), ..Options::default() }
}

/// Ranks in threads, each with connections of its own as a process would have them.
fn run<R: Send>(
    ranks: usize,
    work: impl Fn(Arc<dyn Comm>) -> Result<R, Error> + Sync,
) -> Vec<Result<R, Error>> {
    let folder = tempfile::tempdir().unwrap();
    let (work, folder) = (&work, folder.path());
    std::thread::scope(|scope| {
        let one = |rank| {
            let place = Place { rank, size: ranks, folder: folder.to_path_buf(), network: None };
            scope.spawn(move || sockets::run(&place, &options(60), work))
        };
        (0..ranks).map(one).collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn ranks_over_sockets_conform() {
    for ranks in 1..=3 {
        for (rank, result) in run(ranks, |comm| Ok(conformance::run(&comm))).into_iter().enumerate() {
            assert_eq!(result.unwrap(), Ok(()), "rank {rank} of {ranks}");
        }
    }
}

#[test]
fn ranks_over_sockets_give_the_bits_of_thread_ranks() {
    let ours = run(3, |comm| Ok(conformance::digest(&comm, 5, 40).unwrap()));
    let ours: Vec<_> = ours.into_iter().map(Result::unwrap).collect();
    assert_eq!(ours, threads::run(3, |comm| conformance::digest(&comm, 5, 40).unwrap()));
}

/// A folder for each rank, as on machines of their own, and somebody who brings the addresses to the others.
#[test]
fn ranks_of_several_machines_meet_over_the_network_and_strangers_are_left_out() {
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let folders = folders.each_ref().map(|folder| folder.path());
    let network = |secret| {
        Some(Network { address: "127.0.0.1".into(), secret: [secret; sockets::SECRET], first: None })
    };
    let ends: Vec<_> = std::thread::scope(|scope| {
        let one = |rank: usize| {
            // Ranks 1 and 2 share a machine.
            let folder = folders[rank.min(1)].to_path_buf();
            let place = Place { rank, size: 3, folder, network: network(7) };
            scope.spawn(move || {
                sockets::run(&place, &options(60), |comm| {
                    Ok::<_, Error>(conformance::digest(&comm, 5, 40).unwrap())
                })
            })
        };
        let ranks: Vec<_> = (0..3).map(one).collect();
        let address = loop {
            match std::fs::read_to_string(sockets::address_file(folders[0], 0)) {
                Ok(address) => break address,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        // Neither one that knows another secret nor one that says nothing keeps the others from meeting.
        let mut stranger = std::net::TcpStream::connect(&address).unwrap();
        std::io::Write::write_all(&mut stranger, &[1; 8 + sockets::SECRET]).unwrap();
        let silent = std::net::TcpStream::connect(&address).unwrap();
        sockets::write_address(folders[1], 0, &address).unwrap();
        let ends = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect();
        drop(silent);
        ends
    });
    assert_eq!(ends, threads::run(3, |comm| conformance::digest(&comm, 5, 40).unwrap()));
    assert!(sockets::address_file(folders[1], 0).exists() && !folders[0].join("rank-00001.sock").exists());
}

#[test]
fn an_error_of_one_rank_reaches_the_others_by_name() {
    let ends = run(3, |comm| match comm.rank() {
        1 => Err(Error::Engine { engine: "test", what: "no luck".into() }),
        _ => comm.barrier(),
    });
    let said = |end: &Result<(), Error>| end.as_ref().unwrap_err().to_string();
    assert!(ends.iter().all(|end| said(end).contains("rank 1 stopped: test: no luck")), "{ends:?}");
}

#[test]
fn a_process_that_is_gone_fails_the_calls_of_the_others() {
    let folder = tempfile::tempdir().unwrap();
    // The other side of the connection is closed without a goodbye, as the system does for a process that was killed.
    let path = folder.path().to_path_buf();
    let dead = std::thread::spawn(move || {
        let mut stream = loop {
            match std::os::unix::net::UnixStream::connect(path.join("rank-00000.sock")) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let words = [&1u64.to_le_bytes()[..], &[0; sockets::SECRET]].concat();
        std::io::Write::write_all(&mut stream, &words).unwrap();
    });
    let place = Place { rank: 0, size: 2, folder: folder.path().to_path_buf(), network: None };
    let end = sockets::run(&place, &options(60), |comm| comm.barrier());
    assert!(end.unwrap_err().to_string().contains("rank 1 is gone"));
    dead.join().unwrap();
}

#[test]
fn a_peer_that_never_comes_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let place = |folder: &Path| Place { rank: 0, size: 2, folder: folder.to_path_buf(), network: None };
    let short = Options { timeout: Duration::from_millis(50), ..Options::default() };
    let end = sockets::run(&place(folder.path()), &short, |comm| comm.barrier());
    assert!(
        matches!(end, Err(Error::Timeout { call: "connect", ref missing, .. }) if *missing == [1]),
        "{end:?}"
    );
    let nowhere = folder.path().join("not there");
    assert!(
        sockets::run(&place(&nowhere), &short, |comm| comm.barrier())
            .unwrap_err()
            .to_string()
            .contains("not there")
    );
}

#[derive(Debug, Default)]
struct Notes(Mutex<Vec<(Visit, bool)>>);

impl Watch for Notes {
    fn came(&self, visit: Visit) -> u64 {
        let mut notes = self.0.lock().unwrap();
        notes.push((visit, false));
        notes.len() as u64 - 1
    }

    fn left(&self, visit: u64) {
        self.0.lock().unwrap()[visit as usize].1 = true;
    }
}

#[test]
fn a_watched_communicator_conforms_and_all_ranks_tell_the_same() {
    let told = threads::run(2, |comm| {
        let notes = Arc::new(Notes::default());
        let comm = watched(comm, notes.clone());
        conformance::run(&comm).unwrap();
        let split = comm.split(&[vec![0, 1]]).unwrap().unwrap();
        split.barrier().unwrap();
        comm.group(&[0, 1]).unwrap().barrier().unwrap();
        let notes = notes.0.lock().unwrap();
        assert!(notes.iter().all(|(_, left)| *left));
        notes.iter().rev().take(3).map(|(visit, _)| visit.clone()).collect::<Vec<_>>()
    });
    assert_eq!(told[0], told[1]);
    let [group, split, making] = &told[0][..] else { panic!("{told:?}") };
    assert_eq!((group.call, group.lane.as_str(), group.ranks.as_slice()), ("barrier", "group", &[0, 1][..]));
    assert_eq!((split.call, split.number, making.call), ("barrier", 0, "split"));
    assert!(split.lane.starts_with("world/"), "{split:?}");
}

/// More than the memory between two ranks has room for, while the receiver does something else: what finds none is carried by sockets, and
/// nothing overtakes.
#[test]
fn letters_that_find_no_room_in_shared_memory_keep_their_order() {
    let lengths = || (0..400usize).map(|i| [0, 3, 700, 8192, 8193, 30_000][i % 6] + i % 5);
    let ends = run(2, |comm| {
        if comm.rank() == 0 {
            for (i, length) in lengths().enumerate() {
                comm.send(planaria_comm::Send {
                    data: Array::full(&[length], i % 251, DType::U8)?,
                    to: 1,
                    tag: 5,
                })?;
            }
        }
        comm.barrier()?;
        for (i, length) in lengths().enumerate().filter(|_| comm.rank() == 1) {
            let data = Array::empty(&[length], DType::U8)?;
            comm.recv(Recv { data: data.clone(), from: 0, tag: 5 })?;
            assert!(data.to_vec::<u8>()?.iter().all(|&byte| byte == (i % 251) as u8), "letter {i}");
        }
        Ok(())
    });
    assert!(ends.into_iter().all(|end| end.is_ok()));
}
