//! Kernel sources, what they are compiled to, and where that is found.

use crate::archive::Archive;
use crate::context::Context;
use crate::driver::{self, Raw, RawFunction, RawModule};
use crate::error::{Error, Result};
use crate::nvrtc::Compiler;
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A source file with everything it includes.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its file name.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// Name and text of the files it may include.
    pub headers: &'static [(&'static str, &'static str)],
    /// Options of the compiler.
    pub options: &'static [&'static str],
}

/// What a compiled program is filed under: a hash of text, headers, options, defines and architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u128);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Program {
    /// The key of this program with some defines (`T=f32 WIDE=1`) on an architecture.
    pub fn key(&self, defines: &str, arch: &str) -> Key {
        let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
        let mut add = |text: &str| {
            // FNV-1a; the length first, so that parts cannot run into each other.
            for byte in (text.len() as u64).to_le_bytes().into_iter().chain(text.bytes()) {
                hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
            }
        };
        [self.text, defines, arch].into_iter().for_each(&mut add);
        self.options.iter().for_each(|option| add(option));
        self.headers.iter().for_each(|(name, text)| [name, text].into_iter().for_each(|part| add(part)));
        Key(hash)
    }
}

/// A kernel ready to launch.
#[derive(Debug)]
pub struct Kernel {
    raw: RawFunction,
    name: String,
    /// Dynamic shared memory it may use so far.
    shared: AtomicU32,
}

impl Kernel {
    pub(crate) fn raw(&self) -> RawFunction {
        self.raw
    }

    /// Program, defines and function, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Asks for more than the shared memory every kernel has, once.
    pub(crate) fn allow_shared(&self, bytes: u32) -> Raw<()> {
        // 48 KiB, of which a kernel's own variables take some.
        const EVERYONE: u32 = 32 << 10;
        if bytes > EVERYONE && bytes > self.shared.load(Ordering::Relaxed) {
            driver::allow_shared(self.raw, bytes)?;
            self.shared.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// What is loaded on one device.
#[derive(Default)]
pub(crate) struct Modules {
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
    modules: Mutex<HashMap<Key, RawModule>>,
}

impl Context {
    /// A kernel of a program with some defines, found in the archive or the cache, or compiled.
    pub fn kernel(&self, program: &Program, defines: &str, function: &str) -> Result<Arc<Kernel>> {
        let name = format!("{}:{function} {defines}", program.name);
        let known = self.modules.kernels.lock().unwrap_or_else(PoisonError::into_inner).get(&name).cloned();
        if let Some(kernel) = known {
            return Ok(kernel);
        }
        self.bind("kernel")?;
        let module = self.module(program, defines)?;
        let failed = |failure: driver::Failure| Error::Kernel {
            name: name.clone(),
            reason: failure.error("kernel", String::new()).to_string(),
        };
        let raw = driver::function(module, function).map_err(failed)?;
        let kernel = Arc::new(Kernel { raw, name: name.clone(), shared: AtomicU32::new(0) });
        self.modules.kernels.lock().unwrap_or_else(PoisonError::into_inner).insert(name, kernel.clone());
        Ok(kernel)
    }

    fn module(&self, program: &Program, defines: &str) -> Result<RawModule> {
        let arch = self.info().arch();
        let key = program.key(defines, &arch);
        let mut modules = self.modules.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&module) = modules.get(&key) {
            return Ok(module);
        }
        let load = |cubin: &[u8]| {
            let name = format!("{} {defines}", program.name);
            driver::load(cubin).map_err(|failure| Error::Kernel {
                name,
                reason: failure.error("load", String::new()).to_string(),
            })
        };
        let module = match Archive::installed()?.and_then(|archive| archive.get(key)) {
            Some(cubin) => load(cubin)?,
            None => load(&cached(key, || {
                let unavailable = |error: Error| Error::Kernel {
                    name: format!("{} {defines}", program.name),
                    reason: format!("it is in no archive, and {error}"),
                };
                let compiler = Compiler::open().map_err(unavailable)?;
                Ok(compiler.compile(program, defines, &arch)?.cubin)
            })?)?,
        };
        modules.insert(key, module);
        Ok(module)
    }
}

/// The folder of compiled kernels: in the user's cache, where there is one.
fn cache_folder() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = given.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("planaria").join("kernels"))
}

/// What the cache has for a key, else what `make` makes, which is then kept where possible.
fn cached(key: Key, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    let Some(folder) = cache_folder() else { return make() };
    let path = folder.join(format!("{key}.cubin"));
    if let Ok(cubin) = std::fs::read(&path) {
        return Ok(cubin);
    }
    let cubin = make()?;
    // A cache that cannot be written only costs time; the name appears when the file is whole.
    let partial = folder.join(format!("{key}.{}", std::process::id()));
    if std::fs::create_dir_all(&folder).is_ok() && std::fs::write(&partial, &cubin).is_ok() {
        let _ = std::fs::rename(&partial, &path);
    }
    Ok(cubin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_every_part_apart() {
        let program = Program { name: "a.cu", text: "x", headers: &[("h", "y")], options: &["-o"] };
        let key = program.key("T=f32", "sm_90a");
        assert_eq!(key, program.key("T=f32", "sm_90a"));
        assert_ne!(key, program.key("T=f64", "sm_90a"));
        assert_ne!(key, program.key("T=f32", "sm_80"));
        assert_ne!(key, Program { text: "z", ..program }.key("T=f32", "sm_90a"));
        assert_ne!(key, Program { headers: &[("h", "z")], ..program }.key("T=f32", "sm_90a"));
        assert_ne!(key, Program { options: &[], ..program }.key("T=f32", "sm_90a"));
        assert_eq!(key.to_string().len(), 32);
    }
}
