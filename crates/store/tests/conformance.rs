//! Every store keeps the rules of the trait, and wrappers keep them too.

use planaria_store::{
    DirectIo, Error, Fault, Faulty, Local, Object, PutMode, Retry, RetryOptions, Sharing, Store, StoreExt,
    conformance,
};
use std::time::Duration;

#[test]
fn memory_conforms() {
    let store = Object::memory();
    conformance::all(&store, "").unwrap();
    conformance::all(&store, "some/folder").unwrap();
}

#[test]
fn folders_conform_with_and_without_direct_io() {
    for direct in [DirectIo::WherePossible, DirectIo::Never] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // A root that does not exist yet is made when needed.
        let store = Local::with(folder.path().join("new/root"), direct);
        conformance::all(&store, "run").unwrap();
        conformance::all(&store, "").unwrap();
    }
}

#[test]
fn a_folder_goes_with_what_a_killed_put_left_and_without_what_links_point_to() {
    let folder = tempfile::tempdir().unwrap();
    let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
    std::fs::create_dir_all(root.join("step/deep")).unwrap();
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("f"), "x").unwrap();
    std::fs::write(root.join("step/deep/.planaria-put-1-0"), "half").unwrap();
    std::os::unix::fs::symlink(&outside, root.join("step/link")).unwrap();
    std::os::unix::fs::symlink("nowhere", root.join("step/deep/dangling")).unwrap();
    let store = Local::new(&root);
    assert_eq!(store.read("step/link/f", 10).unwrap(), b"x", "links are followed to read");
    store.delete_all("step").unwrap();
    assert!(!root.join("step").exists());
    assert!(outside.join("f").exists());
}

#[test]
fn wrappers_conform() {
    conformance::all(&Faulty::counting(Object::memory()), "x").unwrap();
    conformance::all(&Retry::new(Object::memory(), RetryOptions::default()), "x").unwrap();
}

#[test]
fn processes_share_a_local_file_but_not_an_object() {
    let folder = tempfile::tempdir().unwrap();
    let store = Local::new(folder.path());
    let one = store.writer("shared", 8192, Sharing::Processes).unwrap();
    one.write_at(0, &[1; 5000]).unwrap();
    // A second opening, as another process would do it, keeps what the first wrote.
    let two = store.writer("shared", 8192, Sharing::Processes).unwrap();
    two.write_at(5000, &[2; 3192]).unwrap();
    one.finish().unwrap();
    two.finish().unwrap();
    let bytes = store.read("shared", 1 << 20).unwrap();
    assert!(
        bytes.len() == 8192 && bytes[..5000].iter().all(|b| *b == 1) && bytes[5000..].iter().all(|b| *b == 2)
    );
    assert!(matches!(
        Object::memory().writer("shared", 8, Sharing::Processes),
        Err(Error::Unsupported { .. })
    ));
}

/// A small save: data, then a mark.
fn save(store: &dyn Store) -> Result<(), Error> {
    let file = store.writer("data", 6, Sharing::Threads)?;
    file.write_at(0, b"abc")?;
    file.write_at(3, b"def")?;
    file.finish()?;
    store.put("COMMIT", b"", PutMode::Create)
}

#[test]
fn the_mark_is_only_seen_after_whole_data_wherever_the_process_dies() {
    let counted = Faulty::counting(Object::memory());
    save(&counted).unwrap();
    let operations = counted.operations();
    assert_eq!(operations, 5);
    for fault in [Fault::Kill, Fault::Tear] {
        for at in 0..operations {
            let folder = tempfile::tempdir().unwrap();
            let broken = Faulty::new(Local::new(folder.path()), fault, at);
            assert!(save(&broken).is_err(), "{fault:?} at {at}");
            assert!(broken.list("").is_err(), "a dead process does nothing more");
            let seen = broken.inner();
            if seen.exists("COMMIT").unwrap() {
                assert_eq!(seen.read("data", 100).unwrap(), b"abcdef", "{fault:?} at {at}");
                assert_eq!((fault, at), (Fault::Tear, operations - 1));
            }
        }
    }
}

