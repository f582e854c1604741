//! Bytes and operations of a model part for one micro-batch, from what its segments cost.

use super::Setting;
use super::backward::{Gradients, Kept, Peaks};
use crate::config::Recompute;
use crate::error::Result;
use crate::partition::is_again;
use crate::pipeline::StageBytes;
use planaria_nn::models::{Architecture, Cost, Segment, Sizes, Stage};

/// What every segment of a model costs one rank for one micro-batch.
pub(super) struct Costs {
    pub(super) embed: Cost,
    pub(super) blocks: Vec<Cost>,
    pub(super) head: Cost,
}

impl Costs {
    pub(super) fn new(model: &dyn Architecture, sizes: &Sizes) -> Result<Costs> {
        let blocks = (0..model.blocks()).map(|block| model.cost(Segment::Block(block), sizes));
        Ok(Costs {
            embed: model.cost(Segment::Embed, sizes)?,
            blocks: blocks.collect::<planaria_nn::Result<_>>()?,
            head: model.cost(Segment::Head, sizes)?,
        })
    }

    /// Those of a part.
    pub(super) fn of<'a>(&'a self, part: &Stage) -> impl Iterator<Item = &'a Cost> + use<'a> {
        let ends = (part.embed.then_some(&self.embed), part.head.then_some(&self.head));
        ends.0.into_iter().chain(&self.blocks[part.layers.clone()]).chain(ends.1)
    }
}

impl Setting<'_> {
    /// The blocks of a part that are computed again in backward.
    pub(super) fn recomputed<'a>(&'a self, part: &Stage) -> impl Iterator<Item = &'a Cost> + use<'a> {
        let again = part.layers.clone().filter(|&block| is_again(self.config, block));
        again.map(|block| &self.costs.blocks[block])
    }

    /// Operations of forward of one part. Each half of backward takes as many.
    pub(super) fn work(&self, part: &Stage) -> f64 {
        self.costs.of(part).map(|cost| cost.operations).sum()
    }

    /// Operations of the blocks that are computed again.
    pub(super) fn work_again(&self, part: &Stage) -> f64 {
        self.recomputed(part).map(|cost| cost.operations).sum()
    }

    /// What all micro-batches of a part share.
    pub(super) fn shared(&self, part: &Stage) -> u64 {
        self.costs.of(part).map(|cost| cost.shared).max().unwrap_or(0)
    }

    /// What the segments of a part keep for one micro-batch, the last one first, and need besides in backward.
    fn kept(&self, part: &Stage) -> Vec<Kept> {
        // What lies between blocks is alike everywhere.
        let hidden = self.costs.embed.output;
        let head = Kept { saved: if part.head { self.costs.head.kept } else { 0 }, besides: 0 };
        let block = |block: usize| {
            let Cost { kept, cheap, backward, .. } = self.costs.blocks[block];
            if is_again(self.config, block) {
                return Kept { saved: hidden, besides: kept.saturating_sub(hidden) + backward };
            }
            let cheap = if self.config.train.recompute == Recompute::Selective { cheap } else { 0 };
            Kept { saved: kept.saturating_sub(cheap), besides: backward + cheap }
        };
        let blocks = part.layers.clone().rev().map(block);
        std::iter::once(head).chain(blocks).chain([Kept::default()]).collect()
    }

    /// Bytes of one part.
    pub(super) fn bytes(&self, part: &Stage) -> Result<StageBytes> {
        let hidden = self.costs.embed.output;
        let gradients = Gradients::of(self, part)?;
        let kept = self.kept(part);
        let Peaks { first, later } = gradients.peaks(self, &kept);
        let saved = kept.iter().map(|kept| kept.saved).sum::<u64>();
        // The blocks have run when the head begins.
        let head = if part.head { self.costs.head.forward.saturating_sub(self.costs.head.kept) } else { 0 };
        let again = part.layers.clone().filter(|&block| is_again(self.config, block));
        let again =
            again.map(|block| self.costs.blocks[block].kept.saturating_sub(hidden)).max().unwrap_or(0);
        let inside = part.layers.clone().last().map_or(0, |block| self.costs.blocks[block].backward);
        let input = if part.embed { 0 } else { hidden };
        let output = if part.head { 0 } else { hidden };
        Ok(StageBytes {
            input,
            output,
            input_grad: input,
            output_grad: output,
            saved,
            saved_input: if part.layers.is_empty() { 0 } else { input },
            saved_output: 0,
            held: saved / 2,
            forward_peak: saved + head.max(again),
            backward_peak: later,
            input_peak: later,
            weight_peak: inside,
            sums: gradients.sums,
            first_peak: first,
            ..StageBytes::NONE
        })
    }
}
