//! The few MPI functions the engine needs, behind an interface that owns the memory MPI works on.
//!
//! Calls are made one at a time under a lock, so MPI need not be built for concurrent threads. Counts are `int`
//! in MPI, so long transfers are cut into messages; MPI keeps their order.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use mpi::ffi;
use planaria_array::{Bytes, Lent};
use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Held during every call into MPI.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn enter() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Turns MPI's error codes into errors.
fn check(what: &'static str, code: c_int) -> Result<()> {
    // MPI_SUCCESS is 0 by the standard.
    if code == 0 {
        return Ok(());
    }
    let mut text = vec![0u8; 1024];
    let mut length: c_int = 0;
    // SAFETY: the buffer is longer than MPI_MAX_ERROR_STRING of every implementation (at most 512).
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &mut length) };
    text.truncate(usize::try_from(length).unwrap_or(0));
    Err(Error::Engine { engine: "mpi", what: format!("{what}: {}", String::from_utf8_lossy(&text)) })
}

/// A private copy of MPI's world: its messages cannot be mistaken for anyone else's.
#[derive(Debug)]
pub(super) struct World {
    comm: ffi::MPI_Comm,
    pub(super) rank: usize,
    pub(super) size: usize,
}

/// Largest message in bytes that MPI can count.
pub(super) const LARGEST: usize = c_int::MAX as usize;

// SAFETY: the handle is a plain value (an integer or a pointer that MPI owns), used only under `ONE_AT_A_TIME`.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl World {
    /// Starts MPI. May succeed once per process.
    pub(super) fn start() -> Result<World> {
        let _one = enter();
        let (mut started, mut provided, mut rank, mut size) = (0, 0, 0, 0);
        // SAFETY: all pointers are to locals of the right types; MPI allows null for argc and argv, and
        // MPI_Initialized at any time. The errors handler is set before anything can fail.
        unsafe {
            check("MPI_Initialized", ffi::MPI_Initialized(&mut started))?;
            if started != 0 {
                let what = "MPI was already started in this process".into();
                return Err(Error::Engine { engine: "mpi", what });
            }
            let (argc, argv) = (std::ptr::null_mut(), std::ptr::null_mut());
            let wanted = ffi::RSMPI_THREAD_SERIALIZED;
            check("MPI_Init_thread", ffi::MPI_Init_thread(argc, argv, wanted, &mut provided))?;
            if provided < wanted {
                let what = format!("this MPI gives thread level {provided}; level {wanted} is needed");
                return Err(Error::Engine { engine: "mpi", what });
            }
            let world = ffi::RSMPI_COMM_WORLD;
            check("errors", ffi::MPI_Comm_set_errhandler(world, ffi::RSMPI_ERRORS_RETURN))?;
            let mut comm = ffi::RSMPI_COMM_NULL;
            check("MPI_Comm_dup", ffi::MPI_Comm_dup(world, &mut comm))?;
            check("errors", ffi::MPI_Comm_set_errhandler(comm, ffi::RSMPI_ERRORS_RETURN))?;
            check("MPI_Comm_rank", ffi::MPI_Comm_rank(comm, &mut rank))?;
            check("MPI_Comm_size", ffi::MPI_Comm_size(comm, &mut size))?;
            let place = |n: c_int| usize::try_from(n).unwrap_or(0);
            Ok(World { comm, rank: place(rank), size: place(size) })
        }
    }

    /// Ends MPI; every rank must come here, and no transfer may be open.
    pub(super) fn finish(&self) -> Result<()> {
        let _one = enter();
        // SAFETY: MPI was started by `start`; the engine calls this once, after its last transfer.
        check("MPI_Finalize", unsafe { ffi::MPI_Finalize() })
    }

    /// A message with `tag` that has come: its sender and length.
    pub(super) fn probe(&self, tag: i32) -> Result<Option<(usize, usize)>> {
        let _one = enter();
        let (mut there, mut length) = (0, 0);
        // SAFETY: MPI_Status is a C struct of integers, for which zeros are valid; pointers are to locals.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            let any = ffi::RSMPI_ANY_SOURCE;
            check("MPI_Iprobe", ffi::MPI_Iprobe(any, tag, self.comm, &mut there, &mut status))?;
            if there == 0 {
                return Ok(None);
            }
            check("MPI_Get_count", ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut length))?;
            let place = |n: c_int| usize::try_from(n).unwrap_or(0);
            Ok(Some((place(status.MPI_SOURCE), place(length))))
        }
    }

    /// Begins sending, in messages of at most `piece` bytes; the memory is kept until the end.
    pub(super) fn send(&self, memory: Sent, to: usize, tag: i32, piece: usize) -> Result<Transfer> {
        let (start, length) = (memory.bytes().as_ptr(), memory.bytes().len());
        let mut transfer = Transfer { requests: Vec::new(), sent: Some(memory), room: None };
        let _one = enter();
        for (at, count) in pieces(length, piece) {
            // SAFETY: `at + count` lies inside the bytes, which `transfer` keeps in place, unchanged, until every
            // request is complete: shared bytes are immutable, and an unfinished transfer is never freed.
            unsafe {
                let mut request = ffi::RSMPI_REQUEST_NULL;
                let from = start.add(at).cast::<c_void>();
                let code = ffi::MPI_Isend(
                    from,
                    count as c_int,
                    ffi::RSMPI_UINT8_T,
                    to as c_int,
                    tag,
                    self.comm,
                    &mut request,
                );
                check("MPI_Isend", code)?;
                transfer.requests.push(request);
            }
        }
        Ok(transfer)
    }

    /// Begins receiving into part of a room what was sent in messages of at most `piece` bytes.
    pub(super) fn receive(&self, target: Target, from: usize, tag: i32, piece: usize) -> Result<Transfer> {
        let (start, length) = (target.room.take(&target.at)?, target.at.len());
        let mut transfer = Transfer { requests: Vec::new(), sent: None, room: Some(target.room) };
        let _one = enter();
        for (at, count) in pieces(length, piece) {
            // SAFETY: `at + count` lies inside the part of the room that was just taken, which nobody else can take;
            // `transfer` keeps the room alive, and only its single owner can look inside, until every request is
            // complete.
            unsafe {
                let mut request = ffi::RSMPI_REQUEST_NULL;
                let to = start.add(at).cast::<c_void>();
                let code = ffi::MPI_Irecv(
                    to,
                    count as c_int,
                    ffi::RSMPI_UINT8_T,
                    from as c_int,
                    tag,
                    self.comm,
                    &mut request,
                );
                check("MPI_Irecv", code)?;
                transfer.requests.push(request);
            }
        }
        Ok(transfer)
    }
}

