//! The build script, run as cargo runs it, on machines that lack what MPI needs.

use std::path::Path;
use std::process::Command;

/// What it prints where programs and libclang are looked for in these places alone.
fn output(script: &Path, programs: &Path, libraries: &Path) -> String {
    let mut command = Command::new(script);
    command.env_clear().env("CARGO_FEATURE_MPI", "1").env("PATH", programs).env("LIBCLANG_PATH", libraries);
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

#[test]
fn what_mpi_needs_is_named_with_its_packages() {
    let folder = tempfile::tempdir().unwrap();
    let (script, empty) = (folder.path().join("script"), folder.path().join("empty"));
    std::fs::create_dir(&empty).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let built = Command::new(rustc).args(["--edition", "2024", "-o"]).arg(&script).arg(source).status();
    assert!(built.unwrap().success());

    let errors = |text: &str| text.lines().filter(|line| line.starts_with("cargo::error=")).count();
    let nothing = output(&script, &empty, &empty);
    assert!(
        nothing.contains("mpicc") && nothing.contains("apt-get install openmpi-bin libopenmpi-dev"),
        "{nothing}"
    );
    assert!(
        nothing.contains("apt-get install libclang-dev") && nothing.contains("LIBCLANG_PATH"),
        "{nothing}"
    );
    assert_eq!(errors(&nothing), 2, "{nothing}");

    std::fs::write(empty.join("libclang-cpp.so.14"), "").unwrap();
    assert_eq!(errors(&output(&script, &empty, &empty)), 2, "that is another library");
    std::fs::write(empty.join("libclang-14.so.13"), "").unwrap();
    let mpicc = empty.join("mpicc");
    std::fs::write(&mpicc, "#!/bin/sh\nexit 0\n").unwrap();
    std::fs::set_permissions(&mpicc, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(errors(&output(&script, &empty, &empty)), 0);
}
