//! The table of a model's parameters: names, shapes, first values, and how the inner mesh cuts each of them.
//!
//! This file is all there is to a model's parallelism besides the crossings in [`crate::parallel`]. Weights are
//! `[out, in]`. Products come in pairs, the first cut by columns (dim 0) and the second by rows (dim 1), so that
//! nothing moves between the two:
//!
//! | parameter | `tp` | `ep` |
//! |---|---|---|
//! | token vectors, head | rows of the vocabulary | whole |
//! | queries | columns, between heads | whole |
//! | keys, values | columns, between heads; whole where the heads do not share out | whole |
//! | attention's output | rows | whole |
//! | gate, up; down | columns; rows | whole |
//! | experts' gate, up; down | columns; rows | experts |
//! | norms, router, gate of the shared expert | whole | whole |

use super::config::Config;
use super::model::Stage;
use crate::error::{Error, Result};
use crate::parallel::Parallel;
use crate::param::{Cut, Kind, ParamSpec, Start};
use planaria_layout::Shape;

const COLUMNS: Cut = Cut::Dim(0);
const ROWS: Cut = Cut::Dim(1);

struct Table<'a> {
    config: &'a Config,
    rows: Vec<ParamSpec>,
}

impl Table<'_> {
    fn add(&mut self, name: String, shape: &[usize], kind: Kind, tp: Cut) -> Result<&mut ParamSpec> {
        let start = match kind {
            Kind::Matrix | Kind::Embedding => Start::Normal { std: self.config.initializer_range },
            Kind::Norm => Start::Ones,
            Kind::Bias => Start::Zeros,
        };
        let at = self.rows.len();
        self.rows.push(ParamSpec { name, shape: Shape::new(shape)?, kind, start, tp, ep: None, tied: None });
        Ok(&mut self.rows[at])
    }

    /// The weight `[out, in]` of a product, and its bias.
    fn linear(&mut self, name: &str, shape: [usize; 2], bias: bool, cut: Cut) -> Result<()> {
        self.add(format!("{name}.weight"), &shape, Kind::Matrix, cut)?;
        if bias {
            // A bias lies along the columns; that of a product cut by rows is added once, by all.
            let cut = if cut == ROWS { Cut::Whole } else { cut };
            self.add(format!("{name}.bias"), &shape[..1], Kind::Bias, cut)?;
        }
        Ok(())
    }

    fn norm(&mut self, name: &str) -> Result<()> {
        self.add(format!("{name}.weight"), &[self.config.hidden_size], Kind::Norm, Cut::Whole)?;
        Ok(())
    }

    fn mlp(&mut self, name: &str, inner: usize, bias: bool) -> Result<()> {
        let width = self.config.hidden_size;
        self.linear(&format!("{name}.gate_proj"), [inner, width], bias, COLUMNS)?;
        self.linear(&format!("{name}.up_proj"), [inner, width], bias, COLUMNS)?;
        self.linear(&format!("{name}.down_proj"), [width, inner], bias, ROWS)
    }

    fn attention(&mut self, name: &str) -> Result<()> {
        let Config { hidden_size, heads, kv_heads, head_dim, qkv_bias, output_bias, .. } = *self.config;
        let between = |heads: usize| Cut::Heads { dim: 0, heads };
        self.linear(&format!("{name}.q_proj"), [heads * head_dim, hidden_size], qkv_bias, between(heads))?;
        for kv in ["k_proj", "v_proj"] {
            let shape = [kv_heads * head_dim, hidden_size];
            self.linear(&format!("{name}.{kv}"), shape, qkv_bias, between(kv_heads))?;
        }
        self.linear(&format!("{name}.o_proj"), [hidden_size, heads * head_dim], output_bias, ROWS)
    }

    /// Experts are one parameter with the expert as dim 0; on disk each has a tensor of its own.
    fn experts(&mut self, name: &str) -> Result<()> {
        let Some(experts) = &self.config.experts else { return Ok(()) };
        let (width, inner, count) = (self.config.hidden_size, experts.intermediate_size, experts.count);
        let shared = experts.shared_intermediate_size;
        self.linear(&format!("{name}.gate"), [count, width], false, Cut::Whole)?;
        let projections = [
            ("gate_proj", [count, inner, width], Cut::Dim(1)),
            ("up_proj", [count, inner, width], Cut::Dim(1)),
            ("down_proj", [count, width, inner], Cut::Dim(2)),
        ];
        for (projection, shape, cut) in projections {
            let name = format!("{name}.experts.*.{projection}.weight");
            self.add(name, &shape, Kind::Matrix, cut)?.ep = Some(0);
        }
        self.mlp(&format!("{name}.shared_expert"), shared, false)?;
        self.linear(&format!("{name}.shared_expert_gate"), [1, width], false, Cut::Whole)
    }

    fn block(&mut self, layer: usize) -> Result<()> {
        let name = format!("model.layers.{layer}");
        self.norm(&format!("{name}.input_layernorm"))?;
        self.attention(&format!("{name}.self_attn"))?;
        self.norm(&format!("{name}.post_attention_layernorm"))?;
        match self.config.has_experts(layer) {
            true => self.experts(&format!("{name}.mlp")),
            false => self.mlp(&format!("{name}.mlp"), self.config.intermediate_size, self.config.mlp_bias),
        }
    }
}

/// The name of the token vectors.
const EMBED: &str = "model.embed_tokens.weight";

impl Config {
    /// The parameters of one stage, in the order in which modules show them. Nothing is built.
    pub fn parameters(&self, stage: &Stage) -> Result<Vec<ParamSpec>> {
        if stage.layers.start > stage.layers.end || stage.layers.end > self.layers {
            let what = format!("a stage of layers {:?} of a model with {}", stage.layers, self.layers);
            return Err(Error::Sizes { what });
        }
        let mut table = Table { config: self, rows: Vec::new() };
        let tokens = [self.vocab_size, self.hidden_size];
        if stage.embed {
            table.add(EMBED.to_string(), &tokens, Kind::Embedding, COLUMNS)?;
        }
        stage.layers.clone().try_for_each(|layer| table.block(layer))?;
        if stage.head {
            table.norm("model.norm")?;
            let head = table.add("lm_head.weight".to_string(), &tokens, Kind::Matrix, COLUMNS)?;
            if self.tie_word_embeddings {
                head.kind = Kind::Embedding;
                head.tied = Some(EMBED.to_string());
            }
        }
        Ok(table.rows)
    }

    /// Refuses a mesh that the heads cannot be shared out on.
    pub fn check_parallel(&self, parallel: &Parallel) -> Result<()> {
        let tp = parallel.size("tp");
        if !self.heads.is_multiple_of(tp) {
            let fits: Vec<usize> = (1..=self.heads).filter(|&n| self.heads.is_multiple_of(n)).collect();
            let what =
                format!("{} heads cannot be shared out on tp={tp}; sizes that fit are {fits:?}", self.heads);
            return Err(Error::Sizes { what });
        }
        if let Some(axis) = parallel.mesh.axes().iter().find(|a| a.name != "tp" && a.name != "ep") {
            let what = format!("a model's inner mesh has the axes ep and tp, not `{}`", axis.name);
            return Err(Error::Sizes { what });
        }
        Ok(())
    }
}
