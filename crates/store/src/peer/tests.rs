//! Agents and their clients over the loopback address: what they promise, and what they do when one of them fails.

mod hostile;
mod proxy;

use super::*;
use crate::{Retry, RetryOptions, StoreExt, conformance};
use proxy::Proxy;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn agent(limit: u64) -> Agent {
    Agent::listen("127.0.0.1:0", limit, "").unwrap()
}

fn options(answer: Duration) -> PeerOptions {
    PeerOptions { answer, connect: Duration::from_secs(2), ..PeerOptions::default() }
}

fn peer(agent: &Agent) -> Peer {
    Peer::with(&format!("peer://{}/run", agent.address()), options(Duration::from_secs(60))).unwrap()
}

/// Waits for what another thread is about to do.
fn soon(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_passing(error: &Error) -> bool {
    matches!(error, Error::Remote { transient: true, .. })
}

fn is_lasting(error: &Error) -> bool {
    matches!(error, Error::Remote { transient: false, .. })
}

#[test]
fn a_peer_conforms_at_its_root_and_below_a_prefix() {
    let agent = agent(64 * MIB);
    conformance::all(&peer(&agent), "").unwrap();
    conformance::all(&peer(&agent), "some/folder").unwrap();
    let root = crate::open(&format!("peer://{}", agent.address())).unwrap();
    conformance::all(&root, "x").unwrap();
    conformance::all(&Retry::new(root, RetryOptions::default()), "").unwrap();
    assert_eq!(agent.room(), PeerRoom { limit: 64 * MIB, used: 0, files: 0 });
}

#[test]
fn of_many_that_create_a_large_file_one_succeeds_and_it_is_never_seen_in_part() {
    let folder = tempfile::tempdir().unwrap();
    let served = Agent::serve("127.0.0.1:0", Arc::new(crate::Local::new(folder.path())), "").unwrap();
    let content = |of: u8| vec![of; CHUNK + 999];
    for agent in [agent(64 * MIB), served] {
        let create = |of: u8| peer(&agent).put("large", &content(of), PutMode::Create);
        let together = std::sync::Barrier::new(4);
        let told: Vec<Result<()>> = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..4u8)
                .map(|of| {
                    let (together, create) = (&together, &create);
                    scope.spawn(move || (together.wait(), create(of)).1)
                })
                .collect();
            tries.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let winner = told.iter().position(Result::is_ok).expect("nobody succeeded") as u8;
        assert_eq!(told.iter().filter(|told| told.is_ok()).count(), 1, "{told:?}");
        assert_eq!(peer(&agent).read("large", 2 * CHUNK as u64).unwrap(), content(winner));
        assert!(matches!(create(9), Err(Error::AlreadyExists { .. })));
        // One that is given up leaves what was there.
        let full = "run/large";
        let begun = writer::PeerWriter::whole(&peer(&agent).link, "large", full, 2 * CHUNK as u64).unwrap();
        begun.write_at(0, &content(7)).unwrap();
        assert!(begun.finish_as(PutMode::Replace).is_err());
        assert_eq!(peer(&agent).read("large", 2 * CHUNK as u64).unwrap(), content(winner));
    }
}

#[test]
fn a_prefix_sees_its_own_files_only() {
    let agent = agent(MIB);
    let one = peer(&agent);
    let two = Peer::open(&format!("peer://{}/other/", agent.address())).unwrap();
    one.write("a", b"1").unwrap();
    assert!(!two.exists("a").unwrap() && two.list("").unwrap().is_empty());
    let root = Peer::open(&format!("peer://{}", agent.address())).unwrap();
    assert_eq!(root.walk("").unwrap()[0].name, "run/a");
    assert_eq!(two.room().unwrap(), PeerRoom { limit: MIB, used: 1, files: 1 });
}

#[test]
fn an_unfinished_file_is_not_there_and_goes_with_its_writer() {
    let agent = agent(100);
    let store = peer(&agent);
    store.write("f", b"old").unwrap();
    let file = store.writer("f", 10, Sharing::Threads).unwrap();
    file.write_at(0, b"0123456789").unwrap();
    assert_eq!(store.read("f", 99).unwrap(), b"old");
    assert_eq!(agent.room().used, 13);
    drop(file);
    soon("the room of a writer that went is free", || agent.room().used == 3);
    let first = store.writer("f", 20, Sharing::Threads).unwrap();
    let second = store.writer("f", 1, Sharing::Threads).unwrap();
    assert_eq!(agent.room().used, 4, "the second replaced the first");
    assert!(is_lasting(&first.write_at(0, b"x").unwrap_err()));
    second.write_at(0, b"y").unwrap();
    second.finish().unwrap();
    assert_eq!((store.read("f", 99).unwrap(), agent.room().used), (b"y".to_vec(), 1));
}

