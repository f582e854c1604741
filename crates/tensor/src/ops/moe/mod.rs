//! Tokens to their experts and back. Where tokens are cut, each row goes straight to the rank that has its expert, and
//! back, by an uneven all-to-all; else it is an embedding lookup and its gradient.

mod groups;
mod travel;

pub use groups::{Groups, moe_group};

use self::travel::{Meet, Trip, Way};
use super::embedding::{Embedding, EmbeddingGrad, Outside};
use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::{Error, Result};
use crate::grad::{self, Backward};
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec, only};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::{Place, Tensor};
use crate::trace::{self, Moved};
use crate::world::World;
use planaria_array::ops::{Keep, Which};
use planaria_array::{Array, DType, Shape};
use planaria_layout::rule::Rule;
use planaria_layout::{AxisSet, Layout, Placement, Rank, Shard};
use smallvec::smallvec;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Which expert each token goes to, and where in its buffer.
#[derive(Clone, Debug)]
pub struct Routing {
    /// `expert * capacity + place` for each token and choice, -1 where the expert is full: `[tokens, choices]`.
    pub slots: Tensor,
    /// The gate's value of each choice, 0 where the expert is full: `[tokens, choices]`.
    pub weights: Tensor,
    /// Number of experts.
    pub experts: usize,
    /// Places per expert.
    pub capacity: usize,
}

/// The `choices` best experts of each token by its gates (`[tokens, experts]`), in order of choice and then of token
/// while there is room: every token's first choice goes before any second one.
pub fn moe_route(gates: &Tensor, choices: usize, capacity: usize) -> Result<Routing> {
    let [_, experts] = gates.shape()[..] else {
        let message = format!("gates must be [tokens, experts], got shape {}", gates.shape());
        return Err(Error::Argument { op: "moe_route", message });
    };
    let (weights, chosen) = gates.topk(choices, 1, Which::Largest)?;
    // Choice by choice, one row per token: how many came to the same expert before.
    let hot = chosen.transpose(0, 1)?.one_hot(experts, DType::I64)?.flatten(0, 1)?;
    let before = hot.cumsum(0)?.sub(&hot)?.mul(&hot)?.sum(&[1], Keep::No)?;
    let tokens = gates.shape()[0];
    let place = before.reshape(&[choices, tokens])?.transpose(0, 1)?;
    let whole = |value: i64| Ok::<_, Error>(Tensor::new(Array::scalar(value, DType::I64)?));
    let room = i64::try_from(capacity).unwrap_or(i64::MAX);
    let fits = place.lt(&whole(room)?)?;
    let slots = fits.where_(&chosen.mul(&whole(room)?)?.add(&place)?, &whole(-1)?)?;
    let weights = weights.mul(&fits.cast(weights.dtype())?)?;
    Ok(Routing { slots, weights, experts, capacity })
}

/// Tokens (`[tokens, width]`) in the buffers of their experts: `[experts, capacity, width]`, zeros where nobody is.
/// Axes that cut the tokens cut the experts of the result.
pub fn moe_dispatch(x: &Tensor, routing: &Routing) -> Result<Tensor> {
    let refuse = |message| Err(Error::Argument { op: "moe_dispatch", message });
    let [tokens, width] = x.shape()[..] else {
        return refuse(format!("tokens must be [tokens, width], got shape {}", x.shape()));
    };
    let [routed, choices] = routing.slots.shape()[..] else {
        return refuse(format!("slots must be [tokens, choices], got shape {}", routing.slots.shape()));
    };
    if routed != tokens {
        return refuse(format!("{tokens} tokens but slots for {routed}"));
    }
    if let Some(at) = x.layout().filter(|at| plainly_cut(at)) {
        // The width may be cut too: dim 1 of the tokens is dim 2 of the buffers.
        let placements: Vec<Placement> = at.placements().iter().map(|p| moved(p, 1, 2)).collect();
        let exchange = Exchange::new(Way::Spread, routing, at.mesh(), &placements, width)?;
        return exchange.apply(x);
    }
    let copies = x.unsqueeze(1)?.broadcast_to(&[tokens, choices, width])?;
    let of = Embedding { padding: None, outside: Outside::Zeros };
    let op = EmbeddingGrad { of, rows: routing.experts * routing.capacity };
    apply1(op, &[&copies, &routing.slots])?.reshape(&[routing.experts, routing.capacity, width])
}

