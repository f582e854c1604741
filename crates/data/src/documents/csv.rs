//! Tables of text: the first row names the columns, every other row is a document. `.tsv` has tabs between its values.

use super::compressed::{Input, Origin};
use super::{Take, quoted};
use crate::error::{Error, Result};
use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use std::io::BufRead;
use std::path::Path;

pub(super) fn each_row(input: Input, column: &str, take: Take<'_>) -> Result<()> {
    let mut rows = Rows::new(input);
    let first = rows.next()?;
    let bad =
        |path: &Path, line: u64, problem: String| Error::Row { path: path.to_path_buf(), line, problem };
    if first.is_none() {
        return Err(bad(&rows.origin.path, 1, "the file is empty".into()));
    }
    let names: Vec<String> = rows.values().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    let Some(place) = names.iter().position(|name| name == column) else {
        let problem = format!("there is no column '{column}'; the first row names {}", quoted(names.iter()));
        return Err(bad(&rows.origin.path, 1, problem));
    };
    while let Some(line) = rows.next()? {
        let (found, expected) = (rows.values().count(), names.len());
        if found != expected {
            let values = if found == 1 { "value" } else { "values" };
            let problem = format!("the row has {found} {values}, the first row has {expected}");
            return Err(bad(&rows.origin.path, line, problem));
        }
        let value = rows.values().nth(place).unwrap_or_default().to_vec();
        let text = String::from_utf8(value).map_err(|_| {
            bad(&rows.origin.path, line, format!("the value of '{column}' is not UTF-8 text"))
        })?;
        take(text)?;
    }
    Ok(())
}

fn separator(path: &Path) -> u8 {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    if name.contains(".tsv") { b'\t' } else { b',' }
}

/// The rows of a table, the last one read at hand.
struct Rows {
    reader: Box<dyn BufRead>,
    origin: Origin,
    core: Reader,
    /// The values of the row, one after the other.
    bytes: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<usize>,
    count: usize,
}

impl Rows {
    fn new(input: Input) -> Rows {
        let Input { reader, origin } = input;
        let core = ReaderBuilder::new().delimiter(separator(&origin.path)).build();
        Rows { reader, origin, core, bytes: vec![0; 1 << 12], ends: vec![0; 32], count: 0 }
    }

    /// Reads a row; the line it begins in, none at the end.
    fn next(&mut self) -> Result<Option<u64>> {
        let line = self.core.line();
        let mut length = 0;
        self.count = 0;
        loop {
            let input = self.reader.fill_buf().map_err(|e| self.origin.failed(e))?;
            let (found, read, written, ended) =
                self.core.read_record(input, &mut self.bytes[length..], &mut self.ends[self.count..]);
            self.reader.consume(read);
            (length, self.count) = (length + written, self.count + ended);
            match found {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => self.bytes.resize(2 * self.bytes.len(), 0),
                ReadRecordResult::OutputEndsFull => self.ends.resize(2 * self.ends.len(), 0),
                ReadRecordResult::Record => return Ok(Some(line)),
                ReadRecordResult::End => return Ok(None),
            }
        }
    }

    fn values(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends[..self.count]);
        starts.zip(&self.ends[..self.count]).map(|(start, end)| &self.bytes[*start..*end])
    }
}
