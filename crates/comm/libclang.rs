//! Whether libclang is on this machine: asked by the build script, and by the test command before it turns MPI on.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Looks where bindgen looks: at LIBCLANG_PATH alone where it is set, else where libraries are.
pub(crate) fn is_here() -> bool {
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
