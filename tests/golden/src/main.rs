//! `planaria-golden KIND PATH`: runs golden cases and prints how many passed.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let texts: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match texts[..] {
        ["sft", path, "--assets", assets] => planaria_golden::run_sft(Path::new(path), Path::new(assets)),
        [kind, path] => planaria_golden::run(kind, Path::new(path)),
        _ => {
            let kinds: Vec<&str> = planaria_golden::kinds().collect();
            eprintln!(
                "usage: planaria-golden KIND PATH, or sft PATH --assets FOLDER\nkinds: {}",
                kinds.join(", ")
            );
            return ExitCode::from(2);
        }
    };
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(2);
        }
    };
    for failure in &outcome.failures {
        println!("FAILED {failure}");
    }
    let reasons: Vec<String> = outcome.reasons.iter().map(|(why, count)| format!("{count} {why}")).collect();
    if !reasons.is_empty() {
        let (alone, skipped) = (outcome.alone, outcome.skipped);
        println!(
            "{alone} passed alone and {skipped} were skipped, not compared with the reference: {}",
            reasons.join(", ")
        );
    }
    outcome.notes.iter().for_each(|note| println!("{note}"));
    println!("{} passed, {} failed", outcome.passed, outcome.failed);
    if outcome.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
