//! What must hold on the bed: bits that do not depend on hosts, and jobs that heal or end with the right names.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::bed::{BED, Bed, WORK};
use super::job::{Job, field, same};
use super::places;
use super::wire::Weather;

/// How often every run saves.
const EVERY: u64 = 4;

/// The last checkpoint of a run.
pub(super) const LAST: &str = "ckpt/step-00000024";

/// A run that all meshes of four ranks can share.
pub(super) const CONFIG: &str = "mesh = \"dp=4\"\n[model]\nhidden_size = 16\nintermediate_size = 32\nnum_hidden_layers = 2\n\
    num_attention_heads = 2\n[data]\nsequence = 16\n[[data.source]]\npath = \"text.txt\"\n[train]\nsteps = 24\n\
    global_batch = 8\nthreads = 1\ntimeout = 60\n[checkpoint]\nevery = 4\nkeep = 3\n";

/// How a check ended, if it did not fail.
pub(super) enum Verdict {
    Held,
    /// It could not be made here, for this reason.
    Skipped(String),
}

type Check = fn(&Bench<'_>) -> Result<Verdict>;

const CHECKS: &[(&str, Check)] = &[
    ("hosts_have_their_own_names_folders_and_loopback", own_things),
    ("meshes_over_hosts_have_the_bits_of_one_process", meshes),
    ("checkpoints_in_the_folders_of_hosts_have_the_bits_of_one_process", places::apart),
    ("a_host_that_is_killed_is_in_the_memory_of_the_others", places::memory),
    ("what_only_memory_has_is_brought_to_the_folders_of_the_hosts_that_are_left", places::settled),
    ("a_peer_on_a_host_of_the_ranks_is_refused_before_anything_runs", places::peer_here),
    ("a_host_that_is_killed_is_left_out_and_nothing_is_lost", killed),
    ("a_link_that_is_cut_for_a_moment_is_not_noticed", short_cut),
    ("a_link_that_stays_cut_ends_with_the_right_names_and_heals_when_it_is_mended", long_cut),
    ("a_slow_host_changes_no_bit", slow),
    ("a_full_disk_is_told_with_its_host_and_nothing_is_lost", full_disk),
    ("a_link_with_delay_and_loss_changes_no_bit", lossy),
    ("a_conversion_over_hosts_has_the_bytes_of_one_process", places::converted),
    ("a_merge_over_hosts_has_the_bytes_of_one_process", places::merged),
    ("bytes_between_hosts_are_those_of_the_plan", planned),
    ("checkpoints_in_an_object_store_have_the_bits_of_one_process", places::object_store),
];

/// The bed, and runs without any disturbance to compare with.
pub(super) struct Bench<'a> {
    pub(super) bed: &'a Bed,
    /// The server of an object store, where the program that is run can speak to one.
    pub(super) s3: Option<&'a Path>,
}

/// Makes the bed and goes through all checks; whether none failed.
pub(super) fn run(planaria: &Path, only: &str, s3: Option<&Path>) -> Result<bool> {
    let bed = Bed::make(planaria, 3)?;
    let bench = Bench { bed: &bed, s3 };
    let mut fine = true;
    for (name, check) in CHECKS.iter().filter(|(name, _)| name.contains(only)) {
        let began = Instant::now();
        let verdict = bed.clear().and_then(|()| bench.prepare()).and_then(|()| check(&bench));
        let took = began.elapsed().as_secs_f64();
        match verdict {
            Ok(Verdict::Held) => println!("ok {name} ({took:.1} s)"),
            Ok(Verdict::Skipped(why)) => println!("skipped {name}: {why}"),
            Err(error) => {
                fine = false;
                println!("FAILED {name} ({took:.1} s): {error:#}");
            }
        }
    }
    Ok(fine)
}

impl Bench<'_> {
    fn prepare(&self) -> Result<()> {
        let line = |i: usize| format!("{i}: every piece grows back whole, also piece {}.\n", i * i % 89);
        self.bed.give("text.txt", &(0..200).map(line).collect::<String>())?;
        self.bed.give("tiny.toml", CONFIG)
    }

    /// `planaria launch` with these words, then the run with these settings.
    pub(super) fn launch(&self, words: &[&str], settings: &[&str]) -> Command {
        let mut command = Command::new(&self.bed.planaria);
        command.current_dir(WORK).arg("launch").args(words).args(["--", "planaria", "train", "tiny.toml"]);
        for setting in settings {
            command.args(["--set", setting]);
        }
        command
    }

    /// The run in one process, on this mesh of thread ranks; its folder.
    pub(super) fn whole(&self, mesh: &str) -> Result<PathBuf> {
        let name = format!("whole-{}", mesh.replace([' ', '='], ""));
        let folder = Path::new(BED).join("whole").join("runs").join(&name);
        if !folder.exists() {
            let home = Path::new(BED).join("whole");
            fs::create_dir_all(&home)?;
            fs::copy(Path::new(WORK).join("text.txt"), home.join("text.txt"))?;
            fs::write(home.join("tiny.toml"), CONFIG)?;
            let mut train = Command::new(&self.bed.planaria);
            train.current_dir(home).args(["train", "tiny.toml", "-q", "--set", &format!("name={name}")]);
            Job::start(train.args(["--set", &format!("mesh={mesh}")]), &name)?.end()?.well(&[])?;
        }
        Ok(folder)
    }

    /// The run's folder on every host.
    pub(super) fn runs(&self) -> Vec<PathBuf> {
        self.bed.hosts.iter().map(|host| self.bed.folder(host).join("runs/tiny")).collect()
    }

    /// Waits until a run has saved a step anywhere.
    pub(super) fn saved(&self, job: &mut Job, step: u64) -> Result<()> {
        let mark = format!("ckpt/step-{step:08}/COMMIT");
        let places: Vec<PathBuf> =
            self.runs().into_iter().chain([PathBuf::from(WORK).join("runs/tiny")]).collect();
        job.until(&format!("step {step} was saved"), |_| places.iter().any(|run| run.join(&mark).exists()))
    }
}

