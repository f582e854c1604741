//! How a tensor is cut into tiles, in a few words.

use planaria::ckpt::formats::Entry;
use std::collections::BTreeSet;
use std::fmt;

/// The tiles of a tensor, counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    boxes: usize,
    /// Tiles along each dim, when they make a grid.
    grid: Option<Vec<usize>>,
    /// Fewest and most copies of a box.
    copies: (usize, usize),
    files: usize,
    strided: bool,
}

impl Cut {
    pub(super) fn of(entry: &Entry) -> Cut {
        let boxes: Vec<_> = entry.tiles.boxes().collect();
        let copies = boxes.iter().map(|(_, extents)| extents.len());
        let files: BTreeSet<usize> =
            boxes.iter().flat_map(|(_, extents)| extents.iter().map(|extent| extent.file)).collect();
        let starts =
            |dim: usize| boxes.iter().map(|(region, _)| region.lo()[dim]).collect::<BTreeSet<_>>().len();
        let grid: Vec<usize> = (0..entry.shape.ndim()).map(starts).collect();
        let is_grid = grid.iter().product::<usize>() == boxes.len();
        Cut {
            boxes: boxes.len(),
            grid: is_grid.then_some(grid),
            copies: (copies.clone().min().unwrap_or(1), copies.max().unwrap_or(1)),
            files: files.len(),
            strided: !entry.strides.is_empty(),
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = Vec::new();
        match &self.grid {
            _ if self.boxes < 2 => {}
            Some(grid) => {
                let grid: Vec<String> = grid.iter().map(usize::to_string).collect();
                words.push(format!("{} tiles", grid.join("x")));
            }
            None => words.push(format!("{} tiles", self.boxes)),
        }
        match self.copies {
            (_, 0 | 1) => {}
            (fewest, most) if fewest == most => words.push(format!("{most} copies")),
            (fewest, most) => words.push(format!("{fewest} to {most} copies")),
        }
        if self.files > 1 {
            words.push(format!("{} files", self.files));
        }
        if self.strided {
            words.push("strided".to_string());
        }
        f.write_str(&words.join(", "))
    }
}
