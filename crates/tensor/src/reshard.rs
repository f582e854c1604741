//! Reshard: the same global value under another layout, moved by the cheapest route.

use crate::attributes::Attributes;
use crate::error::{Error, Result};
use crate::exchange;
use crate::grad::{self, Backward};
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::tensor::{Place, Tensor};
use crate::trace::{self, Moved};
use planaria_array::Array;
use planaria_layout::rule::Rule;
use planaria_layout::{Layout, Placement, Route, Step};
use smallvec::smallvec;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Routes kept per thread before they are thrown away.
const MAX_ROUTES: usize = 1 << 12;

thread_local! {
    static ROUTES: RefCell<HashMap<(Layout, Layout, usize), Arc<Route>>> = RefCell::default();
}

/// The cheapest route, looked up or found.
pub(crate) fn route(from: &Layout, to: &Layout, size: usize) -> Result<Arc<Route>> {
    let key = (from.clone(), to.clone(), size);
    if let Some(route) = ROUTES.with_borrow(|routes| routes.get(&key).cloned()) {
        return Ok(route);
    }
    let route = Arc::new(rounded_once(Route::find(from, to, size)?, size)?);
    ROUTES.with_borrow_mut(|routes| {
        if routes.len() >= MAX_ROUTES {
            routes.clear();
        }
        routes.insert(key, route.clone());
    });
    Ok(route)
}

/// Sums along one axis and averages along another are folded in one step: a value between them would be rounded, or wrapped.
fn rounded_once(route: Route, size: usize) -> Result<Route> {
    let settles = |step: &&Step| step.axes.iter().any(|axis| step.from.reduce(axis).is_some());
    let mut kinds =
        route.steps.iter().filter(settles).map(|step| step.axes.iter().find_map(|a| step.from.reduce(a)));
    let first = kinds.next();
    if kinds.all(|kind| Some(kind) == first) {
        return Ok(route);
    }
    // What stays pending is not brought together on the way.
    let stays = |axis: usize| {
        route.to.mesh() == route.from.mesh() && route.to.reduce(axis) == route.from.reduce(axis)
    };
    let settled = settled_where(&route.from, |axis| !stays(axis))?;
    let mut steps = vec![Step::recognise(&route.from, &settled, size)?];
    steps.extend(Route::find(&settled, &route.to, size)?.steps);
    Ok(Route { steps, ..route })
}

impl Tensor {
    /// The same value under another layout. Collective over the ranks of both meshes.
    ///
    /// Differentiable: the gradient goes back to where the value came from.
    pub fn reshard(&self, to: &Layout) -> Result<Tensor> {
        self.reshard_shared(&Arc::new(to.clone()))
    }

    /// The same, to a layout that other tensors have too.
    pub(crate) fn reshard_shared(&self, to: &Arc<Layout>) -> Result<Tensor> {
        let Some(from) = &self.0.place else {
            return Err(Error::Argument {
                op: "reshard",
                message: "the value lies on no mesh; make it with `Tensor::place`".to_string(),
            });
        };
        if from.layout == *to {
            return Ok(self.clone());
        }
        let route = route(&from.layout, to, self.dtype().size())?;
        trace::note_reshard(&from.layout, to, self.dtype(), route.cost().bytes);
        let mut array = self.0.array.clone();
        for step in &route.steps {
            array = exchange::run(step, &array, &from.world)?;
        }
        let place = Place { layout: to.clone(), world: from.world.clone() };
        self.recorded(Reshard, array, Some(place))
    }

    /// The same value with other placements on its mesh. Collective.
    pub fn placed(&self, placements: &[Placement]) -> Result<Tensor> {
        let Some(layout) = self.layout() else { return self.reshard_needs_mesh() };
        self.reshard(&Layout::new(layout.mesh(), layout.shape(), placements)?)
    }

    fn reshard_needs_mesh(&self) -> Result<Tensor> {
        Err(Error::Argument { op: "placed", message: format!("{self:?} lies on no mesh") })
    }

    /// A value that every rank has whole, seen as lying on a mesh.
    pub(crate) fn on(&self, place: &Place) -> Result<Tensor> {
        self.recorded(Reshard, self.0.array.clone(), Some(place.clone()))
    }

    /// The value without pending contributions: reduced where it is partial. Collective.
    pub fn settled(&self) -> Result<Tensor> {
        match self.layout() {
            Some(layout) if !layout.partial_axes().is_empty() => {
                let settle = |p: &Placement| {
                    if matches!(p, Placement::Partial(_)) { Placement::Replicate } else { *p }
                };
                let placements: Vec<Placement> = layout.placements().iter().map(settle).collect();
                self.placed(&placements)
            }
            _ => Ok(self.clone()),
        }
    }

    fn recorded(&self, op: Reshard, array: Array, place: Option<Place>) -> Result<Tensor> {
        grad::made(Arc::new(op), self, (array, place))
    }
}

/// The identity on values; only the layout differs.
#[derive(Debug, Clone)]
struct Reshard;

impl Op for Reshard {
    fn name(&self) -> &'static str {
        "reshard"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new()
    }

    fn rule(&self, _: &[Spec], _: &[Spec]) -> Result<Rule> {
        Err(Error::Bug("reshard has no rule"))
    }

    fn forward(&self, _: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Err(Error::Bug("reshard has no local kernel"))
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    /// The gradient is the same global value. Axes that cut the input cut its gradient again, which turns pending
    /// contributions into a reduce-scatter; others stay as they come, until something needs them otherwise.
    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None]) };
        let (Some(from), Some(now)) = (at.input_place(0), &grad.0.place) else {
            return Ok(smallvec![Some(grad.clone())]);
        };
        if from.layout.mesh() != now.layout.mesh() {
            return Ok(smallvec![Some(grad.settled()?.reshard(&without_pending(&from.layout)?)?)]);
        }
        let both = from.layout.placements().iter().zip(now.layout.placements());
        let cut = |p: &Placement| matches!(p, Placement::Shard(_));
        let freed = |p: &Placement| if cut(p) { Placement::Replicate } else { *p };
        let target: Vec<Placement> = if from.layout.placements().iter().any(cut) {
            both.map(|(f, n)| if cut(f) { *f } else { freed(n) }).collect()
        } else {
            now.layout.placements().to_vec()
        };
        let target = Layout::new(now.layout.mesh(), now.layout.shape(), &target)?;
        if target != *now.layout {
            let bytes = route(&now.layout, &target, grad.dtype().size())?.cost().bytes;
            let from = now.layout.as_ref().clone();
            trace::note(|| Moved { op: self.name(), input: 0, from, to: target.clone(), bytes });
        }
        Ok(smallvec![Some(grad.reshard(&target)?)])
    }
}

fn without_pending(layout: &Layout) -> Result<Layout> {
    settled_where(layout, |_| true)
}

/// The layout with copies where there are contributions along chosen axes.
fn settled_where(layout: &Layout, chosen: impl Fn(usize) -> bool) -> Result<Layout> {
    let settle = |(axis, placement): (usize, &Placement)| match placement {
        Placement::Partial(_) if chosen(axis) => Placement::Replicate,
        other => *other,
    };
    let placements: Vec<Placement> = layout.placements().iter().enumerate().map(settle).collect();
    Ok(Layout::new(layout.mesh(), layout.shape(), &placements)?)
}
