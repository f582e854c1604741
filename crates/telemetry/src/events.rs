//! TensorBoard event files, written by hand: framed records (TFRecord) of `Event` messages.
//!
//! A record is the length as u64, the masked CRC-32C of those 8 bytes, the message, and its masked CRC-32C; all little-endian.

use crate::error::{Error, Result};
use crate::metrics::{Record, now};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes one events file. Each process of a run writes its own; TensorBoard joins them.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// Creates a file in the run's folder. `step` is the last step that counts: older files' later steps are dropped by TensorBoard.
    pub fn create(run: &Path, step: u64) -> Result<EventWriter> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(run).map_err(Error::io("create", run))?;
        let (time, number) = (now(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
        let process = std::process::id();
        let path = run.join(format!("events.out.tfevents.{:010}.{host}.{process}.{number}", time as u64));
        let file =
            File::options().append(true).create_new(true).open(&path).map_err(Error::io("create", &path))?;
        let mut writer = EventWriter { path, file };
        writer.append(&version(time))?;
        writer.append(&session_start(time, step + 1))?;
        Ok(writer)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends the scalars of a step.
    pub fn write(&mut self, record: &Record) -> Result<()> {
        self.append(&scalars(record, record.time.unwrap_or_else(now)))
    }

    fn append(&mut self, message: &[u8]) -> Result<()> {
        self.file.write_all(&framed(message)).map_err(Error::io("write", &self.path))
    }
}

/// A checksum as TFRecord keeps it: rotated, so that a checksum of data that holds checksums stays useful.
fn masked(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    let mut out = Vec::with_capacity(message.len() + 16);
    out.extend(length);
    out.extend(masked(&length).to_le_bytes());
    out.extend(message);
    out.extend(masked(message).to_le_bytes());
    out
}

// The parts of the protocol buffer encoding that are needed. A field starts with its number and kind.
const VARINT: u64 = 0;
const EIGHT_BYTES: u64 = 1;
const BYTES: u64 = 2;
const FOUR_BYTES: u64 = 5;

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn field(out: &mut Vec<u8>, number: u64, kind: u64) {
    varint(out, number << 3 | kind);
}

fn bytes(out: &mut Vec<u8>, number: u64, content: &[u8]) {
    field(out, number, BYTES);
    varint(out, content.len() as u64);
    out.extend(content);
}

/// `Event.wall_time` and `Event.step`.
fn event(time: f64, step: u64) -> Vec<u8> {
    let mut out = Vec::new();
    field(&mut out, 1, EIGHT_BYTES);
    out.extend(time.to_le_bytes());
    if step > 0 {
        field(&mut out, 2, VARINT);
        varint(&mut out, step);
    }
    out
}

/// The first event of every file.
fn version(time: f64) -> Vec<u8> {
    let mut out = event(time, 0);
    bytes(&mut out, 3, b"brain.Event:2");
    out
}

/// `Event.session_log` with status START: what older files say about this step and later ones no longer counts.
fn session_start(time: f64, step: u64) -> Vec<u8> {
    let mut status = Vec::new();
    field(&mut status, 1, VARINT);
    varint(&mut status, 1);
    let mut out = event(time, step);
    bytes(&mut out, 7, &status);
    out
}

/// `Event.summary` with one `Value { tag, simple_value }` per scalar.
fn scalars(record: &Record, time: f64) -> Vec<u8> {
    let mut summary = Vec::new();
    for (name, value) in &record.values {
        let mut one = Vec::new();
        bytes(&mut one, 1, name.as_bytes());
        field(&mut one, 2, FOUR_BYTES);
        one.extend((*value as f32).to_le_bytes());
        bytes(&mut summary, 1, &one);
    }
    let mut out = event(time, record.step);
    bytes(&mut out, 5, &summary);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Made with `tensorboard.compat.tensorflow_stub` and its `RecordWriter`: an event of time 1.5, step 300, with `loss` = 2.5
    /// and `lr` = 0.125.
    const REFERENCE: &str = "2600000000000000734fe30009000000000000f83f10ac022a180a0b0a046c6f737315000020400a090a026c72150000003e8bd1d198";

    #[test]
    fn records_equal_those_of_tensorboard() {
        let record = Record::new(300).with("loss", 2.5).with("lr", 0.125);
        assert_eq!(hex(&framed(&scalars(&record, 1.5))), REFERENCE);
    }

    #[test]
    fn the_mask_is_that_of_tfrecord() {
        assert_eq!(crc_fast::crc32_iscsi(b"123456789"), 0xe306_9283);
        assert_eq!(masked(b"123456789"), 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8));
    }

    #[test]
    fn every_process_writes_its_own_file() {
        let run = tempfile::tempdir().unwrap();
        let mut first = EventWriter::create(run.path(), 0).unwrap();
        let second = EventWriter::create(run.path(), 40).unwrap();
        assert_ne!(first.path(), second.path());
        first.write(&Record::new(1).with("loss", f64::NAN)).unwrap();
        let name = first.path().file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.starts_with("events.out.tfevents."), "{name}");
        let head = fs::read(first.path()).unwrap();
        assert_eq!(head[..8], 24u64.to_le_bytes());
        assert!(head.windows(13).any(|w| w == b"brain.Event:2"));
        let later = fs::read(second.path()).unwrap();
        assert_eq!(
            hex(&later[later.len() - 10..later.len() - 4]),
            "10293a020801",
            "step 41, session started"
        );
    }
}
