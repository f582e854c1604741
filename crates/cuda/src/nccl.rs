//! NCCL, opened at run time: communicators that move bytes between devices. Sums are never asked of it.
#![allow(unsafe_code)]

use crate::context::Context;
use crate::error::{Error, Result};
use crate::lane::Lane;
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// What a call answers.
type Status = c_int;
const SUCCESS: Status = 0;
const IN_PROGRESS: Status = 7;
/// The library's name of a byte.
const BYTE: c_int = 1;
/// Marks a configuration, of the first release that knows calls which do not block; later ones take it too.
const MAGIC: u32 = 0xcafe_beef;
const SINCE: u32 = 21_400;
/// The name of the library.
const NAME: &str = "libnccl.so.2";

/// The name of a communicator, which its first rank makes and tells the others.
#[derive(Clone, Copy)]
#[repr(C)]
struct Id([u8; UNIQUE]);

/// Bytes of the name of a communicator.
pub const UNIQUE: usize = 128;

#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    undefined: c_int,
}

#[repr(C)]
struct Opaque {
    _private: [u8; 0],
}

type Handle = *mut Opaque;

/// The functions that are used, under their own names.
struct Functions {
    get_version: unsafe extern "C" fn(*mut c_int) -> Status,
    get_unique_id: unsafe extern "C" fn(*mut Id) -> Status,
    init: unsafe extern "C" fn(*mut Handle, c_int, Id, c_int, *mut Config) -> Status,
    async_error: unsafe extern "C" fn(Handle, *mut Status) -> Status,
    finalize: unsafe extern "C" fn(Handle) -> Status,
    destroy: unsafe extern "C" fn(Handle) -> Status,
    abort: unsafe extern "C" fn(Handle) -> Status,
    group_start: unsafe extern "C" fn() -> Status,
    group_end: unsafe extern "C" fn() -> Status,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, *mut c_void) -> Status,
    receive: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> Status,
    all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Handle, *mut c_void) -> Status,
    broadcast:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    last_error: unsafe extern "C" fn(Handle) -> *const c_char,
}

fn failed(reason: impl Into<String>) -> Error {
    Error::Library { library: "NCCL", reason: reason.into() }
}

/// Where to look: the folder that `PLANARIA_NCCL` names and nowhere else, or where the loader looks.
fn places(folder: Option<OsString>) -> Vec<PathBuf> {
    match folder {
        Some(folder) => vec![Path::new(&folder).join(NAME)],
        None => vec![NAME.into(), "libnccl.so".into()],
    }
}

impl Functions {
    fn open(places: &[PathBuf]) -> Result<Functions> {
        let mut tried = Vec::new();
        for place in places {
            // SAFETY: the library's initialisers are the vendor's own.
            match unsafe { Library::open(Some(place), RTLD_LAZY | RTLD_LOCAL) } {
                Ok(library) => return Functions::of(library),
                Err(error) => {
                    let why =
                        std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
                    let name = place.display().to_string();
                    // The loader often names the file itself.
                    tried.push(if why.contains(&name) { why } else { format!("{name}: {why}") });
                }
            }
        }
        let reason = format!(
            "{NAME} cannot be loaded ({}); set PLANARIA_NCCL to the folder that holds it",
            tried.join("; ")
        );
        Err(failed(reason))
    }

    fn of(library: Library) -> Result<Functions> {
        fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T> {
            // SAFETY: the types of the fields are those of the library's header.
            let found = unsafe { library.get::<T>(name.as_bytes()) };
            found
                .map(|symbol| *symbol)
                .map_err(|error| failed(format!("{error}; version 2.14 or newer is needed")))
        }
        let functions = Functions {
            get_version: symbol(&library, "ncclGetVersion")?,
            get_unique_id: symbol(&library, "ncclGetUniqueId")?,
            init: symbol(&library, "ncclCommInitRankConfig")?,
            async_error: symbol(&library, "ncclCommGetAsyncError")?,
            finalize: symbol(&library, "ncclCommFinalize")?,
            destroy: symbol(&library, "ncclCommDestroy")?,
            abort: symbol(&library, "ncclCommAbort")?,
            group_start: symbol(&library, "ncclGroupStart")?,
            group_end: symbol(&library, "ncclGroupEnd")?,
            send: symbol(&library, "ncclSend")?,
            receive: symbol(&library, "ncclRecv")?,
            all_gather: symbol(&library, "ncclAllGather")?,
            broadcast: symbol(&library, "ncclBroadcast")?,
            error_string: symbol(&library, "ncclGetErrorString")?,
            last_error: symbol(&library, "ncclGetLastError")?,
        };
        // Never unloaded: its threads may outlive every communicator.
        std::mem::forget(library);
        Ok(functions)
    }