/// The experts' results (`[experts, capacity, width]`) back at their tokens, added up with the gates' weights. Axes that
/// cut the experts cut the tokens of the result; where others cut the slots, each rank gives its part of the sums.
pub fn moe_combine(y: &Tensor, routing: &Routing) -> Result<Tensor> {
    let found = match y.layout().filter(|at| pairs_up(at, routing.slots.layout())) {
        Some(at) => Exchange::new(Way::Back, routing, at.mesh(), at.placements(), y.shape()[2])?.apply(y)?,
        None => {
            let rows = y.flatten(0, 1)?;
            apply1(Embedding { padding: None, outside: Outside::Zeros }, &[&rows, &routing.slots])?
        }
    };
    found.mul(&routing.weights.unsqueeze(-1)?)?.sum(&[1], Keep::No)
}

/// Nothing is pending, and dim 0 is cut into one window per rank.
fn plainly_cut(at: &Layout) -> bool {
    let plain = |p: &Placement| match p {
        Placement::Shard(shard) => shard.sections == 1,
        Placement::Partial(_) => false,
        Placement::Replicate => true,
    };
    at.placements().iter().all(plain) && at.mesh().span(at.axes_on(0).collect()) > 1
}

/// Experts are cut, besides them at most the width, and no other axis cuts the tokens.
fn pairs_up(experts: &Layout, slots: Option<&Layout>) -> bool {
    let cuts = |at: &Layout, axis: usize, dim: usize| at.axes_on(dim).any(|a| a == axis);
    let pair = |axis: usize| {
        !cuts(experts, axis, 1) && (cuts(experts, axis, 0) || slots.is_none_or(|slots| !cuts(slots, axis, 0)))
    };
    let same_mesh = slots.is_none_or(|at| at.mesh() == experts.mesh());
    experts.shape().ndim() == 3 && same_mesh && plainly_cut(experts) && (0..experts.mesh().naxes()).all(pair)
}

/// A placement with cuts of dim `from` on dim `to`.
fn moved(placement: &Placement, from: usize, to: usize) -> Placement {
    match placement {
        Placement::Shard(shard) if shard.dim == from => Placement::Shard(Shard { dim: to, ..*shard }),
        other => *other,
    }
}

/// Rows between ranks that share out tokens and experts over the same axes.
#[derive(Clone)]
struct Exchange {
    way: Way,
    /// Of `[tokens, choices, width]`.
    tokens: Arc<Layout>,
    /// Of `[experts, capacity, width]`.
    experts: Arc<Layout>,
    /// Of all tokens; none on a world that is only supposed.
    slots: Arc<[i64]>,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exchange({:?} {} {})", self.way, self.tokens, self.experts)
    }
}

impl Exchange {
    /// `placements` are those of the experts. All ranks learn all slots, which are few bytes beside the rows.
    fn new(
        way: Way,
        routing: &Routing,
        mesh: &planaria_layout::Mesh,
        placements: &[Placement],
        width: usize,
    ) -> Result<Exchange> {
        let slots = match routing.slots.layout() {
            Some(at) => routing.slots.placed(&vec![Placement::Replicate; at.placements().len()])?,
            None => routing.slots.clone(),
        };
        let tokens = Shape::new(&[slots.shape()[0], slots.shape()[1], width])?;
        let experts = Shape::new(&[routing.experts, routing.capacity, width])?;
        let local = slots.local();
        let slots = if local.is_meta() { Vec::new() } else { local.cast(DType::I64)?.to_vec::<i64>()? };
        Ok(Exchange {
            way,
            tokens: Arc::new(Layout::new(mesh, &tokens, placements)?),
            experts: Arc::new(Layout::new(mesh, &experts, placements)?),
            slots: slots.into(),
        })
    }