/// Offsets and lengths of the messages that carry `length` bytes; an empty message is one too.
fn pieces(length: usize, piece: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = length.div_ceil(piece).max(1);
    (0..count).map(move |i| (i * piece, piece.min(length - i * piece)))
}

/// Bytes that are sent: they do not change while they are held.
#[derive(Clone, Debug)]
pub(super) enum Sent {
    /// Part of an array.
    Array(Arc<Bytes>, Range<usize>),
    /// Memory of our own.
    Own(Arc<Vec<u64>>, Range<usize>),
}

impl Sent {
    pub(super) fn text(bytes: &[u8]) -> Sent {
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Sent::Own(Arc::new(words), 0..bytes.len())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Sent::Array(bytes, range) => &bytes[range.clone()],
            Sent::Own(words, range) => &bytemuck::cast_slice::<u64, u8>(words)[range.clone()],
        }
    }
}

/// Memory that messages are received into. Transfers fill parts of it that do not overlap and hold it by reference
/// count; only the last holder gets it back to read.
#[derive(Debug)]
pub(super) struct Room {
    lent: Lent,
    start: *mut u8,
    length: usize,
    taken: Mutex<Vec<Range<usize>>>,
}

// SAFETY: the memory belongs to `lent`; the pointer into it is used only by transfers, each for a part of its own.
unsafe impl Send for Room {}
// SAFETY: shared access only takes parts, under a lock.
unsafe impl Sync for Room {}

impl Room {
    /// The memory of an array, or one of bytes.
    pub(super) fn new(mut lent: Lent) -> Arc<Room> {
        let memory = lent.memory();
        let (start, length) = (memory.as_mut_ptr(), memory.len());
        Arc::new(Room { lent, start, length, taken: Mutex::default() })
    }

    /// The beginning of a part that nobody has taken yet.
    fn take(&self, part: &Range<usize>) -> Result<*mut u8> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let inside = part.start <= part.end && part.end <= self.length;
        let overlaps = |other: &Range<usize>| part.start < other.end && other.start < part.end;
        if !inside || taken.iter().any(overlaps) {
            let what = format!("part {part:?} of a room of {} bytes is not free", self.length);
            return Err(Error::Engine { engine: "mpi", what });
        }
        taken.push(part.clone());
        // SAFETY: `part` lies inside the memory.
        Ok(unsafe { self.start.add(part.start) })
    }

    /// The memory, once no transfer holds it any more.
    pub(super) fn into_lent(self: Arc<Room>) -> Option<Lent> {
        Arc::into_inner(self).map(|room| room.lent)
    }
}

/// Part of a room.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) room: Arc<Room>,
    pub(super) at: Range<usize>,
}

/// Bytes on their way.
#[derive(Debug)]
pub(super) struct Transfer {
    requests: Vec<ffi::MPI_Request>,
    /// What MPI reads from.
    sent: Option<Sent>,
    /// What MPI writes to.
    room: Option<Arc<Room>>,
}

// SAFETY: requests are plain handles used under `ONE_AT_A_TIME` only, and the memory is owned or immutable.
unsafe impl Send for Transfer {}

impl Transfer {
    /// True once all messages have gone or come.
    pub(super) fn is_done(&mut self) -> Result<bool> {
        let _one = enter();
        while let Some(request) = self.requests.last_mut() {
            let mut done = 0;
            // SAFETY: the request was made by Isend or Irecv and not completed since; MPI sets it to null when
            // it is, and it is dropped from the list then.
            let code = unsafe { ffi::MPI_Test(request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
            check("MPI_Test", code)?;
            if done == 0 {
                return Ok(false);
            }
            self.requests.pop();
        }
        Ok(true)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            // MPI may still use the memory: better lost than shared.
            std::mem::forget((self.sent.take(), self.room.take()));
        }
    }
}
