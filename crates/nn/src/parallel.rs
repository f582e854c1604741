//! The places where a model's activations change their layout. On one rank nothing happens there.
//!
//! A model's inner mesh has the axes `ep` and `tp`, either of which may be missing. Parameters are cut by the model's
//! table; between blocks a hidden state `[batch, sequence, width]` lies as [`Lanes::residual`] says. Every move of
//! activations, forward or backward, is one of the functions of [`Lanes`]; blocks ask for nothing else.

use planaria_layout::{Layout, Mesh, Placement, Reduce};
use planaria_tensor::{Policy, Result, Tensor, World};

/// The ranks that share one stage of one replica of a model.
#[derive(Clone, Debug)]
pub struct Parallel {
    /// The ranks.
    pub world: World,
    /// Axes `ep` and `tp`; one may be missing.
    pub mesh: Mesh,
    /// True when `tp` also cuts the sequence of what lies between products: norms, residuals.
    pub sequence: bool,
}

impl Parallel {
    /// The same with ops that leave inputs where they are as long as these agree: for models whose lanes bring every
    /// activation to where it goes next.
    #[must_use]
    pub fn on_purpose(&self) -> Parallel {
        Parallel { world: self.world.with_policy(Policy::Stay), ..self.clone() }
    }

    /// Size of an axis; 1 for one that is missing.
    pub fn size(&self, axis: &str) -> usize {
        self.mesh.axes().iter().find(|a| a.name == axis).map_or(1, |a| a.size)
    }

    /// Refuses axes that a model knows nothing of.
    pub fn check_axes(&self) -> crate::error::Result<()> {
        match self.mesh.axes().iter().find(|a| a.name != "tp" && a.name != "ep") {
            None => Ok(()),
            Some(axis) => {
                let what = format!("a model's inner mesh has the axes ep and tp, not `{}`", axis.name);
                Err(crate::error::Error::Sizes { what })
            }
        }
    }
}

/// Crossings between layouts of activations.
#[derive(Clone, Debug, Default)]
pub struct Lanes(Option<Parallel>);

impl Lanes {
    /// The lanes of a mesh; of one rank, where there is none.
    pub fn new(parallel: Option<&Parallel>) -> Lanes {
        Lanes(parallel.cloned())
    }

    /// The ranks; absent where there is one.
    pub fn parallel(&self) -> Option<&Parallel> {
        self.0.as_ref()
    }

    /// Size of `tp`.
    pub fn tp(&self) -> usize {
        self.0.as_ref().map_or(1, |parallel| parallel.size("tp"))
    }

    /// Token ids or labels `[batch, ..]`: `ep` cuts the batch. What every rank has whole is cut for nothing.
    pub fn batch(&self, ids: &Tensor) -> Result<Tensor> {
        let Some(parallel) = &self.0 else { return Ok(ids.clone()) };
        let placements = parallel.placements(Placement::shard(0), Placement::Replicate);
        match ids.layout() {
            Some(_) => ids.placed(&placements),
            None => Tensor::place(ids.local(), &parallel.mesh, &placements, &parallel.world),
        }
    }

    /// The numbers of the rows that this rank has of so many.
    pub fn rows_here(&self, rows: usize) -> Result<Vec<usize>> {
        let all: Vec<i64> = (0..rows as i64).collect();
        let here = self.batch(&Tensor::from_slice(&all, &[rows])?)?;
        Ok(here.local().to_vec::<i64>()?.into_iter().map(|row| row as usize).collect())
    }

    /// Size of `ep`, which cuts batches.
    pub fn ep(&self) -> usize {
        self.0.as_ref().map_or(1, |parallel| parallel.size("ep"))
    }

    /// What every rank has whole and uses whole.
    pub fn whole(&self, x: &Tensor) -> Result<Tensor> {
        let Some(parallel) = &self.0 else { return Ok(x.clone()) };
        let placements = parallel.placements(Placement::Replicate, Placement::Replicate);
        match x.layout() {
            Some(_) => x.placed(&placements),
            None => Tensor::place(x.local(), &parallel.mesh, &placements, &parallel.world),
        }
    }

