//! Runs that heal, as a script sees them: ranks that die, hang or come back, checkpoints that are damaged, jobs that only ever crash.
//! Every job has a deadline after which it is killed, so that none can outlive its test.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// After this a job is killed and its test fails.
const DEADLINE: Duration = Duration::from_secs(180);

/// A tiny run that two and three replicas can share.
pub(crate) fn prepare(folder: &Path) {
    let line = |i: usize| format!("{i}: every piece grows back whole, also piece {}.\n", i * i % 89);
    fs::write(folder.join("text.txt"), (0..200).map(line).collect::<String>()).unwrap();
    let config = r#"
        mesh = "dp=3"
        [model]
        hidden_size = 16
        intermediate_size = 24
        num_hidden_layers = 2
        num_attention_heads = 2
        [data]
        sequence = 16
        [[data.source]]
        path = "text.txt"
        [train]
        steps = 12
        global_batch = 6
        threads = 1
        timeout = 60
        [checkpoint]
        every = 2
        keep = 3
        "#;
    fs::write(folder.join("tiny.toml"), config).unwrap();
}

/// Runs the command to its end or its deadline: exit code and standard error.
pub(crate) fn run(folder: &Path, args: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planaria"));
    command.current_dir(folder).args(args).envs(variables.iter().copied());
    let (out, err) = (folder.join("out"), folder.join("err"));
    command
        .stdin(Stdio::null())
        .stdout(fs::File::create(out).unwrap())
        .stderr(fs::File::create(&err).unwrap());
    let mut child = command.spawn().unwrap();
    let limit = Instant::now() + DEADLINE;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > limit => {
                child.kill().unwrap();
                panic!("{args:?} did not end: {}", fs::read_to_string(&err).unwrap());
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    (status.code().unwrap_or(-1), fs::read_to_string(&err).unwrap())
}

/// Losses by step; of a step that was done twice, the last.
fn losses(run: &Path) -> BTreeMap<u64, String> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| Some((line["step"].as_u64()?, line.get("loss")?.to_string()))).collect()
}

/// Everything that a checkpoint holds of tensors, byte for byte.
fn tensors(checkpoint: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = super::common::names(checkpoint).into_iter().filter(|name| name.ends_with(".safetensors"));
    files.map(|name| (name.clone(), fs::read(checkpoint.join(name)).unwrap())).collect()
}

/// The ranks of every start.
fn starts(run: &Path) -> Vec<u64> {
    let text = fs::read_to_string(run.join("log/rank-00000.jsonl")).unwrap();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == "started").filter_map(|line| line["ranks"].as_u64()).collect()
}

/// The run without any fault, in the folder `whole`.
pub(crate) fn undisturbed(folder: &Path) {
    undisturbed_with(folder, &[]);
}

fn undisturbed_with(folder: &Path, more: &[&str]) {
    let args = ["train", "tiny.toml", "-q", "--set", "name=whole", "--set", "mesh="];
    let (code, err) = run(folder, &[&args, more].concat(), &[]);
    assert_eq!(code, 0, "{err}");
}

/// The healed run has the curve and the last checkpoint of the undisturbed one.
pub(crate) fn assert_same(folder: &Path) {
    assert_same_at(folder, "ckpt/step-00000012");
}

fn assert_same_at(folder: &Path, last: &str) {
    let (whole, healed) = (folder.join("runs/whole"), folder.join("runs/tiny"));
    assert_eq!(losses(&healed), losses(&whole));
    let (a, b) = (tensors(&healed.join(last)), tensors(&whole.join(last)));
    assert!(!a.is_empty() && a == b, "the tensors differ");
}

pub(crate) const LAUNCH: [&str; 7] = ["launch", "-n", "3", "--engine", "processes", "--max-restarts", "6"];
pub(crate) const TRAIN: [&str; 4] = ["--", "planaria", "train", "tiny.toml"];

