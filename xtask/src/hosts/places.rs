//! Checks of where checkpoints lie and come from: folders and memory of hosts, an object store, conversions and merges of them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::bed::{BED, BRIDGE, Bed, WORK};
use super::checks::{APART, Bench, CONFIG, LAST, Verdict};
use super::job::{Ended, Job, same, tensors};

pub(super) fn apart(bench: &Bench<'_>) -> Result<Verdict> {
    let job = Job::start(&mut bench.launch(&APART, &["checkpoint.copies=2"]), "apart")?;
    job.end()?.well(&[])?;
    let (runs, whole) = (bench.runs(), bench.whole("")?);
    same(&runs, &whole, LAST)?;
    let all = tensors(&[whole.join(LAST)])?;
    let own = |run: &PathBuf| tensors(&[run.join(LAST)]).map_or(0, |own| own.len());
    let counts: Vec<usize> = runs.iter().map(own).collect();
    ensure!(counts.iter().sum::<usize>() == 2 * all.len(), "{counts:?} of {} files", all.len());
    // What lies on any two hosts is a checkpoint, once it is in one folder.
    for left in [[0, 1], [0, 2], [1, 2]] {
        let folder = Path::new(WORK).join("together");
        fs::create_dir(&folder)?;
        for host in left {
            for file in fs::read_dir(runs[host].join(LAST))?.flatten() {
                fs::copy(file.path(), folder.join(file.file_name()))?;
            }
        }
        let mut verify = Command::new(&bench.bed.planaria);
        Job::start(verify.arg("verify").arg(&folder), "verify")?.end()?.well(&[])?;
        fs::remove_dir_all(folder)?;
    }
    Ok(Verdict::Held)
}

/// A tier in memory after every step, and a run that saves to its folder at its end alone.
const MEMORY: &str = "[[checkpoint.tiers]]\nkind = \"memory\"\nevery = 1\n";

/// Starts a run whose newest steps are in memory alone, kills a host, and waits for the end; the step that was in memory before.
fn without_a_host(bench: &Bench<'_>, words: &[&str], name: &str) -> Result<(u64, Ended)> {
    bench.bed.give("tiny.toml", &format!("{CONFIG}{MEMORY}"))?;
    let words = [&APART[..], words].concat();
    // Slow enough to be caught in the middle.
    bench.bed.slow("node2", "8mbit")?;
    let settings = ["checkpoint.copies=2", "checkpoint.every=24"];
    let mut job = Job::start(&mut bench.launch(&words, &settings), name)?;
    let seen = || remembered("node1").into_iter().max().unwrap_or(0);
    job.until("a step was in memory", |_| seen() >= 3)?;
    let step = seen();
    bench.bed.kill("node3")?;
    bench.bed.mend("node2")?;
    Ok((step, job.end()?))
}

/// Steps that are committed in the memory of a host.
fn remembered(host: &str) -> Vec<u64> {
    let below =
        |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let users = below(Path::new(BED).join("shm").join(host));
    let steps = users.flat_map(below).flat_map(|run| below(run.join("ckpt")));
    let committed = steps.filter(|step| step.join("COMMIT").exists());
    let number = |step: PathBuf| step.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok();
    committed.filter_map(number).collect()
}

/// The step that a run says it resumes from.
fn resumed(ended: &Ended) -> Option<u64> {
    let (_, rest) = ended.said.split_once("resuming from ckpt/step-")?;
    rest.get(..8)?.parse().ok()
}

pub(super) fn memory(bench: &Bench<'_>) -> Result<Verdict> {
    let words = ["--max-restarts", "4", "--min-ranks", "2"];
    let (step, ended) = without_a_host(bench, &words, "memory")?;
    ended.well(&["host 'node3' is lost", "restart 1 of 4 on 2 ranks (dp=2)", " (memory)"])?;
    let from = resumed(&ended);
    ensure!(from.is_some_and(|from| from >= step), "{step} was in memory: {}", ended.said);
    same(&bench.runs()[..2], &bench.whole("")?, LAST)?;
    for host in ["node1", "node2"] {
        let left = remembered(host);
        ensure!(left.is_empty(), "'{host}' still has steps {left:?} in memory");
    }
    Ok(Verdict::Held)
}

