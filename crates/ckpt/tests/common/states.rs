//! What the tests of saving and loading share: random tensors, random ways to hold them, and comparing.

use planaria_array::{Array, DType};
use planaria_ckpt::{Item, Known, KnownTensor, TensorKind, TrainState};
use planaria_layout::{FlatShards, Layout, Listed, Mesh, Placement, RankTiling, Region, Shape, Tile};
use planaria_store::{Store, StoreExt};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A small generator; the same seed gives the same case on every machine.
#[derive(Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// A tensor with its global value.
#[derive(Clone, Debug)]
pub(crate) struct Global {
    pub(crate) kind: TensorKind,
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
    pub(crate) bytes: Vec<u8>,
}

impl Global {
    pub(crate) fn new(
        dice: &mut Dice,
        kind: TensorKind,
        name: &str,
        shape: &[usize],
        dtype: DType,
    ) -> Global {
        let shape = Shape::new(shape).unwrap();
        let mut bytes: Vec<u8> = (0..shape.numel() * dtype.size()).map(|_| dice.next() as u8).collect();
        if dtype == DType::Bool {
            bytes.iter_mut().for_each(|b| *b &= 1);
        }
        Global { kind, name: name.to_string(), shape, dtype, bytes }
    }

    pub(crate) fn array(&self) -> Array {
        Array::from_bytes(&self.bytes, &self.shape, self.dtype).unwrap()
    }
}

/// A random set of tensors: all kinds, all dtypes, scalars and empty ones among them.
pub(crate) fn globals(dice: &mut Dice, count: usize) -> Vec<Global> {
    (0..count)
        .map(|i| {
            let ndim = dice.below(4);
            let shape: Vec<usize> =
                (0..ndim).map(|_| dice.below(9) + usize::from(dice.below(8) > 0)).collect();
            let dtype = *dice.pick(&DType::ALL);
            let kind = match dice.below(6) {
                0 => TensorKind::Master,
                1 => TensorKind::Slot("moment1_0".into()),
                2 => TensorKind::Ema,
                3 => TensorKind::Buffer,
                _ => TensorKind::Parameter,
            };
            Global::new(dice, kind, &format!("layers.{i}.weight"), &shape, dtype)
        })
        .collect()
}

/// How one tensor is held by the ranks of a world.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // A handful of values.
pub(crate) enum Holding {
    Placed(Layout),
    Flat(FlatShards),
    /// Whole, on these ranks.
    Some(Vec<usize>),
}

/// A mesh of exactly `ranks` ranks with one to three axes.
pub(crate) fn mesh(dice: &mut Dice, ranks: usize) -> Mesh {
    let mut left = ranks;
    let mut sizes = Vec::new();
    for _ in 0..2 {
        let divisors: Vec<usize> = (1..=left).filter(|d| left.is_multiple_of(*d)).collect();
        let size = *dice.pick(&divisors);
        left /= size;
        sizes.push(size);
    }
    sizes.push(left);
    let names = ["a", "b", "c"];
    let axes: Vec<(&str, usize)> = names.iter().copied().zip(sizes).collect();
    Mesh::new(&axes).unwrap()
}

pub(crate) fn holding(dice: &mut Dice, mesh: &Mesh, shape: &Shape) -> Holding {
    if dice.below(8) == 0 {
        let holders: Vec<usize> = (0..mesh.size()).filter(|_| dice.below(2) == 0).collect();
        return Holding::Some(if holders.is_empty() { vec![dice.below(mesh.size())] } else { holders });
    }
    let placements: Vec<Placement> = (0..mesh.naxes())
        .map(|_| match dice.below(3) {
            _ if shape.ndim() == 0 => Placement::Replicate,
            0 => Placement::Replicate,
            1 => format!("S{}", dice.below(shape.ndim())).parse().unwrap(),
            _ => format!("S{}x2", dice.below(shape.ndim())).parse().unwrap(),
        })
        .collect();
    let layout = Layout::new(mesh, shape, &placements).unwrap_or_else(|_| Layout::replicated(mesh, shape));
    if dice.below(3) == 0 {
        for axis in ["a", "b", "c"] {
            if let Ok(flat) = FlatShards::even(&layout, axis) {
                return Holding::Flat(flat);
            }
        }
    }
    Holding::Placed(layout)
}

