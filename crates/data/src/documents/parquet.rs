//! Parquet files: every value of one column of text is a document, read one row group after the other.

use super::{Take, quoted};
use crate::error::{Error, Result};
use ::parquet::basic::Type;
use ::parquet::column::reader::{ColumnReaderImpl, get_typed_column_reader};
use ::parquet::data_type::{ByteArray, ByteArrayType};
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::schema::types::ColumnDescriptor;
use planaria_store::open_file;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Rows read at a time.
const ROWS: usize = 1024;

pub(super) fn each_value(path: &Path, column: &str, take: Take<'_>) -> Result<()> {
    let damaged = |e: ParquetError| Error::parquet(path, format!("it cannot be read: {e}"));
    let file = open_file(path).map_err(Error::io("open", path))?;
    let reader = guarded(|| SerializedFileReader::new(file)).map_err(damaged)?;
    let columns = reader.metadata().file_metadata().schema_descr_ptr();
    let all = columns.columns();
    let Some(place) = all.iter().position(|c| c.path().string() == column) else {
        let names: Vec<String> = all.iter().map(|c| c.path().string()).collect();
        let problem = format!("there is no column '{column}'; it has {}", quoted(names.iter()));
        return Err(Error::parquet(path, problem));
    };
    let found = &all[place];
    if found.physical_type() != Type::BYTE_ARRAY || found.max_rep_level() > 0 {
        return Err(Error::parquet(path, format!("the column '{column}' is not text")));
    }
    let mut row = 0;
    for group in 0..reader.num_row_groups() {
        let open = || reader.get_row_group(group).and_then(|rows| rows.get_column_reader(place));
        let values = guarded(open).map_err(damaged)?;
        let mut values = get_typed_column_reader::<ByteArrayType>(values);
        loop {
            let texts = guarded(|| read(&mut values, found)).map_err(damaged)?;
            if texts.is_empty() {
                break;
            }
            for value in texts {
                let value =
                    value.ok_or_else(|| Error::parquet(path, format!("'{column}' of row {row} is null")))?;
                let text = value.as_utf8().map_err(|_| {
                    Error::parquet(path, format!("'{column}' of row {row} is not UTF-8 text"))
                })?;
                take(text.to_string())?;
                row += 1;
            }
        }
    }
    Ok(())
}

/// A panic as an error: the reader trusts some numbers of a file (offsets, encodings of pages), and a damaged one must not
/// end the program. What panicked is not used again.
fn guarded<T>(work: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    let broken = |_| Err(ParquetError::General("its numbers contradict each other".into()));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(broken)
}

/// The next rows; none at the end of the row group, `None` for a row without a value.
fn read(
    column: &mut ColumnReaderImpl<ByteArrayType>,
    about: &ColumnDescriptor,
) -> Result<Vec<Option<ByteArray>>, ParquetError> {
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    let there = about.max_def_level();
    let (rows, _, _) = column.read_records(ROWS, Some(&mut levels), None, &mut values)?;
    if there == 0 {
        return Ok(values.into_iter().map(Some).collect());
    }
    let mut values = values.into_iter();
    let row = |level: &i16| if *level == there { values.next() } else { None };
    let out: Vec<_> = levels.iter().map(row).collect();
    match out.len() == rows {
        true => Ok(out),
        false => Err(ParquetError::General(format!("{} levels for {rows} rows", out.len()))),
    }
}
