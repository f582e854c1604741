//! Trials with chance in them: conversions that race, commands that are killed at any moment, files that are broken anywhere. A few of
//! each here; `PLANARIA_TRIALS=100` makes a hundred times as many, with other seeds each.

use super::common::{command, names, planaria, root, sparse, succeed, text, top};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How many trials to make where a few would be this many.
fn trials(few: u64) -> u64 {
    let times = std::env::var("PLANARIA_TRIALS").ok().map(|text| text.parse::<u64>());
    few * times.map_or(1, |times| times.expect("PLANARIA_TRIALS is a whole number"))
}

/// Tells what was tried where somebody asked for more than a few.
fn told(what: &str) {
    if trials(1) > 1 {
        eprintln!("{what}");
    }
}

/// A small generator, so that a trial can be made again.
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % n.max(1) as u64) as usize
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

fn quiet(command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn conversions_that_race_for_a_target_leave_one_whole_result() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("big.safetensors");
    sparse(&source, 8, 512, 512);
    let mut first = 0;
    for round in 0..trials(6) {
        let target = folder.path().join(format!("out{round}"));
        let run = |to| quiet(&mut command(&["convert", text(&source), text(&target), "--to", to]));
        let mut both = [run("hf"), run("planaria")];
        let codes = both.each_mut().map(|child| child.wait().unwrap().code());
        assert!(codes == [Some(0), Some(2)] || codes == [Some(2), Some(0)], "{codes:?}");
        first += u64::from(codes[0] == Some(0));
        assert_eq!(top(&target).contains(&"COMMIT".to_string()), codes[1] == Some(0), "the winner's files");
        succeed(&["verify", text(&target)]);
        succeed(&["diff", text(&source), text(&target)]);
        fs::remove_dir_all(&target).unwrap();
    }
    assert_eq!(top(folder.path()), ["big.safetensors"]);
    told(&format!("{} races, {first} won by the first", trials(6)));
}

#[test]
fn a_folder_that_appears_while_a_conversion_runs_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("big.safetensors");
    sparse(&source, 8, 1024, 512);
    let (mut chance, mut lost) = (Chance::new(3), 0);
    for round in 0..trials(4) {
        let target = folder.path().join(format!("out{round}"));
        let mut child = quiet(&mut command(&["convert", text(&source), text(&target), "--to", "planaria"]));
        std::thread::sleep(Duration::from_millis(chance.below(120) as u64));
        // It comes with its file: an empty folder may be taken.
        let thesis = folder.path().join("thesis");
        fs::create_dir_all(&thesis).unwrap();
        fs::write(thesis.join("thesis.txt"), "x").unwrap();
        let made = fs::rename(&thesis, &target).is_ok();
        let code = child.wait().unwrap().code();
        match made {
            true => {
                assert_eq!((code, top(&target)), (Some(2), vec!["thesis.txt".to_string()]));
                lost += 1;
            }
            false => assert_eq!(code, Some(0)),
        }
    }
    assert!(top(folder.path()).iter().all(|name| !name.starts_with('.')), "{:?}", top(folder.path()));
    told(&format!("{} conversions, {lost} met a folder that had appeared", trials(4)));
}

#[test]
fn a_conversion_that_is_killed_leaves_nothing_or_all_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("big.safetensors");
    sparse(&source, 16, 1024, 512);
    let target = folder.path().join("out");
    let (mut chance, mut whole) = (Chance::new(5), 0);
    for round in 0..trials(6) {
        let (to, was_there) = (chance.pick(&["hf", "planaria", "dcp"]), target.exists());
        let args = ["convert", text(&source), text(&target), "--to", to, "--yes"];
        let mut child = quiet(&mut command(&args));
        std::thread::sleep(Duration::from_millis(chance.below(250) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        // What stood there is replaced at once or stays; it is never gone.
        assert!(target.exists() || !was_there, "round {round}");
        if target.exists() {
            succeed(&["diff", text(&source), text(&target)]);
            whole += 1;
        }
    }
    succeed(&["convert", text(&source), text(&target), "--to", "hf", "--yes"]);
    // Of those that were killed only what one had replaced may be left, since it might be somebody's.
    let left =
        top(folder.path()).into_iter().filter(|name| !["big.safetensors", "out"].contains(&name.as_str()));
    left.for_each(|name| assert!(folder.path().join(&name).join("replacing").exists(), "{name}"));
    told(&format!("{} conversions killed, after {whole} of them there was a whole result", trials(6)));
}

fn tiny_run(folder: &Path) {
    let line = |i: usize| format!("{i}: every piece grows back whole, also piece {}.\n", i * i % 89);
    fs::write(folder.join("text.txt"), (0..200).map(line).collect::<String>()).unwrap();
    let config = "mesh = \"dp=2\"\n[model]\nhidden_size = 16\nintermediate_size = 24\nnum_hidden_layers = 2\n\
                  num_attention_heads = 2\n[data]\nsequence = 16\n[[data.source]]\npath = \"text.txt\"\n\
                  [train]\nsteps = 40\nglobal_batch = 4\n[checkpoint]\nevery = 1\n[log]\ntensorboard = false\n";
    fs::write(folder.join("tiny.toml"), config).unwrap();
}

fn train(folder: &Path, name: &str, mesh: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planaria"));
    let (name, mesh) = (format!("name={name}"), format!("mesh={mesh}"));
    command.current_dir(folder).args(["train", "tiny.toml", "-q", "--set", &name, "--set", &mesh]);
    command.stdin(Stdio::null());
    command
}

#[test]
fn a_run_that_is_killed_anywhere_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    tiny_run(here);
    let finished = |name: &str, mesh: &str| {
        let Output { status, stderr, .. } = train(here, name, mesh).output().unwrap();
        assert!(status.success(), "{name} on {mesh}: {}", String::from_utf8_lossy(&stderr));
        let last = here.join("runs").join(name).join("ckpt/step-00000040");
        ["model-00001-of-00001.safetensors", "optimizer-00001-of-00001.safetensors"]
            .map(|file| fs::read(last.join(file)).unwrap())
    };
    let expected = finished("whole", "dp=2");
    let meshes = ["dp=2", "pp=2", "dp=1", "pp=2 dp=2"];
    let (mut chance, mut kills) = (Chance::new(7), 0);
    for round in 0..trials(2) {
        let name = format!("cut{round}");
        for _ in 0..3 {
            let mut child = quiet(&mut train(here, &name, chance.pick(&meshes)));
            std::thread::sleep(Duration::from_millis(60 + chance.below(900) as u64));
            child.kill().unwrap();
            kills += u32::from(!child.wait().unwrap().success());
        }
        assert!(finished(&name, chance.pick(&meshes)) == expected, "{name} is another run");
        fs::remove_dir_all(here.join("runs").join(&name)).unwrap();
    }
    told(&format!("{} runs killed {kills} times, each with the bits of the whole one", trials(2)));
}

