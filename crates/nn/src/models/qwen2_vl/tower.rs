//! The vision tower: patches to vectors, blocks in which patches of a frame see each other, and the merger to tokens.

use super::by_ops;
use super::config::VisionConfig;
use super::places::{Grid, frame_borders, patch_angles, patch_places, patches, rotations, windows};
use super::table::TOWER;
use crate::error::{Error, Result};
use crate::layers::{GatedMlp, LayerNorm, Linear, Parts, RmsNorm};
use crate::parallel::{Lanes, Parallel};
use crate::param::{Adaptable, Init, Module, Param};
use planaria_array::Array;
use planaria_array::ops::{Gate, RotaryLayout, RotaryPairing, RotaryTable, Span};
use planaria_tensor::ops::Documents;
use planaria_tensor::{Tensor, ops};

/// Added under the roots of norms.
const EPS: f64 = 1e-6;
/// Base of the frequencies of rows and columns.
pub(super) const THETA: f64 = 10_000.0;

/// The tower. A clone shares the parameters.
#[derive(Clone, Debug)]
pub struct Tower {
    config: VisionConfig,
    /// `[width, channels, frames, patch, patch]`.
    patch: Param,
    blocks: Vec<TowerBlock>,
    norm: TowerNorm,
    into: Linear,
    out: Linear,
    lanes: Lanes,
}

#[derive(Clone, Debug)]
struct TowerBlock {
    norms: [TowerNorm; 2],
    qkv: Linear,
    proj: Linear,
    mlp: TowerMlp,
}

#[derive(Clone, Debug)]
enum TowerNorm {
    Layer(LayerNorm),
    Rms(RmsNorm),
}

#[derive(Clone, Debug)]
enum TowerMlp {
    /// `fc2(x * sigmoid(1.702 x))` of `fc1`.
    Quick(Box<[Linear; 2]>),
    Gated(Box<GatedMlp>),
}

/// What attention of all blocks shares.
struct View {
    table: RotaryTable,
    frames: Sight,
    windows: Option<Sight>,
}

/// Which patches see each other.
enum Sight {
    /// Those between two borders.
    Within(Documents),
    /// Those where it says so, `[patches, patches]`.
    Where(Tensor),
}

impl Tower {
    pub(super) fn new(
        config: &VisionConfig,
        std: f64,
        parallel: Option<&Parallel>,
        init: &Init,
    ) -> Result<Tower> {
        // Patches are not the tokens whose sequence is cut.
        let parallel = parallel.map(|parallel| Parallel { sequence: false, ..parallel.clone() });
        let parts = Parts::new(config.parameters(std)?, init, parallel.as_ref())?.at(TOWER);
        let block = |number: usize| TowerBlock::new(&parts.at(&format!("blocks.{number}")), config);
        let merger = parts.at("merger");
        Ok(Tower {
            patch: parts.at("patch_embed.proj").take("weight")?,
            blocks: (0..config.depth).map(block).collect::<Result<_>>()?,
            norm: TowerNorm::new(&merger, "ln_q", config)?,
            into: merger.linear("mlp.0")?,
            out: merger.linear("mlp.2")?,
            lanes: Lanes::new(parallel.as_ref()),
            config: config.clone(),
        })
    }

    /// Vectors `[tokens, width of the text]` of patches `[patches, numbers]` that lie in grids, grid after grid.
    pub fn forward(&self, values: &Tensor, grids: &[Grid]) -> Result<Tensor> {
        let merge = self.config.merge;
        let count = patches(grids);
        self.check(values, grids, count)?;
        let tokens = count / (merge * merge);
        let mut x = self.embedded(values)?;
        let newer = self.config.newer.as_ref();
        let windows = newer.map(|newer| windows(grids, merge, newer.window)).transpose()?;
        let moved = |x: &Tensor, rows: usize, order: &[usize]| -> Result<Tensor> {
            let shape = x.shape().to_vec();
            let wide = x.numel() / rows;
            let order: Vec<i64> = order.iter().map(|&at| at as i64).collect();
            let order = Tensor::new(Array::from_slice(&order, &[rows])?.to(x.local().device())?);
            let order = self.lanes.whole(&order)?;
            Ok(x.reshape(&[rows, wide])?.index_select(0, &order)?.reshape(&shape)?)
        };
        if let Some(windows) = &windows {
            x = self.lanes.residual(&moved(&x, tokens, &windows.order)?)?;
        }
        let view = self.view(grids, windows.as_ref().map(|w| (&w.order[..], &w.borders[..])), &x)?;
        let y = self.merged(&x, &view)?;
        match windows {
            None => Ok(y),
            Some(windows) => {
                let mut back = vec![0; windows.order.len()];
                windows.order.iter().enumerate().for_each(|(at, &token)| back[token] = at);
                moved(&y, tokens, &back)
            }
        }
    }

