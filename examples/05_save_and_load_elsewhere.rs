//! Save on four ranks, load on three with another layout; the folder is one that other programs open too.
//!
//! `cargo run --example 05_save_and_load_elsewhere`

use planaria::array::ops::Distribution::Uniform;
use planaria::ckpt::{Item, LoadOptions, SaveOptions, TensorKind, TrainState, latest, load, save, verify};
use planaria::prelude::*;
use planaria::store::{Object, Store};
use std::sync::Arc;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A weight of which this rank has its piece.
fn weight(layout: &Layout, world: &World) -> Result<Tensor, Error> {
    let range = Uniform { low: -1.0, high: 1.0 };
    Ok(Tensor::random_with(layout, range, DType::F32, Key::new(3, 0), world)?)
}

fn item(layout: &Layout, world: &World, array: &Array) -> Result<Item, Error> {
    Ok(Item::placed(TensorKind::Parameter, "proj.weight", layout, world.rank(), array)?)
}

fn main() -> Result<(), Error> {
    let store: Arc<dyn Store> = Arc::new(Object::memory()); // `Local::new("runs/a")` for a folder, `store::open("s3://...")` for a bucket
    let rows: Layout = "[48,20] @ dp:R tp:S0 on dp=2 tp=2".parse()?;
    let saved = threads::run(4, |comm| -> Result<(), Error> {
        let world = World::new(comm.clone());
        let tensor = weight(&rows, &world)?;
        let mut state = TrainState::new(vec![item(&rows, &world, tensor.local())?]);
        state.step = 100;
        // Every byte is written once, by one of the ranks that hold it; then the folder is committed.
        save(&*comm, &*store, "ckpt/step-00000100", &state, &SaveOptions::default())?;
        Ok(())
    });
    saved.into_iter().collect::<Result<Vec<_>, _>>()?;
    for entry in store.list("ckpt/step-00000100")? {
        println!("{}", entry.name);
    }

    let folder = latest(&*store, "ckpt")?.ok_or("nothing was committed")?;
    println!("{} bytes verified", verify(&store, &folder)?.bytes);
    let columns: Layout = "[48,20] @ tp:S1 on tp=3".parse()?;
    let loaded = threads::run(3, |comm| -> Result<usize, Error> {
        let world = World::new(comm.clone());
        let piece = Array::zeros(&columns.piece(comm.rank())?.extents(), DType::F32)?;
        let mut state = TrainState::new(vec![item(&columns, &world, &piece)?]);
        load(&*comm, &*store, &folder, &mut state, &LoadOptions::default())?;
        // What this rank would hold if it had made the weight itself.
        if piece.to_vec::<f32>()? != weight(&columns, &world)?.local().to_vec::<f32>()? {
            return Err("a piece came back changed".into());
        }
        Ok(piece.numel())
    });
    let counts = loaded.into_iter().collect::<Result<Vec<_>, _>>()?;
    println!("{rows}  was saved;  {columns}  was loaded: {counts:?} elements on its ranks, the same bits");
    Ok(())
}
