//! Ranks that other launchers start: nothing but variables tells them who they are, and no folder brings them together.

use super::heal::{assert_same, prepare, run, undisturbed};
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// After this ranks are killed and their test fails.
const DEADLINE: Duration = Duration::from_secs(180);

/// A port of a range that nobody listens at.
fn free(ports: std::ops::Range<u16>) -> u16 {
    let own = std::process::id() as u16 % 4096;
    let mut tried = ports.clone().cycle().skip(usize::from(own)).take(ports.len());
    tried.find(|port| TcpListener::bind(("0.0.0.0", *port)).is_ok()).unwrap()
}

/// A folder to start a rank in, and its variables.
type Started<'a> = (PathBuf, Vec<(&'a str, String)>);

/// Runs one process for each of these; the codes and words of all.
fn start(ranks: &[Started<'_>], args: &[&str]) -> Vec<(i32, String)> {
    let begin = |(number, (folder, variables)): (usize, &Started<'_>)| -> (Child, PathBuf) {
        let said = folder.join(format!("said-{number}"));
        let file = fs::File::create(&said).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_planaria"));
        command.current_dir(folder).args(["train", "tiny.toml"]).args(args);
        // As srun does, ranks have nothing on their standard input.
        command.envs(variables.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        (command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap(), said)
    };
    let mut children: Vec<_> = ranks.iter().enumerate().map(begin).collect();
    let limit = Instant::now() + DEADLINE;
    while children.iter_mut().any(|(child, _)| child.try_wait().unwrap().is_none()) {
        if Instant::now() > limit {
            children.iter_mut().for_each(|(child, _)| child.kill().unwrap());
            panic!("ranks did not end: {:?}", children.iter().map(|(_, said)| fs::read_to_string(said)));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let told = |(mut child, said): (Child, PathBuf)| {
        (child.wait().unwrap().code().unwrap_or(-1), fs::read_to_string(said).unwrap())
    };
    children.into_iter().map(told).collect()
}

fn assert_well(ended: &[(i32, String)]) {
    assert!(ended.iter().all(|(code, _)| *code == 0), "{ended:?}");
}

#[test]
fn ranks_with_the_variables_of_torchrun_have_the_bits_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let port = free(32_000..32_700);
    let rank = |rank: usize| {
        let variables = vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "3".to_string()),
            ("LOCAL_RANK", rank.to_string()),
            ("LOCAL_WORLD_SIZE", "3".to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_string()),
            ("MASTER_PORT", port.to_string()),
        ];
        (here.to_path_buf(), variables)
    };
    let ended = start(&[rank(2), rank(0), rank(1)], &[]);
    assert_well(&ended);
    assert_same(here);
    // Rank 0 reports for all.
    assert!(ended[1].1.contains("ckpt/step-00000012") && !ended[0].1.contains("step-00000012"), "{ended:?}");
}

/// Every rank says that it is on a host of its own, so that checkpoints go from each to the others over the network. That they find one in
/// folders that hosts do not share is shown on the test bed: only there can several have the same path.
#[test]
fn ranks_of_srun_that_serve_each_other_their_folders_have_the_bits_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let step = free(20_000..32_000) - 20_000;
    let rank = |rank: usize, size: usize| {
        let variables = vec![
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_NTASKS", size.to_string()),
            ("SLURM_STEP_NUM_TASKS", size.to_string()),
            ("SLURM_NODELIST", "localhost,other[1-2]".to_string()),
            ("SLURM_STEP_NODELIST", "localhost,other[1-2]".to_string()),
            ("SLURM_LOCALID", "0".to_string()),
            ("SLURM_JOB_ID", "0".to_string()),
            ("SLURM_STEP_ID", step.to_string()),
            ("PLANARIA_ADDRESS", format!("127.0.0.{}", rank + 1)),
        ];
        (here.to_path_buf(), variables)
    };
    let all = |size: usize| (0..size).map(|one| rank(one, size)).collect::<Vec<_>>();
    let copies = ["--set", "checkpoint.copies=2"];
    let begun = [&copies[..], &["--set", "train.steps=8", "--set", "optim.horizon=12"]].concat();
    assert_well(&start(&all(3), &begun));
    let ended = start(&all(2), &[&copies[..], &["--set", "mesh=dp=2"]].concat());
    assert_well(&ended);
    assert!(ended[0].1.contains("resuming from ckpt/step-00000008"), "{ended:?}");
    assert_same(here);
}

#[test]
fn ranks_that_contradict_themselves_or_each_other_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    let train = ["train", "tiny.toml"];
    let (code, err) = run(here, &train, &[("RANK", "3"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "127.0.0.1")]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("RANK=3 is no rank of WORLD_SIZE=3"), "{err}");
    let (code, err) = run(here, &train, &[("RANK", "1"), ("WORLD_SIZE", "3")]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("rank 1 of 3, and no variable says where rank 0 is"), "{err}");
    assert!(err.contains("set MASTER_ADDR"), "{err}");
    let port = free(32_000..32_700).to_string();
    let rank = |rank: &str, size: &str| {
        let pairs =
            [("RANK", rank), ("WORLD_SIZE", size), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)];
        (here.to_path_buf(), pairs.map(|(name, value)| (name, value.to_string())).to_vec())
    };
    let ended = start(&[rank("0", "3"), rank("1", "4")], &[]);
    assert!(ended.iter().all(|(code, _)| *code != 0), "{ended:?}");
    assert!(ended[0].1.contains("rank 1 at 127.0.0.1 is one of 4 ranks, rank 0 one of 3"), "{ended:?}");
}