    /// A hidden state as it lies between blocks: `ep` cuts the batch, `tp` the sequence when it is asked to.
    pub fn residual(&self, x: &Tensor) -> Result<Tensor> {
        let Some(parallel) = &self.0 else { return Ok(x.clone()) };
        let placements = parallel.between_blocks();
        match x.layout() {
            Some(_) => x.placed(&placements),
            None => Tensor::place(x.local(), &parallel.mesh, &placements, &parallel.world),
        }
    }

    /// Into products whose weights are cut by columns: the whole sequence. Backward adds up what the columns give,
    /// once for all products that use the result.
    pub fn into_columns(&self, x: &Tensor) -> Result<Tensor> {
        let Some(parallel) = &self.0 else { return Ok(x.clone()) };
        if parallel.sequence {
            return x.placed(&parallel.placements(Placement::shard(0), Placement::Replicate));
        }
        arriving(x, parallel.between_blocks())?;
        Ok(x.clone())
    }

    /// What all of `tp` computed alike and each continues with in its own way: gradients from all are added up here,
    /// once.
    pub fn alike(&self, x: &Tensor) -> Result<()> {
        let Some(parallel) = &self.0 else { return Ok(()) };
        arriving(x, parallel.placements(Placement::shard(0), Placement::Replicate))
    }

    /// Out of a product whose weight is cut by rows: pending sums become a hidden state between blocks.
    pub fn out_of_rows(&self, y: &Tensor) -> Result<Tensor> {
        let Some(parallel) = &self.0 else { return Ok(y.clone()) };
        // Otherwise each gradient that the product computes would bring this one together again.
        self.alike(y)?;
        y.placed(&parallel.between_blocks())
    }

    /// What this rank of `ep` has of hidden states or weights of choices, as a value of its own. Ranks of `tp` have
    /// the same and continue with it in different ways, so their gradients add up.
    pub fn apart(&self, x: &Tensor) -> Result<Tensor> {
        let Some(parallel) = &self.0 else { return Ok(x.clone()) };
        x.to_piece(&parallel.placements(Placement::shard(0), Placement::Partial(Reduce::Sum)))
    }

    /// What ranks of `ep` have made of [`Lanes::apart`]: together it lies like `x`, pending over `tp`.
    pub fn together(&self, y: &Tensor, x: &Tensor) -> Result<Tensor> {
        let Some(parallel) = &self.0 else { return Ok(y.clone()) };
        let placements = parallel.placements(Placement::shard(0), Placement::Partial(Reduce::Sum));
        y.as_piece(&Layout::new(&parallel.mesh, x.shape(), &placements)?, &parallel.world)
    }

    /// The same of a parameter that ranks of `tp` may have alike while each uses it on its own part: then their gradients
    /// add up.
    pub fn own_added(&self, weight: &Tensor) -> Result<Tensor> {
        let Some(layout) = weight.layout() else { return Ok(weight.clone()) };
        let axes = layout.mesh().axes().iter().zip(layout.placements());
        let grads: Vec<Placement> = axes
            .map(|(axis, place)| match place {
                Placement::Replicate if axis.name == "tp" => Placement::Partial(Reduce::Sum),
                other => *other,
            })
            .collect();
        weight.to_piece(&grads)
    }

    /// This rank's part of a parameter, as a value of its own.
    pub fn own(&self, weight: &Tensor) -> Result<Tensor> {
        match weight.layout() {
            Some(layout) => weight.to_piece(layout.placements()),
            None => Ok(weight.clone()),
        }
    }
}

/// Has the gradient of `x` brought to a layout as soon as it is complete.
fn arriving(x: &Tensor, placements: Vec<Placement>) -> Result<()> {
    if x.has_history() {
        x.on_grad(move |grad| Ok(Some(grad.placed(&placements)?)))?;
    }
    Ok(())
}

impl Parallel {
    fn placements(&self, ep: Placement, tp: Placement) -> Vec<Placement> {
        let axis = |axis: &planaria_layout::Axis| match axis.name.as_str() {
            "ep" => ep,
            "tp" => tp,
            _ => Placement::Replicate,
        };
        self.mesh.axes().iter().map(axis).collect()
    }

    fn between_blocks(&self) -> Vec<Placement> {
        let tp = if self.sequence { Placement::shard(1) } else { Placement::Replicate };
        self.placements(Placement::shard(0), tp)
    }
}
