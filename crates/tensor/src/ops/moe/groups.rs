//! Tokens grouped by expert with nothing padded and nobody left behind, on the ranks that share out the experts.

use super::travel::{Meet, Trip, Way};
use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::tensor::Tensor;
use crate::trace;
use planaria_array::ops::Keep;
use planaria_array::{Array, DType};
use planaria_comm::{AllGather, Comm, CommExt};
use planaria_layout::rule::Rule;
use planaria_layout::{AxisSet, Rank};
use smallvec::smallvec;
use std::ops::Range;
use std::sync::Arc;

/// Which rows each expert gets. Values are those of one rank, without a mesh: how many rows come to a rank is known to
/// nobody before.
#[derive(Clone, Debug)]
pub struct Groups(Arc<Plan>);

#[derive(Debug)]
struct Plan {
    comm: Option<Arc<dyn Comm>>,
    /// This rank among those that share out the experts.
    me: usize,
    tokens: usize,
    choices: usize,
    /// For each rank: the pairs of token and choice that go there, in the order of their experts. Pair `i` is choice
    /// `i % choices` of token `i / choices`.
    pairs: Vec<Vec<i64>>,
    /// For each rank: where its rows stand here, in the order of experts and then of ranks.
    places: Vec<Vec<i64>>,
    loads: Vec<usize>,
}

/// Groups this rank's tokens by the experts they have chosen, `[tokens, choices]`; `weight` has the experts as its dim
/// 0, and the axes that cut it there are those whose ranks exchange rows. Collective over these axes.
pub fn moe_group(chosen: &Tensor, weight: &Tensor) -> Result<Groups> {
    let refuse = |message| Err(Error::Argument { op: "moe_group", message });
    let [tokens, choices] = chosen.shape()[..] else {
        return refuse(format!("choices must be [tokens, choices], got shape {}", chosen.shape()));
    };
    if chosen.layout().is_some() {
        return refuse("choices must be one rank's, without a mesh".to_string());
    }
    let ranks = Ranks::of(weight)?;
    let experts = weight.shape()[0];
    let chosen = match chosen.local().is_meta() {
        // Nobody knows; evenly is what a loss of balance asks for.
        true => (0..chosen.numel()).map(|i| i % experts.max(1)).collect(),
        false => bins(&chosen.local().cast(DType::I64)?.to_vec::<i64>()?, experts)?,
    };
    let (order, counts) = by_bin(&chosen, experts);
    let all = ranks.gathered(&counts)?;
    let mine = ranks.owned[ranks.me].clone();
    // Where each rank's rows of each expert begin: experts one after the other, in each the ranks.
    let mut next = 0;
    let mut begins = vec![vec![0; mine.len()]; all.len()];
    let mut loads = Vec::with_capacity(mine.len());
    for (place, expert) in mine.clone().enumerate() {
        let first = next;
        for (rank, counts) in all.iter().enumerate() {
            begins[rank][place] = next;
            next += counts[expert];
        }
        loads.push(next - first);
    }
    let from = |(begins, counts): (&Vec<usize>, &Vec<usize>)| {
        let rows = |(&begin, &count): (&usize, &usize)| (begin..begin + count).map(|row| row as i64);
        begins.iter().zip(&counts[mine.clone()]).flat_map(rows).collect()
    };
    let places = begins.iter().zip(&all).map(from).collect();
    let mut sorted = order.into_iter();
    let to = |range: &Range<usize>| {
        let count = counts[range.clone()].iter().sum();
        sorted.by_ref().take(count).collect()
    };
    let pairs = ranks.owned.iter().map(to).collect();
    Ok(Groups(Arc::new(Plan { comm: ranks.comm, me: ranks.me, tokens, choices, pairs, places, loads })))
}

impl Groups {
    /// How many rows each expert of this rank gets.
    pub fn loads(&self) -> &[usize] {
        &self.0.loads
    }

    /// This rank's tokens (`[tokens, width]`) to the ranks of their experts; what comes here stands one expert after
    /// the other: `[rows, width]`. Collective.
    pub fn dispatch(&self, x: &Tensor) -> Result<Tensor> {
        match x.shape()[..] {
            [tokens, _] if tokens == self.0.tokens => {
                Travel { way: Way::Spread, groups: self.clone() }.apply(x)
            }
            _ => self.refuse("moe_dispatch", format!("[{}, width]", self.0.tokens), x),
        }
    }