    fn axes(&self) -> AxisSet {
        self.experts.axes_on(0).collect()
    }

    /// Where the results lie.
    fn target(&self) -> &Arc<Layout> {
        if self.way == Way::Back { &self.tokens } else { &self.experts }
    }

    /// Carries it out and records it. Collective over the axes.
    fn apply(self, x: &Tensor) -> Result<Tensor> {
        let world = x.0.place.as_ref().map(|p| p.world.clone()).ok_or(NO_MESH)?;
        let target = self.target().clone();
        let array = self.run(x.local(), &world)?;
        let place = Some(Place { layout: target, world });
        match grad::wanted(&[x]) {
            None => Ok(Tensor::raw(array, place, None, None)),
            Some(needs) => only(grad::record(Arc::new(self), &[x], smallvec![(array, place)], needs)?),
        }
    }

    fn run(&self, local: &Array, world: &World) -> Result<Array> {
        let rank = world.rank();
        let extents = self.target().piece(rank)?.extents();
        let members = self.experts.mesh().group(rank, self.axes())?;
        if local.is_meta() || world.is_supposed() {
            // Nobody knows; evenly is what a loss of balance asks for.
            let rows = self.tokens.piece(rank)?.numel() / members.len() * (members.len() - 1);
            trace::note_rows(self.name(), (rows * local.dtype().size()) as u64);
            return Ok(Array::meta(&extents, local.dtype())?);
        }
        let plan = Plan::new(self, &members, rank)?;
        let (take, put) = plan.lists(self);
        // Slots are anyone's word: two tokens may have the same one.
        let meet = if self.way == Way::Back { Meet::Never } else { Meet::Add };
        let (comm, rows) = (Some(world.group(&members)?), extents[0] * extents[1]);
        let trip = Trip { comm, take: &take, put: &put, rows, meet };
        self.note(trip.sent(plan.me) * extents[2], local);
        Ok(trip.run(&local.reshape(&[self.rows_here(local), extents[2]])?)?.reshape(&extents)?)
    }

    /// Rows of the local input.
    fn rows_here(&self, local: &Array) -> usize {
        local.shape()[..local.ndim() - 1].iter().product()
    }

    /// Lists what leaves this rank, as for a reshard.
    fn note(&self, sent: usize, local: &Array) {
        let (from, to) =
            if self.way == Way::Back { (&self.experts, &self.tokens) } else { (&self.tokens, &self.experts) };
        let bytes = (sent * local.dtype().size()) as u64;
        trace::note_rows(self.name(), bytes);
        let (op, from, to) = (self.name(), from.as_ref().clone(), to.as_ref().clone());
        trace::note(|| Moved { op, input: 0, from, to, bytes });
    }

    /// A gradient as this exchange takes it.
    fn brought(&self, grad: &Tensor, to: &Arc<Layout>) -> Result<Tensor> {
        if let Some(from) = grad.layout().filter(|from| *from != to.as_ref()) {
            let bytes = crate::reshard::route(from, to, grad.dtype().size())?.cost().bytes;
            trace::note(|| Moved {
                op: self.name(),
                input: 0,
                from: from.clone(),
                to: to.as_ref().clone(),
                bytes,
            });
        }
        grad.reshard_shared(to)
    }
}

const NO_MESH: Error = Error::Bug("rows are exchanged on a mesh only");

/// Who has which tokens and experts, in the order of the communicator.
struct Plan {
    tokens: Vec<Range<usize>>,
    experts: Vec<Range<usize>>,
    me: usize,
}

impl Plan {
    fn new(exchange: &Exchange, members: &[Rank], rank: Rank) -> Result<Plan> {
        let windows = |layout: &Layout| {
            let window = |&member: &Rank| {
                let boxes = layout.piece(member)?.boxes();
                Ok(boxes.first().map_or(0..0, |region| region.lo()[0]..region.hi()[0]))
            };
            members.iter().map(window).collect::<Result<Vec<_>>>()
        };
        let me = members.iter().position(|&m| m == rank).ok_or(NO_MESH)?;
        Ok(Plan { tokens: windows(&exchange.tokens)?, experts: windows(&exchange.experts)?, me })
    }

