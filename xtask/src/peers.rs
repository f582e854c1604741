//! The Python interpreter with torch and transformers, in a venv of its own: benchmarks compare with it, and what we
//! write is opened by it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;

/// Releases the benchmarks were recorded with, and whose files were looked at.
const PACKAGES: &[&str] = &["torch==2.15.0", "numpy==2.4.6", "safetensors==0.8.0", "transformers==5.22.2"];

/// Whose adapters were looked at.
const PEFT: &str = "peft==0.21.2";

/// Names an interpreter that already has them.
const OVERRIDE: &str = "PLANARIA_TORCH_PYTHON";

/// An interpreter that can import all of them, or the reason why there is none.
pub(crate) fn torch_python(root: &Path) -> Result<PathBuf, String> {
    if let Some(python) = std::env::var_os(OVERRIDE).map(PathBuf::from) {
        return if has_packages(&python) {
            Ok(python)
        } else {
            Err(format!("{OVERRIDE} names an interpreter without torch, numpy, safetensors or transformers"))
        };
    }
    let venv = root.join("target").join("venv-torch");
    let python = venv.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    if has_packages(&python) {
        add_peft(&python);
        return Ok(python);
    }
    if !process::run(Command::new("python3").args(["-m", "venv"]).arg(&venv)).success {
        return Err("python3 -m venv failed; install python3 with its venv module".into());
    }
    let installed =
        process::run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(PACKAGES));
    match installed.success && has_packages(&python) {
        true => {
            add_peft(&python);
            Ok(python)
        }
        false => Err(format!(
            "pip install {} failed; set {OVERRIDE} to an interpreter that has torch",
            PACKAGES.join(" ")
        )),
    }
}

/// Adapters are opened with peft too; the script that does says so where this fails.
fn add_peft(python: &Path) {
    if process::ask(Command::new(python).args(["-c", "import peft"])).is_none() {
        process::run(Command::new(python).args(["-m", "pip", "install", "--quiet", PEFT]));
    }
}

fn has_packages(python: &Path) -> bool {
    process::ask(Command::new(python).args(["-c", "import torch, numpy, safetensors, transformers"]))
        .is_some()
}
