//! What must hold for every kind of bucket.

use crate::Cloud;
use planaria_store::{Error, PutMode, Sharing, Store, StoreExt, conformance};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Bytes that say to which object they belong.
pub(crate) fn bytes(of: u8, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as u8 ^ of).collect()
}

pub(crate) fn conforms(cloud: &Cloud) {
    let store = cloud.open("conforms");
    conformance::all(&*store, "a").unwrap();
    conformance::all(&*store, "").unwrap();
    let stores: Vec<_> = (0..8).map(|_| cloud.open("writers")).collect();
    one_of_many_creates(&stores, "COMMIT");
    large_objects_are_seen_whole(&*cloud.open("large"), "object");
}

/// Writers that do not know of each other and write the same bytes: one wins, the others are told.
pub(crate) fn one_of_many_creates(stores: &[std::sync::Arc<dyn Store>], name: &str) {
    let together = Barrier::new(stores.len());
    let told: Vec<Result<(), Error>> = std::thread::scope(|scope| {
        let create = |store: &std::sync::Arc<dyn Store>| {
            together.wait();
            store.put(name, b"the same bytes", PutMode::Create)
        };
        let tries: Vec<_> = stores.iter().map(|store| scope.spawn(move || create(store))).collect();
        tries.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let won = told.iter().filter(|told| told.is_ok()).count();
    let lost = told.iter().filter(|told| matches!(told, Err(Error::AlreadyExists { .. }))).count();
    assert_eq!((won, lost), (1, stores.len() - 1), "{told:?}");
}

/// A large object is seen whole or not at all, new and when it replaces another.
pub(crate) fn large_objects_are_seen_whole(store: &dyn Store, name: &str) {
    let contents = [bytes(1, (33 << 20) + 77), bytes(2, (33 << 20) + 77)];
    for (number, content) in contents.iter().enumerate() {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut looks = 0;
                while !done.load(SeqCst) || looks == 0 {
                    looks += 1;
                    match store.reader(name) {
                        Err(Error::NotFound { .. }) if number == 0 => {}
                        Ok(file) => assert_eq!(file.size(), content.len() as u64, "half an object"),
                        Err(error) => panic!("while it was written: {error}"),
                    }
                }
            });
            let file = store.writer(name, content.len() as u64, Sharing::Threads).unwrap();
            let (first, second) = content.split_at(17 << 20);
            file.write_at(first.len() as u64, second).unwrap();
            file.write_at(0, first).unwrap();
            if number == 1 {
                let old = store.reader(name).unwrap().read(0, 1000).unwrap();
                assert!(old == contents[0][..1000], "the old one until the new one is finished");
            }
            file.finish().unwrap();
            done.store(true, SeqCst);
            watcher.join().unwrap();
        });
        assert!(store.read(name, 1 << 30).unwrap() == *content, "what was written");
    }
    let unfinished = store.writer("unfinished", 20 << 20, Sharing::Threads).unwrap();
    unfinished.write_at(0, &contents[0][..16 << 20]).unwrap();
    drop(unfinished);
    assert!(matches!(store.reader("unfinished"), Err(Error::NotFound { .. })), "given up, never seen");
}

/// More objects than a page holds; `PLANARIA_LISTED` of them, with time and memory on standard error.
pub(crate) fn listings_are_whole(cloud: &Cloud, usual: usize) {
    let count: usize = std::env::var("PLANARIA_LISTED").ok().map_or(usual, |text| text.parse().unwrap());
    let store = cloud.open("listed");
    let started = std::time::Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let store = &store;
            scope.spawn(move || {
                for number in (thread..count).step_by(8) {
                    store.put(&format!("all/object-{number:06}"), b"x", PutMode::Replace).unwrap();
                }
            });
        }
    });
    let filled = started.elapsed();
    store.put("all/below/object", b"x", PutMode::Replace).unwrap();
    let (before, started) = (resident(), std::time::Instant::now());
    let listed = store.list("all").unwrap();
    let took = started.elapsed();
    eprintln!(
        "{count} objects: filled in {filled:.1?}, listed in {took:.1?}, {} MiB more memory",
        resident().saturating_sub(before) >> 20
    );
    assert_eq!(listed.len(), count + 1);
    assert!(!listed[0].is_file() && listed[0].name == "all/below");
    let named =
        |(number, entry): (usize, &planaria_store::Entry)| entry.name == format!("all/object-{number:06}");
    assert!(listed[1..].iter().enumerate().all(named), "sorted, each once");
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Asserts that an error has all these words and none of the secret.
pub(crate) fn says(told: Result<impl std::fmt::Debug, Error>, words: &[&str], secret: &str) {
    let message = told.unwrap_err().to_string();
    for word in words {
        assert!(message.contains(word), "no '{word}' in: {message}");
    }
    assert!(!message.contains(secret), "a secret in: {message}");
}