    /// The same by ops alone, with grids `[pictures, 3]`. Patches stay where they are: masks say which are in one window.
    pub(super) fn forward_by_ops(&self, values: &Tensor, grids: &Tensor) -> Result<Tensor> {
        let numbers = self.config.patch_width();
        let [count, found] = values.shape()[..] else { return Err(not_patches(values, numbers)) };
        if found != numbers {
            return Err(not_patches(values, numbers));
        }
        let (table, frames, windows) = by_ops::view(&self.config, count, grids)?;
        let view = View { table, frames: Sight::Where(frames), windows: windows.map(Sight::Where) };
        self.merged(&self.embedded(values)?, &view)
    }

    /// Vectors `[1, patches, width]` of patches.
    fn embedded(&self, values: &Tensor) -> Result<Tensor> {
        let (count, numbers) = (values.shape()[0], self.config.patch_width());
        let weight = self.patch.value()?;
        let weight = weight.reshape(&[self.config.width, numbers])?;
        let values = values.cast(weight.dtype())?.reshape(&[1, count, numbers])?;
        Ok(ops::linear(&self.lanes.batch(&values)?, &weight, None)?)
    }

    /// All blocks, and the vectors of tokens from what they give.
    fn merged(&self, x: &Tensor, view: &View) -> Result<Tensor> {
        let VisionConfig { width, merge, out, .. } = self.config;
        let mut x = x.clone();
        for (number, block) in self.blocks.iter().enumerate() {
            let whole = self.config.newer.as_ref().is_none_or(|newer| newer.whole.contains(&number));
            x = block.forward(&x, view, whole, &self.config, &self.lanes)?;
        }
        let merged = merge * merge;
        let tokens = x.shape()[1] / merged;
        let y = self.norm.forward(&x)?.reshape(&[1, tokens, width * merged])?;
        let y = self.into.forward(&self.lanes.into_columns(&y)?)?.gelu()?;
        Ok(self.lanes.out_of_rows(&self.out.forward(&y)?)?.reshape(&[tokens, out])?)
    }

    fn check(&self, values: &Tensor, grids: &[Grid], count: usize) -> Result<()> {
        let refuse = |message: String| Err(Error::Argument { what: "vision tower", message });
        let merge = self.config.merge;
        let fits = |&[frames, rows, columns]: &Grid| {
            frames > 0
                && rows > 0
                && columns > 0
                && rows.is_multiple_of(merge)
                && columns.is_multiple_of(merge)
        };
        if let Some(grid) = grids.iter().find(|grid| !fits(grid)) {
            return refuse(format!(
                "a grid of {grid:?} frames, rows and columns does not divide into blocks of {merge}"
            ));
        }
        if values.shape()[..] != [count, self.config.patch_width()] {
            let width = self.config.patch_width();
            return refuse(format!(
                "patches {} for grids of {count} patches of {width} numbers",
                values.shape()
            ));
        }
        Ok(())
    }

    fn view(&self, grids: &[Grid], windows: Option<(&[usize], &[usize])>, x: &Tensor) -> Result<View> {
        let VisionConfig { width, heads, merge, .. } = self.config;
        let (head, merged) = (width / heads, merge * merge);
        let mut places = patch_places(grids, merge);
        if let Some((order, _)) = windows {
            places = order
                .iter()
                .flat_map(|&token| places[token * merged..(token + 1) * merged].to_vec())
                .collect();
        }
        let device = x.local().device();
        let device =
            if device == planaria_array::Device::Meta { planaria_array::Device::Cpu } else { device };
        let table = rotations(&patch_angles(&places, head, THETA), head / 2)?;
        let table = RotaryTable { cos: table.cos.to(device)?, sin: table.sin.to(device)? };
        let inside = |borders: &[usize]| -> Result<Sight> {
            let starts = borders[..borders.len() - 1].to_vec();
            Ok(Sight::Within(Documents::new(vec![starts], places.len())?))
        };
        Ok(View {
            table,
            frames: inside(&frame_borders(grids))?,
            windows: windows.map(|(_, borders)| inside(borders)).transpose()?,
        })
    }
}

fn not_patches(values: &Tensor, numbers: usize) -> Error {
    let message = format!("patches are [patches, {numbers}], got {}", values.shape());
    Error::Argument { what: "vision tower", message }
}

