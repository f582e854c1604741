//! Saved under one layout, loaded under another: the same bits, whatever the layouts.

mod common {
    pub(crate) mod states;
}

use common::states::{Dice, Holding, compare, contents, globals, holding, mesh, state};
use planaria_ckpt::{LoadOptions, SaveOptions, load, save};
use planaria_comm::threads;
use planaria_store::{Local, Object, Store};
use std::sync::Arc;

fn round_trip(seed: u64, store: &dyn Store) {
    let mut dice = Dice::new(seed);
    let tensors = 1 + dice.below(8);
    let globals = globals(&mut dice, tensors);
    let (from, to) = (1 + dice.below(8), 1 + dice.below(8));
    let plan = |dice: &mut Dice, ranks: usize| -> Vec<Holding> {
        let mesh = mesh(dice, ranks);
        globals.iter().map(|global| holding(dice, &mesh, &global.shape)).collect()
    };
    let (held, wanted) = (plan(&mut dice, from), plan(&mut dice, to));
    let options = SaveOptions { max_file_size: 1 + dice.below(2000) as u64, ..SaveOptions::default() };
    let folder = format!("case-{seed}");
    threads::run(from, |world| {
        let state = state(&globals, &held, world.rank(), true);
        save(&*world, store, &folder, &state, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}"))
    });
    threads::run(to, |world| {
        let mut state = state(&globals, &wanted, world.rank(), false);
        let report = load(&*world, store, &folder, &mut state, &LoadOptions::default());
        let report = report.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(report.missing.is_empty() && report.unexpected.is_empty());
        compare(&state, &globals);
    });
    // The files of tensors depend on the tensors alone.
    let again = format!("case-{seed}-again");
    threads::run(to, |world| {
        let state = state(&globals, &wanted, world.rank(), true);
        save(&*world, store, &again, &state, &options).unwrap()
    });
    let data = |folder: &str| {
        let mut files = contents(store, folder);
        files.retain(|name, _| name.contains("safetensors"));
        files
    };
    assert!(data(&folder) == data(&again), "seed {seed}");
}

#[test]
fn any_layout_to_any_other_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let store = Local::new(folder.path());
    (0..60).for_each(|seed| round_trip(seed, &store));
}

#[test]
fn any_layout_to_any_other_in_an_object_store() {
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    (1000..1150).for_each(|seed| round_trip(seed, &store));
}