    /// The experts' results, in the order of [`Groups::dispatch`], back at their tokens and added up with the weights
    /// of the choices (`[tokens, choices]`): `[tokens, width]`. Collective.
    pub fn combine(&self, y: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let rows: usize = self.0.loads.iter().sum();
        if y.ndim() != 2 || y.shape()[0] != rows {
            return self.refuse("moe_combine", format!("[{rows}, width]"), y);
        }
        if weights.shape()[..] != [self.0.tokens, self.0.choices] {
            return self.refuse("moe_combine", format!("[{}, {}]", self.0.tokens, self.0.choices), weights);
        }
        let found = Travel { way: Way::Back, groups: self.clone() }.apply(y)?;
        found.mul(&weights.unsqueeze(-1)?)?.sum(&[1], Keep::No)
    }

    fn refuse(&self, op: &'static str, expected: String, found: &Tensor) -> Result<Tensor> {
        Err(Error::Argument { op, message: format!("expected shape {expected}, got {}", found.shape()) })
    }
}

/// The ranks that share out the experts.
struct Ranks {
    me: usize,
    /// The experts of each.
    owned: Vec<Range<usize>>,
    /// Absent for one rank, and where nothing is sent.
    comm: Option<Arc<dyn Comm>>,
}

impl Ranks {
    fn of(weight: &Tensor) -> Result<Ranks> {
        let refuse = |message| Err(Error::Argument { op: "moe_group", message });
        let Some(&experts) = weight.shape().first() else {
            return refuse("a weight of experts has the expert as its dim 0, got a scalar".to_string());
        };
        let (Some(layout), Some(world)) = (weight.layout(), weight.world()) else {
            return Ok(Ranks { me: 0, owned: std::iter::once(0..experts).collect(), comm: None });
        };
        let axes: AxisSet = layout.axes_on(0).collect();
        let members = layout.mesh().group(world.rank(), axes)?;
        let window = |&member: &Rank| {
            let piece = layout.piece(member)?;
            // A rank past the last expert has none.
            let first = piece.boxes().first().map_or(experts, |region| region.lo()[0]);
            Ok(first..first + piece.extents()[0])
        };
        let owned = members.iter().map(window).collect::<Result<Vec<_>>>()?;
        let end = owned.iter().try_fold(0, |at, range| (range.start == at).then_some(range.end));
        if end != Some(experts) {
            return refuse(format!("experts must lie rank after rank, they lie as `{layout}`"));
        }
        let me = members.iter().position(|&member| member == world.rank()).unwrap_or(0);
        let comm = (members.len() > 1 && !world.is_supposed()).then(|| world.group(&members)).transpose()?;
        Ok(Ranks { me, owned, comm })
    }

    /// Every rank's counts; as our own, in a world that is only planned on.
    fn gathered(&self, counts: &[usize]) -> Result<Vec<Vec<usize>>> {
        let (size, n) = (self.owned.len(), counts.len());
        let Some(comm) = &self.comm else { return Ok(vec![counts.to_vec(); size]) };
        let own: Vec<i64> = counts.iter().map(|&count| count as i64).collect();
        let recv = Array::empty(&[size * n], DType::I64)?;
        let send = Array::from_slice(&own, &[n])?;
        comm.all_gather(AllGather { send, recv: recv.clone(), recv_counts: vec![n; size] })?;
        let all = recv.to_vec::<i64>()?;
        let row = |counts: &[i64]| counts.iter().map(|&count| count as usize).collect();
        Ok((0..size).map(|rank| row(&all[rank * n..(rank + 1) * n])).collect())
    }
}

fn bins(chosen: &[i64], experts: usize) -> Result<Vec<usize>> {
    let bin = |&id: &i64| usize::try_from(id).ok().filter(|&expert| expert < experts).ok_or(id);
    chosen.iter().map(bin).collect::<std::result::Result<_, _>>().map_err(|id| Error::Argument {
        op: "moe_group",
        message: format!("expert {id} was chosen of {experts}"),
    })
}

/// Items in the order of their bins, those of one bin as they came, and how many each bin has.
fn by_bin(bins: &[usize], count: usize) -> (Vec<i64>, Vec<usize>) {
    let mut counts = vec![0; count];
    bins.iter().for_each(|&bin| counts[bin] += 1);
    let mut next: Vec<usize> = Vec::with_capacity(count);
    counts.iter().fold(0, |sum, n| {
        next.push(sum);
        sum + n
    });
    let mut order = vec![0; bins.len()];
    for (item, &bin) in bins.iter().enumerate() {
        order[next[bin]] = item as i64;
        next[bin] += 1;
    }
    (order, counts)
}

