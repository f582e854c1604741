//! Dots in character cells: eight per cell, drawn with Braille patterns.

/// Dots of one cell, by column and row from the top, as Unicode numbers them.
const DOTS: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];

/// How a dot is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pen {
    pub(super) colour: (u8, u8, u8),
    pub(super) faint: bool,
}

/// A field of cells. A cell has one pen: that of the last bold dot in it, or of the last dot.
#[derive(Debug)]
pub(super) struct Dots {
    pub(super) columns: usize,
    pub(super) rows: usize,
    cells: Vec<(u8, Pen)>,
}

impl Dots {
    pub(super) fn new(columns: usize, rows: usize) -> Dots {
        Dots { columns, rows, cells: vec![(0, Pen::default()); columns * rows] }
    }

    /// The dot nearest to a place from (0, 0) at the bottom left to (1, 1).
    fn dot(&self, (x, y): (f64, f64)) -> (i64, i64) {
        let (width, height) = ((self.columns * 2 - 1) as f64, (self.rows * 4 - 1) as f64);
        ((x.clamp(0.0, 1.0) * width).round() as i64, ((1.0 - y.clamp(0.0, 1.0)) * height).round() as i64)
    }

    fn set(&mut self, x: i64, y: i64, pen: Pen) {
        let (column, row) = (x as usize / 2, y as usize / 4);
        let cell = &mut self.cells[row * self.columns + column];
        cell.0 |= DOTS[x as usize % 2][y as usize % 4];
        if !pen.faint || cell.1.faint || cell.1 == Pen::default() {
            cell.1 = pen;
        }
    }

    /// A straight line between two places.
    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), pen: Pen) {
        let ((x0, y0), (x1, y1)) = (self.dot(from), self.dot(to));
        let steps = (x1 - x0).abs().max((y1 - y0).abs()).max(1);
        for i in 0..=steps {
            let along = |a: i64, b: i64| a + ((b - a) * i + (b - a).signum() * steps / 2) / steps;
            self.set(along(x0, x1), along(y0, y1), pen);
        }
    }

    /// The character and pen of a cell, if anything was drawn there.
    pub(super) fn cell(&self, column: usize, row: usize) -> Option<(char, Pen)> {
        let (dots, pen) = self.cells[row * self.columns + column];
        (dots != 0).then(|| (char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' '), pen))
    }

    /// The row of a place.
    pub(super) fn row(&self, y: f64) -> usize {
        (self.dot((0.0, y)).1 / 4) as usize
    }
}
