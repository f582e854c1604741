//! Routes: the cheapest short list of steps from one layout to another.

mod collective;
mod refine;
mod search;

pub(crate) use collective::named_price;
pub use collective::{Collective, Cost, Step};

use crate::error::Result;
use crate::layout::Layout;
use crate::placement::Placement;
use crate::plan::check_shapes;
use std::fmt;

/// The steps of a reshard, in order; none when every rank already has its piece.
///
/// The choice depends only on the two layouts and the element size, so every rank finds the same
/// route. Fewest bytes sent per rank win, then fewest messages, then fewest steps that are not a named
/// collective, then fewest steps, then the simpler collectives, then the order of trying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where it starts.
    pub from: Layout,
    /// Where it ends.
    pub to: Layout,
    /// What is done. Between meshes over the same ranks the steps may be written on a finer mesh
    /// of those ranks, on which both layouts have the pieces they have on their own.
    pub steps: Vec<Step>,
}

impl Route {
    /// The cheapest route; `size` is the bytes of one element.
    pub fn find(from: &Layout, to: &Layout, size: usize) -> Result<Route> {
        check_shapes(from, to)?;
        let steps = if from.mesh() == to.mesh() {
            search::cheapest(from, to, size)?
        } else if let Some((fine_from, fine_to)) = refine::common_mesh(from, to) {
            search::cheapest(&fine_from, &fine_to, size)?
        } else {
            between_meshes(from, to, size)?
        };
        Ok(Route { from: from.clone(), to: to.clone(), steps })
    }

    /// Price of all steps.
    pub fn cost(&self) -> Cost {
        total(&self.steps)
    }
}

fn total(steps: &[Step]) -> Cost {
    steps.iter().fold(Cost::default(), |sum, step| sum + step.cost)
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() {
            return write!(f, "{}", Collective::Nothing);
        }
        for (i, step) in self.steps.iter().enumerate() {
            write!(f, "{}{step}", if i == 0 { "" } else { ", then " })?;
        }
        Ok(())
    }
}

/// Reductions end on the source mesh; data that several destination ranks want as copies may cross
/// once and be gathered there.
fn between_meshes(from: &Layout, to: &Layout, size: usize) -> Result<Vec<Step>> {
    let mut leave = vec![from.clone()];
    if !from.partial_axes().is_empty() {
        leave.push(spread(from, from.partial_axes().iter().collect())?);
        leave.push(whole(from)?);
    }
    let copies = |layout: &Layout| layout.mesh().span(layout.replicated_axes());
    let mut arrive = vec![to.clone()];
    if copies(to) > copies(from) {
        arrive.push(spread(to, to.replicated_axes().iter().collect())?);
    }
    let mut best: Option<((Cost, usize), Vec<Step>)> = None;
    for out in &leave {
        for landing in &arrive {
            let mut steps = search::cheapest(from, out, size)?;
            steps.push(Step::recognise(out, landing, size)?);
            steps.extend(search::cheapest(landing, to, size)?);
            let key = (total(&steps), steps.len());
            if best.as_ref().is_none_or(|(other, _)| key < *other) {
                best = Some((key, steps));
            }
        }
    }
    Ok(best.map(|(_, steps)| steps).unwrap_or_default())
}

/// The layout with all pending reductions done.
fn whole(layout: &Layout) -> Result<Layout> {
    layout.partial_axes().iter().try_fold(layout.clone(), |l, axis| l.with(axis, Placement::Replicate))
}

/// The layout with each of `axes` cutting, innermost, the dim with the longest local extent that it
/// divides; axes that divide none hold copies.
fn spread(layout: &Layout, axes: Vec<usize>) -> Result<Layout> {
    let mut spread = layout.clone();
    for axis in axes {
        spread = spread.with(axis, Placement::Replicate)?;
        let extents = spread.piece_at(&vec![0; spread.mesh().naxes()]).extents();
        let size = spread.mesh().axis_size(axis);
        let fits = (0..extents.len()).filter(|&d| extents[d] > 0 && extents[d].is_multiple_of(size));
        if let Some(dim) = fits.max_by_key(|&d| (extents[d], std::cmp::Reverse(d))) {
            spread = search::append(&spread, axis, dim, 1)?;
        }
    }
    Ok(spread)
}
