//! Qwen2-VL and Qwen2.5-VL: a vision tower whose vectors take the places of marked tokens, and a decoder with positions on three
//! axes.

mod by_ops;
mod config;
mod places;
mod positions;
mod table;
mod tower;

pub use config::{Newer, QWEN2_5_VL, QWEN2_VL, Qwen2VlConfig, VisionConfig};
pub use places::{Grid, Windows, frame_borders, fused_rows, patch_angles, patch_places, windows};
pub use positions::{Axes, Marks, Scenes, axes, document_axes, rotation_rows};
pub use tower::Tower;

use super::architecture::{Architecture, Effect, Setting, Stage};
use super::cost::{self, Cost, Segment, Sizes};
use super::decoder::Decoder;
use super::head::Head;
use super::network::{Activations, Cache, Network, Run, See, Shown};
use crate::error::{Error, Result};
use crate::layers::Positions;
use crate::parallel::{Lanes, Parallel};
use crate::param::{Adaptable, Init, Module, Param, ParamSpec};
use planaria_array::{Array, DType, Device};
use planaria_tensor::Tensor;
use serde_json::Value;

impl Architecture for Qwen2VlConfig {
    fn model_type(&self) -> &str {
        self.text.family.model_type
    }

    fn to_value(&self) -> Value {
        self.text.to_value()
    }

    fn blocks(&self) -> usize {
        self.text.layers
    }

    fn vocab_size(&self) -> usize {
        self.text.vocab_size
    }

    fn positions(&self) -> usize {
        self.text.max_positions
    }

    fn parameters(&self, stage: &Stage) -> Result<Vec<ParamSpec>> {
        let mut specs = Vec::new();
        if stage.embed {
            specs = self.vision.parameters(self.text.initializer_range)?;
        }
        specs.extend(self.text.parameters(stage)?);
        Ok(specs)
    }

    fn build(&self, stage: &Stage, parallel: Option<&Parallel>, init: &Init) -> Result<Box<dyn Network>> {
        Ok(Box::new(Qwen2Vl::new(self, stage.clone(), parallel, init)?))
    }

    fn check_parallel(&self, parallel: &Parallel) -> Result<()> {
        self.text.check_parallel(parallel)
    }

    fn cost(&self, segment: Segment, sizes: &Sizes) -> Result<Cost> {
        // The tower runs on patches, whose number tokens do not say; its parameters count as if each token passed them.
        Ok(cost::from_table(&self.parameters(&segment.stage())?, self.text.hidden_size, segment, sizes))
    }

    fn settings(&self) -> Vec<Setting> {
        let mut settings = self.text.settings();
        let tower = format!("{:?}", self.vision);
        settings.push(Setting { key: "vision_config".into(), value: tower, effect: Effect::Function });
        settings
    }

    fn width(&self) -> Result<usize> {
        Ok(self.text.hidden_size)
    }

    fn sight(&self) -> Option<Marks> {
        Some(self.marks)
    }

    fn other_names(&self) -> &[(&str, &str)] {
        &[("visual.", "model.visual."), ("model.", "model.language_model.")]
    }

    fn other_config(&self) -> Option<Value> {
        Some(config::nested(self.text.to_value()))
    }
}

/// The model, or one stage of it. The tower is on the first.
#[derive(Clone, Debug)]
pub struct Qwen2Vl {
    config: Qwen2VlConfig,
    tower: Option<Tower>,
    text: Decoder,
    lanes: Lanes,
}

impl Qwen2Vl {
    /// A stage with first values, on one rank or on the inner mesh of several.
    pub fn new(
        config: &Qwen2VlConfig,
        stage: Stage,
        parallel: Option<&Parallel>,
        init: &Init,
    ) -> Result<Qwen2Vl> {
        let text = Decoder::new(&config.text, stage.clone(), parallel, init)?;
        let (std, parallel) = (config.text.initializer_range, text.parallel().cloned());
        let tower = || Tower::new(&config.vision, std, parallel.as_ref(), init);
        Ok(Qwen2Vl {
            tower: stage.embed.then(tower).transpose()?,
            lanes: Lanes::new(parallel.as_ref()),
            config: config.clone(),
            text,
        })
    }

