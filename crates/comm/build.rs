//! Says in plain words what `--features mpi` needs, before the generator of MPI's bindings fails without it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["MPICC", "MPI_PKG_CONFIG", "CRAY_MPICH_DIR", "LIBCLANG_PATH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    if env::var_os("CARGO_FEATURE_MPI").is_none() {
        return;
    }
    if !has_mpi() {
        println!(
            "cargo::error=the feature `mpi` needs an MPI library with its compiler wrapper `mpicc`, which is not on the PATH; \
             on Debian and Ubuntu: apt-get install openmpi-bin libopenmpi-dev; elsewhere set MPICC to its path"
        );
    }
    if !has_libclang() {
        println!(
            "cargo::error=the feature `mpi` needs libclang, which reads MPI's headers, and there is none; on Debian and \
             Ubuntu: apt-get install libclang-dev; elsewhere set LIBCLANG_PATH to the folder that holds libclang.so"
        );
    }
}

/// The ways in which the crate `mpi` looks for a library.
fn has_mpi() -> bool {
    if env::var_os("MPI_PKG_CONFIG").is_some() || env::var_os("CRAY_MPICH_DIR").is_some() {
        return true;
    }
    let runs = |program: &str, args: &[&str]| {
        Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    };
    let compiler = env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    runs(&compiler, &["-show"])
        || ["mpich", "ompi"].iter().any(|name| runs("pkg-config", &["--exists", name]))
}

/// Looks where bindgen looks: at LIBCLANG_PATH alone where it is set, else where libraries are.
fn has_libclang() -> bool {
    if let Some(path) = env::var_os("LIBCLANG_PATH").map(PathBuf::from) {
        return is_libclang(&path) || holds(&path, 0);
    }
    let listed = ["LD_LIBRARY_PATH", "LIBRARY_PATH"].iter().filter_map(env::var_os);
    let mut folders: Vec<PathBuf> =
        listed.flat_map(|list| env::split_paths(&list).collect::<Vec<_>>()).collect();
    let program = env::var("LLVM_CONFIG_PATH").unwrap_or_else(|_| "llvm-config".into());
    if let Ok(output) = Command::new(program).arg("--libdir").output() {
        folders.push(String::from_utf8_lossy(&output.stdout).trim().into());
    }
    folders.iter().any(|folder| holds(folder, 0))
        || ["/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/local/lib", "/usr/local/lib64"]
            .iter()
            .any(|folder| holds(Path::new(folder), 2))
        || cfg!(not(target_os = "linux"))
}

/// Whether the library is in a folder, or below it up to this depth.
fn holds(folder: &Path, depth: u32) -> bool {
    let entries = || fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries().any(|path| is_libclang(&path))
        || (depth > 0 && entries().any(|path| path.is_dir() && holds(&path, depth - 1)))
}

/// `libclang.so`, `libclang-14.so`, `libclang.so.1`; not `libclang-cpp.so`.
fn is_libclang(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let plain = name.starts_with("libclang.so") || name.starts_with("libclang-");
    plain && name.contains(".so") && !name.contains("-cpp.") && path.is_file()
}
