//! A save that fails, is torn or is killed at any operation: the old checkpoint or the new one, never a third.

use crate::common::states::{Dice, Global, Holding, compare, contents, globals, holding, mesh, state};
use planaria_ckpt::{
    Error, LoadOptions, Retain, SaveOptions, committed, latest, load, open, save, step_folder,
};
use planaria_comm::threads;
use planaria_store::{Fault, Faulty, Local, Object, PutMode, Store, StoreExt};
use std::sync::Arc;

struct Case {
    old: Vec<Global>,
    new: Vec<Global>,
    held: Vec<Holding>,
    ranks: usize,
}

impl Case {
    fn new(seed: u64, ranks: usize) -> Case {
        let mut dice = Dice::new(seed);
        let old = globals(&mut dice, 4);
        let mut new = old.clone();
        new.iter_mut().for_each(|global| global.bytes.iter_mut().for_each(|byte| *byte ^= 1));
        let mesh = mesh(&mut dice, ranks);
        let held = old.iter().map(|global| holding(&mut dice, &mesh, &global.shape)).collect();
        Case { old, new, held, ranks }
    }

    /// Saves on all ranks; the first rank's answer.
    fn save(&self, store: &dyn Store, step: u64, globals: &[Global], retain: &Retain) -> Result<(), Error> {
        let options = SaveOptions { max_file_size: 300, retain: retain.clone(), ..SaveOptions::default() };
        let folder = format!("run/{}", step_folder(step));
        let mut ends = threads::run(self.ranks, |world| {
            let mut state = state(globals, &self.held, world.rank(), true);
            state.step = step;
            state.files.insert("config.json".into(), b"{}"[..].into());
            save(&*world, store, &folder, &state, &options).map(|_| ())
        });
        ends.swap_remove(0)
    }

    fn check(&self, store: &dyn Store, folder: &str, globals: &[Global]) {
        threads::run(self.ranks, |world| {
            let mut state = state(globals, &self.held, world.rank(), false);
            load(&*world, store, folder, &mut state, &LoadOptions::default()).unwrap();
            compare(&state, globals);
        });
    }

    /// Breaks operation `at` of the second save.
    fn broken(&self, store: Arc<dyn Store>, fault: Fault, at: u64, retain: &Retain) {
        self.save(&store, 1, &self.old, &Retain::default()).unwrap();
        let faulty = Faulty::new(store.clone(), fault, at);
        let saved = self.save(&faulty, 2, &self.new, retain);
        let found = latest(&store, "run").unwrap().unwrap();
        let is_new = found == "run/step-00000002";
        assert!(is_new || saved.is_err(), "{fault:?} at {at}: lost a save that succeeded");
        self.check(&store, &found, if is_new { &self.new } else { &self.old });
        // The next save cleans up, whatever was left.
        let again = if is_new { 3 } else { 2 };
        self.save(&store, again, &self.new, &Retain { last: Some(2), ..Retain::default() }).unwrap();
        let steps = committed(&store, "run").unwrap();
        let folders: Vec<String> = store.list("run").unwrap().into_iter().map(|e| e.name).collect();
        let expected: Vec<String> = steps.iter().map(|step| format!("run/{}", step_folder(*step))).collect();
        assert_eq!(folders, expected, "{fault:?} at {at}");
        for folder in &folders {
            assert!(!store.exists(&format!("{folder}/SAVING")).unwrap() || *folder == found);
        }
        self.check(&store, &format!("run/{}", step_folder(again)), &self.new);
    }
}

fn at_every_operation(case: &Case, store: impl Fn() -> Arc<dyn Store>, stride: u64, retain: &Retain) {
    let counting = Faulty::counting(store());
    case.save(&counting, 1, &case.old, &Retain::default()).unwrap();
    let first = counting.operations();
    case.save(&counting, 2, &case.new, retain).unwrap();
    let operations = counting.operations() - first;
    assert!(operations > 20);
    for fault in [Fault::Fail, Fault::Kill, Fault::Tear] {
        (0..operations + 2).step_by(stride as usize).for_each(|at| case.broken(store(), fault, at, retain));
    }
}