fn own_things(bench: &Bench<'_>) -> Result<Verdict> {
    let mut seen = Vec::new();
    for host in &bench.bed.hosts {
        let look = "hostname; touch own-$(hostname); ls; ls /run/bed/hosts /dev/shm | tr -d '\\n'";
        let told = bench.bed.on(host, &["sh", "-c", look]).output()?;
        seen.push(String::from_utf8_lossy(&told.stdout).into_owned());
    }
    for (host, seen) in bench.bed.hosts.iter().zip(&seen) {
        ensure!(seen.starts_with(host.as_str()) && seen.contains(&format!("own-{host}")), "{seen}");
        let other = bench.bed.hosts.iter().any(|other| other != host && seen.contains(other.as_str()));
        ensure!(!other, "'{host}' sees what is not its own: {seen}");
    }
    Ok(Verdict::Held)
}

fn meshes(bench: &Bench<'_>) -> Result<Verdict> {
    let words = ["--hosts", "node1:2,node2:2", "--start", Bed::start(true)];
    for mesh in ["dp=4", "pp=2 dp=2", "dp=2 tp=2"] {
        let before = bench.bed.sent("node2")?;
        let job = Job::start(&mut bench.launch(&words, &[&format!("mesh={mesh}")]), "meshes")?;
        job.end()?.well(&["[0@node1] "])?;
        ensure!(bench.bed.sent("node2")? > before + 100_000, "nothing came from node2");
        // What `tp` divides is summed in another order; the same mesh in one process has the same.
        let whole = bench.whole(if mesh.contains("tp") { mesh } else { "" })?;
        let run = Path::new(WORK).join("runs/tiny");
        same(std::slice::from_ref(&run), &whole, LAST)?;
        fs::remove_dir_all(run)?;
    }
    Ok(Verdict::Held)
}

/// Words for a run on all three hosts without a shared file system.
pub(super) const APART: [&str; 4] =
    ["--hosts", "node1:1,node2:1,node3:2", "--start", "/run/bed/start {host}"];

fn killed(bench: &Bench<'_>) -> Result<Verdict> {
    let words = [&APART[..], &["--max-restarts", "4", "--min-ranks", "2"]].concat();
    // Slow enough to be caught in the middle.
    bench.bed.slow("node2", "8mbit")?;
    let mut job = Job::start(&mut bench.launch(&words, &["checkpoint.copies=2"]), "killed")?;
    bench.saved(&mut job, 2 * EVERY)?;
    bench.bed.kill("node3")?;
    bench.bed.mend("node2")?;
    let ended = job.end()?;
    ended.well(&[
        "host 'node3' is lost: the connection to its agent has ended",
        "restart 1 of 4 on 2 ranks (dp=2)",
    ])?;
    ensure!(ended.said.contains("resuming from ckpt/step-"), "it began anew: {}", ended.said);
    same(&bench.runs()[..2], &bench.whole("")?, LAST)?;
    Ok(Verdict::Held)
}

fn short_cut(bench: &Bench<'_>) -> Result<Verdict> {
    bench.bed.slow("node2", "8mbit")?;
    let words = ["--hosts", "node1:2,node2:2", "--start", Bed::start(true)];
    let mut job = Job::start(&mut bench.launch(&words, &[]), "short")?;
    bench.saved(&mut job, EVERY)?;
    bench.bed.cut("node2")?;
    sleep(Duration::from_secs(2));
    ensure!(job.is_running(), "the job ended before the link was mended: {}", job.end()?.said);
    bench.bed.mend("node2")?;
    let ended = job.end()?;
    ended.well(&[])?;
    ensure!(!ended.said.contains("failed first"), "{}", ended.said);
    same(&[Path::new(WORK).join("runs/tiny")], &bench.whole("")?, LAST)?;
    Ok(Verdict::Held)
}