/// The item of one rank: with the value, or with zeros to be loaded into.
pub(crate) fn item(global: &Global, holding: &Holding, rank: usize, value: bool) -> Option<Item> {
    let whole = if value { global.array() } else { Array::zeros(&global.shape, global.dtype).unwrap() };
    let (kind, name) = (global.kind.clone(), global.name.as_str());
    match holding {
        Holding::Some(ranks) => ranks.contains(&rank).then(|| Item::whole(kind, name, &whole)),
        Holding::Placed(layout) => {
            let piece = layout.piece(rank).unwrap();
            let local = Array::zeros(&piece.extents(), global.dtype).unwrap();
            for region in piece.boxes() {
                if let Some(inner) = piece.locate(&region) {
                    local.region(&inner).unwrap().copy_from(&whole.region(&region).unwrap()).unwrap();
                }
            }
            Some(Item::placed(kind, name, layout, rank, &local).unwrap())
        }
        Holding::Flat(flat) => {
            let within = flat.base().piece(rank).unwrap();
            let local = Array::zeros(&within.extents(), global.dtype).unwrap();
            for region in within.boxes() {
                let inner = within.locate(&region).unwrap();
                local.region(&inner).unwrap().copy_from(&whole.region(&region).unwrap()).unwrap();
            }
            let range = flat.range(rank).unwrap();
            let part = local.reshape(&[within.numel()]).unwrap();
            let part = part.narrow(0, range.start, range.len()).unwrap().copy().unwrap();
            Some(Item::flat(kind, name, &global.shape, &within, range, &part).unwrap())
        }
    }
}

/// One rank's state.
pub(crate) fn state(globals: &[Global], holdings: &[Holding], rank: usize, value: bool) -> TrainState {
    let items =
        globals.iter().zip(holdings).filter_map(|(global, holding)| item(global, holding, rank, value));
    TrainState::new(items.collect())
}

/// What all ranks know when they all know who holds what.
pub(crate) fn known(globals: &[Global], holdings: &[Holding]) -> Known {
    let tensor = |(global, holding): (&Global, &Holding)| {
        let held: RankTiling = match holding {
            Holding::Placed(layout) => Arc::new(layout.clone()),
            Holding::Flat(flat) => Arc::new(flat.clone()),
            Holding::Some(ranks) => {
                let whole = |&holder: &usize| Tile { region: Region::whole(&global.shape), holder };
                Arc::new(Listed::new(&global.shape, ranks.iter().map(whole)).unwrap())
            }
        };
        let (kind, name) = (global.kind.clone(), global.name.clone());
        KnownTensor { kind, name, shape: global.shape.clone(), dtype: global.dtype, held: vec![held] }
    };
    Known::new(globals.iter().zip(holdings).map(tensor).collect()).unwrap()
}

/// Panics unless every piece of a state has the bytes of its global tensor.
pub(crate) fn compare(state: &TrainState, globals: &[Global]) {
    for item in &state.items {
        let global = globals.iter().find(|g| g.kind == item.kind && g.name == item.name).unwrap();
        let whole = global.array();
        for piece in &item.pieces {
            let want = whole.region(&piece.region).unwrap().copy().unwrap();
            let got = piece.array.copy().unwrap();
            assert!(
                got.bytes().unwrap()[..] == want.bytes().unwrap()[..],
                "{} {:?} {} {}",
                item.name,
                item.kind,
                item.dtype,
                piece.region
            );
        }
    }
}

/// Every file of a folder with its bytes.
pub(crate) fn contents(store: &dyn Store, folder: &str) -> BTreeMap<String, Vec<u8>> {
    let files = store.walk(folder).unwrap().into_iter();
    files.map(|entry| (entry.short().to_string(), store.read(&entry.name, u64::MAX).unwrap())).collect()
}
