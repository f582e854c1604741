//! `checkpoint`: saves, loads, reshards and conversions of a 2 GiB state against the limit of the disk and other
//! programs.
//!
//! Bars: a durable, checksummed save in at most 1.15 times a raw `O_DIRECT` write of the same bytes, a verified
//! load in at most 1.15 times a raw read, with another layout in at most 1.25 times and reading at most 1.05 times
//! the bytes; under load at most 1.3 times slower; conversion at most 1.3 times reading and writing in turn; less
//! than 256 MiB of extra memory; every flipped bit found. All contestants run in turn, round by round, so that they
//! meet the same machine; ratios are taken inside a round, and the figure is the median over rounds.

mod meter;
mod ours;
mod peers;
mod raw;
mod state;

use anyhow::{Result, bail};
use clap::Parser;
use meter::{Row, Sample, under_load};
use ours::{Cache, Place};
use planaria_ckpt::convert::To;
use state::{Cut, Model};
use std::path::PathBuf;

const SAVE_BAR: f64 = 1.15;
const LOAD_BAR: f64 = 1.15;
const RESHARD_BAR: f64 = 1.25;
const READ_BAR: f64 = 1.05;
const LOADED_BAR: f64 = 1.3;
const CONVERT_BAR: f64 = 1.3;
const EXTRA_BAR: u64 = 256 << 20;

