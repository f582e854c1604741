//! How long operations take on a device, where `PLANARIA_CUDA_TIMES` names a file: each is then waited for, and whenever the host
//! reads something the table so far is written.

use crate::error::Result;
use crate::stream::{Event, Stream};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Calls and seconds by name.
static TABLE: Mutex<BTreeMap<String, (u64, f64)>> = Mutex::new(BTreeMap::new());

/// The file, where there is one.
pub(crate) fn file() -> Option<&'static PathBuf> {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    FILE.get_or_init(|| std::env::var_os("PLANARIA_CUDA_TIMES").map(PathBuf::from)).as_ref()
}

/// Runs work that queues something on a stream, and adds the time it took there.
pub(crate) fn measure(
    op: &'static str,
    name: String,
    stream: &Stream,
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let begin = Event::record_timed(op, stream)?;
    work()?;
    let end = Event::record_timed(op, stream)?;
    end.synchronize()?;
    let seconds = end.seconds_since(&begin)?;
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let row = table.entry(name).or_default();
    *row = (row.0 + 1, row.1 + seconds);
    Ok(())
}

/// Writes the table to the file, the longest first. A file that cannot be written is nobody's error here.
pub(crate) fn write() {
    let Some(path) = file() else { return };
    let table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut rows: Vec<(&String, &(u64, f64))> = table.iter().collect();
    rows.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    let all: f64 = rows.iter().map(|(_, (_, seconds))| seconds).sum();
    let mut text = format!("{:10.3} ms in all\n", all * 1e3);
    for (name, (calls, seconds)) in rows {
        let _ = writeln!(text, "{:10.3} ms {calls:7} calls  {name}", seconds * 1e3);
    }
    let _ = std::fs::write(path, text);
}