fn long_cut(bench: &Bench<'_>) -> Result<Verdict> {
    bench.bed.slow("node2", "8mbit")?;
    let words = ["--hosts", "node1:2,node2:2", "--start", Bed::start(true), "--max-restarts", "3"];
    let mut job = Job::start(&mut bench.launch(&words, &["train.timeout=8"]), "long")?;
    bench.saved(&mut job, EVERY)?;
    bench.bed.cut("node2")?;
    job.until("it was started again", |said| said.contains("restart 1 of 3"))?;
    bench.bed.mend("node2")?;
    let ended = job.end()?;
    ended.well(&["failed first", "resuming from ckpt/step-"])?;
    // Either side may be the first to miss the other.
    let told = ["on host 'node2' did not arrive", "on host 'node1' did not arrive"];
    ensure!(told.iter().any(|told| ended.said.contains(told)), "no host is named: {}", ended.said);
    same(&[Path::new(WORK).join("runs/tiny")], &bench.whole("")?, LAST)?;
    Ok(Verdict::Held)
}

fn slow(bench: &Bench<'_>) -> Result<Verdict> {
    bench.bed.slow("node3", "8mbit")?;
    let job = Job::start(&mut bench.launch(&APART, &["checkpoint.copies=2"]), "slow")?;
    job.end()?.well(&[])?;
    same(&bench.runs(), &bench.whole("")?, LAST)?;
    Ok(Verdict::Held)
}

fn full_disk(bench: &Bench<'_>) -> Result<Verdict> {
    // Room for what lies there and for less than one checkpoint.
    bench.bed.shrink("node2", 64 << 10)?;
    let settings = ["checkpoint.copies=2"];
    let ended = Job::start(&mut bench.launch(&APART, &settings), "full")?.end()?;
    ended.says(&["No space left on device", "on host 'node2'"])?;
    bench.bed.grow("node2", 64 << 20)?;
    Job::start(&mut bench.launch(&APART, &settings), "full-again")?.end()?.well(&[])?;
    same(&bench.runs(), &bench.whole("")?, LAST)?;
    Ok(Verdict::Held)
}

fn lossy(bench: &Bench<'_>) -> Result<Verdict> {
    let weather = Weather { delay: Duration::from_millis(20), lost: 10_000 };
    let how = bench.bed.disturb("node2", weather)?;
    // Nobody listens there: the answer has crossed the wire once each way.
    let began = Instant::now();
    let refused = TcpStream::connect_timeout(&SocketAddr::from(([10, 77, 0, 2], 9)), Duration::from_secs(60));
    ensure!(refused.is_err() && began.elapsed() >= 2 * weather.delay, "a round took {:?}", began.elapsed());
    Job::start(&mut bench.launch(&APART, &["checkpoint.copies=2"]), "lossy")?.end()?.well(&[])?;
    let lost = bench.bed.lost("node2")?;
    println!("{how} lost {lost} frames");
    ensure!(lost > 0, "nothing was lost");
    same(&bench.runs(), &bench.whole("")?, LAST)?;
    Ok(Verdict::Held)
}

/// Settings of a model that is large enough for heads of packets not to count, without saves.
const LARGER: [&str; 5] = [
    "model.hidden_size=64",
    "model.intermediate_size=192",
    "mesh=dp=2 tp=2",
    "checkpoint.every=0",
    "checkpoint.final_save=false",
];

fn planned(bench: &Bench<'_>) -> Result<Verdict> {
    let hosts = "node1:3,node2:3";
    let mut plan = Command::new(&bench.bed.planaria);
    plan.current_dir(WORK).args(["plan", "tiny.toml", "--json", "--hosts", hosts]);
    plan.args(LARGER.iter().flat_map(|setting| ["--set", setting]));
    let told = Job::start(&mut plan, "plan")?.end()?;
    told.well(&[r#""crossing":["dp"]"#])?;
    let link = told.said.split_once("\"links\":").and_then(|(_, links)| field(links, "bytes"));
    let link: u64 = link.unwrap_or_default().parse()?;
    let words = ["--hosts", hosts, "-n", "4", "--start", Bed::start(true)];
    // What a step sends, without what a start and an end do.
    let mut sent = Vec::new();
    for steps in [2, 10] {
        let before = bench.bed.sent("node1")?;
        let steps = [format!("train.steps={steps}"), format!("name=of-{steps}")];
        let settings: Vec<&str> = LARGER.into_iter().chain(steps.iter().map(String::as_str)).collect();
        Job::start(&mut bench.launch(&words, &settings), "planned")?.end()?.well(&[])?;
        sent.push(bench.bed.sent("node1")? - before);
    }
    let step = (sent[1] - sent[0]) / 8;
    println!("a step sends {step} bytes from node1 to node2, of which {link} are planned");
    // Losses, norms and agreements are not planned; heads of packets and acknowledgements are no part of what is sent.
    ensure!((link..=link + link / 20 + 40_000).contains(&step), "{link} bytes are planned, {step} were sent");
    Ok(Verdict::Held)
}
