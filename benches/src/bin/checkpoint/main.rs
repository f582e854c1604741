//! `checkpoint`: saves, loads, reshards and conversions of a 2 GiB state against the limit of the disk and other
//! programs. Prints a whole record in Markdown.
//!
//! Bars: a durable, checksummed save in at most 1.15 times a raw `O_DIRECT` write of the same bytes, a verified
//! load in at most 1.15 times a raw read, with another layout in at most 1.25 times and reading at most 1.05 times
//! the bytes; a save under load at most 1.3 times slower; conversion at most 1.3 times reading and writing in turn;
//! less than 256 MiB of extra memory; every flipped bit found. Peers have no bars. All contestants run in turn, round
//! by round and group by group, so that those that are compared meet the same machine; ratios are taken inside a
//! round, and the figure is the median over rounds.

mod busy;
mod meter;
mod ours;
mod peers;
mod raw;
mod rows;
mod state;
mod table;

use anyhow::{Context, Result, bail};
use busy::Beside;
use clap::Parser;
use meter::Sample;
use ours::Place;
use peers::Peer;
use planaria_bench::machine::Machine;
use planaria_bench::record;
use planaria_ckpt::convert::To;
use rows::{Group, Row, Work};
use state::Model;
use std::path::{Path, PathBuf};
use std::time::Instant;

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
    /// Busy processes of the loaded rows
    #[arg(long, default_value_t = 12)]
    busy: usize,
    /// Only rows whose name holds this, and those they are held against; may be given several times
    #[arg(long)]
    only: Vec<String>,
    /// Only keep a processor busy
    #[arg(long, hide = true)]
    spin: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.spin {
        return busy::spin();
    }
    let folder = args.folder.join(format!("checkpoint-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let folder = folder.canonicalize()?;
    let done = run(&args, &folder);
    std::fs::remove_dir_all(&folder)?;
    done
}

fn run(args: &Args, folder: &Path) -> Result<()> {
    let begun = Instant::now();
    let machine = Machine::here(None);
    let mut field = Field::new(args, folder)?;
    let cases = field.peer.iter().flat_map(|peer| &peer.cases).cloned().collect::<Vec<_>>();
    let mut rows = rows::choose(rows::all(&cases, Beside::Busy(args.busy)), &args.only);
    print!("{}", head(args, &machine, &field));
    for round in 0..args.rounds {
        for group in Group::ALL {
            field.measure(&mut rows, group, round)?;
        }
        eprintln!("round {} of {} done, {:.0} s", round + 1, args.rounds, begun.elapsed().as_secs_f64());
    }
    println!("{}## Other\n", table::tables(&rows, field.bytes));
    println!("- one tensor of a sparse 100 GiB folder opened and read: {:.1} ms", ours::open_sparse(folder)?);
    println!("- 16 flipped bits, all found; the first: {}", field.place.flip("ours-1", 16)?);
    field.peer.iter().flat_map(|peer| &peer.skipped).for_each(|why| println!("- skipped: {why}"));
    println!("- the whole run took {:.1} minutes", begun.elapsed().as_secs_f64() / 60.0);
    let missed = table::missed(&rows, field.bytes);
    if missed.is_empty() {
        return Ok(());
    }
    println!("\n## Over their bars\n");
    missed.iter().for_each(|what| println!("- {what}"));
    bail!("{} bars are missed", missed.len());
}

fn head(args: &Args, machine: &Machine, field: &Field) -> String {
    let words = [("--folder", "DISK"), ("--python", "PYTHON")];
    let peers = match &field.peer {
        Some(peer) => peer.versions.join(", "),
        None => "skipped: no --python given".into(),
    };
    let more = [("disk", record::disk(&field.place.folder)), ("peers", peers)];
    let title = "Checkpoints against raw direct I/O and other programs";
    let head = record::head(title, &record::command("checkpoint", &words), machine, &more);
    let (tensors, gib) = (field.place.model.tensors.len(), field.bytes as f64 / f64::from(1 << 30));
    format!(
        "{head}
{tensors} f32 tensors, {gib:.3} GiB; medians of {} rounds (of every second one where peers convert or are loaded). A ratio is that of two samples of the same round, with the least and the most \
of all rounds beside it; loaded is beside {} busy processes; `read` is bytes read from storage for each byte of the model; extra memory is that \
beyond the state itself, files that a peer maps included. Only our rows have bars.

",
        args.rounds, args.busy
    )
}

/// Everything that samples are taken with.
struct Field {
    place: Place,
    bytes: u64,
    probe: raw::Probe,
    file: PathBuf,
    peer: Option<Peer>,
}

impl Field {
    /// Writes what loads and conversions read, and starts the peers.
    fn new(args: &Args, folder: &Path) -> Result<Field> {
        let place = Place::new(folder.to_path_buf(), Model::new(args.gib))?;
        let (bytes, file, mut probe) = (place.model.bytes(), folder.join("raw"), raw::Probe::new());
        probe.write(&file, bytes)?;
        for ranks in [1, 2, 4] {
            place.save(&format!("ours-{ranks}"), ranks, Beside::Nothing)?;
        }
        place.convert("ours-1", "dcp", To::TorchDcp)?;
        let peer = args.python.as_ref().map(|python| Peer::start(python, folder, args.gib)).transpose()?;
        Ok(Field { place, bytes, probe, file, peer })
    }

    /// One sample for each row of a group: the disk first, the others from another one on in every round.
    fn measure(&mut self, rows: &mut [Row], group: Group, round: usize) -> Result<()> {
        let mut turn: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].group == group).collect();
        let raw = turn.iter().filter(|i| rows[**i].is_raw()).count();
        let others = &mut turn[raw..];
        if !others.is_empty() {
            others.rotate_left(round % others.len());
        }
        for i in turn {
            let (row, begun) = (&mut rows[i], Instant::now());
            if !row.takes_part(round) {
                continue;
            }
            let sample = self.sample(&row.work).with_context(|| row.name.clone())?;
            row.failed = sample.is_none();
            if let Some(sample) = sample {
                row.samples.push((round, sample));
                let whole = begun.elapsed().as_secs_f64();
                eprintln!("{:.2} s, {whole:.1} s with preparation: {}", sample.seconds, row.name);
            }
        }
        Ok(())
    }

    fn sample(&mut self, work: &Work) -> Result<Option<Sample>> {
        let Field { place, bytes, probe, file, peer } = self;
        let plain = |seconds| Sample { seconds, ..Sample::default() };
        let sample = match work {
            Work::RawWrite(beside) => plain(probe.write_beside(file, *bytes, *beside)?),
            Work::RawRead(beside) => plain(probe.read_beside(file, *bytes, *beside)?),
            Work::RawWarm => plain(probe.read_warm(file, *bytes)?),
            Work::RawBoth => plain(probe.read(file, *bytes)? + probe.write(file, *bytes)?),
            Work::Save(ranks, beside) => place.save(&format!("ours-{ranks}"), *ranks, *beside)?,
            Work::Load(name, cut, cache, beside) => place.load(name, *cut, *cache, *beside)?,
            Work::Convert(from, name, to) => place.convert(from, name, *to)?,
            Work::Peer(case, beside) => {
                return peer.as_mut().context("a row of peers that did not start")?.sample(case, *beside);
            }
        };
        Ok(Some(sample))
    }
}
