//! Checkpoints in several places, as a script sees them: each place harmed or full, all ranks killed at once, and runs that resume
//! from what several places have together.

use super::common::names;
use super::heal::{LAUNCH, TRAIN, assert_same, prepare, run, undisturbed};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The tiny run with two more places, `near` and `far`.
fn with_tiers(here: &Path) {
    prepare(here);
    undisturbed(here);
    let config = fs::read_to_string(here.join("tiny.toml")).unwrap();
    let tier = |kind: &str, every: u64| {
        let path = here.join(kind);
        format!(
            "[[checkpoint.tiers]]\nkind = \"{kind}\"\npath = \"{}\"\nevery = {every}\nkeep = 2\n",
            path.display()
        )
    };
    fs::write(here.join("tiny.toml"), format!("{config}\n{}{}", tier("local", 1), tier("remote", 2)))
        .unwrap();
}

/// The newest committed checkpoint below a folder.
fn newest(place: &Path) -> PathBuf {
    let marks = names(&place.join("ckpt")).into_iter().filter(|name| name.ends_with("/COMMIT"));
    place.join("ckpt").join(marks.max().unwrap().trim_end_matches("/COMMIT"))
}

fn flip(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 16;
    fs::write(file, bytes).unwrap();
}

#[test]
fn a_run_resumes_from_what_several_places_have_together_on_another_mesh() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    with_tiers(here);
    let launch = ["launch", "-n", "3", "--engine", "processes"];
    let args = [&launch[..], &TRAIN, &["--set", "checkpoint.behind=wait"]].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "kill rank=1 step=10")]);
    assert_eq!(code, 1, "{err}");
    // Step 8 is everywhere; what is newer, and another file of step 8 in each place, is harmed.
    let places = [here.join("runs/tiny"), here.join("local"), here.join("remote")];
    let step = "step-00000008";
    for (place, harmed) in places.iter().zip(["model", "optimizer", "manifest"]) {
        while newest(place).file_name().unwrap() != step {
            fs::remove_dir_all(newest(place)).unwrap();
        }
        let all = names(&newest(place));
        // Indices of tensors are there for others and not read.
        let is_it = |name: &&String| name.starts_with(harmed) && !name.contains(".index.");
        let file = all.iter().find(is_it).unwrap_or_else(|| panic!("{all:?}"));
        flip(&newest(place).join(file));
    }
    // Nobody starts it again, and all the same no step is lost: every file is sound somewhere.
    let (code, err) = run(here, &["train", "tiny.toml", "--set", "mesh=dp=2"], &[]);
    assert_eq!(code, 0, "{err}");
    let told =
        err.lines().find(|line| line.starts_with("resuming from ckpt/step-00000008 (")).unwrap_or_default();
    assert!(told.contains(" of folder and 1 of local files)"), "{err}");
    assert_same(here);
}

#[test]
fn a_flipped_bit_in_any_file_of_the_newest_step_loses_no_step() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    with_tiers(here);
    let launch = ["launch", "-n", "3", "--engine", "processes"];
    let args = [&launch[..], &TRAIN, &["--set", "checkpoint.behind=wait"]].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "kill rank=1 step=10")]);
    assert_eq!(code, 1, "{err}");
    let places = ["runs/tiny", "local", "remote"].map(|place| here.join(place));
    let kept = |place: &Path| place.with_extension("kept");
    for place in &places {
        while newest(place).file_name().unwrap() != "step-00000008" {
            fs::remove_dir_all(newest(place)).unwrap();
        }
        fs::rename(place, kept(place)).unwrap();
    }
    let own = places[0].join("ckpt/step-00000008");
    for file in names(&newest(&kept(&places[0]))) {
        for place in &places {
            assert!(!place.exists() || fs::remove_dir_all(place).is_ok());
            assert!(Command::new("cp").arg("-r").arg(kept(place)).arg(place).status().unwrap().success());
        }
        flip(&own.join(&file));
        let (code, err) = run(here, &["train", "tiny.toml", "--set", "mesh=dp=2"], &[]);
        assert_eq!(code, 0, "{file}: {err}");
        assert!(err.contains("resuming from ckpt/step-00000008"), "{file}: {err}");
        assert_same(here);
    }
}

#[test]
fn a_full_place_and_a_death_in_each_place_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    with_tiers(here);
    for fault in [
        "full tier=0 after=4 for=9",
        "full tier=1 after=6 for=20",
        "full tier=2 after=5 for=9",
        "kill rank=0 tier=0 after=11",
        "kill rank=0 tier=1 after=30",
        "kill rank=1 tier=1 after=3",
        "kill rank=0 tier=2 after=14",
    ] {
        // Every snapshot is written, so that there are as many operations each time.
        let wait = ["--set", "checkpoint.behind=wait"];
        let args = [&LAUNCH[..], &["--min-ranks", "1"], &TRAIN, &wait].concat();
        let (code, err) = run(here, &args, &[("PLANARIA_STORE_FAULT", fault)]);
        assert_eq!(code, 0, "{fault}: {err}");
        let seen = if fault.starts_with("full") { "failed: " } else { "killed by signal 9" };
        assert!(err.contains(seen), "{fault}: {err}");
        assert_same(here);
        for place in ["runs/tiny", "local", "remote"].map(|place| here.join(place)) {
            // One that was full may never have been made.
            assert!(!place.exists() || fs::remove_dir_all(place).is_ok());
        }
    }
}