#[test]
fn a_run_goes_on_without_a_rank_that_died_and_takes_it_in_again() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let args = [&LAUNCH[..], &["--min-ranks", "1"], &TRAIN].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "kill rank=1 step=6")]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("rank 1 failed first: killed by signal 9"), "{err}");
    assert!(err.contains("restart 1 of 6 on 2 ranks (dp=2)"), "{err}");
    // The save of step 4 may not have been committed yet.
    assert!(err.contains("resuming from ckpt/step-0000000"), "{err}");
    assert_eq!(starts(&here.join("runs/tiny")), [3, 2]);
    assert_same(here);

    fs::remove_dir_all(here.join("runs")).unwrap();
    // Long enough that the launcher looks while it runs, however quick a step is.
    let long = ["--set", "train.steps=800", "--set", "checkpoint.every=50"];
    undisturbed_with(here, &long);
    let args = [&LAUNCH[..], &["--min-ranks", "1", "--grow-after", "0"], &TRAIN, &long].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "kill rank=2 step=4")]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("lost ranks are back; continuing with 3 ranks (dp=3)"), "{err}");
    assert_eq!(starts(&here.join("runs/tiny")), [3, 2, 3]);
    assert_same_at(here, "ckpt/step-00000800");
}

#[test]
fn a_rollout_goes_on_without_a_rank_that_died_inside_it() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    let rows = (0..24).map(|i| format!("{{\"prompt\": \"{i}+{}=\"}}\n", i % 7));
    fs::write(here.join("text.jsonl"), rows.collect::<String>()).unwrap();
    // Four steps learn from each rollout, and checkpoints are inside of them too.
    let config = fs::read_to_string(here.join("tiny.toml")).unwrap().replace("text.txt", "text.jsonl");
    let config = config.replace("steps = 12", "steps = 12\nobjective = \"grpo\"");
    let rewards = r#"
        [rl]
        samples_per_prompt = 3
        max_new_tokens = 4
        prompts_per_rollout = 12
        epochs = 2
        reward = [{ kind = "regex", pattern = "[a-z]" }, { kind = "short" }]
        "#;
    fs::write(here.join("tiny.toml"), format!("{config}{rewards}")).unwrap();
    undisturbed(here);
    let args = [&LAUNCH[..], &["--min-ranks", "1"], &TRAIN].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "kill rank=1 step=7")]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("restart 1 of 6 on 2 ranks (dp=2)"), "{err}");
    assert_same(here);
}

#[test]
fn a_hang_is_reported_by_name_and_healed() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let args = [&LAUNCH[..], &["--hang-after", "6"], &TRAIN].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "hang rank=2 step=5")]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("hang: no rank has made progress for 6."), "{err}");
    assert!(err.contains("ranks 0, 1 came, rank 2 did not"), "{err}");
    assert!(err.contains("rank 2 (process") && err.contains("is in step 4, in no call"), "{err}");
    assert!(err.contains("    thread "), "{err}");
    assert_same(here);
}

#[test]
fn ranks_that_were_ended_because_another_failed_are_neither_lost_nor_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    // Only the first time has the other rank to be ended, which takes its while.
    let script = "test $RANK = 1 && exit 3; test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; exec sleep 100";
    let command = ["--", "sh", "-c", script];
    let launch = ["launch", "-n", "2", "--engine", "processes", "--max-restarts", "1", "--min-ranks", "1"];
    let (code, err) = run(folder.path(), &[&launch[..], &command].concat(), &[]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("rank 1 failed first: exit code 3"), "{err}");
    assert!(err.contains("restart 1 of 1 on 2 ranks") && !err.contains("signal 9"), "{err}");
}

#[test]
fn a_wrong_configuration_is_reported_once_and_never_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    let engines: &[&str] = if cfg!(feature = "mpi") { &["processes", "mpi"] } else { &["processes"] };
    for engine in engines {
        // Found while data is opened, by one rank; in the file, before any rank starts; and by all ranks at once.
        for (set, words) in [
            ("data.source.path=none.txt", "no file matches"),
            ("optim.rate=1", "unknown key `optim.rate`"),
            ("model.vocab_size=10", "`model.vocab_size` is 10"),
        ] {
            let launch = ["launch", "-n", "3", "--engine", engine, "--max-restarts", "6"];
            let (code, err) = run(here, &[&launch[..], &TRAIN, &["--set", set]].concat(), &[]);
            assert_eq!(code, 2, "{engine} {set}: {err}");
            assert_eq!(err.matches(words).count(), 1, "{engine} {set}: {err}");
            assert!(!["restart", "rank 0", "stopped:"].iter().any(|word| err.contains(word)), "{err}");
        }
    }
}

