//! Our side: durable saves, verified loads, reshards, conversion, and what happens to a flipped bit.

use crate::busy::Beside;
use crate::meter::{Meter, Sample};
use crate::state::{Cut, Model, Values};
use anyhow::{Context, Result, bail, ensure};
use planaria_array::Array;
use planaria_bench::cache;
use planaria_ckpt::convert::{self, ConvertOptions, To};
use planaria_ckpt::formats::{self, Key, OpenOptions, Part};
use planaria_ckpt::stream::Feed;
use planaria_ckpt::{Item, LoadOptions, SaveOptions, TensorKind, TrainState, load, save};
use planaria_comm::{Comm, threads};
use planaria_layout::{DType, Region, Shape};
use planaria_store::Local;
use planaria_store::container::{Align, FileLayout, NewTensor};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Where the checkpoints are, and what is in them.
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    pub(crate) model: Model,
    /// The whole state, held once: saves of several ranks see parts of it.
    source: TrainState,
    verified: Mutex<Vec<String>>,
}

/// What the page cache holds when a load begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    Cold,
    Warm,
}

impl Place {
    pub(crate) fn new(folder: PathBuf, model: Model) -> Result<Place> {
        let source = model.state(Cut::Rows(1), 0, Values::Model)?;
        Ok(Place { folder, model, source, verified: Mutex::default() })
    }

    fn store(&self) -> Local {
        Local::new(&self.folder)
    }

    /// The part of the source that a rank holds when rows are divided.
    fn part(&self, ranks: usize, rank: usize) -> Result<TrainState> {
        let mut items = Vec::new();
        for item in &self.source.items {
            let (shape, whole) = (&item.shape, &item.pieces[0].array);
            let mesh = format!("x={ranks}").parse()?;
            let spec: planaria_layout::TensorSpec = format!("f32{shape} @ x:S0").parse()?;
            let layout = spec.on(&mesh)?;
            let mut held = layout.piece(rank)?.boxes().into_iter();
            let region = held.next().context("a rank holds something of every tensor")?;
            let array: Array = whole.region(&region)?;
            items.push(Item::placed(TensorKind::Parameter, &item.name, &layout, rank, &array)?);
        }
        Ok(TrainState { step: 1, ..TrainState::new(items) })
    }

    /// Saves from this many ranks as the checkpoint `name`.
    pub(crate) fn save(&self, name: &str, ranks: usize, beside: Beside) -> Result<Sample> {
        self.remove(name)?;
        let store = self.store();
        let work = |comm: &Arc<dyn Comm>, state: TrainState| {
            save(&**comm, &store, name, &state, &SaveOptions::default())?;
            Ok(None)
        };
        together((ranks, beside), |rank| self.part(ranks, rank), work)
    }

    /// Loads the checkpoint `name` into tensors whose memory exists.
    pub(crate) fn load(&self, name: &str, cut: Cut, cache: Cache, beside: Beside) -> Result<Sample> {
        match cache {
            Cache::Cold => cache::forget(&self.folder.join(name))?,
            Cache::Warm => cache::remember(&self.folder.join(name))?,
        }
        let case = format!("{name} {cut:?}");
        let first = {
            let mut verified = self.verified.lock().map_err(|_| anyhow::anyhow!("a check panicked"))?;
            let first = !verified.contains(&case);
            verified.push(case);
            first
        };
        let states: Mutex<Vec<TrainState>> = Mutex::default();
        let store = self.store();
        let work = |comm: &Arc<dyn Comm>, mut state: TrainState| {
            let report = load(&**comm, &store, name, &mut state, &LoadOptions::default())?;
            states.lock().map_err(|_| anyhow::anyhow!("a rank panicked"))?.push(state);
            Ok(Some(report.bytes_read))
        };
        let prepare = |rank| self.model.state(cut, rank, Values::Other);
        let sample = together((cut.ranks(), beside), prepare, work)?;
        if first {
            let states = states.into_inner().map_err(|_| anyhow::anyhow!("a rank panicked"))?;
            states.iter().try_for_each(|state| self.model.check(state))?;
        }
        Ok(sample)
    }

