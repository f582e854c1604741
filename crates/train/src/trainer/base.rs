//! The model under an adapter, known again by a hash of its weights: a run goes on with the one it was begun with.

use super::rank::RankRun;
use crate::error::{Error, Result};
use crate::weights::{Tie, Weight};
use planaria_array::{Array, DType, Device};
use planaria_comm::{AllGather, CommExt};
use planaria_nn::Role;

/// Elements that are brought to the host together.
const STEP: usize = 1 << 20;

impl RankRun<'_> {
    /// Notes the hash of the weights that are not trained, where there is an adapter. It does not depend on the mesh.
    /// Collective.
    pub(super) fn note_base(&mut self) -> Result<()> {
        if self.job.config.lora.is_none() {
            return Ok(());
        }
        let mut own = 0u64;
        let beside = self.job.objective.second().is_some();
        let base = |weight: &&Weight| {
            let alone = weight.counted && !matches!(weight.tie, Tie::Into(_));
            alone && weight.spec.role == Role::Base && !(beside && weight.is_second())
        };
        for weight in self.replica.weights.iter().filter(base) {
            own = own.wrapping_add(sum(weight)?);
        }
        let world = &self.world;
        let all = Array::empty(&[world.size()], DType::I64)?;
        let send = Array::from_slice(&[own as i64], &[1])?;
        world.all_gather(AllGather { send, recv: all.clone(), recv_counts: vec![1; world.size()] })?;
        let total = all.to_vec::<i64>()?.into_iter().fold(0u64, |sum, one| sum.wrapping_add(one as u64));
        self.progress.base = Some(format!("{total:016x}"));
        Ok(())
    }

    /// Refuses weights that are not those that an adapter was trained on; an older checkpoint does not say which they were.
    pub(super) fn check_base(&self, folder: &str, then: Option<&String>) -> Result<()> {
        let (Some(then), Some(now)) = (then, &self.progress.base) else { return Ok(()) };
        if then == now {
            return Ok(());
        }
        let init = self.job.config.model.init.as_ref();
        let init = init.map_or_else(String::new, |path| path.display().to_string());
        Err(Error::OtherBase { folder: folder.to_string(), init, then: then.clone(), now: now.clone() })
    }
}

/// The elements that this rank owns, each mixed with its name and place in the whole tensor: sums of all ranks are the same
/// however it is cut.
fn sum(weight: &Weight) -> Result<u64> {
    let name = weight.spec.name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let shape = &weight.spec.shape;
    let mut sum = 0u64;
    for from in (0..weight.part.numel()).step_by(STEP) {
        let part = weight.part.narrow(0, from, STEP.min(weight.part.numel() - from))?;
        let values = part.to(Device::Cpu)?.cast(DType::F32)?.to_vec::<f32>()?;
        let mut at = 0;
        while at < values.len() {
            let first = weight.own.start + from + at;
            let found = weight.within.element(first);
            let (index, run) = found.ok_or_else(|| Error::Bug {
                what: format!("`{}` has no element {first}", weight.spec.name),
            })?;
            let len = run.min(values.len() - at);
            let place = index.iter().zip(shape.iter()).fold(0, |place, (&at, &extent)| place * extent + at);
            for (number, value) in values[at..at + len].iter().enumerate() {
                sum = sum.wrapping_add(mixed(name, (place + number) as u64, value.to_bits()));
            }
            at += len;
        }
    }
    Ok(sum)
}

fn mixed(name: u64, index: u64, bits: u32) -> u64 {
    let word = (name ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(u64::from(bits));
    let word = (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ word >> 29
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_every_place_counts() {
        let one = mixed(1, 2, 0x3f80_0000);
        for other in [mixed(2, 2, 0x3f80_0000), mixed(1, 3, 0x3f80_0000), mixed(1, 2, 0x3f80_0001)] {
            assert_ne!(one, other);
        }
        // Two elements that change places are another model.
        let pair = |a: u32, b: u32| mixed(1, 0, a).wrapping_add(mixed(1, 1, b));
        assert_ne!(pair(5, 6), pair(6, 5));
    }
}
