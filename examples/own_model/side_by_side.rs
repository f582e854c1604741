//! The model of `04_own_model.rs`: in its blocks attention and the feed-forward layer stand side by side, both behind one
//! layer norm. The guide on models of one's own goes through it.

use planaria::nn::layers::{
    Attention, AttentionSizes, AttentionStep, Dropout, Embedding, LayerCache, LayerNorm, Linear, Mlp, Parts,
    Rope, RopeScaling,
};
use planaria::nn::models::{
    Activations, Architecture, Block, Cache, Head, Models, Network, Reader, Run, Stage, through,
};
use planaria::nn::{
    COLUMNS, Cut, Error, Init, Lanes, Module, Parallel, Param, ParamSpec, ROWS, Result, Table,
};
use planaria::tensor::Tensor;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What the `config.json` says.
#[derive(Clone, Debug)]
pub struct SideBySide {
    vocab: usize,
    width: usize,
    inner: usize,
    blocks: usize,
    heads: usize,
    positions: usize,
}

impl SideBySide {
    /// Its `model_type`.
    pub const TYPE: &str = "side_by_side";

    /// The table of models with this one in it.
    pub fn models() -> Models {
        Models::default().with(SideBySide::TYPE, SideBySide::open)
    }

    fn open(config: Map<String, Value>) -> Result<Arc<dyn Architecture>> {
        let read = Reader::new(&config);
        let model = SideBySide {
            vocab: read.size("vocab_size")?,
            width: read.size("width")?,
            inner: read.size("inner")?,
            blocks: read.size("blocks")?,
            heads: read.size("heads")?,
            positions: read.size("max_position_embeddings")?,
        };
        if !model.width.is_multiple_of(2 * model.heads) {
            let what =
                format!("width {} does not divide into {} heads of even size", model.width, model.heads);
            return Err(Error::Sizes { what });
        }
        Ok(Arc::new(model))
    }
}

impl Architecture for SideBySide {
    fn model_type(&self) -> &str {
        SideBySide::TYPE
    }

    fn to_value(&self) -> Value {
        json!({
            "model_type": SideBySide::TYPE, "vocab_size": self.vocab, "width": self.width, "inner": self.inner,
            "blocks": self.blocks, "heads": self.heads, "max_position_embeddings": self.positions,
        })
    }

    fn blocks(&self) -> usize {
        self.blocks
    }

    fn vocab_size(&self) -> usize {
        self.vocab
    }

    fn positions(&self) -> usize {
        self.positions
    }

    /// Names, shapes and cuts. Products come in pairs: columns, then rows.
    fn parameters(&self, stage: &Stage) -> Result<Vec<ParamSpec>> {
        stage.check(self)?;
        let mut table = Table::new(0.02);
        let SideBySide { vocab, width, inner, heads, .. } = *self;
        if stage.embed {
            table.embedding("tokens", [vocab, width])?;
        }
        for block in stage.layers.clone() {
            table.begin_block(Some(block));
            let name = |part: &str| format!("blocks.{block}.{part}");
            table.norm(&name("norm"), width)?;
            for part in ["attention.q_proj", "attention.k_proj", "attention.v_proj"] {
                table.matrix(&name(part), [width, width], Cut::Heads { dim: 0, heads })?;
            }
            table.matrix(&name("attention.o_proj"), [width, width], ROWS)?;
            table.matrix(&name("up"), [inner, width], COLUMNS)?;
            table.matrix(&name("down"), [width, inner], ROWS)?;
        }
        if stage.head {
            table.begin_block(None);
            table.norm("norm", width)?;
            // The head has the values of the token vectors, wherever those are.
            table.tied("head", "tokens", [vocab, width])?;
        }
        Ok(table.into_specs())
    }

