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
//! | fused queries, keys and values; fused gate and up | whole | whole |
//! | norms (also of heads), router, gate of the shared expert | whole | whole |

use super::config::DecoderConfig;
use crate::error::{Error, Result};
use crate::models::architecture::Stage;
use crate::parallel::Parallel;
use crate::param::{Cut, ParamKind, ParamSpec, Start};
use crate::table::{COLUMNS, ROWS, Table};

/// Rows of a table, made from a configuration.
struct Rows<'a> {
    config: &'a DecoderConfig,
    table: Table,
}

impl Rows<'_> {
    /// The weight `[out, in]` of a product, and its bias.
    fn linear(&mut self, name: &str, shape: [usize; 2], bias: bool, cut: Cut) -> Result<()> {
        self.table.matrix(name, shape, cut)?;
        if bias {
            self.table.bias(name, shape[0], cut)?;
        }
        Ok(())
    }

    fn norm(&mut self, name: &str) -> Result<()> {
        self.norm_of(name, self.config.hidden_size)
    }

    fn norm_of(&mut self, name: &str, width: usize) -> Result<()> {
        let spec = self.table.add(&format!("{name}.weight"), &[width], ParamKind::Norm, Cut::Whole)?;
        if self.config.variations.norms_from_one {
            spec.start = Start::Zeros;
        }
        Ok(())
    }

    fn mlp(&mut self, name: &str, inner: usize, bias: bool) -> Result<()> {
        let width = self.config.hidden_size;
        if self.config.variations.fused {
            self.linear(&format!("{name}.gate_up_proj"), [2 * inner, width], bias, Cut::Whole)?;
        } else {
            self.linear(&format!("{name}.gate_proj"), [inner, width], bias, COLUMNS)?;
            self.linear(&format!("{name}.up_proj"), [inner, width], bias, COLUMNS)?;
        }
        self.linear(&format!("{name}.down_proj"), [width, inner], bias, ROWS)
    }

    fn attention(&mut self, name: &str) -> Result<()> {
        let DecoderConfig { hidden_size, heads, kv_heads, head_dim, qkv_bias, output_bias, .. } =
            *self.config;
        let between = |heads: usize| Cut::Heads { dim: 0, heads };
        if self.config.variations.fused {
            let shape = [(heads + 2 * kv_heads) * head_dim, hidden_size];
            self.linear(&format!("{name}.qkv_proj"), shape, qkv_bias, Cut::Whole)?;
        } else {
            let shape = [heads * head_dim, hidden_size];
            self.linear(&format!("{name}.q_proj"), shape, qkv_bias, between(heads))?;
            for kv in ["k_proj", "v_proj"] {
                let shape = [kv_heads * head_dim, hidden_size];
                self.linear(&format!("{name}.{kv}"), shape, qkv_bias, between(kv_heads))?;
            }
        }
        self.linear(&format!("{name}.o_proj"), [hidden_size, heads * head_dim], output_bias, ROWS)?;
        if self.config.variations.head_norms {
            self.norm_of(&format!("{name}.q_norm"), head_dim)?;
            self.norm_of(&format!("{name}.k_norm"), head_dim)?;
        }
        Ok(())
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
            self.table.add(&name, &shape, ParamKind::Matrix, cut)?.ep = Some(0);
        }
        if shared == 0 {
            return Ok(());
        }
        self.mlp(&format!("{name}.shared_expert"), shared, false)?;
        self.linear(&format!("{name}.shared_expert_gate"), [1, width], false, Cut::Whole)
    }

    fn block(&mut self, layer: usize) -> Result<()> {
        let name = format!("{}layers.{layer}", self.config.prefix());
        self.table.begin_block(Some(layer));
        self.norm(&format!("{name}.input_layernorm"))?;
        self.attention(&format!("{name}.self_attn"))?;
        match self.config.variations.post_norms {
            false => self.norm(&format!("{name}.post_attention_layernorm"))?,
            true => ["pre_feedforward", "post_attention", "post_feedforward"]
                .into_iter()
                .try_for_each(|place| self.norm(&format!("{name}.{place}_layernorm")))?,
        }
        match self.config.has_experts(layer) {
            true => self.experts(&format!("{name}.mlp")),
            false => self.mlp(&format!("{name}.mlp"), self.config.intermediate_size, self.config.mlp_bias),
        }
    }
}

impl DecoderConfig {
    /// The parameters of one stage, in the order in which modules show them. Nothing is built.
    pub fn parameters(&self, stage: &Stage) -> Result<Vec<ParamSpec>> {
        stage.check(self)?;
        let mut rows = Rows { config: self, table: Table::new(self.initializer_range) };
        let tokens = [self.vocab_size, self.hidden_size];
        let (embed, norm) = (format!("{}embed_tokens", self.prefix()), format!("{}norm", self.prefix()));
        if stage.embed {
            rows.table.embedding(&embed, tokens)?;
        }
        stage.layers.clone().try_for_each(|layer| rows.block(layer))?;
        if stage.head {
            rows.table.begin_block(None);
            rows.norm(&norm)?;
            match self.tie_word_embeddings {
                _ if self.variations.headless => {}
                _ if self.variations.valued => {
                    rows.table.matrix("score", [1, self.hidden_size], Cut::Whole)?;
                }
                true => rows.table.tied("lm_head", &embed, tokens)?,
                false => drop(rows.table.matrix("lm_head", tokens, COLUMNS)?),
            }
        }
        Ok(rows.table.into_specs())
    }

    /// Refuses a mesh that the heads cannot be shared out on.
    pub fn check_parallel(&self, parallel: &Parallel) -> Result<()> {
        let tp = parallel.size("tp");
        if !self.heads.is_multiple_of(tp) {
            let fits: Vec<usize> = (1..=self.heads).filter(|&n| self.heads.is_multiple_of(n)).collect();
            let what =
                format!("{} heads cannot be divided over tp={tp}; sizes that fit are {fits:?}", self.heads);
            return Err(Error::Sizes { what });
        }
        parallel.check_axes()
    }
}
