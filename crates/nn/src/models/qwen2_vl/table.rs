//! The parameters of the vision tower: names, shapes, and how `tp` cuts them.
//!
//! | parameter | `tp` |
//! |---|---|
//! | patch vectors, norms | whole |
//! | fused queries, keys and values | every third by heads; whole where the heads do not share out |
//! | attention's output | rows |
//! | first and second product of feed-forward layers and of the merger | columns; rows |

use super::config::VisionConfig;
use crate::error::Result;
use crate::param::{Cut, ParamKind, ParamSpec};
use crate::table::{COLUMNS, ROWS, Table};

/// The name under which everything of the tower is.
pub(super) const TOWER: &str = "visual";

impl VisionConfig {
    /// The table of the tower.
    pub(super) fn parameters(&self, std: f64) -> Result<Vec<ParamSpec>> {
        let mut rows = Rows { config: self, table: Table::new(std) };
        let VisionConfig { width, channels, frames, patch, merge, out, .. } = *self;
        let name = format!("{TOWER}.patch_embed.proj.weight");
        rows.table.add(&name, &[width, channels, frames, patch, patch], ParamKind::Matrix, Cut::Whole)?;
        (0..self.depth).try_for_each(|block| rows.block(&format!("{TOWER}.blocks.{block}")))?;
        let merger = format!("{TOWER}.merger");
        let wide = width * merge * merge;
        rows.norm(&format!("{merger}.ln_q"))?;
        rows.linear(&format!("{merger}.mlp.0"), [wide, wide], COLUMNS)?;
        rows.linear(&format!("{merger}.mlp.2"), [out, wide], ROWS)?;
        Ok(rows.table.into_specs())
    }
}

struct Rows<'a> {
    config: &'a VisionConfig,
    table: Table,
}

impl Rows<'_> {
    fn linear(&mut self, name: &str, shape: [usize; 2], cut: Cut) -> Result<()> {
        self.table.matrix(name, shape, cut)?;
        self.table.bias(name, shape[0], cut)
    }

    fn norm(&mut self, name: &str) -> Result<()> {
        let width = self.config.width;
        self.table.norm(name, width)?;
        if self.config.newer.is_none() {
            self.table.add(&format!("{name}.bias"), &[width], ParamKind::Bias, Cut::Whole)?;
        }
        Ok(())
    }

    fn block(&mut self, name: &str) -> Result<()> {
        let VisionConfig { width, heads, inner, .. } = *self.config;
        self.norm(&format!("{name}.norm1"))?;
        let fused = Cut::Fused { dim: 0, heads, parts: 3 };
        self.linear(&format!("{name}.attn.qkv"), [3 * width, width], fused)?;
        self.linear(&format!("{name}.attn.proj"), [width, width], ROWS)?;
        self.norm(&format!("{name}.norm2"))?;
        if self.config.newer.is_some() {
            self.linear(&format!("{name}.mlp.gate_proj"), [inner, width], COLUMNS)?;
            self.linear(&format!("{name}.mlp.up_proj"), [inner, width], COLUMNS)?;
            return self.linear(&format!("{name}.mlp.down_proj"), [width, inner], ROWS);
        }
        self.linear(&format!("{name}.mlp.fc1"), [inner, width], COLUMNS)?;
        self.linear(&format!("{name}.mlp.fc2"), [width, inner], ROWS)
    }
}
