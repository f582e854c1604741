//! How fast checkpoints go to a bucket and come back, beside a plain parallel copy of as many bytes by the same client.
//!
//! `AWS_ENDPOINT_URL=... cargo run --release -p planaria-ckpt --features s3 --example bucket_speed -- s3://bucket/speed 2 5`
//! saves and loads 2 GiB, 5 times each, in turn with the copy: one object in parts of 8 MiB from and to memory, without
//! checksums of its own. What it writes stays there: take a bucket of its own, removed afterwards. Whatever number of requests under way is fastest for the copy is what we are compared with.

use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use planaria_array::{Array, DType};
use planaria_ckpt::{Item, LoadOptions, SaveOptions, TensorKind, TrainState, load, save};
use planaria_comm::threads;
use planaria_layout::Layout;
use planaria_store::open;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Runtime;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Bytes of a part of the copy, and of ours.
const PART: usize = 8 << 20;
/// Requests of the copy that are under way at once.
const UNDER_WAY: [usize; 3] = [4, 8, 16];
/// Elements of each tensor: 64 MiB.
const TENSOR: usize = 16 << 20;

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, gib, rounds] = &args[..] else {
        return Err("usage: bucket_speed s3://BUCKET/PREFIX GIB ROUNDS".into());
    };
    let (gib, rounds): (f64, usize) = (gib.parse()?, rounds.parse()?);
    let tensors = ((gib * 16.0).round() as usize).max(1);
    let bytes = tensors * TENSOR * 4;
    let plain = Plain::new(url, bytes)?;
    let ours = Ours::new(url, tensors)?;
    let mut seconds: Vec<(String, Vec<f64>)> = Vec::new();
    for round in 0..rounds {
        let mut put = |name: &str, took: f64| match seconds.iter_mut().find(|(known, _)| known == name) {
            Some((_, all)) => all.push(took),
            None => seconds.push((name.to_string(), vec![took])),
        };
        put("save", ours.save(round)?);
        for parts in UNDER_WAY {
            put(&format!("plain put, {parts} at once"), plain.put(parts)?);
        }
        put("load", ours.load(round)?);
        for parts in UNDER_WAY {
            put(&format!("plain get, {parts} at once"), plain.get(parts)?);
        }
    }
    println!(
        "| {:.2} GiB, {rounds} rounds | best | median | MiB/s (median) |\n|---|---|---|---|",
        bytes as f64 / f64::from(1 << 30)
    );
    let mut medians = Vec::new();
    for (name, all) in &mut seconds {
        all.sort_by(f64::total_cmp);
        let median = all[all.len() / 2];
        println!(
            "| {name} | {:.2} s | {median:.2} s | {:.0} |",
            all[0],
            bytes as f64 / median / f64::from(1 << 20)
        );
        medians.push((name.clone(), median));
    }
    for (ours, theirs) in [("save", "plain put"), ("load", "plain get")] {
        let of = |wanted: &str| -> Vec<f64> {
            medians.iter().filter(|(name, _)| name.starts_with(wanted)).map(|(_, s)| *s).collect()
        };
        let (ours_s, plain_s) =
            (*of(ours).first().ok_or("no rounds")?, of(theirs).into_iter().fold(f64::INFINITY, f64::min));
        println!("{ours}: {:.2} of the fastest {theirs}", plain_s / ours_s);
    }
    Ok(())
}

/// Checkpoints as training writes and reads them.
struct Ours {
    store: Arc<dyn planaria_store::Store>,
    layouts: Vec<Layout>,
    source: TrainState,
}

impl Ours {
    fn new(url: &str, tensors: usize) -> Result<Ours, Error> {
        let layouts = vec![format!("[{},4096] @ x:R on x=1", TENSOR / 4096).parse::<Layout>()?; tensors];
        let source = state(&layouts, |tensor, at| (tensor * TENSOR + at) as f32 * 0.37)?;
        Ok(Ours { store: open(url)?, layouts, source })
    }

