//! Says in plain words what `--features mpi` needs, before the generator of MPI's bindings fails without it.

mod libclang;

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=libclang.rs");
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
    if !libclang::is_here() {
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