pub(super) fn settled(bench: &Bench<'_>) -> Result<Verdict> {
    let (step, ended) = without_a_host(bench, &[], "settled")?;
    ensure!(ended.code != Some(0), "it went on without a host: {}", ended.said);
    ended.says(&["host 'node3' is lost", "was only in memory; it is in"])?;
    // The memory of all hosts is lost then, and the third host.
    for host in &bench.bed.hosts {
        let folder = Path::new(BED).join("shm").join(host);
        fs::read_dir(folder)?.flatten().try_for_each(|entry| fs::remove_dir_all(entry.path()))?;
    }
    let words = ["--hosts", "node1:1,node2:1", "--start", Bed::start(false)];
    let settings = ["checkpoint.copies=2", "checkpoint.every=24", "mesh=dp=2"];
    let again = Job::start(&mut bench.launch(&words, &settings), "settled-again")?.end()?;
    again.well(&[])?;
    let from = resumed(&again);
    ensure!(from.is_some_and(|from| from >= step), "{step} was in memory: {}", again.said);
    same(&bench.runs()[..2], &bench.whole("")?, LAST)?;
    Ok(Verdict::Held)
}

pub(super) fn peer_here(bench: &Bench<'_>) -> Result<Verdict> {
    let tier = "[[checkpoint.tiers]]\nkind = \"peer\"\npath = \"peer://node2:7070/run\"\n";
    bench.bed.give("tiny.toml", &format!("{CONFIG}{tier}"))?;
    let mut dry = Command::new(&bench.bed.planaria);
    dry.current_dir(WORK).arg("launch").args(APART).args([
        "--",
        "planaria",
        "train",
        "tiny.toml",
        "--dry-run",
    ]);
    let ended = Job::start(&mut dry, "peer")?.end()?;
    ensure!(ended.code == Some(2), "it ended with {:?}: {}", ended.code, ended.said);
    ended.says(&["peer 'peer://node2:7070/run', which is on a machine of the ranks"])?;
    Ok(Verdict::Held)
}

