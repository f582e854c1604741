//! Ranks that divide the blocks of a file among them: sums are joined when saving, and checked when loading.

use planaria_array::{Array, DType};
use planaria_ckpt::{Item, LoadOptions, SaveOptions, TensorKind, TrainState, load, open, save};
use planaria_comm::threads;
use planaria_layout::{Layout, Mesh, Shape, TensorSpec};
use planaria_store::{Local, PutMode, Store, StoreExt};

/// Rows that end inside blocks of the file and of the checksums: 1.1 to 3.3 MB a tensor.
const TENSORS: [(&str, usize, usize); 4] = [("a", 1001, 333), ("b", 7, 3), ("c", 997, 850), ("d", 1500, 190)];

fn layout(ranks: usize, rows: usize, columns: usize) -> Layout {
    let mesh: Mesh = format!("x={ranks}").parse().unwrap();
    let spec: TensorSpec = format!("f32{} @ x:S0", Shape::new(&[rows, columns]).unwrap()).parse().unwrap();
    spec.on(&mesh).unwrap()
}

/// What a rank holds: each element is its number, times `scale`.
fn state(ranks: usize, rank: usize, scale: f32) -> TrainState {
    let mut items = Vec::new();
    for (name, rows, columns) in TENSORS {
        let values: Vec<f32> = (0..rows * columns).map(|i| i as f32 * scale).collect();
        let whole = Array::from_slice(&values, &[rows, columns]).unwrap();
        let layout = layout(ranks, rows, columns);
        let held = layout.piece(rank).unwrap();
        let region = held.boxes().into_iter().next();
        let array = match region {
            Some(region) => whole.region(&region).unwrap().copy().unwrap(),
            None => Array::zeros(&held.extents(), DType::F32).unwrap(),
        };
        items.push(Item::placed(TensorKind::Parameter, name, &layout, rank, &array).unwrap());
    }
    TrainState::new(items)
}

fn save_from(store: &Local, ranks: usize) -> String {
    let folder = format!("from-{ranks}");
    let saved = threads::run(ranks, |comm| {
        save(&*comm, store, &folder, &state(ranks, comm.rank(), 1.0), &SaveOptions::default())
    });
    saved.into_iter().for_each(|saved| drop(saved.unwrap()));
    folder
}

#[test]
fn any_number_of_ranks_writes_the_same_bytes_and_sums() {
    let place = tempfile::tempdir().unwrap();
    let store = Local::new(place.path());
    let alone = save_from(&store, 1);
    let file = "model-00001-of-00001.safetensors";
    let bytes = |folder: &str| store.read(&format!("{folder}/{file}"), u64::MAX).unwrap();
    for ranks in [2, 3, 5] {
        let folder = save_from(&store, ranks);
        assert!(bytes(&alone) == bytes(&folder), "{ranks} ranks");
        assert_eq!(
            open(&store, &alone).unwrap().files,
            open(&store, &folder).unwrap().files,
            "{ranks} ranks"
        );
    }
}

#[test]
fn every_number_of_ranks_finds_a_flipped_bit_and_reads_each_byte_once() {
    let place = tempfile::tempdir().unwrap();
    let store = Local::new(place.path());
    let folder = save_from(&store, 3);
    let name = format!("{folder}/model-00001-of-00001.safetensors");
    let whole = store.read(&name, u64::MAX).unwrap();
    for ranks in [2, 3, 4] {
        let load_all = || {
            threads::run(ranks, |comm| {
                let mut state = state(ranks, comm.rank(), 0.0);
                load(&*comm, &store, &folder, &mut state, &LoadOptions::default())
                    .map(|report| (report, state))
            })
        };
        for (rank, loaded) in load_all().into_iter().enumerate() {
            let (report, loaded) = loaded.unwrap();
            assert!(report.bytes_read <= whole.len() as u64 + 4096, "{} bytes read", report.bytes_read);
            for (item, want) in loaded.items.iter().zip(&state(ranks, rank, 1.0).items) {
                for (piece, want) in item.pieces.iter().zip(&want.pieces) {
                    assert_eq!(piece.array.to_vec::<f32>().unwrap(), want.array.to_vec::<f32>().unwrap());
                }
            }
        }
        for share in [1, 3, 5, 7] {
            let at = whole.len() / 8 * share + 1;
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            store.put(&name, &bytes, PutMode::Replace).unwrap();
            for found in load_all() {
                let text = found.unwrap_err().to_string();
                let block = at >> 20;
                assert!(text.contains(&format!("block {block} of")), "{ranks} ranks, byte {at}: {text}");
            }
        }
        store.put(&name, &whole, PutMode::Replace).unwrap();
    }
}