#[test]
fn what_does_not_fit_is_refused_with_figures_and_fits_after_a_delete() {
    let agent = agent(100);
    let store = peer(&agent);
    store.write("a", &[1; 60]).unwrap();
    let refusals = [
        store.writer("b", 41, Sharing::Threads).map(|_| ()),
        store.writer("b", u64::MAX, Sharing::Processes).map(|_| ()),
        store.put("b", &[0; 41], PutMode::Create),
        store.put("b", &[0; 3 << 20], PutMode::Replace),
    ];
    for refused in refusals {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Io { kind: std::io::ErrorKind::StorageFull, .. }), "{error:?}");
        assert!(error.to_string().contains("40 of 100 are free"), "{error}");
        assert!(!error.is_transient());
    }
    store.delete("a").unwrap();
    store.write("b", &[2; 100]).unwrap();
    assert_eq!(store.read("b", 100).unwrap(), [2; 100]);
}

#[test]
fn processes_share_a_file_that_is_there_when_all_of_it_is() {
    let agent = agent(30 * MIB);
    // Stores of their own, as processes have them.
    let (one, two) = (peer(&agent), peer(&agent));
    let len = 9 * MIB;
    // Somebody asks whether it can be done, and goes.
    drop(one.writer("f", len, Sharing::Processes).unwrap());
    let first = one.writer("f", len, Sharing::Processes).unwrap();
    let bytes: Vec<u8> = (0..len).map(|i| (i / 1000) as u8).collect();
    first.write_at(0, &bytes[..5_000_000]).unwrap();
    first.finish().unwrap();
    assert!(!one.exists("f").unwrap());
    // The second opens it when the first is done already.
    let second = two.writer("f", len, Sharing::Processes).unwrap();
    second.write_at(5_000_000, &bytes[5_000_000..]).unwrap();
    assert!(!one.exists("f").unwrap());
    second.finish().unwrap();
    assert!(one.read("f", len).unwrap() == bytes);
    assert_eq!(agent.room().used, len);
    // Opened once more it keeps its bytes, as a file in a folder does.
    let third = two.writer("f", len, Sharing::Processes).unwrap();
    third.write_at(3, b"new").unwrap();
    third.finish().unwrap();
    assert_eq!(one.reader("f").unwrap().read(2, 5).unwrap(), [0, b'n', b'e', b'w', 0]);
}

#[test]
fn a_process_that_goes_takes_what_it_shared_along_and_a_folder_what_is_unfinished() {
    let agent = agent(MIB);
    let (one, two) = (peer(&agent), peer(&agent));
    let first = one.writer("step/f", 10, Sharing::Processes).unwrap();
    let second = two.writer("step/f", 10, Sharing::Processes).unwrap();
    first.write_at(0, b"01234").unwrap();
    second.write_at(5, b"56789").unwrap();
    drop(second);
    soon("a lost part frees all", || agent.room().used == 0);
    assert!(is_lasting(&first.finish().unwrap_err()));
    let first = one.writer("step/f", 10, Sharing::Processes).unwrap();
    first.write_at(0, b"01234").unwrap();
    first.finish().unwrap();
    assert_eq!(agent.room().used, 10, "the other part may come");
    one.put("step/SAVING", b"", PutMode::Create).unwrap();
    one.delete_all("step").unwrap();
    assert_eq!(agent.room().used, 0);
}

#[test]
fn a_reader_does_not_mix_two_files() {
    let agent = agent(MIB);
    let store = peer(&agent);
    store.write("f", &[1; 100]).unwrap();
    let file = store.reader("f").unwrap();
    store.write("f", &[2; 100]).unwrap();
    assert!(matches!(file.read(0, 100), Err(Error::NotFound { .. })));
}

#[test]
fn large_puts_are_whole_and_create_once() {
    let agent = agent(32 * MIB);
    let (store, bytes) = (peer(&agent), vec![7; 9 << 20]);
    store.put("f", &bytes, PutMode::Create).unwrap();
    let again = store.put("f", &[8; 9 << 20], PutMode::Create);
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    assert!(store.read("f", 16 * MIB).unwrap() == bytes);
    assert_eq!(agent.room().used, 9 * MIB);
}

