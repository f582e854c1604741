//! Runs a case's operation.

use super::{Case, parse_array, parse_index, prepared};
use planaria_array::ops::Put;
use planaria_array::{Array, Error, Index, Result};

impl Case {
    /// The index expression. Case files are checked when they are read, so a bad one is a bug in the file.
    pub(super) fn expression(&self) -> Vec<Index> {
        self.index.iter().map(|i| parse_index(i).unwrap_or_else(|e| panic!("{e}"))).collect()
    }

    /// One array per dim, as `index_put` takes them.
    pub(super) fn arrays(&self) -> Vec<Option<Array>> {
        let array = |i| parse_array(i).unwrap_or_else(|e| panic!("{e}"));
        self.index.iter().map(|i| (!i.is_null()).then(|| array(i))).collect()
    }

    /// The only index array.
    pub(super) fn array(&self) -> Array {
        self.arrays().swap_remove(0).unwrap_or_else(|| panic!("case {} has no index array", self.id))
    }

    pub(super) fn along(&self) -> i64 {
        self.dim.unwrap_or(0)
    }

    pub(super) fn put(&self) -> Put {
        if self.accumulate { Put::Accumulate } else { Put::Replace }
    }

    /// The operation on views of `base`, with the value in an array or as a number.
    pub(super) fn forward(&self, base: &Array, value: Option<&Array>, scalar: Option<i64>) -> Result<Array> {
        let x =
            prepared(base, &self.prep).map_err(|e| Error::Argument { op: "prep", what: e.to_string() })?;
        let number = scalar.unwrap_or(0);
        let none = || Error::Argument { op: "case", what: "the case has no value".to_string() };
        match (self.op.as_str(), value) {
            ("getitem", _) => x.get(&self.expression()),
            ("setitem", Some(value)) => x.set(&self.expression(), value).map(|()| base.clone()),
            ("setitem", None) => x.set_scalar(&self.expression(), number).map(|()| base.clone()),
            ("index_put", value) => x.index_put(&self.arrays(), value.ok_or_else(none)?, self.put()),
            ("masked_fill", Some(value)) => x.masked_fill_with(&self.array(), value),
            ("masked_fill", None) => x.masked_fill(&self.array(), number),
            ("masked_select", _) => x.masked_select(&self.array()),
            ("masked_scatter", value) => x.masked_scatter(&self.array(), value.ok_or_else(none)?),
            ("index_select", _) => x.index_select(self.along(), &self.array()),
            ("index_add", value) => x.index_add(self.along(), &self.array(), value.ok_or_else(none)?),
            ("index_fill", None) => x.index_fill(self.along(), &self.array(), number),
            ("index_fill", Some(value)) => x.index_fill(self.along(), &self.array(), value.item()?),
            ("gather", _) => x.gather(self.along(), &self.array()),
            ("scatter", Some(value)) => x.scatter(self.along(), &self.array(), value),
            ("scatter", None) => x.scatter_scalar(self.along(), &self.array(), number),
            ("scatter_add", value) => x.scatter_add(self.along(), &self.array(), value.ok_or_else(none)?),
            ("take_along_dim", _) => x.take_along_dim(&self.array(), self.along()),
            (op, _) => Err(Error::Argument { op: "case", what: format!("unknown operation {op}") }),
        }
    }
}