/// All files of a folder, by name.
fn files(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let entry =
        |entry: fs::DirEntry| Ok((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
    fs::read_dir(folder)?.flatten().map(entry).collect()
}

/// Names of files that two folders do not have alike.
fn unlike(one: &BTreeMap<String, Vec<u8>>, other: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let names = one.keys().chain(other.keys()).filter(|name| one.get(*name) != other.get(*name));
    names.cloned().collect()
}

pub(super) fn converted(bench: &Bench<'_>) -> Result<Verdict> {
    // No host has all files of the run's last checkpoint.
    Job::start(&mut bench.launch(&APART, &["checkpoint.copies=1"]), "apart-1")?.end()?.well(&[])?;
    let whole = Path::new(WORK).join("gathered");
    fs::create_dir(&whole)?;
    for run in bench.runs() {
        let files: Vec<fs::DirEntry> = fs::read_dir(run.join(LAST))?.flatten().collect();
        files.iter().try_for_each(|file| fs::copy(file.path(), whole.join(file.file_name())).map(drop))?;
    }
    let whole = whole.display().to_string();
    let here = format!("runs/tiny/{LAST}");
    let together = ["--hosts", "node1:1,node2:2", "--start", Bed::start(true)];
    for form in ["hf", "planaria", "dcp"] {
        let convert = |words: &[&str], from: &str, to: &str| {
            let mut command = Command::new(&bench.bed.planaria);
            command.current_dir(WORK).args(words);
            command.args(["convert", from, &format!("{form}-{to}"), "--to", form, "--max-shard-size", "4KB"]);
            Job::start(&mut command, &format!("convert-{form}-{to}"))?.end()?.well(&[])
        };
        let launch = |words: &[&str], from: &str, to: &str| {
            convert(&[&["launch"], words, &["--", "planaria"]].concat(), from, to)
        };
        convert(&[], &whole, "alone")?;
        launch(&together, &whole, "together")?;
        launch(&APART, &here, "apart")?;
        let alone = files(&Path::new(WORK).join(format!("{form}-alone")))?;
        ensure!(alone.len() > 4, "too few files to divide: {:?}", alone.keys());
        let shared = files(&Path::new(WORK).join(format!("{form}-together")))?;
        let differ = unlike(&alone, &shared);
        ensure!(differ.is_empty(), "{form}: ranks with one folder wrote something else: {differ:?}");
        let apart = files(&bench.bed.folder("node1").join(format!("{form}-apart")))?;
        let differ = unlike(&alone, &apart);
        ensure!(
            differ.is_empty(),
            "{form}: ranks without a folder that all have wrote something else: {differ:?}"
        );
        // The result is where the first rank is, and no half of it anywhere else.
        for host in ["node2", "node3"] {
            let left: Vec<String> = fs::read_dir(bench.bed.folder(host))?
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .filter(|name| name.contains(form))
                .collect();
            ensure!(left.is_empty(), "'{host}' has {left:?}");
        }
    }
    Ok(Verdict::Held)
}

/// A recipe of two checkpoints of a run.
const RECIPE: &str = "merge_method: linear\nmodels:\n  - model: m20\n    parameters: {weight: 0.6}\n  - model: m24\n    \
    parameters: {weight: 0.4}\n";

pub(super) fn merged(bench: &Bench<'_>) -> Result<Verdict> {
    let whole = bench.whole("")?;
    let here = |words: &[&str]| -> Result<()> {
        let mut command = Command::new(&bench.bed.planaria);
        Job::start(command.current_dir(WORK).args(words), "merge")?.end()?.well(&[])
    };
    for step in ["20", "24"] {
        let from = whole.join(format!("ckpt/step-000000{step}")).display().to_string();
        here(&["convert", &from, &format!("m{step}"), "--to", "hf"])?;
    }
    fs::write(Path::new(WORK).join("recipe.yml"), RECIPE)?;
    here(&["merge", "recipe.yml", "alone"])?;
    let launch = ["launch", "--hosts", "node1:1,node2:2", "--start", Bed::start(true)];
    here(&[&launch[..], &["--", "planaria", "merge", "recipe.yml", "spread"]].concat())?;
    let [alone, spread] = ["alone", "spread"].map(|name| tensors(&[Path::new(WORK).join(name)]));
    ensure!(alone? == spread?, "the merged models differ");
    Ok(Verdict::Held)
}

/// A server that ends with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The last checkpoint there: none is due at the last step.
const REMOTE: &str = "ckpt/step-00000016";

/// The port of the object store.
const PORT: u16 = 9000;

/// Starts the object store at the bridge and makes a bucket in it.
fn serve(program: &Path) -> Result<Server> {
    let mut command = Command::new(program);
    command.args(["-H", BRIDGE, "-p", &PORT.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Server(command.spawn()?);
    let until = Instant::now() + Duration::from_secs(60);
    let make = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect((BRIDGE, PORT))?;
        write!(
            stream,
            "PUT /bucket HTTP/1.1\r\nHost: {BRIDGE}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    while !make().is_ok_and(|answer| answer.contains(" 200 ")) {
        ensure!(matches!(server.0.try_wait(), Ok(None)), "the server of the object store has ended");
        ensure!(Instant::now() < until, "the server of the object store did not answer within a minute");
        sleep(Duration::from_millis(50));
    }
    Ok(server)
}

pub(super) fn object_store(bench: &Bench<'_>) -> Result<Verdict> {
    let Some(program) = bench.s3 else {
        return Ok(Verdict::Skipped("there is no server of an object store here".into()));
    };
    let _server = serve(program)?;
    let endpoint = format!("http://{BRIDGE}:{PORT}");
    let variables = [
        ("AWS_ENDPOINT", endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
    ];
    let tier = "[[checkpoint.tiers]]\nkind = \"remote\"\npath = \"s3://bucket/run\"\nevery = 16\n";
    bench.bed.give("tiny.toml", &format!("{CONFIG}{tier}"))?;
    let exports = variables.iter().flat_map(|(name, _)| ["--export", name]);
    let words: Vec<&str> = APART.into_iter().chain(exports).collect();
    let launch = || {
        let mut command = bench.launch(&words, &["checkpoint.copies=1"]);
        command.envs(variables);
        command
    };
    Job::start(&mut launch(), "s3")?.end()?.well(&[])?;
    let whole = bench.whole("")?;
    same(&bench.runs(), &whole, LAST)?;
    // All disks are lost.
    for run in bench.runs() {
        fs::remove_dir_all(run)?;
    }
    Job::start(&mut launch(), "s3-again")?.end()?.well(&[&format!("resuming from {REMOTE} (remote)")])?;
    let again: Vec<PathBuf> = bench.runs().iter().map(|run| run.join(LAST)).collect();
    ensure!(tensors(&again)? == tensors(&[whole.join(LAST)])?, "the resumed run differs");
    // A conversion on a host that has nothing, of what all hosts wrote.
    let planaria = bench.bed.planaria.display().to_string();
    let from = format!("s3://bucket/run/{REMOTE}");
    let mut convert = bench.bed.on("node2", &[&planaria, "convert", &from, "converted", "--to", "hf"]);
    Job::start(convert.envs(variables), "s3-convert")?.end()?.well(&[])?;
    let mut local = Command::new(&bench.bed.planaria);
    local.args([
        "convert",
        &whole.join(REMOTE).display().to_string(),
        "/run/bed/work/converted",
        "--to",
        "hf",
    ]);
    Job::start(&mut local, "convert")?.end()?.well(&[])?;
    let (there, here) = (bench.bed.folder("node2").join("converted"), Path::new(WORK).join("converted"));
    ensure!(tensors(&[there])? == tensors(&[here])?, "the converted models differ");
    Ok(Verdict::Held)
}