    /// For each member: the rows of the local input that go there, and the places in the local output that come from
    /// there, in the same order on both sides.
    fn lists(&self, exchange: &Exchange) -> (Vec<Vec<i64>>, Vec<Vec<i64>>) {
        let (choices, capacity) = (exchange.tokens.shape()[1], exchange.experts.shape()[1]);
        let all = exchange.experts.shape()[0] * capacity;
        // Places in the tokens' and in the experts' piece of what these members have to do with each other.
        let between = |tokens: &Range<usize>, experts: &Range<usize>| {
            let (first, low) = (tokens.start * choices, experts.start * capacity);
            let slots = &exchange.slots[first..tokens.end * choices];
            let taken = move |(at, &slot): (usize, &i64)| {
                let slot = usize::try_from(slot).ok().filter(|&slot| slot < all)?;
                let there = experts.contains(&(slot / capacity));
                there.then_some((at as i64, slot.wrapping_sub(low) as i64))
            };
            slots.iter().enumerate().filter_map(taken).collect::<Vec<_>>()
        };
        let row = |at: i64| if exchange.way == Way::Spread { at / choices as i64 } else { at };
        let members = 0..self.tokens.len();
        let with = |m: usize, tokens: bool| {
            let (t, e) = if tokens { (self.me, m) } else { (m, self.me) };
            between(&self.tokens[t], &self.experts[e])
        };
        // As a holder of tokens, and as a holder of experts.
        let as_tokens = members.clone().map(|m| with(m, true).into_iter().map(|(at, _)| row(at)).collect());
        let as_experts = members.map(|m| with(m, false).into_iter().map(|(_, slot)| slot).collect());
        let (as_tokens, as_experts): (Vec<Vec<i64>>, Vec<Vec<i64>>) =
            (as_tokens.collect(), as_experts.collect());
        if exchange.way == Way::Back { (as_experts, as_tokens) } else { (as_tokens, as_experts) }
    }
}

impl Op for Exchange {
    fn name(&self) -> &'static str {
        if self.way == Way::Back { "moe_combine" } else { "moe_dispatch" }
    }

    fn attributes(&self) -> Attributes {
        let at = self.experts.shape();
        Attributes::new().with("experts", at[0]).with("capacity", at[1])
    }

    fn rule(&self, _: &[Spec], _: &[Spec]) -> Result<Rule> {
        Err(Error::Bug("an exchange of rows has no rule"))
    }

    fn forward(&self, _: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Err(Error::Bug("an exchange of rows has no local kernel"))
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    /// Linear: the gradient goes the other way.
    fn vjp(&self, _: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let dy = self.brought(dy, self.target())?;
        let back = Exchange { way: self.way.turned(), ..self.clone() }.apply(&dy)?;
        Ok(smallvec![Some(if self.way == Way::Spread { back.sum(&[1], Keep::No)? } else { back })])
    }
}

/// Random calls for tests: routed by gates, sent to the experts, changed there, and brought back.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let [tokens, experts, width] = [(); 3].map(|()| draw.size());
    let (choices, capacity) = (1 + draw.below(experts.min(2)), 1 + draw.below(tokens));
    let (x, gates) = (draw.normal(&[tokens, width])?, draw.distinct(&[tokens, experts])?);
    let scale = draw.normal(&[experts, 1, width])?;
    let call = move |inputs: &[&Tensor]| {
        let routing = moe_route(inputs[1], choices, capacity)?;
        let rows = moe_dispatch(inputs[0], &routing)?;
        let found = moe_combine(&rows.mul(inputs[2])?, &routing)?;
        Ok(smallvec![found, rows])
    };
    let name = format!("moe of {choices} choices and capacity {capacity}");
    let mut sample = Sample::of_call(name, call, [x, gates, scale]);
    sample.follows_values = true;
    Ok(sample)
}
