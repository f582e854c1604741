//! Random meshes and layouts for the property tests.

#![allow(dead_code, unreachable_pub)] // each test file uses its own part

use planaria_layout::*;
use proptest::prelude::*;

/// So many cases; failures are printed, not kept in files.
pub fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 2000, ..ProptestConfig::default() }
}

/// Any mesh of up to `most` axes with any rank numbering.
pub fn mesh(most: usize) -> impl Strategy<Value = Mesh> {
    let sizes = prop::collection::vec(1usize..4, 0..=most);
    (sizes, 0usize..3, any::<u64>()).prop_map(|(sizes, numbering, seed)| {
        let axes: Vec<(&str, usize)> = ["dp", "pp", "tp"].into_iter().zip(sizes).collect();
        let size = axes.iter().map(|a| a.1).product::<usize>();
        match numbering {
            0 => Mesh::new(&axes).unwrap(),
            1 => Mesh::starting_at(&axes, seed as usize % 5).unwrap(),
            _ => {
                let mut ranks: Vec<Rank> = (0..size + 3).collect();
                shuffle(&mut ranks, seed);
                Mesh::with_ranks(&axes, &ranks[..size]).unwrap()
            }
        }
    })
}

/// Up to three dims of 0 to 9.
pub fn shape() -> impl Strategy<Value = Shape> {
    prop::collection::vec(0usize..10, 0..4).prop_map(|dims| Shape::new(&dims).unwrap())
}

/// Any placements of a tensor without pending reductions.
pub fn plain(mesh: Mesh, shape: Shape) -> impl Strategy<Value = Layout> {
    let ndim = shape.ndim();
    let one = (0..ndim + 1, prop_oneof![4 => Just(1usize), 1 => 2usize..4], 0usize..3);
    prop::collection::vec(one, mesh.naxes()).prop_map(move |axes| {
        let place = |(dim, sections, order)| match dim {
            0 => Placement::Replicate,
            dim => Placement::Shard(Shard { dim: dim - 1, sections, order }),
        };
        let placements: Vec<Placement> = axes.into_iter().map(place).collect();
        Layout::new(&mesh, &shape, &placements).unwrap()
    })
}

/// Any placements; pending reductions, if any, are of kinds that may stand together.
pub fn any_layout(mesh: Mesh, shape: Shape) -> impl Strategy<Value = Layout> {
    let picks = prop::collection::vec((0usize..3, any::<bool>()), mesh.naxes());
    (plain(mesh, shape), picks, 0usize..7).prop_map(|(plain, picks, kind)| {
        let mut layout = plain;
        for (axis, (pick, other)) in picks.into_iter().enumerate() {
            let mut reduce = Reduce::EVERY[kind];
            if kind < 2 && other {
                reduce = Reduce::EVERY[1 - kind];
            }
            if pick == 0 {
                layout = layout.with(axis, Placement::Partial(reduce)).unwrap();
            }
        }
        layout
    })
}

/// Two layouts of one shape; the second mesh is the first one half of the time.
pub fn pair(partial: bool) -> impl Strategy<Value = (Layout, Layout)> {
    let meshes = (mesh(3), mesh(3), any::<bool>());
    (meshes, shape()).prop_flat_map(move |((a, b, same), shape)| {
        let b = if same { a.clone() } else { b };
        let make = move |mesh: Mesh, shape: Shape| {
            if partial { any_layout(mesh, shape).boxed() } else { plain(mesh, shape).boxed() }
        };
        (make(a, shape.clone()), make(b, shape))
    })
}

/// Small whole numbers, exact under every reduction used here.
pub fn iota(shape: &Shape) -> Vec<f64> {
    (0..shape.numel()).map(|i| i as f64).collect()
}

/// Different contributions along every pending axis; truth values where a reduction wants them.
pub fn contributions(from: &Layout, to: &Layout) -> simulate::Locals {
    let is_logic =
        |l: &Layout| l.partial_axes().iter().any(|a| matches!(l.reduce(a), Some(Reduce::Any | Reduce::All)));
    let axes: Vec<usize> = from.partial_axes().iter().collect();
    if is_logic(from) || is_logic(to) {
        let value: Vec<f64> = iota(from.shape()).iter().map(|x| f64::from(u8::from(x % 3.0 < 2.0))).collect();
        return simulate::scatter(from, &value, |at| {
            f64::from(u8::from(axes.iter().map(|&a| at[a]).sum::<usize>() % 2 == 0))
        })
        .unwrap();
    }
    let value: Vec<f64> = iota(from.shape()).iter().map(|x| x % 3.0 - 1.0).collect();
    simulate::scatter(from, &value, |at| axes.iter().map(|&a| 1.0 + at[a] as f64).product()).unwrap()
}

fn shuffle(list: &mut [usize], mut seed: u64) {
    for i in (1..list.len()).rev() {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        list.swap(i, (seed >> 33) as usize % (i + 1));
    }
}
