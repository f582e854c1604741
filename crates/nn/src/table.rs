//! Writing a model's table of parameters: names, shapes, first values, and how the inner mesh cuts each of them.

use crate::error::Result;
use crate::param::{Cut, ParamKind, ParamSpec, Role, Start};
use planaria_layout::Shape;

/// The cut of the first product of a pair: its results are shared out. Of a table of rows: the rows.
pub const COLUMNS: Cut = Cut::Dim(0);

/// The cut of the second product of a pair: it takes what the first has shared out and gives pending sums.
pub const ROWS: Cut = Cut::Dim(1);

/// A table of parameters as it is written, row by row, in the order in which modules show them.
#[derive(Clone, Debug)]
pub struct Table {
    std: f64,
    block: Option<usize>,
    specs: Vec<ParamSpec>,
}

impl Table {
    /// An empty one. Weights of products and token vectors start normal around 0 with deviation `std`.
    pub fn new(std: f64) -> Table {
        Table { std, block: None, specs: Vec::new() }
    }

    /// Rows from here on belong to this block; to what stands before or after the blocks where there is none.
    pub fn begin_block(&mut self, block: Option<usize>) {
        self.block = block;
    }

    /// A row of any shape; `name` is whole.
    pub fn add(&mut self, name: &str, shape: &[usize], kind: ParamKind, tp: Cut) -> Result<&mut ParamSpec> {
        let start = match kind {
            ParamKind::Matrix | ParamKind::Embedding => Start::Normal { std: self.std },
            ParamKind::Norm => Start::Ones,
            ParamKind::Bias => Start::Zeros,
        };
        let (at, block) = (self.specs.len(), self.block);
        let (name, shape) = (name.to_string(), Shape::new(shape)?);
        self.specs.push(ParamSpec {
            name,
            shape,
            kind,
            start,
            tp,
            ep: None,
            tied: None,
            block,
            dtype: None,
            role: Role::Own,
        });
        Ok(&mut self.specs[at])
    }

    /// `name.weight` of a product, `[out, in]`.
    pub fn matrix(&mut self, name: &str, shape: [usize; 2], cut: Cut) -> Result<&mut ParamSpec> {
        self.add(&format!("{name}.weight"), &shape, ParamKind::Matrix, cut)
    }

    /// `name.bias` of a product with so many columns and this cut.
    pub fn bias(&mut self, name: &str, columns: usize, cut: Cut) -> Result<()> {
        // A bias lies along the columns; that of a product cut by rows is added once, by all.
        let cut = if cut == ROWS { Cut::Whole } else { cut };
        self.add(&format!("{name}.bias"), &[columns], ParamKind::Bias, cut)?;
        Ok(())
    }

    /// `name.weight` of a norm.
    pub fn norm(&mut self, name: &str, width: usize) -> Result<()> {
        self.add(&format!("{name}.weight"), &[width], ParamKind::Norm, Cut::Whole)?;
        Ok(())
    }

    /// `name.weight`, a row for each token: `[vocabulary, width]`, cut by rows of the vocabulary.
    pub fn embedding(&mut self, name: &str, shape: [usize; 2]) -> Result<()> {
        self.add(&format!("{name}.weight"), &shape, ParamKind::Embedding, COLUMNS)?;
        Ok(())
    }

    /// `name.weight` with the values of `twin.weight`, a row for each token, cut like it. Each has a gradient of its own,
    /// the values move by their sum.
    pub fn tied(&mut self, name: &str, twin: &str, shape: [usize; 2]) -> Result<()> {
        let spec = self.add(&format!("{name}.weight"), &shape, ParamKind::Embedding, COLUMNS)?;
        spec.tied = Some(format!("{twin}.weight"));
        Ok(())
    }

    /// The rows.
    pub fn into_specs(self) -> Vec<ParamSpec> {
        self.specs
    }
}