#[test]
fn passing_failures_are_tried_again_and_lasting_ones_are_not() {
    let quick = RetryOptions {
        total: Duration::from_millis(200),
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(5),
    };
    // Opening, two writes and the mark survive one failure each; finishing is not repeated.
    for at in [0, 1, 2, 4] {
        let store = Retry::new(Faulty::new(Object::memory(), Fault::Fail, at), quick);
        save(&store).unwrap_or_else(|error| panic!("failure at {at}: {error}"));
        assert_eq!(store.read("data", 100).unwrap(), b"abcdef");
    }
    let dead = Retry::new(Faulty::new(Object::memory(), Fault::Kill, 0), quick);
    assert!(matches!(save(&dead), Err(Error::Injected { operation: 0, .. })), "no use in trying again");
}

/// A store whose every operation fails in a way that might pass.
#[derive(Debug)]
struct Down;

impl Store for Down {
    fn address(&self) -> String {
        "down".to_string()
    }
    fn list(&self, _: &str) -> Result<Vec<planaria_store::Entry>, Error> {
        Err(Error::Injected { operation: 0, what: "list", transient: true })
    }
    fn reader(&self, _: &str) -> Result<Box<dyn planaria_store::Reader>, Error> {
        Err(Error::Injected { operation: 0, what: "open", transient: true })
    }
    fn writer(&self, _: &str, _: u64, _: Sharing) -> Result<Box<dyn planaria_store::Writer>, Error> {
        Err(Error::Injected { operation: 0, what: "create", transient: true })
    }
    fn put(&self, _: &str, _: &[u8], _: PutMode) -> Result<(), Error> {
        Err(Error::Injected { operation: 0, what: "put", transient: true })
    }
    fn delete(&self, _: &str) -> Result<(), Error> {
        Err(Error::Injected { operation: 0, what: "delete", transient: true })
    }
}

#[test]
fn retries_end() {
    let options = RetryOptions {
        total: Duration::from_millis(500),
        first_pause: Duration::from_millis(2),
        longest_pause: Duration::from_millis(10),
    };
    let error = Retry::new(Down, options).list("").unwrap_err();
    assert!(matches!(error, Error::GaveUp { tries, .. } if tries > 1), "{error}");
}

/// Says once that a creation failed although it happened.
#[derive(Debug)]
struct Deaf(Object, std::sync::atomic::AtomicBool);

impl Store for Deaf {
    fn address(&self) -> String {
        self.0.address()
    }
    fn list(&self, folder: &str) -> Result<Vec<planaria_store::Entry>, Error> {
        self.0.list(folder)
    }
    fn reader(&self, name: &str) -> Result<Box<dyn planaria_store::Reader>, Error> {
        self.0.reader(name)
    }
    fn writer(&self, name: &str, len: u64, s: Sharing) -> Result<Box<dyn planaria_store::Writer>, Error> {
        self.0.writer(name, len, s)
    }
    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<(), Error> {
        self.0.put(name, bytes, mode)?;
        let lost = !self.1.swap(true, std::sync::atomic::Ordering::SeqCst);
        if lost { Err(Error::Injected { operation: 0, what: "put", transient: true }) } else { Ok(()) }
    }
    fn delete(&self, name: &str) -> Result<(), Error> {
        self.0.delete(name)
    }
}

#[test]
fn a_creation_whose_answer_was_lost_counts_as_done() {
    let store = Retry::new(Deaf(Object::memory(), Default::default()), RetryOptions::default());
    store.put("COMMIT", b"mine", PutMode::Create).unwrap();
    assert!(store.put("COMMIT", b"mine", PutMode::Create).is_err(), "but not a later one");
}

#[test]
fn a_path_is_a_folder_or_a_file_in_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap().to_string();
    std::fs::write(folder.path().join("model.pt"), b"x").unwrap();
    for url in [path.clone(), format!("file://{path}")] {
        let (store, name) = planaria_store::locate(&url).unwrap();
        assert_eq!((store.address(), name.as_str()), (path.clone(), ""));
        let (store, name) = planaria_store::locate(&format!("{url}/model.pt")).unwrap();
        assert_eq!((store.read(&name, 10).unwrap(), name.as_str()), (b"x".to_vec(), "model.pt"));
    }
}

#[test]
fn a_listing_leaves_out_unfinished_puts_and_follows_links() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(".planaria-put-1-2"), b"half").unwrap();
    std::fs::write(folder.path().join("blob"), b"abc").unwrap();
    std::os::unix::fs::symlink("blob", folder.path().join("link")).unwrap();
    std::os::unix::fs::symlink("gone", folder.path().join("dangling")).unwrap();
    let store = Local::new(folder.path());
    assert_eq!(store.file_names("").unwrap(), ["blob", "link"]);
    assert_eq!(store.read("link", 10).unwrap(), b"abc");
}
