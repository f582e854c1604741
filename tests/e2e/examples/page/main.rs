//! The page of runs in headless Chromium: every view, served and as a file, on a desk in the dark and on a phone in the
//! light, of runs that were trained here and of some that were only written; a run that grows; two thousand runs; keys. `cargo xtask test` runs it, after building the command beside it:
//! `target/debug/examples/page BROWSER`. Pictures of all views stay in `target/board`.

mod browser;

use anyhow::{Context, Result, ensure};
use browser::Browser;
use planaria::telemetry::{Level, MetricsWriter, RankLog, Record, Session};
use planaria_e2e::{Sandbox, job};
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

/// Trains two small runs: a pipeline that continues a prompt now and then, and one that learns from rewards.
fn train_runs(sandbox: &Sandbox) -> Result<()> {
    let prompts = "log.samples={prompts = [\"7: cut the worm\"], every = 2, max_new_tokens = 8}";
    sandbox.train("work-pp", "pp=2 dp=2", &["train.steps=4", "data.sequence=48", prompts])?;
    let rows: String = (10..42).map(|i| format!("{{\"prompt\": \"{i}\", \"answer\": \"7\"}}\n")).collect();
    let file = sandbox.path().join("prompts.jsonl");
    fs::write(&file, rows)?;
    let source = format!("data.source.path={}", file.display());
    let init = format!("model.init={}", sandbox.run_dir("work-pp").display());
    let set = [
        "train.steps=3",
        "train.objective=grpo",
        "data.sequence=32",
        "rl.samples_per_prompt=4",
        "rl.max_new_tokens=5",
        "rl.reward=[{kind = \"contains\"}]",
        &source,
        &init,
    ];
    sandbox.train("work-rl", "", &set)?;
    Ok(())
}

/// A view, the run that is chosen in it, and what it must show.
type View = (&'static str, &'static str, &'static [&'static str]);

const VIEWS: [View; 9] = [
    ("curves", "short", &["loss", "lr", "wave 20000: ", "short 300: "]),
    ("runs", "short", &["20000 / 20000", "300 / 300", "work-rl", "ended, step 4", "done"]),
    ("checkpoints", "short", &["step-00000010", "committed"]),
    ("config", "short", &["+ lr = 0.0003", "- lr = 0.001"]),
    ("log", "short", &["</pre><script>document.title='taken'</script>"]),
    ("ranks", "work-pp", &["sent on pp", "sent on dp", "peak"]),
    ("pipeline", "work-pp", &["step 4: measured ", "simulated ", "% idle", "median time"]),
    ("samples", "work-pp", &["7: cut the worm", "step 4, 2 of 2"]),
    ("samples", "work-rl", &["reward ", "step 3, 3 of 3"]),
];

fn main() -> Result<()> {
    let program = std::env::args().nth(1).context("name a browser, such as chromium")?;
    let sandbox = Sandbox::new()?;
    let (folder, runs) = (sandbox.path(), sandbox.path().join("runs"));
    write_run(&runs.join("wave"), 20_000, 1e-3);
    write_run(&runs.join("short"), 300, 3e-4);
    train_runs(&sandbox)?;
    let page = folder.join("page.html");
    let exported =
        Command::new(job::command()?).arg("board").arg(&runs).arg("--export").arg(&page).status()?;
    ensure!(exported.success(), "the page cannot be written");
    let served = Served::start(&runs)?;
    let pictures = PathBuf::from("target/board");
    fs::create_dir_all(&pictures).unwrap();
    let file = format!("file://{}", page.display());
    let kinds = [("served", served.address.as_str(), 1280, 900), ("file", file.as_str(), 390, 844)];
    for (kind, base, width, height) in kinds {
        let mut browser = Browser::start(&program, width, height);
        browser.scheme(if kind == "served" { "dark" } else { "light" });
        for view in VIEWS {
            look(&mut browser, (kind, base), view, &pictures);
        }
    }
    follow(&program, &served, &runs)?;
    crowd(&program, &folder.join("many"), &pictures)?;
    println!(
        "8 views served and as a file, a run followed, 2000 runs, keys pressed; pictures in target/board"
    );
    Ok(())
}