#[derive(Parser)]
struct Args {
    /// Size of the state in GiB
    #[arg(long, default_value_t = 2.0)]
    gib: f64,
    /// Rounds over all contestants
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Where the files go: a folder on the disk to be measured; a new folder inside it is used and removed
    #[arg(long, default_value = "target")]
    folder: PathBuf,
    /// Python with torch and safetensors; without it the peers are skipped
    #[arg(long)]
    python: Option<PathBuf>,
    /// Busy threads of the loaded rows
    #[arg(long, default_value_t = 12)]
    busy: usize,
    /// Only rows whose name holds one of these, separated by commas; raw rows are always taken
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// What a row measures.
#[derive(Clone, Copy)]
enum Work {
    RawWrite,
    RawRead,
    RawBoth,
    RawWriteLoaded,
    Save(usize),
    SaveLoaded(usize),
    Load(&'static str, Cut, Cache),
    Convert(&'static str, &'static str, To),
}

/// A row to be measured: name, work, what it is compared with and the bar.
type Planned = (&'static str, Work, Option<(&'static str, f64)>);

/// Every row of ours.
fn rows() -> Vec<Planned> {
    let (write, read) = ("raw write", "raw read");
    let load = |cut, cache| Work::Load("ours-1", cut, cache);
    vec![
        (write, Work::RawWrite, None),
        (read, Work::RawRead, None),
        ("raw read and write in turn", Work::RawBoth, None),
        ("raw write, loaded", Work::RawWriteLoaded, None),
        ("save, 1 rank", Work::Save(1), Some((write, SAVE_BAR))),
        ("save, 2 ranks", Work::Save(2), Some((write, SAVE_BAR))),
        ("save, 4 ranks", Work::Save(4), Some((write, SAVE_BAR))),
        ("save, 1 rank, loaded", Work::SaveLoaded(1), Some(("save, 1 rank", LOADED_BAR))),
        ("load cold, 1 rank", load(Cut::Rows(1), Cache::Cold), Some((read, LOAD_BAR))),
        ("load cold, 2 ranks", Work::Load("ours-2", Cut::Rows(2), Cache::Cold), Some((read, LOAD_BAR))),
        ("load cold, 4 ranks", Work::Load("ours-4", Cut::Rows(4), Cache::Cold), Some((read, LOAD_BAR))),
        ("load warm, 1 rank", load(Cut::Rows(1), Cache::Warm), None),
        ("reshard 4 -> 2", Work::Load("ours-4", Cut::Rows(2), Cache::Cold), Some((read, RESHARD_BAR))),
        ("reshard 2 -> 3", Work::Load("ours-2", Cut::Rows(3), Cache::Cold), Some((read, RESHARD_BAR))),
        (
            "reshard 4 rows -> 2 columns",
            Work::Load("ours-4", Cut::Columns(2), Cache::Cold),
            Some((read, RESHARD_BAR)),
        ),
        (
            "convert to DCP",
            Work::Convert("ours-1", "dcp", To::TorchDcp),
            Some(("raw read and write in turn", CONVERT_BAR)),
        ),
        (
            "convert to Hugging Face",
            Work::Convert("dcp", "hf", To::HuggingFace),
            Some(("raw read and write in turn", CONVERT_BAR)),
        ),
    ]
}

fn main() -> Result<()> {
    let args = Args::parse();
    let folder = args.folder.join(format!("checkpoint-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let folder = folder.canonicalize()?;
    let done = run(&args, &folder);
    std::fs::remove_dir_all(&folder)?;
    done
}

fn run(args: &Args, folder: &std::path::Path) -> Result<()> {
    let place = Place::new(folder.to_path_buf(), Model::new(args.gib))?;
    let bytes = place.model.bytes();
    let gib = bytes as f64 / f64::from(1 << 30);
    println!("{} f32 tensors, {gib:.3} GiB; medians of {} rounds\n", place.model.tensors.len(), args.rounds);
    let mut probe = raw::Probe::new();
    // The checkpoints that loads read, whichever rows are chosen.
    for ranks in [1, 2, 4] {
        place.save(&format!("ours-{ranks}"), ranks)?;
    }
    place.convert("ours-1", "dcp", To::TorchDcp)?;
    let mut peer = match &args.python {
        Some(python) => Some(peers::Peer::start(python, folder, args.gib)?),
        None => None,
    };
    let chosen = |name: &str| {
        name.starts_with("raw")
            || args.only.is_empty()
            || args.only.iter().any(|part| name.contains(part.as_str()))
    };
    let work: Vec<_> = rows().into_iter().filter(|row| chosen(row.0)).collect();
    let cases: Vec<String> = peer.iter().flat_map(|peer| peer.cases.clone()).filter(|c| chosen(c)).collect();
    let mut table: Vec<Row> = work
        .iter()
        .map(|(name, _, limit)| Row { name: (*name).to_string(), limit: *limit, samples: Vec::new() })
        .chain(cases.iter().map(|case| Row { name: case.clone(), limit: None, samples: Vec::new() }))
        .collect();
    let file = folder.join("raw");
    for round in 0..args.rounds {
        for (row, (_, work, _)) in table.iter_mut().zip(&work) {
            let sample = measure(*work, &place, (&mut probe, &file, bytes), args.busy)?;
            row.samples.push(sample);
        }
        for (row, case) in table[work.len()..].iter_mut().zip(&cases) {
            if let Some(peer) = &mut peer {
                row.samples.push(peer.sample(case)?);
            }
        }
        eprintln!("round {} of {} done", round + 1, args.rounds);
    }
    let missed = print(&table, gib);
    peer.iter().flat_map(|peer| &peer.skipped).for_each(|why| println!("skipped: {why}"));
    println!("\nopening one tensor of a sparse 100 GiB folder: {:.1} ms", ours::open_sparse(folder)?);
    println!("16 flipped bits, all found; the first: {}", place.flip("ours-1", 16)?);
    match missed.is_empty() {
        true => Ok(()),
        false => bail!("missed: {}", missed.join("; ")),
    }
}

fn measure(
    work: Work,
    place: &Place,
    (probe, file, bytes): (&mut raw::Probe, &std::path::Path, u64),
    busy: usize,
) -> Result<Sample> {
    let plain = |seconds| Sample { seconds, ..Sample::default() };
    let name = |ranks: usize| format!("ours-{ranks}");
    match work {
        Work::RawWrite => probe.write(file, bytes).map(plain),
        Work::RawRead => probe.read(file, bytes).map(plain),
        Work::RawBoth => Ok(plain(probe.read(file, bytes)? + probe.write(file, bytes)?)),
        Work::RawWriteLoaded => under_load(busy, || probe.write(file, bytes)).map(plain),
        Work::Save(ranks) => place.save(&name(ranks), ranks),
        Work::SaveLoaded(ranks) => under_load(busy, || place.save(&name(ranks), ranks)),
        Work::Load(name, cut, cache) => place.load(name, cut, cache),
        Work::Convert(from, name, to) => place.convert(from, name, to),
    }
}

/// Prints the table; the bars that are missed.
fn print(table: &[Row], gib: f64) -> Vec<String> {
    println!("| | s | GiB/s | CPU s | against | ratio | bar | read | extra MiB |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut missed = Vec::new();
    for row in table {
        let seconds = row.seconds().unwrap_or(f64::NAN);
        let text =
            |value: Option<f64>, digits: usize| value.map_or("".to_string(), |v| format!("{v:.digits$}"));
        let limit = row.limit.and_then(|(name, bar)| Some((table.iter().find(|r| r.name == name)?, bar)));
        let ratio = limit.and_then(|(limit, _)| meter::ratio(row, limit));
        // The most of all rounds: later ones may find memory that an earlier one left resident.
        let extra = row.samples.iter().filter_map(|sample| sample.extra).max().map(|bytes| bytes as f64);
        let read = row.median(|sample| sample.amplification);
        println!(
            "| {} | {seconds:.3} | {:.2} | {} | {} | {} | {} | {} | {} |",
            row.name,
            gib / seconds,
            text(row.median(|sample| sample.cpu), 2),
            limit.map_or("", |(limit, _)| limit.name.as_str()),
            text(ratio, 2),
            text(limit.map(|(_, bar)| bar), 2),
            text(read, 3),
            text(extra.map(|bytes| bytes / f64::from(1 << 20)), 0),
        );
        let mut check = |what: &str, found: Option<f64>, bar: Option<f64>| {
            if let (Some(found), Some(bar)) = (found, bar)
                && found > bar
            {
                missed.push(format!("{}: {what} {found:.2}, the bar is {bar:.2}", row.name));
            }
        };
        check("time", ratio, limit.map(|(_, bar)| bar));
        check("bytes read", read, Some(READ_BAR));
        check("extra MiB", extra.map(|bytes| bytes / f64::from(1 << 20)), Some((EXTRA_BAR >> 20) as f64));
    }
    missed
}
