//! Columns of text, as wide as their widest cell.

use crate::printable::printable;

/// Rows of cells; the last cell of a row is not padded.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<usize>,
}

impl Table {
    /// An empty table whose columns `right` (numbered from 0) are aligned to the right.
    pub(crate) fn new(right: &[usize]) -> Table {
        Table { rows: Vec::new(), right: right.to_vec() }
    }

    /// Adds a row. Names in it may come from anywhere.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell, &[]).into_owned()).collect());
    }

    /// The lines, cells two spaces apart, nothing at the end of a line.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        self.rows.iter().map(move |row| {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let gap = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
                let between = if column == 0 { "" } else { "  " };
                line.push_str(between);
                if self.right.contains(&column) {
                    line.push_str(&gap);
                    line.push_str(cell);
                } else {
                    line.push_str(cell);
                    line.push_str(&gap);
                }
            }
            line.truncate(line.trim_end().len());
            line
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[1]);
        table.row(["a".into(), "1".into(), "x".into()]);
        table.row(["bcd".into(), "22".into()]);
        assert_eq!(table.lines().collect::<Vec<_>>(), ["a     1  x", "bcd  22"]);
    }
}