/// One view of the page, with a run that is chosen by keyboard.
fn look(browser: &mut Browser, (kind, base): (&str, &str), (view, run, wanted): View, pictures: &Path) {
    browser.open(&format!("{base}#{view}"));
    browser.wait(&format!("document.body?.dataset.ready === '{view}'"));
    let chosen = "document.querySelector('li.current .name')?.textContent";
    while browser.value(chosen) != run {
        let before = browser.value(chosen);
        browser.press("j");
        browser.wait(&format!("{chosen} !== {before}"));
    }
    for text in wanted.iter().chain(&["4 runs"]) {
        browser.wait(&format!("document.body.innerText.includes({})", serde_json::json!(text)));
    }
    let title = browser.value("document.title");
    assert_eq!(title, "Planaria runs", "{kind} {view}: a log became a script");
    let wide = browser.value("document.documentElement.scrollWidth <= window.innerWidth");
    assert_eq!(wide, true, "{kind} {view}: wider than the window");
    if let Some(drawn) = (view == "pipeline").then(|| browser.value("pipeline.bars.length")) {
        // Two stages and four micro-batches a step, forward and backward, measured and simulated.
        assert!(drawn.as_u64().unwrap() >= 2 * 2 * 2 * 2, "{drawn} bars");
    }
    browser.picture(&pictures.join(format!("{kind}-{view}-{run}.png")));
}

/// Two thousand runs in one table: found, sorted, filtered and followed, while only some of its rows are there.
fn crowd(program: &str, many: &Path, pictures: &Path) -> Result<()> {
    for number in 0..2000 {
        let run = many.join(format!("team-{}/run-{number:04}", number % 7));
        let mut writer = MetricsWriter::open(&run.join("metrics.jsonl"), &Session::default())?;
        let speed = f64::from((number * 7919) % 2000);
        writer.write(&Record::new(5).with("loss", 2.5).with("tokens_per_second", speed))?;
        fs::write(run.join("config.toml"), "[train]\nsteps = 5\n")?;
    }
    let log = RankLog::open(&many.join("team-3/run-0003"), 0, Level::Info)?;
    log.log(Level::Error, "failed", &[("error", "the disk of node 7 is full".into())])?;
    let served = Served::start(many)?;
    let first = "document.querySelector('.cluster tbody tr[data-run]')?.innerText ?? ''";
    let filter = |text: &str| {
        format!("$('filter').value = '{text}'; $('filter').dispatchEvent(new Event('input')); true")
    };
    let sort =
        |column: usize| format!("document.querySelectorAll('.cluster th button')[{column}].click(); true");
    for (kind, width, height) in [("desk", 1280, 900), ("phone", 390, 844)] {
        let mut browser = Browser::start(program, width, height);
        browser.scheme(if kind == "desk" { "light" } else { "dark" });
        browser.open(&format!("{}#runs", served.address));
        browser.wait("document.getElementById('state')?.textContent.startsWith('2000 runs')");
        let rows = browser.value("document.querySelectorAll('.cluster tbody tr').length");
        assert!(rows.as_u64().is_some_and(|rows| (10..100).contains(&rows)), "{rows} rows are there");
        browser.value(&sort(4));
        browser.wait(&format!("({first}).includes('1999')"));
        browser.value(&sort(9));
        browser.wait(&format!("({first}).includes('node 7 is full')"));
        browser.picture(&pictures.join(format!("many-{kind}.png")));
        browser.value("document.querySelector('.cluster').scrollTop = 1e9; true");
        browser.wait("document.querySelector('.cluster tbody').innerText.includes('run-1994')");
        browser.value(&filter("run-0777"));
        browser.wait("document.querySelectorAll('.cluster tbody tr[data-run]').length === 1");
        let log = RankLog::open(&many.join("team-0/run-0777"), 0, Level::Info)?;
        log.log(Level::Info, &format!("saved for the {kind}"), &[])?;
        browser.wait(&format!("({first}).includes('saved for the {kind}')"));
        browser.press("j");
        browser.wait("document.querySelector('li.current .name')?.textContent.endsWith('run-0777')");
        browser.press("Enter");
        browser.wait(
            "document.body.dataset.ready === 'curves' && document.body.innerText.includes('5: 2.5000')",
        );
        let wide = browser.value("document.documentElement.scrollWidth <= window.innerWidth");
        assert_eq!(wide, true, "{kind}: wider than the window");
    }
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
    browser.press("7");
    browser.wait("document.body.dataset.ready === 'pipeline' && location.hash === '#pipeline'");
    browser.press("5");
    browser.wait("document.body.dataset.ready === 'log' && location.hash === '#log'");
    Ok(())
}
