//! Compiles every CUDA kernel into an archive, and reports registers and spills.
//!
//! ```text
//! kernels OUT [ARCH]       compile with NVRTC (the folder in PLANARIA_NVRTC) into the archive OUT
//! kernels --list [ARCH]    print key, file and defines of each build that can be emulated, tab-separated
//! kernels --pack FOLDER OUT [ARCH]    an archive of files that are named by their keys
//! ```

use planaria_array::{KernelBuild, kernel_builds};
use planaria_cuda::{Archive, ArchiveWriter, Compiler, Key};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const ARCH: &str = "sm_90a";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["--list", rest @ ..] => list(rest.first().unwrap_or(&ARCH)),
        ["--pack", folder, out, rest @ ..] => {
            pack(Path::new(folder), Path::new(out), rest.first().unwrap_or(&ARCH))
        }
        [out, rest @ ..] => compile(Path::new(out), rest.first().unwrap_or(&ARCH)),
        [] => Err("name the archive to write".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn key(build: &KernelBuild, arch: &str) -> Key {
    build.program.key(&build.defines, arch)
}

fn list(arch: &str) -> Result<(), String> {
    for build in kernel_builds().iter().filter(|build| build.emulated) {
        println!("{}\t{}\t{}", key(build, arch), build.program.name, build.defines);
    }
    Ok(())
}

fn pack(folder: &Path, out: &Path, arch: &str) -> Result<(), String> {
    let mut archive = ArchiveWriter::default();
    for build in kernel_builds().iter().filter(|build| build.emulated) {
        let key = key(build, arch);
        let path = folder.join(key.to_string());
        archive.add(key, std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?);
    }
    std::fs::write(out, archive.bytes()).map_err(|error| format!("{}: {error}", out.display()))
}

/// Compiles what the old archive does not have.
fn compile(out: &Path, arch: &str) -> Result<(), String> {
    let compiler = Compiler::open().map_err(|error| error.to_string())?;
    let old = Archive::read(out).ok();
    let builds = kernel_builds();
    let (next, archive) = (AtomicUsize::new(0), Mutex::new((ArchiveWriter::default(), Vec::new())));
    let work = || {
        while let Some(build) = builds.get(next.fetch_add(1, Ordering::Relaxed)) {
            let key = key(build, arch);
            let name = format!("{} {}", build.program.name, build.defines);
            let kept = old.as_ref().and_then(|old| old.get(key));
            let made = match kept {
                Some(cubin) => Ok((cubin.to_vec(), String::from("kept"))),
                None => compiler
                    .compile(&build.program, &build.defines, arch)
                    .map_err(|error| error.to_string())
                    .and_then(|made| Ok((made.cubin, judge(build, &made.log)?))),
            };
            let Ok(mut archive) = archive.lock() else { return };
            match made {
                Ok((cubin, text)) => {
                    println!("{name}: {text}, {} KiB", cubin.len() >> 10);
                    archive.0.add(key, cubin);
                }
                Err(text) => archive.1.push(format!("{name}: {text}")),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let (archive, failed) = archive.into_inner().map_err(|_| "a compilation panicked")?;
    if !failed.is_empty() {
        return Err(failed.join("\n"));
    }
    println!("{} builds by NVRTC {} for {arch}", builds.len(), compiler.version());
    std::fs::write(out, archive.bytes()).map_err(|error| format!("{}: {error}", out.display()))
}

/// The most registers and spilled bytes of a build's kernels; an error where its file forbids spills.
fn judge(build: &KernelBuild, log: &str) -> Result<String, String> {
    let numbers = |before: &str, after: &str| -> Vec<u64> {
        let parts = log.split(after).filter_map(|part| part.rsplit(before).next());
        parts.filter_map(|part| part.trim().parse().ok()).collect()
    };
    let registers = numbers("Used ", " registers").into_iter().max().unwrap_or(0);
    let spills: u64 = numbers(", ", " bytes spill stores").into_iter().sum();
    if spills > 0 && build.program.text.contains("// No spills.") {
        return Err(format!("{spills} bytes are spilled, which the file forbids\n{log}"));
    }
    // The assembler's note that it has put all products of a kernel one after the other.
    if log.contains("C7512") {
        return Err(format!("products are serialized\n{log}"));
    }
    Ok(format!("{registers} registers, {spills} bytes spilled"))
}