    /// The library, looked for once.
    fn get() -> Result<&'static Functions> {
        static OPENED: OnceLock<Result<Functions>> = OnceLock::new();
        let opened = OPENED.get_or_init(|| Functions::open(&places(std::env::var_os("PLANARIA_NCCL"))));
        opened.as_ref().map_err(Clone::clone)
    }

    /// An answer that may also be "not yet".
    fn begun(&self, call: &str, status: Status) -> Result<()> {
        if status == SUCCESS || status == IN_PROGRESS { Ok(()) } else { Err(self.refusal(call, status)) }
    }

    fn refusal(&self, call: &str, status: Status) -> Error {
        // SAFETY: both answer constant texts, or null; the second takes no communicator for the last error of all.
        let texts = unsafe { [(self.error_string)(status), (self.last_error)(std::ptr::null_mut())] };
        let text = |text: *const c_char| {
            if text.is_null() {
                return String::new();
            }
            // SAFETY: a text of the library ends with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        let [name, last] = texts.map(text);
        failed(format!("{call} says {name} ({status}){}{last}", if last.is_empty() { "" } else { ": " }))
    }
}

/// The library's version, such as 2.28.9; an error that says where it was looked for when there is none.
pub fn nccl_version() -> Result<String> {
    let (library, mut version) = (Functions::get()?, 0);
    // SAFETY: writes one integer.
    library.begun("ncclGetVersion", unsafe { (library.get_version)(&raw mut version) })?;
    Ok(format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100))
}

/// The name of a communicator to be.
pub fn nccl_name() -> Result<[u8; UNIQUE]> {
    let (library, mut id) = (Functions::get()?, Id([0; UNIQUE]));
    // SAFETY: writes the bytes of one name.
    library.begun("ncclGetUniqueId", unsafe { (library.get_unique_id)(&raw mut id) })?;
    Ok(id.0)
}

/// Bytes of a device that go to a rank or come from it. Addresses are the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// To one rank.
    Send {
        /// Where they lie.
        from: u64,
        /// How many.
        bytes: usize,
        /// Who gets them.
        to: usize,
    },
    /// From one rank.
    Receive {
        /// Where they go.
        to: u64,
        /// How many.
        bytes: usize,
        /// Whose they are.
        from: usize,
    },
    /// The same number from everyone to everyone, in the order of ranks.
    Gather {
        /// This rank's.
        from: u64,
        /// Everyone's.
        to: u64,
        /// Of each rank.
        bytes: usize,
    },
    /// From one rank to all, in place.
    Broadcast {
        /// Where they lie, or go.
        at: u64,
        /// How many.
        bytes: usize,
        /// Whose they are.
        root: usize,
    },
}

/// One rank's end of a communicator. Nothing here waits for other ranks longer than it is told to.
pub struct Communicator {
    library: &'static Functions,
    handle: Handle,
}

// SAFETY: the library lets any thread use a communicator, one at a time, which `&mut self` and ownership see to.
unsafe impl Send for Communicator {}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Communicator")
    }
}

/// Asked again and again while the library waits for other ranks; false gives up.
pub type GoOn<'a> = &'a dyn Fn() -> bool;

impl Communicator {
    /// Joins `size` ranks as number `rank` on a device; all pass the same name.
    pub fn join(
        context: &Context,
        name: &[u8; UNIQUE],
        rank: usize,
        size: usize,
        go_on: GoOn<'_>,
    ) -> Result<Communicator> {
        let library = Functions::get()?;
        context.bind("join")?;
        let (bytes, undefined) = (size_of::<Config>(), c_int::MIN);
        let mut config = Config { size: bytes, magic: MAGIC, version: SINCE, blocking: 0, undefined };
        let mut handle = std::ptr::null_mut();
        let place = |n: usize| c_int::try_from(n).map_err(|_| failed(format!("{n} ranks are too many")));
        let (rank, size) = (place(rank)?, place(size)?);
        // SAFETY: the device's context is this thread's; the configuration says how long it is and is copied.
        let status = unsafe { (library.init)(&raw mut handle, size, Id(*name), rank, &raw mut config) };
        library.begun("ncclCommInitRankConfig", status)?;
        let mut made = Communicator { library, handle };
        match made.settle("ncclCommInitRankConfig", go_on) {
            Ok(()) => Ok(made),
            Err(error) => {
                made.abort();
                Err(error)
            }
        }
    }

