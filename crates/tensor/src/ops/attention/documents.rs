//! Where the documents of a batch begin, and how far back a token looks, for attention that stays inside of both.

use crate::attributes::Attr;
use crate::error::{Error, Result};
use planaria_array::{Array, DType, Device};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The documents that share each row of a batch. The first of a row begins at 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Documents {
    /// Per row, first tokens of all documents but the first.
    borders: Arc<[Vec<usize>]>,
    length: usize,
    /// Keys that a query sees at most, its own last.
    window: Option<usize>,
    made: Made,
}

/// Bounds on devices for some rows, made once for all layers. They follow from the rest.
#[derive(Clone, Default)]
struct Made(Arc<Mutex<Vec<Bounds>>>);

/// Of some rows on a device and one window.
struct Bounds {
    device: Device,
    rows: Vec<usize>,
    window: Option<usize>,
    both: [Array; 2],
}

impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Made")
    }
}

impl PartialEq for Made {
    fn eq(&self, _: &Made) -> bool {
        true
    }
}

impl Eq for Made {}

impl Hash for Made {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Documents {
    /// Rows of `length` tokens, each with the first tokens of its documents in order; a 0 in front may be left out.
    pub fn new(starts: Vec<Vec<usize>>, length: usize) -> Result<Documents> {
        let mut borders = starts;
        for (row, starts) in borders.iter_mut().enumerate() {
            if starts.first() == Some(&0) {
                starts.remove(0);
            }
            let ascend = starts.windows(2).all(|pair| pair[0] < pair[1]);
            let inside = starts.iter().all(|&start| 0 < start && start < length);
            if !ascend || !inside {
                let message = format!("row {row} of {length} tokens has documents at {starts:?}");
                return Err(Error::Argument { op: "documents", message });
            }
        }
        Ok(Documents { borders: borders.into(), length, window: None, made: Made::default() })
    }

    /// Rows of one document each.
    pub fn whole(rows: usize, length: usize) -> Documents {
        Documents { borders: vec![Vec::new(); rows].into(), length, window: None, made: Made::default() }
    }

    /// The same, where a causal query sees `window` keys at most, its own last.
    pub fn within(&self, window: usize) -> Result<Documents> {
        if window == 0 {
            let message = "a window of 0 keys hides a query's own".into();
            return Err(Error::Argument { op: "documents", message });
        }
        Ok(Documents { window: Some(window), ..self.clone() })
    }

    pub(super) fn window(&self) -> Option<usize> {
        self.window
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.borders.len()
    }

    /// Tokens of a row.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The documents of a row, in order; none for a row that is not there.
    pub fn of_row(&self, row: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let borders = self.borders.get(row).map(Vec::as_slice);
        let starts = borders.map(|_| 0).into_iter().chain(borders.unwrap_or_default().iter().copied());
        let ends = borders.unwrap_or_default().iter().copied().chain(Some(self.length));
        starts.zip(ends).map(|(start, end)| start..end)
    }

    /// Tokens of the longest document.
    pub fn longest(&self) -> usize {
        (0..self.rows()).flat_map(|row| self.of_row(row)).map(|range| range.len()).max().unwrap_or(0)
    }

    /// The place of every token in its document: i64 `[rows, length]`.
    pub fn positions(&self) -> Result<Array> {
        let of_row = |row| self.of_row(row).flat_map(|range| 0..range.len() as i64);
        let all: Vec<i64> = (0..self.rows()).flat_map(of_row).collect();
        Ok(Array::from_slice(&all, &[self.rows(), self.length])?)
    }

    /// True where a key is in the window of a query or after it: `[length, length]`, on a device.
    pub(super) fn band(&self, device: Device) -> Result<Option<Array>> {
        let Some(window) = self.window.filter(|&window| window < self.length) else { return Ok(None) };
        let all = Array::full_on(&[self.length, self.length], true, DType::Bool, device)?;
        Ok(Some(all.triu(1 - window as i64)?))
    }

    /// True where query and key are in one document: `[rows, 1, length, length]`.
    pub(super) fn mask(&self) -> Result<Array> {
        let mask = Array::full(&[self.rows(), 1, self.length, self.length], false, DType::Bool)?;
        for row in 0..self.rows() {
            for range in self.of_row(row) {
                let one = mask.narrow(0, row, 1)?.narrow(2, range.start, range.len())?;
                one.narrow(3, range.start, range.len())?.fill(true)?;
            }
        }
        Ok(mask)
    }

    /// Of some rows, on a device: of each token the first one in its document and window, and one past the last that has
    /// it in theirs; i32 `[rows, length]`.
    pub(super) fn bounds(&self, rows: &[usize], device: Device) -> Result<[Array; 2]> {
        let mut made = self.made.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |known: &&Bounds| (known.device, known.window) == (device, self.window) && known.rows == rows;
        if let Some(known) = made.iter().find(same) {
            return Ok(known.both.clone());
        }
        let of = |end: bool| -> Result<Array> {
            let window = self.window.unwrap_or(self.length);
            let bound = |range: Range<usize>| {
                range.clone().map(move |at| match end {
                    true => range.end.min(at.saturating_add(window)) as i32,
                    false => range.start.max((at + 1).saturating_sub(window)) as i32,
                })
            };
            let all: Vec<i32> = rows.iter().flat_map(|&row| self.of_row(row)).flat_map(bound).collect();
            Ok(Array::from_slice(&all, &[rows.len(), self.length])?.to(device)?)
        };
        let both = [of(false)?, of(true)?];
        made.push(Bounds { device, rows: rows.to_vec(), window: self.window, both: both.clone() });
        Ok(both)
    }

    pub(super) fn attribute(&self) -> Attr {
        Attr::List(self.borders.iter().map(|starts| Attr::from(&starts[..])).collect())
    }

    pub(super) fn read(rows: &[Attr], length: usize, window: Option<usize>) -> Option<Documents> {
        let row = |row: &Attr| row.ints()?.into_iter().map(|at| usize::try_from(at).ok()).collect();
        let documents = Documents::new(rows.iter().map(row).collect::<Option<_>>()?, length).ok()?;
        window.map_or(Some(documents.clone()), |window| documents.within(window).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_begin_again_with_each_document() {
        let documents = Documents::new(vec![vec![0, 2], vec![], vec![1, 3]], 4).unwrap();
        let expected = [0i64, 1, 0, 1, 0, 1, 2, 3, 0, 0, 1, 0];
        assert_eq!(documents.positions().unwrap().to_vec::<i64>().unwrap(), expected);
        assert_eq!(documents.longest(), 4);
        assert_eq!(documents.of_row(2).collect::<Vec<_>>(), [0..1, 1..3, 3..4]);
        assert_eq!(documents.of_row(3).count(), 0);
    }

    #[test]
    fn bounds_stay_inside_of_documents_and_windows() {
        let documents = Documents::new(vec![vec![0, 3]], 5).unwrap().within(2).unwrap();
        let [first, end] = documents.bounds(&[0], Device::Cpu).unwrap();
        assert_eq!(first.to_vec::<i32>().unwrap(), [0, 0, 1, 3, 3]);
        assert_eq!(end.to_vec::<i32>().unwrap(), [2, 3, 3, 5, 5]);
        assert!(documents.within(0).unwrap_err().to_string().contains("window of 0"));
    }

    #[test]
    fn starts_out_of_order_or_outside_are_refused() {
        for bad in [vec![2, 1], vec![1, 1], vec![4], vec![0, 0]] {
            let message = Documents::new(vec![vec![], bad], 4).unwrap_err().to_string();
            assert!(message.contains("row 1 of 4 tokens"), "{message}");
        }
    }
}