    fn save(&self, round: usize) -> Result<f64, Error> {
        let begun = Instant::now();
        alone(|comm| {
            Ok(save(comm, &*self.store, &folder(round), &self.source, &SaveOptions::default()).map(|_| ())?)
        })?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn load(&self, round: usize) -> Result<f64, Error> {
        // Memory that was touched, and holds something else.
        let mut into = state(&self.layouts, |_, _| -1.0)?;
        let begun = Instant::now();
        alone(|comm| {
            let options = LoadOptions::default();
            Ok(load(comm, &*self.store, &folder(round), &mut into, &options).map(|_| ())?)
        })?;
        let took = begun.elapsed().as_secs_f64();
        for (one, other) in into.items.iter().zip(&self.source.items) {
            let (one, other) = (&one.pieces[0].array, &other.pieces[0].array);
            if *one.bytes()? != *other.bytes()? {
                return Err("what was loaded is not what was saved".into());
            }
        }
        Ok(took)
    }
}

/// Every round has its own: not every server deletes what this one would have to.
fn folder(round: usize) -> String {
    format!("ours/step-{round:08}")
}

fn alone(work: impl FnOnce(&dyn planaria_comm::Comm) -> Result<(), Error> + Send) -> Result<(), Error> {
    let work = std::sync::Mutex::new(Some(work));
    let done = threads::run(1, |comm| match work.lock().map(|mut work| work.take()) {
        Ok(Some(work)) => work(&*comm),
        _ => Ok(()),
    });
    done.into_iter().collect()
}

fn state(layouts: &[Layout], value: impl Fn(usize, usize) -> f32) -> Result<TrainState, Error> {
    let mut items = Vec::new();
    for (number, layout) in layouts.iter().enumerate() {
        let values: Vec<f32> = (0..TENSOR).map(|at| value(number, at)).collect();
        let array = Array::from_slice(&values, &[TENSOR / 4096, 4096])?;
        items.push(Item::placed(TensorKind::Parameter, format!("layer.{number}.weight"), layout, 0, &array)?);
    }
    assert_eq!(items[0].pieces[0].array.dtype(), DType::F32);
    Ok(TrainState { step: 1, ..TrainState::new(items) })
}

/// The copy.
struct Plain {
    store: Arc<AmazonS3>,
    path: Path,
    bytes: Bytes,
    runtime: Runtime,
}

impl Plain {
    fn new(url: &str, len: usize) -> Result<Plain, Error> {
        let prefix = url.splitn(4, '/').nth(3).unwrap_or_default().trim_matches('/');
        let bytes: Vec<u8> =
            (0..len as u64 / 8).flat_map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
        Ok(Plain {
            store: Arc::new(AmazonS3Builder::from_env().with_url(url).with_allow_http(true).build()?),
            path: Path::parse(format!("{prefix}/plain"))?,
            bytes: bytes.into(),
            runtime: tokio::runtime::Builder::new_multi_thread().enable_all().build()?,
        })
    }

    /// Runs `work` for the number of each part, so many at once.
    fn each<T: Send + 'static, W: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        at_once: usize,
        work: impl Fn(usize) -> W,
        mut done: impl FnMut(usize, T),
    ) -> Result<(), Error> {
        let count = self.bytes.len().div_ceil(PART);
        self.runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            let mut next = 0;
            loop {
                while next < count && tasks.len() < at_once {
                    let (number, task) = (next, work(next));
                    tasks.spawn(async move { task.await.map(|got| (number, got)) });
                    next += 1;
                }
                let Some(ended) = tasks.join_next().await else { return Ok(()) };
                let (number, got) = ended??;
                done(number, got);
            }
        })
    }

    fn put(&self, at_once: usize) -> Result<f64, Error> {
        let begun = Instant::now();
        let id = self.runtime.block_on(self.store.create_multipart(&self.path))?;
        let mut sent: Vec<Option<PartId>> = vec![None; self.bytes.len().div_ceil(PART)];
        let part = |number: usize| {
            let bytes = self.bytes.slice(number * PART..self.bytes.len().min((number + 1) * PART));
            let (store, path, id) = (self.store.clone(), self.path.clone(), id.clone());
            async move { Ok(store.put_part(&path, &id, number, bytes.into()).await?) }
        };
        self.each(at_once, part, |number, id| sent[number] = Some(id))?;
        let sent = sent.into_iter().flatten().collect();
        self.runtime.block_on(self.store.complete_multipart(&self.path, &id, sent))?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn get(&self, at_once: usize) -> Result<f64, Error> {
        let mut into = vec![1; self.bytes.len()];
        let begun = Instant::now();
        let len = self.bytes.len();
        let part = |number: usize| {
            let (store, path) = (self.store.clone(), self.path.clone());
            let range = (number * PART) as u64..len.min((number + 1) * PART) as u64;
            async move { Ok(store.get_range(&path, range).await?) }
        };
        self.each(at_once, part, |number, bytes: Bytes| {
            into[number * PART..number * PART + bytes.len()].copy_from_slice(&bytes);
        })?;
        let took = begun.elapsed().as_secs_f64();
        if into != self.bytes { Err("the copy came back changed".into()) } else { Ok(took) }
    }
}
