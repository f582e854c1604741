//! The state that is saved and loaded: 209 f32 tensors of a Llama-like model, 2.004 GiB, and smaller ones like it.

use anyhow::{Result, ensure};
use planaria_array::{Array, DType};
use planaria_ckpt::{Item, TensorKind, TrainState};
use planaria_layout::{Mesh, Rank, Region, Shape, TensorSpec};

const HIDDEN: usize = 1280;
const INNER: usize = 3456;

/// Names and shapes.
pub(crate) struct Model {
    pub(crate) tensors: Vec<(String, Vec<usize>)>,
}

/// How the matrices lie on the ranks; vectors are cut by rows, or copied where matrices are cut by columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Rows(usize),
    Columns(usize),
}

impl Cut {
    pub(crate) fn ranks(self) -> usize {
        let (Cut::Rows(ranks) | Cut::Columns(ranks)) = self;
        ranks
    }
}

impl Model {
    /// About `gib` GiB.
    pub(crate) fn new(gib: f64) -> Model {
        let layers = ((gib * 11.5).round() as usize).max(1);
        let vocabulary = ((gib * 32000.0) as usize).max(64);
        let mut tensors = vec![("model.embed_tokens.weight".to_string(), vec![vocabulary, HIDDEN])];
        for layer in 0..layers {
            let mut add = |part: &str, shape: &[usize]| {
                tensors.push((format!("model.layers.{layer}.{part}.weight"), shape.to_vec()));
            };
            for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
                add(&format!("self_attn.{part}"), &[HIDDEN, HIDDEN]);
            }
            add("mlp.gate_proj", &[INNER, HIDDEN]);
            add("mlp.up_proj", &[INNER, HIDDEN]);
            add("mlp.down_proj", &[HIDDEN, INNER]);
            add("input_layernorm", &[HIDDEN]);
            add("post_attention_layernorm", &[HIDDEN]);
        }
        tensors.push(("model.norm.weight".to_string(), vec![HIDDEN]));
        Model { tensors }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|(_, shape)| 4 * shape.iter().product::<usize>() as u64).sum()
    }

    /// What one rank holds, with the values of the model or with other ones in touched memory.
    pub(crate) fn state(&self, cut: Cut, rank: usize, values: Values) -> Result<TrainState> {
        let mesh: Mesh = format!("x={}", cut.ranks()).parse()?;
        let mut items = Vec::with_capacity(self.tensors.len());
        for (number, (name, shape)) in self.tensors.iter().enumerate() {
            let placed = match cut {
                Cut::Rows(_) => "x:S0",
                Cut::Columns(_) if shape.len() == 2 => "x:S1",
                Cut::Columns(_) => "x:R",
            };
            let spec: TensorSpec = format!("f32{} @ {placed}", Shape::new(shape)?).parse()?;
            let layout = spec.on(&mesh)?;
            let held = layout.piece(rank as Rank)?;
            let array = Array::zeros(&held.extents(), DType::F32)?;
            for region in held.boxes() {
                let Some(inner) = held.locate(&region) else { continue };
                write(&array, &inner, number, (&region, shape), values)?;
            }
            items.push(Item::placed(TensorKind::Parameter, name, &layout, rank as Rank, &array)?);
        }
        Ok(TrainState { step: 1, ..TrainState::new(items) })
    }

    /// Whether the pieces of a state hold the values of the model.
    pub(crate) fn check(&self, state: &TrainState) -> Result<()> {
        for (number, item) in state.items.iter().enumerate() {
            for piece in &item.pieces {
                let mut want = vec![0u8; 4 * piece.region.numel()];
                rows(&piece.region, &item.shape, |at, first, len| {
                    values(number, first, &mut want[4 * at..4 * (at + len)]);
                });
                let same = want == *piece.array.contiguous()?.bytes()?;
                ensure!(same, "{} {} was not loaded", item.name, piece.region);
            }
        }
        Ok(())
    }
}

/// What a new state holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    Model,
    Other,
}

fn write(array: &Array, inner: &Region, number: usize, at: (&Region, &[usize]), kind: Values) -> Result<()> {
    let whole = inner.numel() == array.numel();
    ensure!(whole, "a piece of this benchmark is one box");
    array.write_bytes(0..4 * array.numel(), |out| match kind {
        Values::Other => out.fill(1),
        Values::Model => rows(at.0, at.1, |place, first, len| {
            values(number, first, &mut out[4 * place..4 * (place + len)]);
        }),
    })?;
    Ok(())
}

/// The rows of a box: place in the box, number of the first element in the tensor, elements.
fn rows(region: &Region, shape: &[usize], mut found: impl FnMut(usize, usize, usize)) {
    if shape.len() == 1 {
        return found(0, region.lo()[0], region.numel());
    }
    let len = region.len(1);
    for (place, row) in (region.lo()[0]..region.hi()[0]).enumerate() {
        found(place * len, row * shape[1] + region.lo()[1], len);
    }
}

/// The elements of a tensor from number `first` on: random bits that depend on nothing else.
fn values(tensor: usize, first: usize, out: &mut [u8]) {
    for (i, four) in out.chunks_exact_mut(4).enumerate() {
        let bits = mix((tensor as u64) << 40 | (first + i) as u64) as u32;
        // Finite: a peer may look at them.
        four.copy_from_slice(&(bits & 0xbfff_ffff).to_le_bytes());
    }
}

/// A well mixed word for each number.
pub(crate) fn mix(number: u64) -> u64 {
    let x = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}
