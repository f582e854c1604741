//! Whether ranks still hold the same: silent corruption is found by comparing what should be equal, and named.

use super::figures::Losses;
use super::rank::RankRun;
use crate::drill::What;
use crate::error::{Error, Result};
use planaria_array::{Array, DType, Device};
use planaria_comm::{AllGather, CommExt};
use planaria_store::checksum;
use std::collections::BTreeMap;

impl RankRun<'_> {
    /// Compares the weights that data ranks replicate, where it is time. Collective over the world.
    pub(super) fn compare_replicas(&mut self) -> Result<()> {
        let (step, every) = (self.progress.step, self.job.config.heal.compare_every);
        if let Some(harm) = self.pulse.harm(step) {
            self.harm_a_weight(harm)?;
        }
        if every == 0 || !step.is_multiple_of(every) {
            return Ok(());
        }
        let world = &self.world;
        let hashes = Array::empty(&[world.size()], DType::I64)?;
        let send = Array::from_slice(&[self.hash()? as i64], &[1])?;
        world.all_gather(AllGather { send, recv: hashes.clone(), recv_counts: vec![1; world.size()] })?;
        let hashes = hashes.to_vec::<i64>()?;
        // Ranks of one position hold the same weights as their data ranks; every rank looks at all groups, so that all say the same.
        let mesh = &self.place.mesh;
        let mut seen = BTreeMap::new();
        for rank in 0..world.size() {
            let group = mesh.group(world.ranks()[rank], mesh.axis_set(&["dp"])?)?;
            seen.entry(group).or_insert(());
        }
        for group in seen.into_keys() {
            let of = |rank: &usize| world.ranks().iter().position(|r| r == rank).map(|at| hashes[at]);
            let told: Vec<Option<i64>> = group.iter().map(of).collect();
            let odd = odd_ones(&told);
            if odd.is_empty() {
                continue;
            }
            let ranks: Vec<usize> = odd.iter().map(|&at| group[at]).collect();
            let what = match ranks.len() == group.len() {
                true => format!("ranks {} hold different weights that should be equal", list(&ranks)),
                false => {
                    format!("the weights of rank {} differ from those of its other replicas", list(&ranks))
                }
            };
            return Err(self.suspect(ranks, what));
        }
        Ok(())
    }

    /// Refuses a loss that is not finite on one data rank alone.
    pub(super) fn refuse_odd_loss(&self, losses: &Losses, step: u64) -> Result<()> {
        if !self.job.config.heal.odd_loss {
            return Ok(());
        }
        let Some(replica) = losses.odd_one(self.place.replicas) else { return Ok(()) };
        let mesh = &self.place.mesh;
        let mut ranks = Vec::new();
        for &rank in self.world.ranks() {
            if mesh.require(rank)?[1] == replica {
                ranks.push(rank);
            }
        }
        let what = format!("the loss of data rank {replica} (rank {}) alone is not finite", list(&ranks));
        let newest = self.saves.newest.as_ref().map(|(_, folder)| folder.clone());
        Err(Error::Suspect { step, ranks, what, newest })
    }

    fn suspect(&self, ranks: Vec<usize>, what: String) -> Error {
        let newest = self.saves.newest.as_ref().map(|(_, folder)| folder.clone());
        Error::Suspect { step: self.progress.step, ranks, what, newest }
    }

    /// A hash of the bits of all weights that this rank has whole.
    fn hash(&self) -> Result<u64> {
        let mut hash = 0u64;
        for full in self.replica.weights.iter().filter_map(|weight| weight.full.as_ref()) {
            let host = full.to(Device::Cpu)?;
            let bytes = host.bytes()?;
            // An odd factor keeps the order of the weights.
            hash = hash
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .wrapping_add(u64::from(checksum::crc32c(&bytes)) << 16);
            hash = hash.wrapping_add(bytes.len() as u64);
        }
        Ok(hash)
    }

    /// What a drill does to memory.
    fn harm_a_weight(&self, harm: What) -> Result<()> {
        let full = self.replica.weights.iter().find_map(|weight| weight.full.as_ref());
        let Some(full) = full.filter(|full| full.numel() > 0) else { return Ok(()) };
        match harm {
            // All bits set is NaN in every float.
            What::Nan => full.write_bytes(0..full.numel() * full.dtype().size(), |bytes| bytes.fill(0xff))?,
            _ => full.write_bytes(0..1, |bytes| bytes[0] ^= 1)?,
        }
        Ok(())
    }
}

/// The positions that differ from what most tell; all of them where there is no most.
fn odd_ones(told: &[Option<i64>]) -> Vec<usize> {
    let count = |value: &Option<i64>| told.iter().filter(|other| *other == value).count();
    let most = told.iter().max_by_key(|value| count(value));
    match most {
        Some(most) if 2 * count(most) > told.len() => {
            (0..told.len()).filter(|&at| told[at] != *most).collect()
        }
        _ => (0..told.len()).collect(),
    }
}

fn list(ranks: &[usize]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_differ_from_most_are_the_odd_ones() {
        let some = |list: &[i64]| odd_ones(&list.iter().copied().map(Some).collect::<Vec<_>>());
        assert!(some(&[5, 5, 5]).is_empty() && some(&[5]).is_empty());
        assert_eq!(some(&[5, 6, 5]), [1]);
        assert_eq!(some(&[5, 6]), [0, 1]);
        assert_eq!(some(&[1, 2, 3]), [0, 1, 2]);
    }
}