#[test]
fn one_rank_broken_at_every_operation() {
    at_every_operation(&Case::new(1, 1), || Arc::new(Object::memory()), 1, &Retain::default());
}

#[test]
fn three_ranks_broken_at_every_operation_while_the_old_one_is_removed() {
    let retain = Retain { last: Some(1), ..Retain::default() };
    at_every_operation(&Case::new(2, 3), || Arc::new(Object::memory()), 1, &retain);
}

#[test]
fn a_folder_broken_at_many_operations() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::sync::atomic::AtomicU64::new(0);
    let store = || -> Arc<dyn Store> {
        let n = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Arc::new(Local::new(folder.path().join(n.to_string())))
    };
    at_every_operation(&Case::new(3, 2), store, 5, &Retain::default());
}

#[test]
fn a_committed_folder_is_never_changed() {
    let case = Case::new(4, 2);
    let store = Object::memory();
    case.save(&store, 1, &case.old, &Retain::default()).unwrap();
    let before = contents(&store, "run");
    let refused = case.save(&store, 1, &case.new, &Retain::default()).unwrap_err();
    assert!(
        refused.to_string().contains("'run/step-00000001' already has a committed checkpoint"),
        "{refused}"
    );
    assert!(contents(&store, "run") == before);
}

#[test]
fn files_of_others_are_not_swept_away() {
    let case = Case::new(5, 1);
    let store = Object::memory();
    store.put("run/step-00000001/notes.txt", b"mine", PutMode::Create).unwrap();
    store.put("run/step-00000007/notes.txt", b"mine", PutMode::Create).unwrap();
    assert!(case.save(&store, 1, &case.old, &Retain::default()).is_err());
    case.save(&store, 2, &case.old, &Retain { last: Some(1), ..Retain::default() }).unwrap();
    assert!(store.exists("run/step-00000001/notes.txt").unwrap());
    assert!(store.exists("run/step-00000007/notes.txt").unwrap());
    assert_eq!(committed(&store, "run").unwrap(), [2]);
}

#[test]
fn an_uncommitted_folder_is_not_opened() {
    let case = Case::new(6, 1);
    let store = Object::memory();
    case.save(&store, 1, &case.old, &Retain::default()).unwrap();
    store.delete("run/step-00000001/COMMIT").unwrap();
    assert_eq!(latest(&store, "run").unwrap(), None);
    let refused = open(&store, "run/step-00000001").unwrap_err();
    assert!(refused.to_string().contains("did not finish"), "{refused}");
    assert!(open(&store, "run/step-00000009").unwrap_err().to_string().contains("there is nothing"));
}

#[test]
fn retention_counts_committed_steps_only() {
    let case = Case::new(7, 2);
    let store = Object::memory();
    let retain = Retain { last: Some(2), every: Some(4), best: vec![3], protected: vec![1] };
    for step in 1..=7 {
        case.save(&store, step, &case.old, &retain).unwrap();
    }
    assert_eq!(committed(&store, "run").unwrap(), [1, 3, 4, 6, 7]);
}

#[test]
fn what_a_killed_put_left_does_not_keep_a_step_from_being_saved() {
    let folder = tempfile::tempdir().unwrap();
    let case = Case::new(5, 2);
    let step = folder.path().join("run").join(step_folder(7));
    std::fs::create_dir_all(&step).unwrap();
    std::fs::write(step.join("SAVING"), "").unwrap();
    std::fs::write(step.join(".planaria-put-1-0"), "half").unwrap();
    let store = Local::new(folder.path());
    case.save(&store, 7, &case.new, &Retain::default()).unwrap();
    case.check(&store, &format!("run/{}", step_folder(7)), &case.new);
    assert!(!step.join(".planaria-put-1-0").exists());
}