#[test]
fn any_ranks_of_a_pipeline_may_die_together() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let launch = ["launch", "-n", "4", "--engine", "processes", "--max-restarts", "6", "--min-ranks", "1"];
    let args = [&launch[..], &TRAIN, &["--set", "mesh=dp=2 pp=2"]].concat();
    for subset in 1u32..16 {
        // Each at a step of its own, as far apart as the number of the subset says.
        let kill = |rank: u32| format!("kill rank={rank} step={}", 2 + (subset * 5 + rank * subset) % 10);
        let faults: Vec<String> = (0..4).filter(|rank| subset >> rank & 1 == 1).map(kill).collect();
        let faults = faults.join(";");
        let (code, err) = run(here, &args, &[("PLANARIA_FAULT", &faults)]);
        assert_eq!(code, 0, "{faults}: {err}");
        assert!(err.contains("killed by signal 9"), "{faults}: {err}");
        assert_same(here);
        fs::remove_dir_all(here.join("runs/tiny")).unwrap();
    }
}

#[test]
fn ranks_whose_launcher_is_killed_save_and_stop_and_the_run_continues() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let mut command = Command::new(env!("CARGO_BIN_EXE_planaria"));
    // Saves take long, so that it is killed in the middle of the run.
    command.current_dir(here).args([&LAUNCH[..], &TRAIN, &["--set", "checkpoint.behind=wait"]].concat());
    command.env("PLANARIA_STORE_FAULT", "slow after=0 for=60").stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(fs::File::create(here.join("launcher")).unwrap());
    let mut launcher = command.spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let begun =
        || fs::read_to_string(here.join("runs/tiny/metrics.jsonl")).is_ok_and(|text| text.contains("loss"));
    while !begun() {
        assert!(Instant::now() < until, "{}", fs::read_to_string(here.join("launcher")).unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    // The folder is free again once the ranks have saved and stopped.
    let args = [&LAUNCH[..], &TRAIN].concat();
    let err = loop {
        let (code, err) = run(here, &args, &[]);
        if code == 0 {
            break err;
        }
        assert!(Instant::now() < until, "{err}");
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(err.contains("resuming from ckpt/step-"), "{err}");
    assert_same(here);
}

/// An agent in a process of its own, and where it listens.
fn agent() -> (Child, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planaria"));
    command.args(["agent", "--memory", "64MiB"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let at =
        line.split_whitespace().find(|word| word.starts_with("peer://")).unwrap_or_else(|| panic!("{line}"));
    (child, at.to_string())
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn a_peer_brings_a_run_back_and_may_be_late_or_gone() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let (mut child, at) = agent();
    let config = fs::read_to_string(here.join("tiny.toml")).unwrap().replace("every = 2", "every = 0");
    let tier = format!("[[checkpoint.tiers]]\nkind = \"peer\"\npath = \"{at}/run\"\nevery = 1\nkeep = 2\n");
    fs::write(here.join("tiny.toml"), format!("{config}\n{tier}")).unwrap();
    let args = [&LAUNCH[..], &["--min-ranks", "1"], &TRAIN].concat();
    // It stands still at first, for longer than a save takes.
    signal(&child, "-STOP");
    let (code, err) = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(3));
            signal(&child, "-CONT");
        });
        run(here, &args, &[("PLANARIA_FAULT", "kill rank=1 step=9")])
    });
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("resuming from ckpt/step-0000000") && err.contains(" (peer)"), "{err}");
    assert_same(here);
    let tiny = fs::read_to_string(here.join("tiny.toml")).unwrap();
    fs::write(here.join("large.toml"), tiny.replace("keep = 2", "keep = 100000")).unwrap();
    let (code, err) = run(here, &["train", "large.toml", "--dry-run"], &[]);
    assert!(code == 2 && err.contains("its agent may hold 67108864"), "{code} {err}");

    // Without it the run says so, goes on, and loses nothing that it saves elsewhere.
    child.kill().unwrap();
    child.wait().unwrap();
    fs::remove_dir_all(here.join("runs/tiny")).unwrap();
    let (code, err) = run(here, &args, &[]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("the save of step 1 failed"), "{err}");
    assert_same(here);
    let (code, err) = run(here, &["train", "tiny.toml", "--dry-run"], &[]);
    assert!(code == 2 && err.contains("a place that can be reached"), "{code} {err}");
}
