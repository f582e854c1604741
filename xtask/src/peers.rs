//! The Python interpreter with torch and transformers, in a venv of its own: benchmarks compare with it, and what we
//! write is opened by it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;

/// Releases the benchmarks were recorded with, and whose files were looked at.
const PACKAGES: &[&str] = &["torch==2.15.0", "numpy==2.4.6", "safetensors==0.8.0", "transformers==5.22.2"];

/// Whose adapters were looked at.
const PEFT: &str = "peft==0.21.2";

/// Whose merges were looked at. It asks for other releases of what is installed already, and works with these.
const MERGEKIT: &[&str] = &["--no-deps", "mergekit==0.1.5"];

/// What it imports besides.
const MERGEKIT_NEEDS: &[&str] = &["immutables==0.21", "click==8.5.1", "pydantic==2.14.3"];

/// Which opens our folders of embeddings.
const SENTENCES: &str = "sentence-transformers==6.2.0";

/// Names an interpreter that already has them.
const OVERRIDE: &str = "PLANARIA_TORCH_PYTHON";

/// Releases that programs are validated with.
const PROGRAM_PACKAGES: &[&str] =
    &["paddlepaddle==3.3.1", "onnx==1.23.2", "onnxruntime==1.31.1", "numpy==2.4.6", "safetensors==0.8.0"];

/// Names an interpreter that already has these.
const PROGRAM_OVERRIDE: &str = "PLANARIA_PROGRAM_PYTHON";

/// An interpreter that can import torch and what goes with it, or the reason why there is none.
pub(crate) fn torch_python(root: &Path) -> Result<PathBuf, String> {
    let imports = "import torch, numpy, safetensors, transformers";
    let python = interpreter(root, "venv-torch", OVERRIDE, imports, PACKAGES)?;
    if std::env::var_os(OVERRIDE).is_none() {
        add(&python, "import peft", &[PEFT]);
        add(&python, "import immutables, click, pydantic", MERGEKIT_NEEDS);
        add(&python, "import mergekit", MERGEKIT);
        add(&python, "import sentence_transformers", &[SENTENCES]);
    }
    Ok(python)
}

/// An interpreter that runs programs of Paddle and ONNX models, or the reason why there is none.
pub(crate) fn program_python(root: &Path) -> Result<PathBuf, String> {
    let imports = "import paddle, onnx, onnxruntime, numpy, safetensors";
    interpreter(root, "venv-programs", PROGRAM_OVERRIDE, imports, PROGRAM_PACKAGES)
}

fn interpreter(
    root: &Path,
    venv: &str,
    given: &str,
    imports: &str,
    packages: &[&str],
) -> Result<PathBuf, String> {
    if let Some(python) = std::env::var_os(given).map(PathBuf::from) {
        return match can(&python, imports) {
            true => Ok(python),
            false => Err(format!("{given} names an interpreter that cannot `{imports}`")),
        };
    }
    let venv = root.join("target").join(venv);
    let python = venv.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    if can(&python, imports) {
        return Ok(python);
    }
    if !process::run(Command::new("python3").args(["-m", "venv"]).arg(&venv)).success {
        return Err("python3 -m venv failed; install python3 with its venv module".into());
    }
    let installed =
        process::run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages));
    match installed.success && can(&python, imports) {
        true => Ok(python),
        false => Err(format!(
            "pip install {} failed; set {given} to an interpreter that has them",
            packages.join(" ")
        )),
    }
}

/// Adapters and merges are compared with their peers too; the scripts that do say so where this fails.
fn add(python: &Path, import: &str, packages: &[&str]) {
    if process::ask(Command::new(python).args(["-c", import])).is_none() {
        process::run(Command::new(python).args(["-m", "pip", "install", "--quiet"]).args(packages));
    }
}

fn can(python: &Path, imports: &str) -> bool {
    process::ask(Command::new(python).args(["-c", imports])).is_some()
}
