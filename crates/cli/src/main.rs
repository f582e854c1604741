//! The program `planaria`.

use std::process::ExitCode;

fn main() -> ExitCode {
    planaria_cli::run()
}
