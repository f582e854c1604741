//! Everything again while one request in twenty fails and a burst of them is throttled.

use crate::checks::{large_objects_are_seen_whole, one_of_many_creates};
use crate::proxy::Proxy;
use crate::{Cloud, Settings};
use planaria_store::{Error, PutMode, Store, StoreExt, conformance};

/// The checks hold through faults of every kind; what is created once is created once.
pub(crate) fn are_survived(cloud: &Cloud) {
    let proxy = Proxy::before(cloud.port);
    let settings: Settings = cloud.through(proxy.port);
    let store = settings.open_at("faults");
    conformance::all(&*store, "a").unwrap();
    large_objects_are_seen_whole(&*store, "large");
    let mut round = 0;
    while proxy.faults().iter().any(|(_, count)| *count < 2) {
        assert!(round < 300, "after {} requests: {:?}", proxy.requests(), proxy.faults());
        let stores: Vec<_> = (0..4).map(|_| settings.open_at("faults")).collect();
        one_of_many_creates(&stores, &format!("marks/{round}"));
        deletes_once(&*store, &format!("gone/{round}"));
        round += 1;
    }
    assert_eq!(proxy.lost(), [true, true], "an upload and a creation whose answers were lost");
    let faults = proxy.faults();
    let (all, requests) = (faults.iter().map(|(_, count)| count).sum::<u64>(), proxy.requests());
    eprintln!("{all} faults in {requests} requests: {faults:?}");
    // What is there is what was put, seen without the proxy.
    let direct = cloud.open("faults");
    let marks = direct.file_names("marks").unwrap();
    assert_eq!(marks.len(), round);
    for mark in marks {
        assert_eq!(direct.read(&format!("marks/{mark}"), 100).unwrap(), b"the same bytes");
    }
    assert_eq!(direct.list("gone").unwrap(), []);
}

fn deletes_once(store: &dyn Store, name: &str) {
    store.put(name, b"x", PutMode::Replace).unwrap();
    store.delete(name).unwrap();
    assert!(matches!(store.delete(name), Err(Error::NotFound { .. })), "deleting twice is noticed");
}
