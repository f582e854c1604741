//! What each rank tells of itself every few steps: where it is, its memory, the bytes it sent along each axis of the mesh, and what it
//! did when in a step of a pipeline.

use super::Job;
use crate::error::Result;
use crate::pipeline::engine::Ran;
use planaria_comm::{Comm, CommExt, Sent, Tally};
use planaria_layout::{Mesh, Rank};
use planaria_telemetry::{RankNow, RankSlate, RankStepsFile};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes by axis.
type Links = BTreeMap<String, u64>;

/// The file of one rank and what it was told last.
#[derive(Debug)]
pub(super) struct Now {
    slate: RankSlate,
    tally: Arc<Tally>,
    before: (u64, Links),
    steps: RankStepsFile,
}

impl Now {
    /// Opens the files of a rank that has done so many steps, in its pipeline.
    pub(super) fn open(
        job: &Job,
        (world, pipeline): (&dyn Comm, &[Rank]),
        tally: Arc<Tally>,
        step: u64,
    ) -> Result<Now> {
        let (dir, rank, ranks) = (job.config.run_dir(), world.world_rank(), world.size());
        let slate = RankSlate::create(&dir, rank, ranks)?;
        let steps = RankStepsFile::create(&dir, rank, ranks, pipeline)?;
        Ok(Now { slate, tally, before: (step, Links::new()), steps })
    }

    /// Tells what the rank did in the step of a pipeline that was just done.
    pub(super) fn tell_step(&mut self, step: u64, ran: &Ran) {
        let actions = ran.spans.iter().map(|span| (span.action.to_string(), span.start, span.end));
        self.steps.tell(step, ran.begin.elapsed(), actions.collect());
    }

    /// Tells where the rank is; what was sent since the last time is divided over the steps since.
    pub(super) fn tell(&mut self, mesh: &Mesh, told: RankNow) {
        let sent = links(mesh, &self.tally.sent());
        let (step, old) = std::mem::replace(&mut self.before, (told.step, sent.clone()));
        let steps = told.step.saturating_sub(step).max(1);
        let each = |(axis, bytes): (&String, &u64)| {
            let before = old.get(axis).copied().unwrap_or(0);
            (axis.clone(), (bytes - before.min(*bytes)) / steps)
        };
        let sent_each = sent.iter().map(each).collect();
        self.slate.tell(RankNow { sent, sent_each, ..told });
    }
}

/// What was sent, by the axis that the ranks of a call lie along.
fn links(mesh: &Mesh, sent: &[Sent]) -> Links {
    let mut out = Links::new();
    for Sent { ranks, bytes, .. } in sent {
        *out.entry(link(mesh, ranks)).or_default() += bytes;
    }
    out
}

/// The axis that some ranks lie along; `all` for several axes.
fn link(mesh: &Mesh, ranks: &[Rank]) -> String {
    let places: Vec<_> = ranks.iter().filter_map(|&rank| mesh.coords(rank)).collect();
    let varies = |axis: &usize| places.iter().any(|place| place[*axis] != places[0][*axis]);
    match (0..mesh.naxes()).filter(varies).collect::<Vec<_>>()[..] {
        [axis] => mesh.axes()[axis].name.to_string(),
        _ => "all".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_lie_along_an_axis_or_along_several() {
        let mesh = Mesh::new(&[("pp", 2), ("dp", 2), ("ep", 1), ("tp", 2)]).unwrap();
        let of = |ranks: &[Rank]| link(&mesh, ranks);
        assert_eq!([of(&[0, 1]), of(&[4, 6]), of(&[1, 5]), of(&[0, 3])], ["tp", "dp", "pp", "all"]);
    }
}
