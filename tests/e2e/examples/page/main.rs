//! The page of runs in headless Chromium: every view, served and as a file, on a desk in the dark and on a phone in the
//! light; a run that grows; keys. `cargo xtask test` runs it, after building the command beside it:
//! `target/debug/examples/page BROWSER`. Pictures of all views stay in `target/board`.

mod browser;

use anyhow::{Context, Result, ensure};
use browser::Browser;
use planaria::telemetry::{MetricsWriter, Record, Session};
use planaria_e2e::job;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A run with this many steps, a log that would like to be a script, a checkpoint and a configuration.
fn write_run(folder: &Path, steps: u64, rate: f64) {
    fs::create_dir_all(folder.join("log")).unwrap();
    fs::create_dir_all(folder.join("ckpt/step-00000010")).unwrap();
    fs::write(folder.join("ckpt/step-00000010/COMMIT"), "").unwrap();
    let mut writer = MetricsWriter::open(&folder.join("metrics.jsonl"), &Session::default()).unwrap();
    for step in 1..=steps {
        let loss = 6.0 / (1.0 + step as f64 / 50.0) + (step as f64 / 7.0).sin() / 9.0;
        let loss = if step % 97 == 0 { f64::NAN } else { loss };
        writer.write(&Record::new(step).with("loss", loss).with("lr", rate).with("seconds", 0.5)).unwrap();
    }
    writer.checkpoint(10).unwrap();
    fs::write(folder.join("config.toml"), format!("[train]\nsteps = {steps}\n[optim]\nlr = {rate}\n"))
        .unwrap();
    let line =
        "{\"level\":\"warn\",\"message\":\"</pre><script>document.title='taken'</script>\",\"rank\":0}\n";
    fs::write(folder.join("log/rank-00000.jsonl"), line).unwrap();
}

/// A page that ends with this program.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(runs: &Path) -> Result<Served> {
        let mut board = Command::new(job::command()?);
        board.args(["--json", "board", "--port", "0"]).arg(runs);
        let mut child = board.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        let told: serde_json::Value = serde_json::from_str(&line)?;
        let address = told["address"].as_str().context("no address")?.to_string();
        Ok(Served { child, address })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn main() -> Result<()> {
    let program = std::env::args().nth(1).context("name a browser, such as chromium")?;
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    write_run(&runs.join("wave"), 20_000, 1e-3);
    write_run(&runs.join("short"), 300, 3e-4);
    let page = folder.path().join("page.html");
    let exported =
        Command::new(job::command()?).arg("board").arg(&runs).arg("--export").arg(&page).status()?;
    ensure!(exported.success(), "the page cannot be written");
    let served = Served::start(&runs)?;
    let pictures = PathBuf::from("target/board");
    fs::create_dir_all(&pictures).unwrap();
    let script = "</pre><script>document.title='taken'</script>";
    let views: [(&str, &[&str]); 5] = [
        ("curves", &["loss", "lr", "wave 20000: ", "short 300: "]),
        ("runs", &["20000 / 20000", "300 / 300"]),
        ("checkpoints", &["step-00000010", "committed"]),
        ("config", &["+ lr = 0.0003", "- lr = 0.001"]),
        ("log", &[script]),
    ];
    let file = format!("file://{}", page.display());
    let kinds = [("served", served.address.as_str(), 1280, 900), ("file", file.as_str(), 390, 844)];
    for (kind, base, width, height) in kinds {
        let mut browser = Browser::start(&program, width, height);
        browser.scheme(if kind == "served" { "dark" } else { "light" });
        for (view, wanted) in views {
            browser.open(&format!("{base}#{view}"));
            browser.wait(&format!("document.body?.dataset.ready === '{view}'"));
            let seen = browser.value("document.body.innerText");
            for text in wanted.iter().chain(&["2 runs"]) {
                assert!(seen.as_str().unwrap().contains(text), "{kind} {view} shows no '{text}': {seen}");
            }
            assert_eq!(
                browser.value("document.title"),
                "Planaria runs",
                "{kind} {view}: a log became a script"
            );
            let wide = browser.value("document.documentElement.scrollWidth <= window.innerWidth");
            assert_eq!(wide, true, "{kind} {view}: wider than the window");
            browser.picture(&pictures.join(format!("{kind}-{view}.png")));
        }
    }
    follow(&program, &served, &runs)?;
    println!("5 views served and as a file, a run followed, keys pressed; pictures in target/board");
    Ok(())
}

/// A run that is being written is followed, and everything goes by keyboard.
fn follow(program: &str, served: &Served, runs: &Path) -> Result<()> {
    let mut browser = Browser::start(program, 1280, 900);
    browser.open(&served.address);
    browser.wait("document.body?.innerText.includes('wave 20000: ')");
    let metrics = runs.join("short/metrics.jsonl");
    let mut metrics = fs::File::options().append(true).open(metrics)?;
    writeln!(metrics, "{{\"step\":301,\"loss\":0.5,\"lr\":0.1}}").unwrap();
    browser.wait("document.body.innerText.includes('short 301: ')");
    browser.press(" ");
    browser.wait("!document.body.innerText.includes('short 301: ')");
    browser.press("j");
    browser.wait("document.querySelector('li.current .name').textContent === 'wave'");
    browser.press("l");
    browser.wait("document.getElementById('scale').checked");
    browser.press("5");
    browser.wait("document.body.dataset.ready === 'log' && location.hash === '#log'");
    Ok(())
}
