//! Files of a store from those who write one byte after the other, with little of them in memory.

use crate::error::Result;
use planaria_store::{Sharing, Store, Writer};
use std::io;

/// Writes a file of a store, durably. `work` is called twice: stores want to know beforehand how long a file is.
///
/// # Errors
/// What `work` or the store says.
pub fn write_stream(
    store: &dyn Store,
    name: &str,
    work: &mut dyn FnMut(&mut dyn io::Write) -> Result<()>,
) -> Result<()> {
    let mut count = Count(0);
    work(&mut count)?;
    let mut stream = Stream { file: store.writer(name, count.0, Sharing::Threads)?, at: 0 };
    work(&mut stream)?;
    stream.file.finish()?;
    Ok(())
}

struct Count(u64);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Stream {
    file: Box<dyn Writer>,
    at: u64,
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(self.at, bytes).map_err(io::Error::other)?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
