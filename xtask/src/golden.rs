//! `cargo xtask golden KIND PATH`: runs oracle cases from any path through the golden package.

use std::path::Path;
use std::process::ExitCode;

use crate::process;

/// Runs the cases with the terminal attached and hands the exit code on.
pub(crate) fn run(root: &Path, kind: &str, path: &Path, assets: Option<&Path>) -> ExitCode {
    // The path is the caller's, so the runner starts in the caller's folder.
    let here = std::env::current_dir().unwrap_or_else(|_| root.to_path_buf());
    // The dev profile optimises the kernels and is what the tests have built already.
    let mut command = process::cargo(root, ["run", "--quiet", "--bin", "planaria-golden"]);
    command.arg("--manifest-path").arg(root.join("Cargo.toml")).args(["--", kind]).arg(path);
    if let Some(assets) = assets {
        command.arg("--assets").arg(assets);
    }
    match command.current_dir(here).status() {
        Ok(status) => {
            status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
        Err(error) => {
            eprintln!("error: cannot start cargo: {error}");
            ExitCode::from(2)
        }
    }
}
