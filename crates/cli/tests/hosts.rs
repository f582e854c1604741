//! Jobs on several machines. Agents are started on this one, under addresses of the loopback network: ranks of different addresses have
//! no folder together and meet by TCP. `cargo xtask hosts` has namespaces with networks of their own for what only those can show.

use super::heal::{TRAIN, assert_same, prepare, run, undisturbed};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const HOSTS: [&str; 5] =
    ["launch", "--hosts", "127.0.0.1:1,127.0.0.2:1,127.0.0.3:1", "--start", "env HOST={host}"];

#[test]
fn ranks_of_several_hosts_have_the_bits_of_one_process_and_heal() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let args = [&HOSTS[..], &["--max-restarts", "6", "--min-ranks", "1"], &TRAIN].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "kill rank=1 step=6")]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("rank 1 failed first: killed by signal 9"), "{err}");
    assert!(err.contains("restart 1 of 6 on 2 ranks (dp=2)"), "{err}");
    assert!(err.contains("[0@127.0.0.1] ") && !err.contains("[1@127.0.0.1] "), "{err}");
    assert_same(here);
}

#[test]
fn a_hang_on_another_host_is_reported_as_that_host_sees_it() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    let args = [&HOSTS[..], &["--hang-after", "6"], &TRAIN].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "hang rank=2 step=5")]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("ranks 0, 1 came, rank 2 did not"), "{err}");
    assert!(err.contains("in no call to other ranks on host '127.0.0.3'\n    thread "), "{err}");
}

#[test]
fn a_run_goes_on_without_a_host_that_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    // The agent of one host is killed, once, when something is saved; after that the host refuses connections.
    let script = "#!/bin/sh\nhost=$1; shift; exec 3<&0\nif [ $host = 127.0.0.3 ]; then\n  if [ -e lost ]; then echo 'connection refused' >&2; exit 255; fi\n  \
                  \"$@\" <&3 3<&- & agent=$!\n  while [ ! -e runs/tiny/ckpt/step-00000004 ]; do sleep 0.01; done\n  touch lost; kill -9 $agent\nelse exec \"$@\"; fi\n";
    fs::write(here.join("start"), script).unwrap();
    fs::set_permissions(here.join("start"), fs::Permissions::from_mode(0o755)).unwrap();
    let args = [&HOSTS[..4], &["./start {host}", "--max-restarts", "6", "--min-ranks", "1"], &TRAIN].concat();
    let (code, err) = run(here, &args, &[]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("host '127.0.0.3' is lost: the connection to its agent has ended"), "{err}");
    assert!(err.contains("on 2 ranks (dp=2)"), "{err}");
    assert_same(here);
}

#[test]
fn hosts_that_cannot_take_part_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    let told = |args: &[&str]| {
        let (code, err) = run(here, &[&["launch"], args, &TRAIN[..]].concat(), &[]);
        assert_ne!(code, 0, "{args:?}");
        err
    };
    let err = told(&["--hosts", "a", "--start", "false"]);
    assert!(err.contains("host 'a' is lost: its agent could not be started"), "{err}");
    assert!(told(&["--hosts", "a;b"]).contains("'a;b' is not a host"));
    assert!(told(&["--hosts", "a:2", "-n", "3"]).contains("more than the 2 ranks"));
    assert!(told(&["--hosts", "a", "--engine", "threads"]).contains("cannot be on several hosts"));
    assert!(told(&["--hostfile", "nowhere"]).contains("cannot read 'nowhere'"));
    // An agent of another version, or with other features, is no part of the job.
    let others =
        [("9.9.9", "", "9.9.9 with []"), (env!("CARGO_PKG_VERSION"), r#""x""#, "0.1.0 with [x], this one")];
    for (version, features, words) in others {
        let hello = format!(r#"{{"told":"hello","version":"{version}","features":[{features}]}}"#);
        fs::write(here.join("other"), format!("#!/bin/sh\necho '{hello}'\ncat > /dev/null\n")).unwrap();
        fs::set_permissions(here.join("other"), fs::Permissions::from_mode(0o755)).unwrap();
        let err = told(&["--hosts", "a", "--start", "./other"]);
        assert!(err.contains(&format!("host 'a' has planaria {words}")), "{err}");
    }
}

#[test]
fn a_signal_to_the_launcher_reaches_the_ranks_of_every_host() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let rank = "trap 'exit 75' TERM; touch up-$RANK; while :; do sleep 0.05; done";
    let mut command = Command::new(env!("CARGO_BIN_EXE_planaria"));
    command.current_dir(here).args(HOSTS).args(["--", "sh", "-c", rank]).stdin(Stdio::null());
    let mut launcher = command.stderr(fs::File::create(here.join("err")).unwrap()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let wait = || {
        assert!(Instant::now() < until, "{}", fs::read_to_string(here.join("err")).unwrap());
        std::thread::sleep(Duration::from_millis(10));
    };
    while !(0..3).all(|rank| here.join(format!("up-{rank}")).exists()) {
        wait();
    }
    assert!(Command::new("kill").args(["-TERM", &launcher.id().to_string()]).status().unwrap().success());
    let status = loop {
        match launcher.try_wait().unwrap() {
            Some(status) => break status,
            None => wait(),
        }
    };
    assert_eq!(status.code(), Some(75), "{}", fs::read_to_string(here.join("err")).unwrap());
}
