//! `planaria top` as a script sees it, and in a terminal of its own.

use crate::common;
use common::{command, planaria, succeed, text};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// A run of some steps on two ranks.
fn train(folder: &Path) {
    fs::write(folder.join("text.txt"), "the quick brown fox jumps over the lazy dog\n".repeat(200)).unwrap();
    let config = "mesh = \"dp=2\"\n[model]\nhidden_size = 32\nintermediate_size = 64\nnum_hidden_layers = 1\nnum_attention_heads = 2\n\
        [data]\nsequence = 32\n[[data.source]]\npath = \"text.txt\"\n[train]\nsteps = 7\nglobal_batch = 4\nmicro_batch = 2\n\
        [checkpoint]\nevery = 4\n[log]\nevery = 3\n";
    fs::write(folder.join("small.toml"), config).unwrap();
    let end = command(&["train", "small.toml", "-n", "2", "-q"]).current_dir(folder).output().unwrap();
    assert!(end.status.success(), "{}", String::from_utf8_lossy(&end.stderr));
}

#[test]
fn ranks_are_shown_once_or_live() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path());
    let run = folder.path().join("runs/small");
    let shown = succeed(&["top", text(&run)]);
    for part in
        ["small: not running, pp=1 dp=2 ep=1 tp=1, step 7 of 7", "saved step 7", "rank  host", "sent on dp"]
    {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    assert_eq!(shown, succeed(&["top", text(&run), "--once"]));
    let told: Value = serde_json::from_str(&succeed(&["--json", "top", text(&run)])).unwrap();
    assert_eq!(
        (&told["schema"], &told["step"], &told["running"]),
        (&"planaria/top/1".into(), &7.into(), &false.into())
    );
    let ranks = told["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2);
    for (number, rank) in ranks.iter().enumerate() {
        assert_eq!((&rank["rank"], &rank["step"]), (&number.into(), &7.into()));
        assert!(
            rank["bytes"].as_u64().unwrap() > 0 && rank["sent_each"]["dp"].as_u64().unwrap() > 0,
            "{rank}"
        );
    }
    in_a_terminal(&run);

    // What is no run is refused, with what to do instead.
    let above = planaria(&["top", text(&folder.path().join("runs"))]);
    assert_eq!(above.code, Some(2));
    assert!(above.err.contains("is no run") && above.err.contains("runs/small"), "{}", above.err);
    let nowhere = planaria(&["top", "no-such-folder"]);
    assert_eq!(nowhere.code, Some(2));
    assert!(nowhere.err.contains("there is no folder 'no-such-folder'"), "{}", nowhere.err);
    assert_eq!(planaria(&["top", text(&run), "--every", "0"]).code, Some(2));
}

/// Drawn on a screen of its own, scrolled, and left as it was after `q`.
fn in_a_terminal(run: &Path) {
    let program = format!("'{}' top '{}'", env!("CARGO_BIN_EXE_planaria"), text(run));
    let mut script = Command::new("script");
    script.args(["-qec", &program, "/dev/null"]).env("TERM", "xterm");
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = script.spawn() else {
        eprintln!("skipped: `script` of util-linux is not here");
        return;
    };
    let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut drawn, mut piece) = (Vec::new(), [0; 1 << 12]);
    let (mut next, mut seen) = (["s", "j", "k", "q"].into_iter(), 0);
    // A terminal drops keys that come before it is taken over. Between two pictures keys are read, so that each has a read of its own.
    loop {
        let read = screen.read(&mut piece).unwrap();
        if read == 0 {
            break;
        }
        drawn.extend_from_slice(&piece[..read]);
        let pictures = String::from_utf8_lossy(&drawn).matches("step 7 of 7").count();
        if pictures >= seen + 2 {
            next.next().into_iter().for_each(|key| keys.write_all(key.as_bytes()).unwrap());
            seen = pictures;
        }
    }
    let drawn = String::from_utf8_lossy(&drawn).into_owned();
    assert!(child.wait().unwrap().success(), "{drawn}");
    let (enter, leave) = (drawn.find("\x1b[?1049h"), drawn.rfind("\x1b[?1049l"));
    assert!(enter.is_some() && leave > enter && drawn.contains("step 7 of 7"), "{drawn:?}");
}