#[test]
fn a_crash_loop_ends_with_its_first_cause() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    // Every start is told to be the first, so that the fault happens each time.
    let script = "TORCHELASTIC_RESTART_COUNT=0 exec \"$0\" train tiny.toml -q";
    let planaria = env!("CARGO_BIN_EXE_planaria");
    let args = ["launch", "-n", "3", "--engine", "processes", "--max-restarts", "50", "--back-off", "0.01"];
    let args = [&args[..], &["--", "sh", "-c", script, planaria]].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "kill rank=0 step=2")]);
    assert_eq!(code, 1, "{err}");
    assert!(
        err.contains("giving up after 2 restarts: 3 failures in a row without a new checkpoint"),
        "{err}"
    );
    assert!(err.contains("the first: rank 0 failed first: killed by signal 9"), "{err}");
}

#[test]
fn a_damaged_checkpoint_is_left_behind_and_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let part = ["train", "tiny.toml", "-q", "--set", "train.steps=8", "--set", "optim.horizon=12"];
    let (code, err) = run(here, &part, &[]);
    assert_eq!(code, 0, "{err}");
    let newest = here.join("runs/tiny/ckpt/step-00000008");
    let file = newest.join(tensors(&newest).into_keys().next().unwrap());
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 3;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    let rest = [&TRAIN[..], &["--set", "optim.horizon=12"]].concat();
    let (code, err) = run(here, &[&LAUNCH[..], &rest].concat(), &[]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("ckpt/step-00000008 is damaged and not used"), "{err}");
    assert!(err.contains("resuming from ckpt/step-00000006"), "{err}");
    assert_same(here);
}

/// The folder in shared memory of the run, by the mark that both have.
fn memory(here: &Path) -> Option<std::path::PathBuf> {
    let id = fs::read_to_string(here.join("runs/tiny/ID")).unwrap();
    let users = fs::read_dir("/dev/shm").unwrap().flatten().map(|entry| entry.path());
    let users = users.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("planaria-"));
    let runs =
        users.flat_map(|user| fs::read_dir(user).into_iter().flatten().flatten()).map(|entry| entry.path());
    let mut own = runs.filter(|run| fs::read_to_string(run.join("ID")).is_ok_and(|found| found == id));
    own.next()
}

#[test]
fn memory_outlives_the_ranks_and_reaches_the_folder_when_the_job_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let config = fs::read_to_string(here.join("tiny.toml")).unwrap().replace("every = 2", "every = 0");
    let tier = "[[checkpoint.tiers]]\nkind = \"memory\"\nevery = 1\nkeep = 2\n";
    fs::write(here.join("tiny.toml"), format!("{config}\n{tier}")).unwrap();
    let launch = ["launch", "-n", "3", "--engine", "processes"];
    let (code, err) = run(here, &[&launch[..], &TRAIN].concat(), &[("PLANARIA_FAULT", "kill rank=1 step=9")]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("was only in memory; it is in 'runs/tiny' now"), "{err}");
    let saved = super::common::names(&here.join("runs/tiny/ckpt"));
    assert!(saved.iter().any(|name| name.ends_with("/COMMIT")), "{saved:?}");

    // The copy in memory is damaged: the one in the folder is taken.
    let memory = memory(here).unwrap();
    for file in super::common::names(&memory).iter().filter(|name| name.ends_with(".safetensors")) {
        let mut bytes = fs::read(memory.join(file)).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 4;
        fs::write(memory.join(file), bytes).unwrap();
    }
    let more = [&launch[..], &["--max-restarts", "3"], &TRAIN].concat();
    let (code, err) = run(here, &more, &[("PLANARIA_FAULT", "kill rank=2 step=11")]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains(" (memory) is damaged and not used"), "{err}");
    assert!(err.contains("resuming from ckpt/step-0000000"), "{err}");
    assert!(err.contains("restart 1 of 3"), "{err}");
    assert_same(here);
    assert!(!memory.exists(), "the memory of a run that is done is freed");
}

#[test]
fn a_rank_whose_weights_have_changed_by_themselves_is_named_and_left() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let rest = [&TRAIN[..], &["--set", "heal.compare_every=1"]].concat();
    let args = [&LAUNCH[..], &["--min-ranks", "1"], &rest].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "flip rank=2 step=5")]);
    assert_eq!(code, 0, "{err}");
    assert!(
        err.contains("after step 5 the weights of rank 2 differ from those of its other replicas"),
        "{err}"
    );
    assert!(err.contains("rank 2 failed first: exit code 5"), "{err}");
    assert!(err.contains("restart 1 of 6 on 2 ranks (dp=2)"), "{err}");
    assert_same(here);
}

