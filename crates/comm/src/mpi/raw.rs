//! The few MPI functions the engine needs, behind an interface that owns the memory MPI works on.
//!
//! Calls are made one at a time under a lock, so MPI need not be built for concurrent threads. Counts are `int`
//! in MPI, so long transfers are cut into messages; MPI keeps their order.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::letters::{Carrier, ENVELOPE, Landing, Room, Sent, Transfer};
use mpi::ffi;
use planaria_array::Lent;
use std::ffi::{c_char, c_int, c_void};
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
    rank: usize,
    size: usize,
}

/// Largest message in bytes that MPI can count.
const LARGEST: usize = c_int::MAX as usize;

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
}

impl Carrier for World {
    fn place(&self) -> (usize, usize) {
        (self.rank, self.size)
    }

    fn largest(&self) -> usize {
        LARGEST
    }

    fn finish(&self) -> Result<()> {
        let _one = enter();
        // SAFETY: MPI was started by `start`; the engine calls this once, after its last transfer.
        check("MPI_Finalize", unsafe { ffi::MPI_Finalize() })
    }

    fn probe(&self) -> Result<Option<(usize, usize)>> {
        let _one = enter();
        let (mut there, mut length) = (0, 0);
        // SAFETY: MPI_Status is a C struct of integers, for which zeros are valid; pointers are to locals.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            let any = ffi::RSMPI_ANY_SOURCE;
            check("MPI_Iprobe", ffi::MPI_Iprobe(any, ENVELOPE, self.comm, &mut there, &mut status))?;
            if there == 0 {
                return Ok(None);
            }
            check("MPI_Get_count", ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut length))?;
            let place = |n: c_int| usize::try_from(n).unwrap_or(0);
            Ok(Some((place(status.MPI_SOURCE), place(length))))
        }
    }

    fn send(&self, memory: Sent, to: usize, tag: i32, piece: usize) -> Result<Box<dyn Transfer>> {
        let (start, length) = (memory.bytes().as_ptr(), memory.bytes().len());
        let mut transfer = Requests { requests: Vec::new(), sent: Some(memory), room: None, own: false };
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
        Ok(Box::new(transfer))
    }

    fn receive(&self, landing: Landing, from: usize, tag: i32, piece: usize) -> Result<Box<dyn Transfer>> {
        let (room, at, own) = match landing {
            Landing::At(target) => (target.room, target.at, false),
            Landing::Anywhere(length) => (Room::new(Lent::bytes(length)?), 0..length, true),
        };
        let (start, length) = (room.take(&at)?, at.len());
        let mut transfer = Requests { requests: Vec::new(), sent: None, room: Some(room), own };
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
        Ok(Box::new(transfer))
    }
}

/// Offsets and lengths of the messages that carry `length` bytes; an empty message is one too.
fn pieces(length: usize, piece: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = length.div_ceil(piece).max(1);
    (0..count).map(move |i| (i * piece, piece.min(length - i * piece)))
}

/// Bytes on their way by MPI.
#[derive(Debug)]
struct Requests {
    requests: Vec<ffi::MPI_Request>,
    /// What MPI reads from.
    sent: Option<Sent>,
    /// What MPI writes to.
    room: Option<Arc<Room>>,
    /// The room is this transfer's alone.
    own: bool,
}

// SAFETY: requests are plain handles used under `ONE_AT_A_TIME` only, and the memory is owned or immutable.
unsafe impl Send for Requests {}

impl Transfer for Requests {
    fn is_done(&mut self) -> Result<bool> {
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

    fn contents(&mut self) -> Result<Option<Sent>> {
        // Until the last request is complete, MPI may write there.
        let room = self.room.take_if(|_| self.own && self.requests.is_empty());
        room.map(Room::read).transpose()
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            // MPI may still use the memory: better lost than shared.
            std::mem::forget((self.sent.take(), self.room.take()));
        }
    }
}
