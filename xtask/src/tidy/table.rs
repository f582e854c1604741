//! The tables `tidy` checks the tree against: floors, sizes, and where unsafe code and macros may live.

/// Floor of each package. A dependency may only go to a strictly lower floor.
pub(super) const FLOORS: &[(&str, u8)] = &[
    ("planaria-layout", 0),
    ("planaria-cpu", 0),
    ("planaria-cuda", 0),
    ("planaria-array", 1),
    ("planaria-aoa", 1),
    ("planaria-telemetry", 1),
    ("planaria-comm", 2),
    ("planaria-store", 2),
    ("planaria-tensor", 3),
    ("planaria-ckpt", 3),
    ("planaria-nn", 4),
    ("planaria-data", 4),
    ("planaria-pipeline", 4),
    ("planaria-program", 4),
    ("planaria-board", 5),
    ("planaria-merge", 5),
    ("planaria-train", 5),
    ("planaria", 6),
    ("planaria-cli", 7),
    ("planaria-py", 7),
    ("planaria-fuzz", 8),
    ("planaria-golden", 8),
    ("planaria-e2e", 8),
    ("planaria-bench", 9),
    ("xtask", 9),
];

/// From this floor up a package may write to standard output and standard error.
pub(super) const PRINTING_FLOOR: u8 = 7;

/// Files that may hold `unsafe`. `*` stands for any file name in that folder.
pub(crate) const UNSAFE_FILES: &[&str] = &[
    "crates/array/src/alloc.rs",
    "crates/array/src/buffer.rs",
    "crates/array/src/foreign.rs",
    "crates/array/src/parts.rs",
    "crates/array/src/cpu/mask_compress.rs",
    "crates/array/src/cpu/simd.rs",
    "crates/array/src/cpu/stream.rs",
    "crates/array/src/cpu/strided.rs",
    "crates/array/src/cpu/transpose.rs",
    "crates/array/src/cpu/trunc.rs",
    "crates/cpu/src/prefetch.rs",
    "crates/cpu/src/registers.rs",
    "crates/cpu/src/matmul/*.rs",
    "crates/cpu/src/matmul/amx/*.rs",
    "crates/cuda/src/blas.rs",
    "crates/cuda/src/driver.rs",
    "crates/cuda/src/nccl.rs",
    "crates/cuda/src/nvrtc.rs",
    "crates/cuda/src/pinned.rs",
    "crates/store/src/local/map.rs",
    "crates/store/src/local/sys.rs",
    "crates/comm/src/letters/memory.rs",
    "crates/comm/src/mpi/raw.rs",
    "crates/comm/src/shared/mod.rs",
    "crates/comm/src/shared/ring.rs",
    "crates/data/src/map.rs",
    "crates/py/src/buffer.rs",
    "crates/py/src/dlpack.rs",
    "crates/py/src/mapped.rs",
    "xtask/src/hosts/wire.rs",
];

/// Folders and files that may define macros: dtype tables, dtype dispatch and multi-versioned loops only.
pub(super) const MACRO_PLACES: &[&str] = &[
    "crates/array/src/cpu/",
    "crates/cpu/src/matmul/",
    "crates/cpu/tests/products.rs",
    "crates/array/src/convert.rs",
    "crates/array/src/dispatch.rs",
    "crates/array/src/element.rs",
];

/// Most lines in one file, its tests included.
pub(super) const FILE_LINES: usize = 600;

/// Most lines in one function, from `fn` to its closing brace.
pub(super) const FUNCTION_LINES: usize = 60;

/// Type names must not end in these words: they say nothing about what the type is.
pub(super) const EMPTY_WORDS: &[&str] = &["Manager", "Helper", "Helpers", "Utils", "Util", "Base", "Impl"];

/// Whether `path` (relative, with `/`) is covered by `pattern`, whose last part may start with `*`.
pub(super) fn covers(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == path,
        Some((folder, ending)) => path
            .strip_prefix(folder)
            .is_some_and(|rest| !rest.contains('/') && rest.len() > ending.len() && rest.ends_with(ending)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_covers_one_folder_only() {
        assert!(covers("a/b.rs", "a/b.rs"));
        assert!(!covers("a/b.rs", "a/b.rs.old"));
        assert!(covers("a/*.rs", "a/x.rs"));
        assert!(!covers("a/*.rs", "a/x.py"));
        assert!(!covers("a/*.rs", "a/b/x.rs"));
        assert!(!covers("a/*.rs", "c/x.rs"));
    }

    #[test]
    fn no_package_stands_on_two_floors() {
        for (i, (name, _)) in FLOORS.iter().enumerate() {
            assert!(FLOORS[i + 1..].iter().all(|(other, _)| other != name), "{name} is listed twice");
        }
    }
}