    fn tower(&self) -> Result<&Tower> {
        self.tower.as_ref().ok_or_else(|| Error::Argument {
            what: "vision tower",
            message: "the vision tower is on the first stage".to_string(),
        })
    }

    /// Hidden states with the vectors of what is shown in the places of marked tokens.
    fn with_features(&self, tokens: &Array, hidden: &Tensor, shown: &Shown) -> Result<Tensor> {
        let features = self.features(shown)?;
        let Marks { image, video, merge, .. } = self.config.marks;
        let pictures: usize =
            shown.scenes.images.iter().map(|g| g.iter().product::<usize>() / (merge * merge)).sum();
        let (mut next, ends) = ([0, pictures], [pictures, features.shape()[0]]);
        let device = tokens.device();
        let tokens = tokens.to(Device::Cpu)?;
        let mut take = |token: i64| {
            let kind = usize::from(token == video);
            if token != image && token != video {
                return (0i64, 0u8);
            }
            next[kind] += 1;
            (next[kind] as i64 - 1, 1)
        };
        let (rows, marked): (Vec<i64>, Vec<u8>) = tokens.to_vec::<i64>()?.into_iter().map(&mut take).unzip();
        if next != ends {
            let message = format!(
                "tokens stand for {} vectors of pictures and {} of videos, but {} and {} are shown",
                next[0],
                next[1] - pictures,
                pictures,
                ends[1] - pictures
            );
            return Err(Error::Argument { what: "pictures", message });
        }
        let (batch, length) = (tokens.shape()[0], tokens.shape()[1]);
        let rows = self.lanes.whole(&Tensor::new(Array::from_slice(&rows, &[rows.len()])?.to(device)?))?;
        let marked = Array::from_slice(&marked, &[batch, length, 1])?.cast(DType::Bool)?;
        let marked = Tensor::new(marked.to(device)?);
        let width = features.shape()[1];
        let picked = features.index_select(0, &rows)?.reshape(&[batch, length, width])?;
        let picked = self.lanes.residual(&picked)?.cast(hidden.dtype())?;
        Ok(self.lanes.residual(&marked)?.where_(&picked, hidden)?)
    }

    /// Rotations of positions on three axes; others as they are.
    fn positions(&self, run: &Run<'_>) -> Result<Positions> {
        let Positions::Axes(ids) = &run.positions else { return Ok(run.positions.clone()) };
        let [3, batch, length] = ids.shape()[..] else {
            let message = format!("positions on three axes are [3, batch, sequence], got {}", ids.shape());
            return Err(Error::Argument { what: "positions", message });
        };
        let table = rotation_rows(ids, self.text.rope().frequencies(), self.config.sections)?;
        let rows: Vec<i64> = (0..(batch * length) as i64).collect();
        let rows = self.lanes.batch(&Tensor::new(Array::from_slice(&rows, &[batch, length])?))?;
        Ok(Positions::Rows { table, rows })
    }
}

impl Network for Qwen2Vl {
    fn stage(&self) -> &Stage {
        self.text.stage()
    }

    fn forward(&self, input: Activations, run: &Run<'_>) -> Result<Activations> {
        let run = Run { positions: self.positions(run)?, ..run.clone() };
        match (&run.shown, &self.tower) {
            (Some(shown), Some(_)) => {
                let hidden = self.text.embedded(&input.hidden, &run)?;
                let hidden = self.with_features(input.hidden.local(), &hidden, shown)?;
                self.text.onward(Activations { hidden, routed: input.routed }, &run)
            }
            _ => self.text.forward(input, &run),
        }
    }

    fn head(&self, hidden: &Tensor) -> Result<Head> {
        self.text.head(hidden)
    }

    fn cache(&self, capacity: usize) -> Cache {
        self.text.cache(capacity)
    }

    /// Of text alone: what is shown stands in front of a row that is generated by itself.
    fn rows_apart(&self, positions: usize) -> Option<&Lanes> {
        self.text.rows_apart(positions)
    }

    fn seeing(&self) -> Option<&dyn See> {
        (self.tower.is_some() && self.lanes.parallel().is_none() && self.stage().head)
            .then_some(self as &dyn See)
    }
}

impl Module for Qwen2Vl {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.tower.visit(f);
        self.text.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.tower.visit_mut(f);
        self.text.visit_mut(f);
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        self.tower.visit_layers(f);
        self.text.visit_layers(f);
    }
}