#[test]
fn a_rank_whose_loss_alone_is_not_finite_is_named_and_left() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let rest = [&TRAIN[..], &["--set", "heal.odd_loss=true"]].concat();
    let args = [&LAUNCH[..], &["--min-ranks", "1"], &rest].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "nan rank=2 step=5")]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("the loss of data rank 2 (rank 2) alone is not finite"), "{err}");
    assert!(err.contains("rank 2 failed first: exit code 5"), "{err}");
    assert!(err.contains("restart 1 of 6 on 2 ranks (dp=2)"), "{err}");
    assert_same(here);
}

#[test]
fn a_short_drill_loses_nothing_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    let config = fs::read_to_string(here.join("tiny.toml")).unwrap();
    let tier = "[[checkpoint.tiers]]\nkind = \"memory\"\nevery = 1\nkeep = 2\n";
    fs::write(here.join("tiny.toml"), format!("{config}\n{tier}")).unwrap();
    let kinds = "kill,corrupt,lost-file,disk-full,clock,oom,torn,slow-disk";
    let args = ["drill", "tiny.toml", "--set", "mesh=dp=2", "--faults", kinds, "--seed", "5"];
    let (code, err) = run(here, &args, &[]);
    let table = fs::read_to_string(here.join("out")).unwrap();
    assert_eq!(code, 0, "{table}{err}");
    assert!(table.contains("8 faults with seed 5, 0 lost"), "{table}");
    for kind in kinds.split(',') {
        assert!(
            table.lines().any(|line| line.starts_with(kind) && line.ends_with("1 of 1")),
            "{kind}: {table}"
        );
    }
    assert!(!here.join("runs").exists(), "the run itself is left alone");

    // Killed at every so many calls and operations of every place, with ranks that are threads.
    let args = ["drill", "tiny.toml", "--set", "mesh=dp=2", "--faults", "kill", "--engine", "threads"];
    let (code, err) = run(here, &[&args[..], &["--every", "97"]].concat(), &[]);
    let table = fs::read_to_string(here.join("out")).unwrap();
    assert_eq!(code, 0, "{table}{err}");
    assert!(err.contains("lane=") && err.contains("tier=1 after="), "{err}");
}

#[test]
fn tiers_that_cannot_hold_are_refused_with_figures() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    let config = fs::read_to_string(here.join("tiny.toml")).unwrap();
    for (tier, words) in [
        ("kind = \"memory\"\nkeep = 1000000000", &["room for", "/dev/shm has", "free"][..]),
        ("kind = \"memory\"\nevery = 13", &["memory every 13 steps", "within the 12 steps"]),
        ("kind = \"peer\"\npath = \"/dev/shm\"", &["peer '/dev/shm'", "losing this one would lose both"]),
        ("kind = \"remote\"", &["`checkpoint.tiers.path` is missing", "the remote tier"]),
    ] {
        fs::write(here.join("tiny.toml"), format!("{config}\n[[checkpoint.tiers]]\n{tier}\n")).unwrap();
        let (code, err) = run(here, &["train", "tiny.toml", "--dry-run"], &[]);
        assert_eq!(code, 2, "{err}");
        assert!(words.iter().all(|word| err.contains(word)), "{tier}: {err}");
    }
}

#[test]
fn a_save_of_every_step_tells_how_far_it_is_and_what_was_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    // The first operations of the store take long, so that training is ahead of writing.
    let args = ["train", "tiny.toml", "--json", "--set", "checkpoint.every=1"];
    let (code, err) = run(here, &args, &[("PLANARIA_STORE_FAULT", "slow after=0 for=60")]);
    assert_eq!(code, 0, "{err}");
    let out = fs::read_to_string(here.join("out")).unwrap();
    let events: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    let steps = |name: &str| of(name).iter().map(|event| event["step"].as_u64().unwrap()).collect::<Vec<_>>();
    let mut all = [steps("saved"), steps("save_dropped")].concat();
    all.sort_unstable();
    assert_eq!(all, (1..=12).collect::<Vec<_>>(), "{out}");
    assert_eq!(steps("saved").last(), Some(&12));
    assert!(!steps("save_dropped").is_empty(), "{out}");
    for event in of("saving") {
        let (bytes, total) = (event["bytes"].as_u64().unwrap(), event["total"].as_u64().unwrap());
        assert!(
            bytes <= total && event["percent"].as_f64().is_some_and(|p| (0.0..=100.0).contains(&p)),
            "{event}"
        );
    }
    assert_same(here);
}