    fn build(&self, stage: &Stage, parallel: Option<&Parallel>, init: &Init) -> Result<Box<dyn Network>> {
        let parallel = parallel.filter(|parallel| parallel.mesh.size() > 1);
        let (parts, lanes) = (Parts::new(self.parameters(stage)?, init, parallel)?, Lanes::new(parallel));
        let rope = Rope::new(self.width / self.heads, 10_000.0, RopeScaling::Default)?;
        let block = |block| Side::new(&parts.at(&format!("blocks.{block}")), self, &rope, &lanes);
        Ok(Box::new(SideNetwork {
            tokens: stage.embed.then(|| parts.embedding("tokens")).transpose()?,
            blocks: stage.layers.clone().map(block).collect::<Result<_>>()?,
            norm: stage.head.then(|| parts.layer_norm("norm", 1e-5)).transpose()?,
            head: stage.head.then(|| parts.linear("head")).transpose()?,
            stage: stage.clone(),
            lanes,
        }))
    }

    fn check_parallel(&self, parallel: &Parallel) -> Result<()> {
        let (heads, tp) = (self.heads, parallel.size("tp"));
        match heads.is_multiple_of(tp) {
            true => parallel.check_axes(),
            false => Err(Error::Sizes { what: format!("{heads} heads cannot be divided over tp={tp}") }),
        }
    }
}

/// `x + attention(norm(x)) + mlp(norm(x))`.
#[derive(Clone, Debug)]
struct Side {
    norm: LayerNorm,
    attention: Attention,
    mlp: Mlp,
}

impl Side {
    fn new(parts: &Parts, model: &SideBySide, rope: &Rope, lanes: &Lanes) -> Result<Side> {
        let sizes = AttentionSizes {
            heads: model.heads,
            kv_heads: model.heads,
            dim: model.width / model.heads,
            window: None,
            dropout: Dropout { p: 0.0 },
            bidirectional: false,
        };
        Ok(Side {
            norm: parts.layer_norm("norm", 1e-5)?,
            attention: Attention::new(&parts.at("attention"), sizes, rope.clone(), lanes.clone())?,
            mlp: Mlp { up: parts.linear("up")?, down: parts.linear("down")?, lanes: lanes.clone() },
        })
    }
}

impl Block for Side {
    fn forward(
        &self,
        x: &Tensor,
        step: &AttentionStep,
        cache: Option<&LayerCache>,
    ) -> planaria::tensor::Result<(Tensor, Option<Tensor>)> {
        let y = self.norm.forward(x)?;
        let y = self.attention.forward(&y, step, cache)?.add(&self.mlp.forward(&y)?)?;
        Ok((x.add(&y)?, None))
    }
}

impl Module for Side {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.norm.visit(f);
        self.attention.visit(f);
        self.mlp.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.norm.visit_mut(f);
        self.attention.visit_mut(f);
        self.mlp.visit_mut(f);
    }
}

/// A stage with weights.
#[derive(Debug)]
struct SideNetwork {
    stage: Stage,
    lanes: Lanes,
    tokens: Option<Embedding>,
    blocks: Vec<Side>,
    norm: Option<LayerNorm>,
    head: Option<Linear>,
}

impl Network for SideNetwork {
    fn stage(&self) -> &Stage {
        &self.stage
    }

    fn forward(&self, input: Activations, run: &Run<'_>) -> Result<Activations> {
        let hidden = match &self.tokens {
            Some(tokens) => self.lanes.out_of_rows(&tokens.forward(&self.lanes.batch(&input.hidden)?)?)?,
            None => self.lanes.residual(&input.hidden)?,
        };
        through(&self.blocks, &self.stage, hidden.into(), &self.lanes, run)
    }

    fn head(&self, hidden: &Tensor) -> Result<Head> {
        let (Some(norm), Some(head)) = (&self.norm, &self.head) else {
            return Err(Error::Argument { what: "head", message: "this stage has none".to_string() });
        };
        let states = self.lanes.into_columns(&norm.forward(hidden)?)?;
        Ok(Head { states, weight: head.weight.value()?, lanes: self.lanes.clone(), cap: None })
    }

    fn cache(&self, capacity: usize) -> Cache {
        Cache::new(self.blocks.len(), capacity)
    }
}

impl Module for SideNetwork {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.tokens.visit(f);
        self.blocks.visit(f);
        self.norm.visit(f);
        self.head.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.tokens.visit_mut(f);
        self.blocks.visit_mut(f);
        self.norm.visit_mut(f);
        self.head.visit_mut(f);
    }
}
