//! The system calls that the standard library does not offer: reserving space, asking the page cache, and ending at once.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Reserves `len` bytes from the start, so that a full disk is noticed before writing and parallel direct
/// writes need not allocate. File systems without it just get the length.
pub(super) fn reserve(file: &File, len: u64) -> io::Result<()> {
    let size = libc::off_t::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    if size > 0 {
        // SAFETY: the descriptor is open for the whole call; no memory is passed.
        let failed = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size) } != 0;
        if failed {
            let error = io::Error::last_os_error();
            if error.raw_os_error().is_some_and(|code| code == libc::ENOSPC || code == libc::EDQUOT) {
                return Err(error);
            }
        }
    }
    file.set_len(len)
}

/// Ends this process as SIGKILL from outside would: nothing is flushed, nothing is dropped.
pub(crate) fn kill_this_process() -> ! {
    // SAFETY: no memory is passed; the signal cannot be caught.
    unsafe { libc::raise(libc::SIGKILL) };
    std::process::abort()
}

/// The range asked about.
#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

/// What the kernel answers, in pages.
#[repr(C)]
#[derive(Default)]
struct Answer {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// How many bytes of a range the page cache holds; `None` where the kernel cannot say (before 6.5).
pub(super) fn cached_bytes(file: &File, offset: u64, len: u64) -> Option<u64> {
    /// The same number on every architecture.
    const CACHESTAT: libc::c_long = 451;
    let range = Range { offset, len };
    let mut answer = Answer::default();
    // SAFETY: both pointers are to live values of the layouts the call expects, and it keeps neither.
    let status = unsafe {
        libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut answer, 0 as libc::c_uint)
    };
    (status == 0).then(|| answer.cached.saturating_mul(4096).min(len))
}

/// True for a file of a file system that is nothing but memory.
pub(super) fn is_in_memory(file: &File) -> bool {
    // SAFETY: a struct of integers, for which zeros are values.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live value of the layout the call expects, which keeps it no longer.
    let status = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut about) };
    status == 0 && about.f_type == libc::TMPFS_MAGIC
}
