//! Bytes that one host sends another in a step: what ranks send, by where they are.

use super::{Plan, Traffic};
use planaria_comm::letters::{Traffic as Collective, crossing as bytes_between_hosts};
use planaria_layout::{DType, Mesh, Reduce};
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
/// do; what goes over hosts once, because several ranks of one take part, is counted as they count it. The elements of a step that are
/// not planned (losses, norms, agreements) are not in it.
pub fn links(plan: &Plan, mesh: &Mesh, hosts: &[Range<usize>]) -> Vec<Link> {
    let host = |rank: usize| hosts.iter().position(|range| range.contains(&rank));
    let mut found: BTreeMap<(usize, usize), BTreeMap<&'static str, u64>> = BTreeMap::new();
    for rank in 0..mesh.size() {
        let Some(place) = mesh.coords(rank) else { continue };
        let Some(stage) = plan.stages.get(place[0]) else { continue };
        for traffic in &stage.traffic {
            let others = receivers(mesh, rank, traffic);
            let mut group: Vec<usize> = others.iter().copied().chain([rank]).collect();
            group.sort_unstable();
            if let Some(crossed) = over_hosts(&group, &host, traffic) {
                // Once for all of them.
                for (ends, bytes) in crossed.into_iter().filter(|_| group[0] == rank) {
                    *found.entry(ends).or_default().entry(traffic.axis).or_default() += bytes;
                }
                continue;
            }
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

/// What a group's collective sends between hosts where ranks of one share the way; `None` where each sends for itself.
fn over_hosts(
    group: &[usize],
    host: &dyn Fn(usize) -> Option<usize>,
    traffic: &Traffic,
) -> Option<BTreeMap<(usize, usize), u64>> {
    let hosts = group.iter().map(|&rank| host(rank)).collect::<Option<Vec<usize>>>()?;
    let several = hosts.iter().collect::<BTreeSet<_>>().len();
    if several < 2 || several == hosts.len() {
        return None;
    }
    let ranks = group.len();
    // What they hold together, of which each sends the others all but its share.
    let whole =
        |ways: u64| (traffic.bytes / traffic.times.max(1) / ways / (ranks as u64 - 1)) as usize * ranks;
    let (op, dtype) = (Reduce::Sum, DType::F32);
    let call = match traffic.call {
        "all-gather" => Collective::AllGather { dtype: DType::U8, counts: vec![whole(1) / ranks; ranks] },
        "reduce-scatter" => {
            Collective::ReduceScatter { op, dtype, counts: vec![whole(1) / dtype.size() / ranks; ranks] }
        }
        "all-reduce" => Collective::AllReduce { op, dtype, count: whole(2) / dtype.size() },
        _ => return None,
    };
    let crossed = bytes_between_hosts(&hosts, &call);
    Some(crossed.into_iter().map(|(ends, bytes)| (ends, bytes * traffic.times)).collect())
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