/// Rows between ranks whose pieces have no layout.
#[derive(Clone, Debug)]
struct Travel {
    way: Way,
    groups: Groups,
}

impl Travel {
    fn apply(self, x: &Tensor) -> Result<Tensor> {
        if x.layout().is_some() {
            let message = "rows must be one rank's, without a mesh".to_string();
            return Err(Error::Argument { op: self.name(), message });
        }
        let plan = &self.groups.0;
        let lists = if self.way == Way::Back { &plan.places } else { &plan.pairs };
        let others = lists.iter().enumerate().filter(|(rank, _)| *rank != plan.me);
        let rows: usize = others.map(|(_, rows)| rows.len()).sum();
        let row = x.shape().last().copied().unwrap_or(0) * x.dtype().size();
        trace::note_rows(self.name(), (rows * row) as u64);
        apply1(self, &[x])
    }
}

impl Op for Travel {
    fn name(&self) -> &'static str {
        if self.way == Way::Back { "moe_combine" } else { "moe_dispatch" }
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("tokens", self.groups.0.tokens).with("choices", self.groups.0.choices)
    }

    fn rule(&self, _: &[Spec], _: &[Spec]) -> Result<Rule> {
        Err(Error::Bug("rows travel between pieces, not on a mesh"))
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let plan = &self.groups.0;
        let x = inputs[0];
        let (here, pairs) = (plan.loads.iter().sum::<usize>(), plan.tokens * plan.choices);
        let width = x.shape()[x.ndim() - 1];
        let shape = match self.way {
            Way::Back => vec![plan.tokens, plan.choices, width],
            _ => vec![here, width],
        };
        if x.is_meta() {
            return Ok(smallvec![Array::meta(&shape, x.dtype())?]);
        }
        let tokens = |&pair: &i64| pair / plan.choices as i64;
        let spread: Vec<Vec<i64>>;
        let take = match self.way {
            Way::Spread => {
                spread = plan.pairs.iter().map(|pairs| pairs.iter().map(tokens).collect()).collect();
                &spread
            }
            Way::Out => &plan.pairs,
            Way::Back => &plan.places,
        };
        let (put, rows) = if self.way == Way::Back { (&plan.pairs, pairs) } else { (&plan.places, here) };
        let trip = Trip { comm: plan.comm.clone(), take, put, rows, meet: Meet::Never };
        let table = x.reshape(&[x.shape()[..x.ndim() - 1].iter().product(), width])?;
        Ok(smallvec![trip.run(&table)?.reshape(&shape)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    /// Linear: the gradient goes the other way.
    fn vjp(&self, _: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let back = Travel { way: self.way.turned(), groups: self.groups.clone() }.apply(dy)?;
        Ok(smallvec![Some(if self.way == Way::Spread { back.sum(&[1], Keep::No)? } else { back })])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_in_the_order_of_their_experts() {
        let chosen = Tensor::new(Array::from_slice(&[2i64, 0, 1, 2, 0, 2], &[3, 2]).unwrap());
        let weight = Tensor::zeros(&[4, 1], DType::F32).unwrap();
        let groups = moe_group(&chosen, &weight).unwrap();
        assert_eq!(groups.0.pairs, [[1, 4, 2, 0, 3, 5]]);
        assert_eq!(groups.0.places, [[0, 1, 2, 3, 4, 5]]);
        assert_eq!(groups.loads(), [2, 1, 3, 0]);
        let x = Tensor::new(Array::from_slice(&[10.0, 20.0, 30.0], &[3, 1]).unwrap());
        let sent = groups.dispatch(&x).unwrap();
        assert_eq!(sent.to_vec::<f64>().unwrap(), [10.0, 30.0, 20.0, 10.0, 20.0, 30.0]);
    }

    #[test]
    fn an_expert_that_is_not_there_is_refused() {
        let weight = Tensor::zeros(&[2, 1], DType::F32).unwrap();
        for bad in [-1i64, 2] {
            let chosen = Tensor::new(Array::from_slice(&[0, bad], &[2, 1]).unwrap());
            let message = moe_group(&chosen, &weight).unwrap_err().to_string();
            assert!(message.contains(&format!("expert {bad} was chosen of 2")), "{message}");
        }
    }
}