impl TowerBlock {
    fn new(parts: &Parts, config: &VisionConfig) -> Result<TowerBlock> {
        let mlp = parts.at("mlp");
        Ok(TowerBlock {
            norms: [TowerNorm::new(parts, "norm1", config)?, TowerNorm::new(parts, "norm2", config)?],
            qkv: parts.linear("attn.qkv")?,
            proj: parts.linear("attn.proj")?,
            mlp: match config.newer {
                None => TowerMlp::Quick(Box::new([mlp.linear("fc1")?, mlp.linear("fc2")?])),
                Some(_) => TowerMlp::Gated(Box::new(GatedMlp::new(&mlp, Gate::Silu)?)),
            },
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        view: &View,
        whole: bool,
        config: &VisionConfig,
        lanes: &Lanes,
    ) -> Result<Tensor> {
        let y = lanes.into_columns(&self.norms[0].forward(x)?)?;
        let y = self.attention(&self.qkv.forward(&y)?, view, whole, config)?;
        let x = x.add(&lanes.out_of_rows(&self.proj.forward(&y)?)?)?;
        let y = lanes.into_columns(&self.norms[1].forward(&x)?)?;
        let y = match &self.mlp {
            TowerMlp::Gated(mlp) => mlp.forward(&y)?,
            TowerMlp::Quick(layers) => {
                let inner = layers[0].forward(&y)?;
                layers[1].forward(&inner.mul(&inner.mul_scalar(1.702)?.sigmoid()?)?)?
            }
        };
        Ok(x.add(&lanes.out_of_rows(&y)?)?)
    }

    fn attention(&self, qkv: &Tensor, view: &View, whole: bool, config: &VisionConfig) -> Result<Tensor> {
        let VisionConfig { width, heads, .. } = *config;
        let count = qkv.shape()[1];
        let parts = qkv.reshape(&[1, count, 3, heads, width / heads])?;
        let part = |number: i64| parts.select(2, number);
        let positions = ops::RotaryPositions::From(0);
        let options =
            ops::RotaryOptions { pairing: RotaryPairing::Halves, layout: RotaryLayout::SeqHeads, positions };
        let turned = |number: i64| ops::rotary(&part(number)?, &view.table, &options)?.transpose(1, 2);
        let (q, k, v) = (turned(0)?, turned(1)?, part(2)?.transpose(1, 2)?);
        let (documents, mask) = match view.windows.as_ref().filter(|_| !whole).unwrap_or(&view.frames) {
            Sight::Within(documents) => (Some(documents), None),
            Sight::Where(mask) => (None, Some(mask)),
        };
        let options =
            ops::AttentionOptions { span: Span::All, documents, mask, ..ops::AttentionOptions::default() };
        let y = ops::attention(&q, &k, &v, &options)?;
        Ok(y.transpose(1, 2)?.reshape(&[1, count, width])?)
    }
}

impl TowerNorm {
    fn new(parts: &Parts, name: &str, config: &VisionConfig) -> Result<TowerNorm> {
        Ok(match config.newer {
            None => TowerNorm::Layer(parts.layer_norm(name, EPS)?),
            Some(_) => TowerNorm::Rms(parts.rms_norm(name, EPS)?),
        })
    }

    fn forward(&self, x: &Tensor) -> planaria_tensor::Result<Tensor> {
        match self {
            TowerNorm::Layer(norm) => norm.forward(x),
            TowerNorm::Rms(norm) => norm.forward(x),
        }
    }
}

impl Module for TowerNorm {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        match self {
            TowerNorm::Layer(norm) => norm.visit(f),
            TowerNorm::Rms(norm) => norm.visit(f),
        }
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        match self {
            TowerNorm::Layer(norm) => norm.visit_mut(f),
            TowerNorm::Rms(norm) => norm.visit_mut(f),
        }
    }
}

impl Module for TowerBlock {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.norms[0].visit(f);
        self.qkv.visit(f);
        self.proj.visit(f);
        self.norms[1].visit(f);
        match &self.mlp {
            TowerMlp::Quick(layers) => layers.iter().for_each(|layer| layer.visit(f)),
            TowerMlp::Gated(mlp) => mlp.visit(f),
        }
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.norms[0].visit_mut(f);
        self.qkv.visit_mut(f);
        self.proj.visit_mut(f);
        self.norms[1].visit_mut(f);
        match &mut self.mlp {
            TowerMlp::Quick(layers) => layers.iter_mut().for_each(|layer| layer.visit_mut(f)),
            TowerMlp::Gated(mlp) => mlp.visit_mut(f),
        }
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        self.qkv.visit_layers(f);
        self.proj.visit_layers(f);
        match &mut self.mlp {
            TowerMlp::Quick(layers) => layers.iter_mut().for_each(|layer| layer.visit_layers(f)),
            TowerMlp::Gated(mlp) => mlp.visit_layers(f),
        }
    }
}

impl Module for Tower {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        f(&self.patch);
        self.blocks.visit(f);
        self.norm.visit(f);
        self.into.visit(f);
        self.out.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        f(&mut self.patch);
        self.blocks.visit_mut(f);
        self.norm.visit_mut(f);
        self.into.visit_mut(f);
        self.out.visit_mut(f);
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        self.blocks.visit_layers(f);
        self.into.visit_layers(f);
        self.out.visit_layers(f);
    }
}
