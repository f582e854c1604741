//! Our benchmark worker. Argument: number of threads. Reads lines `CASE MILLISECONDS`, answers one JSON line each.

use std::io::{self, BufRead, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use planaria_array::Threads;
use planaria_bench::cases::{Unsupported, build};
use planaria_bench::inputs::checksum;
use planaria_bench::measure::{Memory, measure};
use planaria_bench::worker::Answer;

fn main() -> Result<()> {
    let threads = std::env::args().nth(1).context("usage: ours THREADS")?;
    let threads =
        Threads::new(threads.parse().with_context(|| format!("`{threads}` is not a number of threads"))?)?;
    say("ready")?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (case, milliseconds) =
            line.split_once(' ').with_context(|| format!("`{line}` is not `CASE MILLISECONDS`"))?;
        let time = Duration::from_secs_f64(milliseconds.parse::<f64>().context("milliseconds")? / 1e3);
        let answer = threads.run(|| answer(case, time));
        let answer = answer.unwrap_or_else(|Unsupported(reason)| Answer::Unsupported { unsupported: reason });
        say(&serde_json::to_string(&answer)?)?;
    }
    Ok(())
}

fn answer(case: &str, time: Duration) -> Result<Answer, Unsupported> {
    let memory = Memory::watch();
    let mut run = build(case)?;
    let check = checksum(&run()?)?;
    let s = measure(time, || run().map(drop))?;
    Ok(Answer::Timed { s, check, peak: memory.and_then(Memory::peak) })
}

fn say(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