#[test]
fn without_the_right_token_everything_is_refused() {
    let agent = Agent::listen("127.0.0.1:0", 100, "secret").unwrap();
    let url = format!("peer://{}/run", agent.address());
    let with = |token: &str| {
        let token = token.to_string();
        Peer::with(&url, PeerOptions { token, ..PeerOptions::default() }).unwrap()
    };
    with("secret").write("f", b"x").unwrap();
    for wrong in ["", "secre", "secret2", "Secret"] {
        let store = with(wrong);
        let results = [
            store.list("").map(|_| ()),
            store.read("f", 9).map(|_| ()),
            store.writer("g", 1, Sharing::Threads).map(|_| ()),
            store.put("f", b"y", PutMode::Replace),
            store.delete("f"),
            store.room().map(|_| ()),
        ];
        for error in results.map(Result::unwrap_err) {
            assert!(is_lasting(&error) && error.to_string().contains(PEER_TOKEN), "{error}");
        }
    }
    assert_eq!(with("secret").read("f", 9).unwrap(), b"x");
    assert!(!format!("{:?}", with("secret")).contains("secret"), "no token in what is printed");
    let open = Agent::listen("0.0.0.0:0", 100, "");
    assert!(matches!(&open, Err(Error::Io { message, .. }) if message.contains(PEER_TOKEN)), "{open:?}");
    Agent::listen("0.0.0.0:0", 100, "secret").unwrap();
}

#[test]
fn an_agent_that_goes_gives_typed_errors_and_the_next_one_is_reached() {
    let first = agent(64 * MIB);
    let (address, store) = (first.address(), peer(&first));
    store.write("f", &vec![1; 12 << 20]).unwrap();
    let reader = store.reader("f").unwrap();
    let writer = store.writer("g", 32 * MIB, Sharing::Threads).unwrap();
    let start = Instant::now();
    let ended = std::thread::scope(|scope| {
        let part = vec![2; 1 << 20];
        let writer = &*writer;
        // What may pass is tried again, as a retrying store does.
        let once =
            move |i: u64| writer.write_at(i % 32 * MIB, &part).err().filter(|error| !error.is_transient());
        let write = scope.spawn(move || (0..).find_map(once));
        let read = scope.spawn(|| (0..).find_map(|_| reader.read(0, 12 << 20).err()));
        std::thread::sleep(Duration::from_millis(50));
        drop(first);
        [write.join().unwrap().unwrap(), read.join().unwrap().unwrap()]
    });
    assert!(start.elapsed() < Duration::from_secs(30), "nobody waits for the limit: {:?}", start.elapsed());
    assert!(is_lasting(&ended[0]), "a file that is half written is lost: {}", ended[0]);
    assert!(is_passing(&ended[1]), "{}", ended[1]);
    let away = store.list("").unwrap_err();
    assert!(is_passing(&away) && away.to_string().contains("cannot be reached"), "{away}");
    let next = Agent::listen(&address.to_string(), 64 * MIB, "").unwrap();
    assert_eq!(store.list("").unwrap(), []);
    assert!(is_lasting(&writer.write_at(0, b"x").unwrap_err()), "a writer belongs to its agent");
    assert!(matches!(reader.read(0, 1), Err(Error::NotFound { .. })));
    store.write("f", b"anew").unwrap();
    drop(next);
    let _third = Agent::listen(&address.to_string(), 64 * MIB, "").unwrap();
    assert!(!store.exists("f").unwrap(), "no call fails because a kept connection was closed meanwhile");
}

#[test]
fn retries_reach_an_agent_that_starts_late() {
    let gone = agent(1);
    let (address, store) = (gone.address(), peer(&gone));
    drop(gone);
    let store = Retry::new(store, RetryOptions { total: Duration::from_secs(60), ..RetryOptions::default() });
    let begun = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        Agent::listen(&address.to_string(), 100, "").unwrap()
    });
    store.write("f", b"x").unwrap();
    assert_eq!(begun.join().unwrap().room().used, 1);
}

