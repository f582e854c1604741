//! Rows of tokens sent to the ranks that have their experts, and back: an all-to-all with uneven parts.

use crate::parallel::ExpertRanks;
use planaria_array::{Array, DType};
use planaria_comm::{AllGather, AllToAll, Comm, CommExt};
use planaria_layout::rule::Rule;
use planaria_tensor::{
    Arrays, Attributes, Backward, Error, Grads, Local, Op, Places, Result, Saves, Spec, Tensor, apply,
};
use smallvec::smallvec;
use std::ops::Range;
use std::sync::Arc;

/// Which rows go where, seen by one rank of `ep`.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    comm: Option<Arc<dyn Comm>>,
    /// Pairs of token and choice in the order of their experts: pair `i` is choice `i % choices` of token
    /// `i / choices`.
    pub(super) order: Vec<i64>,
    /// Where in `order` each pair is.
    pub(super) places: Vec<i64>,
    /// Rows for each rank, and rows from each.
    sent: Vec<usize>,
    received: Vec<usize>,
    /// Rows that arrived, in the order of their experts.
    pub(super) arrived: Vec<i64>,
    /// Where each of them stood on arrival.
    pub(super) returned: Vec<i64>,
    /// How many rows each expert of this rank gets.
    pub(super) loads: Vec<usize>,
}

impl Plan {
    /// From the experts chosen by this rank's tokens. Collective over the ranks of `ep`.
    pub(super) fn new(chosen: &Array, ranks: &ExpertRanks) -> Result<Plan> {
        let ExpertRanks { me, owned, comm } = ranks;
        let experts = owned.last().map_or(0, |range| range.end);
        let chosen = match chosen.is_meta() {
            // Nobody knows; evenly is what the auxiliary loss asks for.
            true => (0..chosen.numel()).map(|i| (i % experts.max(1)) as i64).collect(),
            false => chosen.to_vec::<i64>()?,
        };
        let (order, counts) = by_bin(chosen.iter().map(|&expert| expert as usize), experts);
        let all = gathered(&counts, ranks)?;
        let of = |counts: &[usize], range: &Range<usize>| counts[range.clone()].iter().sum::<usize>();
        let sent = owned.iter().map(|range| of(&counts, range)).collect();
        let mine = owned.get(*me).cloned().ok_or(Error::Bug("every rank of ep has a range of experts"))?;
        let received = all.iter().map(|counts| of(counts, &mine)).collect();
        // Rows come rank by rank, and expert by expert from each.
        let bins = all.iter().flat_map(|counts| {
            mine.clone().enumerate().flat_map(|(bin, expert)| std::iter::repeat_n(bin, counts[expert]))
        });
        let (arrived, loads) = by_bin(bins, mine.len());
        let (places, returned) = (inverse(&order), inverse(&arrived));
        let comm = comm.clone();
        Ok(Plan { comm, order, places, sent, received, arrived, returned, loads })
    }

    /// Rows to the ranks of their experts.
    pub(super) fn send(&self, rows: &Tensor) -> Result<Tensor> {
        self.exchange(rows, &self.sent, &self.received)
    }

    /// Rows back to the ranks of their tokens.
    pub(super) fn send_back(&self, rows: &Tensor) -> Result<Tensor> {
        self.exchange(rows, &self.received, &self.sent)
    }

    fn exchange(&self, rows: &Tensor, sent: &[usize], received: &[usize]) -> Result<Tensor> {
        if sent.len() == 1 {
            return Ok(rows.clone());
        }
        let op = Exchange { comm: self.comm.clone(), sent: sent.to_vec(), received: received.to_vec() };
        apply(op, &[rows])?.into_iter().next().ok_or(Error::Bug("an exchange gives rows"))
    }
}

/// Items in the order of their bins, those of one bin as they came, and how many each bin has.
fn by_bin(bins: impl Iterator<Item = usize> + Clone, count: usize) -> (Vec<i64>, Vec<usize>) {
    let mut counts = vec![0; count];
    let mut total = 0;
    bins.clone().for_each(|bin| {
        counts[bin] += 1;
        total += 1;
    });
    let mut next: Vec<usize> = Vec::with_capacity(count);
    counts.iter().fold(0, |sum, n| {
        next.push(sum);
        sum + n
    });
    let mut order = vec![0; total];
    for (item, bin) in bins.enumerate() {
        order[next[bin]] = item as i64;
        next[bin] += 1;
    }
    (order, counts)
}

fn inverse(order: &[i64]) -> Vec<i64> {
    let mut places = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, &item)| places[item as usize] = place as i64);
    places
}

/// Every rank's counts; as our own, in a world that is only planned on.
fn gathered(counts: &[usize], ranks: &ExpertRanks) -> Result<Vec<Vec<usize>>> {
    let (size, n) = (ranks.owned.len(), counts.len());
    let Some(comm) = &ranks.comm else { return Ok(vec![counts.to_vec(); size]) };
    let own: Vec<i64> = counts.iter().map(|&count| count as i64).collect();
    let recv = Array::zeros(&[size * n], DType::I64)?;
    let send = Array::from_slice(&own, &[n])?;
    comm.all_gather(AllGather { send, recv: recv.clone(), recv_counts: vec![n; size] })?;
    let all = recv.to_vec::<i64>()?;
    Ok(all.chunks(n.max(1)).map(|counts| counts.iter().map(|&count| count as usize).collect()).collect())
}

/// `sent[r]` rows go to rank `r`, `received[r]` come from it.
#[derive(Clone, Debug)]
struct Exchange {
    /// Absent in a world that is only planned on.
    comm: Option<Arc<dyn Comm>>,
    sent: Vec<usize>,
    received: Vec<usize>,
}

impl Op for Exchange {
    fn name(&self) -> &'static str {
        "expert_exchange"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new()
    }

    fn rule(&self, _: &[Spec], _: &[Spec]) -> Result<Rule> {
        Err(Error::Bug("rows are exchanged between pieces, not on a mesh"))
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let rows = inputs[0].contiguous()?;
        let width = rows.shape().get(1).copied().unwrap_or(1);
        let shape = [self.received.iter().sum(), width];
        let Some(comm) = self.comm.as_ref().filter(|_| !rows.is_meta()) else {
            return Ok(smallvec![Array::meta(&shape, rows.dtype())?]);
        };
        let recv = Array::zeros(&shape, rows.dtype())?;
        let elements = |rows: &[usize]| rows.iter().map(|n| n * width).collect();
        let (send_counts, recv_counts) = (elements(&self.sent), elements(&self.received));
        comm.all_to_all(AllToAll { send: rows, send_counts, recv: recv.clone(), recv_counts })?;
        Ok(smallvec![recv])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let back = Exchange { sent: self.received.clone(), received: self.sent.clone(), ..self.clone() };
        Ok(apply(back, &[dy])?.into_iter().map(Some).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_in_the_order_of_their_experts() {
        let chosen = Array::from_slice(&[2i64, 0, 1, 2, 0, 2], &[3, 2]).unwrap();
        let ranks = ExpertRanks { me: 0, owned: std::iter::once(0..4).collect(), comm: None };
        let plan = Plan::new(&chosen, &ranks).unwrap();
        assert_eq!(plan.order, [1, 4, 2, 0, 3, 5]);
        assert_eq!(plan.places, [3, 0, 2, 4, 1, 5]);
        assert_eq!(plan.loads, [2, 1, 3, 0]);
        assert_eq!(plan.arrived, [0, 1, 2, 3, 4, 5]);
    }
}
