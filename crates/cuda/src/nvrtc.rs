//! The run-time compiler: from a source text to a cubin.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::program::Program;
use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};
use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::sync::OnceLock;

/// What the compiler makes of a program.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Code for one architecture.
    pub cubin: Vec<u8>,
    /// What it said: registers, spills, warnings.
    pub log: String,
}

/// The compiler, once it was found.
#[derive(Clone, Copy, Debug)]
pub struct Compiler(());

const NAMES: [&str; 2] = ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"];

/// Loads the library from the folder `PLANARIA_NVRTC` names, if it names one. Libraries are found again by their names.
fn load_given() -> std::result::Result<(), String> {
    let Some(folder) = std::env::var_os("PLANARIA_NVRTC").map(PathBuf::from) else { return Ok(()) };
    for name in NAMES {
        let path = folder.join(name);
        // SAFETY: the library's initialisers are the vendor's own.
        let library = unsafe { libloading::os::unix::Library::open(Some(&path), LAZY_GLOBAL) };
        // Never unloaded: function pointers into it are kept.
        std::mem::forget(library.map_err(|error| format!("{}: {error}", path.display()))?);
    }
    Ok(())
}

/// Resolve names when used; let libraries loaded later see them.
const LAZY_GLOBAL: i32 = libloading::os::unix::RTLD_LAZY | libloading::os::unix::RTLD_GLOBAL;

impl Compiler {
    /// Finds the compiler: in the folder `PLANARIA_NVRTC` names, or where the loader looks.
    pub fn open() -> Result<Compiler> {
        static OPENED: OnceLock<std::result::Result<(), String>> = OnceLock::new();
        let open = || {
            load_given()?;
            // SAFETY: only looks for the library.
            if unsafe { sys::is_culib_present() } {
                return Ok(());
            }
            Err(format!("{} was not found; set PLANARIA_NVRTC to the folder that has it", NAMES[1]))
        };
        let opened = OPENED.get_or_init(open).clone();
        opened.map(Compiler).map_err(|reason| Error::Library { library: "nvrtc", reason })
    }

    /// Its version, such as 13.0.
    pub fn version(self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two integers.
        unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
        format!("{major}.{minor}")
    }

    /// Compiles a program with some defines (`T=f32 WIDE=1`) for an architecture.
    pub fn compile(self, program: &Program, defines: &str, arch: &str) -> Result<Compiled> {
        let name = format!("{} {defines}", program.name);
        let failed = |reason: String| Error::Kernel { name: name.clone(), reason };
        let text = |text: &str| CString::new(text).map_err(|_| failed("holds a zero byte".into()));
        let mut options = vec![text(&format!("--gpu-architecture={arch}"))?, text("--ptxas-options=-v")?];
        for option in program.options {
            options.push(text(option)?);
        }
        for define in defines.split_whitespace() {
            options.push(text(&format!("-D{define}"))?);
        }
        let (source, file) = (text(program.text)?, text(program.name)?);
        let names = program.headers.iter().map(|(name, _)| text(name)).collect::<Result<Vec<_>>>()?;
        let texts = program.headers.iter().map(|(_, body)| text(body)).collect::<Result<Vec<_>>>()?;
        let job = Job::new(&source, &file, &names, &texts).map_err(|code| failed(format!("{code:?}")))?;
        let outcome = job.compile(&options);
        let log = job.log();
        match outcome.and_then(|()| job.cubin()) {
            Ok(cubin) => Ok(Compiled { cubin, log }),
            Err(code) => Err(failed(format!("{code:?}\n{log}"))),
        }
    }
}

/// One compilation.
struct Job(nvrtcProgram);

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

fn check(code: nvrtcResult) -> std::result::Result<(), nvrtcResult> {
    if code == nvrtcResult::NVRTC_SUCCESS { Ok(()) } else { Err(code) }
}

impl Job {
    fn new(
        source: &CString,
        file: &CString,
        names: &[CString],
        texts: &[CString],
    ) -> std::result::Result<Job, nvrtcResult> {
        let (names, texts) = (pointers(names), pointers(texts));
        let mut job = std::ptr::null_mut();
        // SAFETY: texts that end with zeros and two lists of one length; the compiler copies them.
        check(unsafe {
            sys::nvrtcCreateProgram(
                &raw mut job,
                source.as_ptr(),
                file.as_ptr(),
                names.len() as i32,
                texts.as_ptr(),
                names.as_ptr(),
            )
        })?;
        Ok(Job(job))
    }

    fn compile(&self, options: &[CString]) -> std::result::Result<(), nvrtcResult> {
        let options = pointers(options);
        // SAFETY: a live program and a list of texts that end with zeros.
        check(unsafe { sys::nvrtcCompileProgram(self.0, options.len() as i32, options.as_ptr()) })
    }

    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: a live program; writes one integer.
        unsafe { sys::nvrtcGetProgramLogSize(self.0, &raw mut size) };
        let mut log = vec![0u8; size];
        // SAFETY: the buffer has the size the compiler asked for.
        unsafe { sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast()) };
        String::from_utf8_lossy(&log).trim_end_matches('\0').to_string()
    }

    fn cubin(&self) -> std::result::Result<Vec<u8>, nvrtcResult> {
        let mut size = 0;
        // SAFETY: a live program; writes one integer.
        check(unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut size) })?;
        let mut cubin = vec![0u8; size];
        // SAFETY: the buffer has the size the compiler asked for.
        check(unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) })?;
        Ok(cubin)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // SAFETY: created by `new` and not used any more.
        unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
    }
}