#[test]
fn late_answers_are_errors_past_the_timeout_and_fine_below_it() {
    let agent = agent(MIB);
    peer(&agent).write("f", b"abc").unwrap();
    let proxy = Proxy::start(agent.address());
    let at = |answer| Peer::with(&format!("peer://{}/run", proxy.address()), options(answer)).unwrap();
    let slow = at(Duration::from_secs(60));
    proxy.delay(Duration::from_millis(60));
    assert_eq!(slow.read("f", 9).unwrap(), b"abc");
    slow.write("g", b"def").unwrap();
    proxy.delay(Duration::ZERO);
    let hasty = at(Duration::from_millis(1500));
    let reader = hasty.reader("f").unwrap();
    let writer = hasty.writer("h", 3, Sharing::Threads).unwrap();
    proxy.hold(true);
    let calls: [&dyn Fn() -> Result<()>; 3] =
        [&|| reader.read(0, 3).map(|_| ()), &|| hasty.list("").map(|_| ()), &|| hasty.delete("f")];
    for call in calls {
        let error = call().unwrap_err();
        assert!(is_passing(&error) && error.to_string().contains("within 1.5s"), "{error}");
    }
    assert!(is_passing(&writer.write_at(0, b"ghi").unwrap_err()), "it may be sent again");
    let abandoned = hasty.writer("i", 3, Sharing::Threads).map(|_| ()).unwrap_err();
    assert!(is_passing(&abandoned), "{abandoned}");
    proxy.hold(false);
    assert!(is_lasting(&writer.write_at(0, b"ghi").unwrap_err()), "the connection for writers was given up");
    assert_eq!(hasty.read("g", 9).unwrap(), b"def");
    let writer = hasty.writer("h", 3, Sharing::Threads).unwrap();
    proxy.hold(true);
    assert!(is_passing(&writer.write_at(0, b"ghi").unwrap_err()));
    proxy.hold(false);
    writer.write_at(0, b"ghi").unwrap();
    writer.finish().unwrap();
    assert_eq!(hasty.read("h", 9).unwrap(), b"ghi");
}

#[test]
fn bits_that_flip_on_the_way_are_noticed_on_both_sides() {
    let agent = agent(32 * MIB);
    peer(&agent).write("f", &[0; 100_000]).unwrap();
    let proxy = Proxy::start(agent.address());
    let store =
        Peer::with(&format!("peer://{}/run", proxy.address()), options(Duration::from_secs(60))).unwrap();
    let reader = store.reader("f").unwrap();
    proxy.flip(50_000);
    let error = reader.read(0, 100_000).unwrap_err();
    assert!(matches!(error, Error::Checksum { start: 0, end: 100_000, .. }), "{error}");
    reader.read(0, 100_000).unwrap();
    let writer = store.writer("g", 100_000, Sharing::Threads).unwrap();
    proxy.flip(50_000);
    let error = writer.write_at(0, &[3; 100_000]).unwrap_err();
    assert!(matches!(error, Error::Checksum { start: 0, end: 100_000, .. }), "{error}");
    writer.write_at(0, &[3; 100_000]).unwrap();
    writer.finish().unwrap();
    assert_eq!(store.read("g", MIB).unwrap(), [3; 100_000]);
}

#[test]
fn many_threads_write_and_read_one_file() {
    let agent = agent(64 * MIB);
    let store = peer(&agent);
    let bytes: Vec<u8> = (0..40 * MIB + 77).map(|i| ((i * 31) >> 7) as u8).collect();
    let file = store.writer("f", bytes.len() as u64, Sharing::Threads).unwrap();
    let parts: Vec<(usize, &[u8])> = bytes.chunks(700_001).enumerate().collect();
    std::thread::scope(|scope| {
        for mine in parts.chunks(parts.len().div_ceil(6)) {
            let file = &*file;
            scope.spawn(move || {
                mine.iter().for_each(|(i, part)| file.write_at((i * 700_001) as u64, part).unwrap());
            });
        }
    });
    file.finish().unwrap();
    let file = store.reader("f").unwrap();
    std::thread::scope(|scope| {
        for start in [0, 5, 4 << 20, 12_345_678] {
            let (file, bytes) = (&*file, &bytes);
            scope.spawn(move || {
                assert!(file.read(start as u64, bytes.len() - start).unwrap() == bytes[start..]);
            });
        }
    });
}

#[test]
fn long_listings_come_in_pages() {
    let agent = agent(MIB);
    let store = peer(&agent);
    let name = |i: usize| format!("{}{i:04}", "n".repeat(240));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let store = &store;
            scope.spawn(move || {
                (thread..1500).step_by(3).for_each(|i| store.put(&name(i), b"", PutMode::Create).unwrap());
            });
        }
    });
    let names: Vec<String> = (0..1500).map(name).collect();
    assert_eq!(store.file_names("").unwrap(), names);
}
