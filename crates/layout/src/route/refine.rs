//! Two meshes over the same ranks, seen as one finer mesh.

use crate::layout::Layout;
use crate::mesh::Mesh;
use crate::placement::{Placement, Shard};

/// One factor of a mesh: an axis with the distance between its neighbours.
#[derive(Clone, Copy)]
struct Factor {
    axis: usize,
    size: usize,
    stride: usize,
}

/// Both layouts on a mesh whose axes are factors of the axes of both meshes, with the pieces they
/// have on their own. `None` when the ranks differ, the sizes have no common factors of that kind,
/// or a dim does not divide.
pub(super) fn common_mesh(from: &Layout, to: &Layout) -> Option<(Layout, Layout)> {
    let (start, a) = factors(from.mesh())?;
    let (other, b) = factors(to.mesh())?;
    if start != other || from.mesh().size() != to.mesh().size() {
        return None;
    }
    let mut strides: Vec<usize> = a.iter().chain(&b).map(|f| f.stride).collect();
    strides.push(from.mesh().size());
    strides.sort_unstable_by_key(|&s| std::cmp::Reverse(s));
    strides.dedup();
    if strides.windows(2).any(|pair| pair[0] % pair[1] != 0) {
        return None;
    }
    let names: Vec<String> = (0..strides.len()).map(|i| format!("f{i}")).collect();
    let sizes = strides.windows(2).map(|pair| pair[0] / pair[1]);
    let axes: Vec<(&str, usize)> = names.iter().map(String::as_str).zip(sizes).collect();
    let mesh = Mesh::starting_at(&axes, start).ok()?;
    Some((on_factors(from, &a, &strides, &mesh)?, on_factors(to, &b, &strides, &mesh)?))
}

/// The axes from the largest stride down, when the ranks are one contiguous run.
fn factors(mesh: &Mesh) -> Option<(usize, Vec<Factor>)> {
    let (start, strides) = mesh.strides()?;
    let real = (0..mesh.naxes()).filter(|&a| mesh.axis_size(a) > 1);
    let mut list: Vec<Factor> =
        real.map(|axis| Factor { axis, size: mesh.axis_size(axis), stride: strides[axis] }).collect();
    list.sort_unstable_by_key(|f| std::cmp::Reverse(f.stride));
    let mut reach = 1;
    for factor in list.iter().rev() {
        if factor.stride != reach {
            return None;
        }
        reach *= factor.size;
    }
    Some((start, list))
}

fn on_factors(layout: &Layout, factors: &[Factor], strides: &[usize], mesh: &Mesh) -> Option<Layout> {
    let mut placements = vec![Placement::Replicate; mesh.naxes()];
    for dim in 0..layout.shape().ndim() {
        let cuts = &layout.cuts()[dim];
        let parts: usize = cuts.iter().map(|s| s.size).product();
        let sections: usize = cuts.iter().map(|s| s.sections).product();
        // Cutting in two stages gives the same chunks only when everything divides.
        if !layout.shape()[dim].is_multiple_of(parts.checked_mul(sections)?) {
            return None;
        }
    }
    for factor in factors {
        let inside = |fine: &usize| {
            strides[fine + 1] >= factor.stride && strides[*fine] <= factor.stride * factor.size
        };
        for (minor, fine) in (0..mesh.naxes()).filter(inside).enumerate() {
            placements[fine] = match layout.placements()[factor.axis] {
                Placement::Shard(shard) => {
                    let place = layout.axes_on(shard.dim).position(|a| a == factor.axis)?;
                    // Factors of one axis stay together, major first.
                    Placement::Shard(Shard { order: place * mesh.naxes() + minor, ..shard })
                }
                other => other,
            };
        }
    }
    Layout::new(mesh, layout.shape(), &placements).ok()
}