    /// How the library stands; an error when something went wrong since.
    fn state(&self, call: &str) -> Result<Status> {
        let mut status = SUCCESS;
        // SAFETY: the communicator is alive; writes one integer.
        let asked = unsafe { (self.library.async_error)(self.handle, &raw mut status) };
        self.library.begun("ncclCommGetAsyncError", asked)?;
        self.library.begun(call, status)?;
        Ok(status)
    }

    /// Waits until what was asked last is under way.
    fn settle(&mut self, call: &str, go_on: GoOn<'_>) -> Result<()> {
        let mut turns = 0u32;
        while self.state(call)? == IN_PROGRESS {
            if !go_on() {
                return Err(failed(format!("{call} was given up")));
            }
            turns += 1;
            match turns {
                0..100 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(100)),
            }
        }
        Ok(())
    }

    /// What went wrong since, with work that was queued long ago.
    pub fn check(&self) -> Result<()> {
        self.state("a queued call").map(drop)
    }

    /// Queues moves on a lane, all together. Addresses and lengths must be of memory that stays until they have passed.
    pub fn queue(&mut self, lane: &Lane, op: &'static str, moves: &[Move], go_on: GoOn<'_>) -> Result<()> {
        lane.library(op, &|| format!("{op}: nccl"), || {
            // SAFETY: takes nothing.
            self.library.begun("ncclGroupStart", unsafe { (self.library.group_start)() })?;
            let queued = moves.iter().try_for_each(|step| self.add(lane, step));
            // SAFETY: ends the group begun above.
            let ended = self.library.begun("ncclGroupEnd", unsafe { (self.library.group_end)() });
            queued.and(ended)?;
            self.settle("ncclGroupEnd", go_on)
        })?
    }

    fn add(&self, lane: &Lane, step: &Move) -> Result<()> {
        let (library, handle) = (self.library, self.handle);
        let stream = lane.compute().raw.pointer().cast::<c_void>();
        let pointer = |address: u64| address as *mut c_void;
        // SAFETY: addresses are the device's, which the host never follows; the stream and the communicator are alive. Ranks are
        // below the number that `join` took.
        let (call, status) = unsafe {
            match *step {
                Move::Send { from, bytes, to } => {
                    ("ncclSend", (library.send)(pointer(from), bytes, BYTE, to as c_int, handle, stream))
                }
                Move::Receive { to, bytes, from } => {
                    ("ncclRecv", (library.receive)(pointer(to), bytes, BYTE, from as c_int, handle, stream))
                }
                Move::Gather { from, to, bytes } => {
                    let status =
                        (library.all_gather)(pointer(from), pointer(to), bytes, BYTE, handle, stream);
                    ("ncclAllGather", status)
                }
                Move::Broadcast { at, bytes, root } => {
                    let (at, root) = (pointer(at), root as c_int);
                    ("ncclBroadcast", (library.broadcast)(at, at, bytes, BYTE, root, handle, stream))
                }
            }
        };
        library.begun(call, status)
    }

    /// Ends it when all that was queued has passed, waiting for the other ranks to do so too.
    pub fn finish(mut self, go_on: GoOn<'_>) -> Result<()> {
        // SAFETY: the communicator is alive, and this is its last use but for the calls below.
        let status = unsafe { (self.library.finalize)(self.handle) };
        let ended = self.library.begun("ncclCommFinalize", status);
        match ended.and_then(|()| self.settle("ncclCommFinalize", go_on)) {
            Ok(()) => {
                let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
                // SAFETY: finalized above, and not used again.
                self.library.begun("ncclCommDestroy", unsafe { (self.library.destroy)(handle) })
            }
            Err(error) => {
                self.abort();
                Err(error)
            }
        }
    }

    /// Ends it at once; work of it that still runs on the device ends too.
    pub fn abort(&mut self) {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        if !handle.is_null() {
            // SAFETY: the communicator is alive, and not used again. Nobody can do anything about a failure.
            unsafe { (self.library.abort)(handle) };
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_told_with_its_place_and_what_to_set() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(Some(folder.path().into()));
        assert_eq!(places, [folder.path().join("libnccl.so.2")]);
        let Err(Error::Library { library: "NCCL", reason }) = Functions::open(&places).map(drop) else {
            panic!("opened")
        };
        assert!(reason.contains(&folder.path().display().to_string()), "{reason}");
        assert!(reason.ends_with("set PLANARIA_NCCL to the folder that holds it"), "{reason}");
    }
}
