//! Compares a device with the host: `selftest DEVICE [FAMILY] [MINUTES] [RECORD]`; `-` leaves one out.

use planaria_array::Device;
use planaria_array::selftest::{Plan, run};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize| args.get(at).filter(|word| *word != "-").cloned();
    let device: Device = match word(0).unwrap_or_else(|| "cuda:0".into()).parse() {
        Ok(device) => device,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let minutes = word(2).and_then(|text| text.parse::<f64>().ok());
    let limit = minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let report = run(&Plan { device, family: word(1), limit });
    print!("{}", report.text());
    if let Some(path) = word(3)
        && let Err(error) = std::fs::write(&path, report.json(&[]))
    {
        eprintln!("{path}: {error}");
    }
    if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