    /// Converts the folder `from` to another one.
    pub(crate) fn convert(&self, from: &str, name: &str, to: To) -> Result<Sample> {
        self.remove(name)?;
        cache::forget(&self.folder.join(from))?;
        let store = self.store();
        let meter = Meter::begin();
        let source =
            formats::open_url(&self.folder.join(from).display().to_string(), &OpenOptions::default())?;
        let options = ConvertOptions { max_shard_size: 512 << 20, ..ConvertOptions::default() };
        convert::plan(&source, to, &options)?.run(&store, name, &())?;
        Ok(meter.end())
    }

    /// Removes a checkpoint, and waits until that is done.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let path = self.folder.join(name);
        if path.exists() {
            std::fs::remove_dir_all(&path)?;
            std::fs::File::open(&self.folder)?.sync_all()?;
        }
        Ok(())
    }

    /// Flips single bits of the checkpoint's data, one at a time; what the first load said, when all were found.
    pub(crate) fn flip(&self, name: &str, times: u64) -> Result<String> {
        let file = self.folder.join(name).join("model-00001-of-00001.safetensors");
        let size = std::fs::metadata(&file)?.len();
        let mut first = None;
        for number in 0..times {
            // Behind the header, which is checked too but has no tensor's name.
            let at = (1 << 16) + crate::state::mix(number + 1) % (size - (1 << 16));
            flip_bit(&file, at, number % 8)?;
            let loaded = self.load(name, Cut::Rows(1), Cache::Cold, Beside::Nothing);
            flip_bit(&file, at, number % 8)?;
            let Err(error) = loaded else { bail!("the bit at {at} of {} was not found", file.display()) };
            let text = error.to_string();
            ensure!(text.contains("model.") && text.contains("bytes"), "no tensor and range in: {text}");
            first.get_or_insert(text);
        }
        first.context("no bit was flipped")
    }
}

fn flip_bit(file: &Path, at: u64, bit: u64) -> Result<()> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(file)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    byte[0] ^= 1 << bit;
    file.write_all_at(&byte, at)?;
    Ok(file.sync_all()?)
}

/// Prepares on every rank, then measures from everyone's start to everyone's end, beside what is wanted.
fn together(
    (ranks, beside): (usize, Beside),
    prepare: impl Fn(usize) -> Result<TrainState> + Sync,
    work: impl Fn(&Arc<dyn Comm>, TrainState) -> Result<Option<u64>> + Sync,
) -> Result<Sample> {
    let results = threads::run(ranks, |comm| -> Result<Sample> {
        let state = prepare(comm.rank())?;
        comm.barrier()?;
        let _busy = if comm.rank() == 0 { Some(beside.start()?) } else { None };
        let meter = (comm.rank() == 0).then(Meter::begin);
        comm.barrier()?;
        let read = work(&comm, state)?;
        comm.barrier()?;
        let sample = meter.map(Meter::end).unwrap_or_default();
        Ok(Sample { read, ..sample })
    });
    results.into_iter().next().context("no ranks")?
}

/// Milliseconds to open a sparse Hugging Face folder of 100 GiB in 20 files and to read one tensor of 16 MiB.
pub(crate) fn open_sparse(folder: &Path) -> Result<f64> {
    let place = folder.join("sparse");
    std::fs::create_dir_all(&place)?;
    let shape = Shape::new(&[4096, 1024])?;
    let name = |file: usize, tensor: usize| format!("model.layers.{file}.experts.{tensor}.weight");
    for file in 0..20 {
        let tensors = (0..320).map(|t| NewTensor {
            name: name(file, t),
            dtype: DType::F32,
            shape: shape.clone(),
            foreign: None,
        });
        let file_name = format!("model-{:05}-of-00020.safetensors", file + 1);
        let layout = FileLayout::new(&file_name, tensors, &BTreeMap::new(), Align::Word)?;
        let file = std::fs::File::create(place.join(&file_name))?;
        file.set_len(layout.file_len())?;
        file.write_all_at(layout.header(), 0)?;
    }
    let mut times = Vec::new();
    let mut out = vec![1u8; 16 << 20];
    for _ in 0..5 {
        let begun = Instant::now();
        let source = formats::open_url(&place.display().to_string(), &OpenOptions::default())?;
        let key = Key { part: Part::Model, name: name(13, 200) };
        Feed::new(&source).region(&key, &Region::whole(&shape), &mut out, &mut Vec::new())?;
        times.push(1e3 * begun.elapsed().as_secs_f64());
        ensure!(out.iter().all(|byte| *byte == 0), "a sparse file holds zeros");
    }
    std::fs::remove_dir_all(&place)?;
    planaria_bench::stats::median(times).context("no times")
}
