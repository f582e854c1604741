//! Bytes that one host sends another in a step: what ranks send, by where they are.

use super::{Plan, Traffic};
use planaria_layout::Mesh;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What one host sends another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// The number of the host that sends.
    pub from: usize,
    /// The number of the host that receives.
    pub to: usize,
    /// Bytes in a step.
    pub bytes: u64,
    /// The same by axis of the mesh.
    pub axes: BTreeMap<&'static str, u64>,
}

/// What hosts send each other in a step, of a run on `mesh` whose ranks lie on hosts like this; links that nothing crosses are left out.
///
/// Ranks send each of the others along an axis the same share, and stages to those before and behind them, as the engines for processes
/// do; the elements of a step that are not planned (losses, norms, agreements) are not in it.
pub fn links(plan: &Plan, mesh: &Mesh, hosts: &[Range<usize>]) -> Vec<Link> {
    let host = |rank: usize| hosts.iter().position(|range| range.contains(&rank));
    let mut found: BTreeMap<(usize, usize), BTreeMap<&'static str, u64>> = BTreeMap::new();
    for rank in 0..mesh.size() {
        let Some(place) = mesh.coords(rank) else { continue };
        let Some(stage) = plan.stages.get(place[0]) else { continue };
        for traffic in &stage.traffic {
            let others = receivers(mesh, rank, traffic);
            for other in &others {
                let ends = host(rank).zip(host(*other)).filter(|(from, to)| from != to);
                let Some(ends) = ends else { continue };
                *found.entry(ends).or_default().entry(traffic.axis).or_default() +=
                    traffic.bytes / others.len() as u64;
            }
        }
    }
    let link = |((from, to), axes): ((usize, usize), BTreeMap<&'static str, u64>)| Link {
        from,
        to,
        bytes: axes.values().sum(),
        axes,
    };
    found.into_iter().map(link).collect()
}

/// Axes of more than one rank whose ranks are not all on one host.
pub fn crossing(mesh: &Mesh, hosts: &[Range<usize>]) -> BTreeSet<String> {
    let host = |rank: usize| hosts.iter().position(|range| range.contains(&rank));
    let crosses = |axis: &usize| {
        let mut ranks = 0..mesh.size();
        ranks.any(|rank| along(mesh, rank, *axis).into_iter().any(|other| host(other) != host(rank)))
    };
    (0..mesh.naxes()).filter(crosses).map(|axis| mesh.axes()[axis].name.to_string()).collect()
}

/// The other ranks along an axis.
fn along(mesh: &Mesh, rank: usize, axis: usize) -> Vec<usize> {
    let Some(place) = mesh.coords(rank) else { return Vec::new() };
    let at = |position: usize| {
        let mut there = place.clone();
        there[axis] = position;
        mesh.rank(&there)
    };
    (0..mesh.axis_size(axis)).filter_map(at).filter(|&other| other != rank).collect()
}

/// Who gets what a rank sends.
fn receivers(mesh: &Mesh, rank: usize, traffic: &Traffic) -> Vec<usize> {
    let Some(axis) = mesh.axes().iter().position(|axis| axis.name.as_str() == traffic.axis) else {
        return Vec::new();
    };
    let others = along(mesh, rank, axis);
    match traffic.to {
        None => others,
        Some(stage) => others
            .into_iter()
            .filter(|other| mesh.coords(*other).is_some_and(|there| there[axis] == stage))
            .collect(),
    }
}