/// A copy of a checkpoint of `testdata`.
fn copied(from: &Path, to: &Path) {
    if from.is_file() {
        fs::create_dir_all(to).unwrap();
        fs::copy(from, to.join(from.file_name().unwrap())).unwrap();
        return;
    }
    for name in names(from) {
        let at = to.join(&name);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::copy(from.join(&name), at).unwrap();
    }
}

/// Breaks one file: bits, bytes, its length, its place.
fn broken(folder: &Path, chance: &mut Chance) -> String {
    let files = names(folder);
    let name = chance.pick(&files);
    let path = folder.join(&name);
    let mut bytes = fs::read(&path).unwrap();
    let how = chance.below(7);
    let at = chance.below(bytes.len());
    match how {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << chance.below(8),
        1 if !bytes.is_empty() => {
            bytes[at] = chance.pick(&[0, 0xff, 0x7f, 0x80, b'(', b'}', b'"', 0x28, 0x94])
        }
        2 => bytes.truncate(at),
        3 => {
            let end = (at + 1 + chance.below(64)).min(bytes.len());
            bytes.drain(at.min(end)..end);
        }
        4 => {
            let end = (at + 1 + chance.below(512)).min(bytes.len());
            let piece = bytes[at.min(end)..end].to_vec();
            let place = chance.below(bytes.len());
            bytes.splice(place..place, piece);
        }
        5 => {
            let value = chance.pick(&[0u64, 1, u64::MAX, 1 << 31, 1 << 40, i64::MAX as u64]);
            let end = (at + 8).min(bytes.len());
            bytes[at.min(end)..end].copy_from_slice(&value.to_le_bytes()[..end - at.min(end)]);
        }
        _ => {
            fs::remove_file(&path).unwrap();
            return format!("{name} removed");
        }
    }
    fs::write(&path, bytes).unwrap();
    format!("{name} broken in way {how} at {at}")
}

/// Runs the command with a limit: none of these files is worth a minute.
fn ended(args: &[&str]) -> Option<i32> {
    let mut child = quiet(&mut command(args));
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > limit {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{args:?} did not end within a minute");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn broken_files_are_refused_or_harmless_for_every_verb() {
    let data = root().join("testdata");
    let mut all: Vec<PathBuf> = [
        "nested.pt",
        "shared.pt",
        "numpy.pt",
        "legacy.pt",
        "p2.pdparams",
        "p4.pdparams",
        "state.pdopt",
        "unified",
        "noindex",
    ]
    .map(|name| data.join("formats").join(name))
    .to_vec();
    for folder in ["torch-dcp", "paddle-checkpoints"] {
        let entries = fs::read_dir(data.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        all.extend(entries.filter(|path| path.is_dir()));
    }
    all.sort();
    let folder = tempfile::tempdir().unwrap();
    let (mut chance, mut counts) = (Chance::new(11), [0u32; 4]);
    for round in 0..trials(24) {
        let at = folder.path().join(format!("in{round}"));
        let from = chance.pick(&all);
        copied(&from, &at);
        let how = format!("{} with {}", from.display(), broken(&at, &mut chance));
        let out = folder.path().join(format!("out{round}"));
        let verb = chance.pick(&["inspect", "verify", "convert"]);
        let code = match verb {
            "convert" => {
                ended(&["convert", text(&at), text(&out), "--to", chance.pick(&["planaria", "hf", "dcp"])])
            }
            verb => ended(&[verb, text(&at)]),
        };
        // Neither a panic (101) nor a signal.
        let code = code.unwrap_or_else(|| panic!("{verb} of {how}: ended by a signal"));
        assert!((0..4).contains(&code), "{verb} of {how}: exit code {code}");
        counts[code as usize] += 1;
        if verb == "convert" {
            assert_eq!(out.exists(), code == 0, "{how}: exit code {code}");
            if code == 0 {
                assert!(
                    matches!(planaria(&["verify", text(&out)]).code, Some(0 | 1)),
                    "{how}: the result is damaged"
                );
            }
        }
        assert!(top(folder.path()).iter().all(|name| !name.starts_with('.')), "{how}: something was left");
        fs::remove_dir_all(&at).unwrap();
        if out.exists() {
            fs::remove_dir_all(&out).unwrap();
        }
    }
    let [sound, differs, refused, damaged] = counts;
    told(&format!(
        "{} broken inputs: exit codes 0 {sound}, 1 {differs}, 2 {refused}, 3 {damaged}",
        trials(24)
    ));
}
