//! The caching allocator: freed blocks are kept by size class, so large results cost no page faults.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Alignment of every block: one cache line, one AVX-512 register.
pub(crate) const ALIGN: usize = 64;
/// Under a memory checker nothing is rounded up, mapped or kept, so that it sees every stray access.
const EXACT: bool = cfg!(planaria_checked);
/// From here on blocks are mapped pages of their own, which arrive zeroed without being touched.
const MAPPED: usize = if EXACT { usize::MAX } else { 1 << 20 };
/// A huge page; large mappings are rounded to it and ask for it.
const HUGE: usize = 2 << 20;
/// Freed bytes each thread keeps for itself, so that small results take no lock.
const LOCAL_BYTES: usize = 4 << 20;

/// Memory whose bytes are always initialised: zero when fresh, old contents when reused.
pub(crate) struct Block {
    ptr: NonNull<u8>,
    class: usize,
    fresh: bool,
    account: Arc<Account>,
}

/// What one thread has allocated, wherever it is freed.
#[derive(Default)]
struct Account {
    live: AtomicUsize,
    peak: AtomicUsize,
}

impl Account {
    fn add(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Relaxed) + bytes;
        // Only the owning thread raises its peak.
        if live > self.peak.load(Relaxed) {
            self.peak.store(live, Relaxed);
        }
    }
}

// SAFETY: a Block is the unique owner of its memory; nothing in it is tied to a thread.
unsafe impl Send for Block {}
// SAFETY: shared access to a Block only copies the pointer; reads go through `&Buffer`.
unsafe impl Sync for Block {}

impl Block {
    /// Start of the memory, aligned to [`ALIGN`].
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// True when the memory came from the system and is still all zero.
    pub(crate) fn is_zero(&self) -> bool {
        self.fresh
    }
}

/// Bytes in use, the highest they have been, and bytes kept for reuse; of this process or of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes of arrays alive now, rounded up to their size classes.
    pub live: usize,
    /// The most that `live` has been since the last [`reset_peak`] or [`reset_thread_peak`].
    pub peak: usize,
    /// Freed bytes kept for reuse.
    pub cached: usize,
}

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static CACHED: AtomicUsize = AtomicUsize::new(0);
static LIMIT: OnceLock<AtomicUsize> = OnceLock::new();
static SHARED: Mutex<Shelf> = Mutex::new(Shelf { free: BTreeMap::new(), bytes: 0 });

/// Free blocks by size class.
struct Shelf {
    free: BTreeMap<usize, Vec<NonNull<u8>>>,
    bytes: usize,
}

// SAFETY: the pointers are owned free memory, usable from any thread.
unsafe impl Send for Shelf {}

impl Shelf {
    fn take(&mut self, class: usize) -> Option<NonNull<u8>> {
        let ptr = self.free.get_mut(&class)?.pop()?;
        self.bytes -= class;
        CACHED.fetch_sub(class, Relaxed);
        Some(ptr)
    }

    fn put(&mut self, class: usize, ptr: NonNull<u8>) {
        self.free.entry(class).or_default().push(ptr);
        self.bytes += class;
        CACHED.fetch_add(class, Relaxed);
    }

    fn release_all(&mut self) {
        for (class, list) in std::mem::take(&mut self.free) {
            for ptr in list {
                self.bytes -= class;
                CACHED.fetch_sub(class, Relaxed);
                give_to_system(ptr, class);
            }
        }
    }
}

/// A thread's own free blocks, handed to the system when the thread ends.
struct LocalShelf(Shelf);

impl Drop for LocalShelf {
    fn drop(&mut self) {
        self.0.release_all();
    }
}

thread_local! {
    static LOCAL: RefCell<LocalShelf> =
        const { RefCell::new(LocalShelf(Shelf { free: BTreeMap::new(), bytes: 0 })) };
    static ACCOUNT: Arc<Account> = Arc::default();
}

/// The size class of a request: at most a quarter more than asked.
fn size_class(bytes: usize) -> Option<usize> {
    if EXACT {
        return Some(bytes.max(1)).filter(|&bytes| bytes <= isize::MAX as usize - ALIGN);
    }
    let bytes = bytes.max(ALIGN).checked_next_multiple_of(ALIGN)?;
    let step = (bytes.checked_next_power_of_two()? / 8).max(ALIGN);
    let class = bytes.checked_next_multiple_of(step)?;
    if class < MAPPED { Some(class) } else { class.checked_next_multiple_of(HUGE.min(step).max(4096)) }
}

/// Bytes that an array of so many bytes takes on the host, as [`memory_stats`] counts them.
pub fn allocated(bytes: usize) -> usize {
    size_class(bytes).unwrap_or(bytes)
}

fn shared() -> MutexGuard<'static, Shelf> {
    // A panic while holding the lock leaves a consistent shelf: every update is one push or pop.
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of at least `bytes` bytes, or `None` when the system has none.
pub(crate) fn allocate(bytes: usize) -> Option<Block> {
    let class = size_class(bytes)?;
    let local =
        if class < MAPPED { LOCAL.try_with(|l| l.borrow_mut().0.take(class)).ok().flatten() } else { None };
    let reused = local.or_else(|| shared().take(class));
    let (ptr, fresh) = match reused {
        Some(ptr) => (ptr, false),
        None => {
            let ptr = take_from_system(class).or_else(|| {
                release_cached();
                take_from_system(class)
            })?;
            (ptr, true)
        }
    };
    let live = LIVE.fetch_add(class, Relaxed) + class;
    PEAK.fetch_max(live, Relaxed);
    // A thread that is ending has no account any more; what it still allocates is nobody's.
    let account = ACCOUNT.try_with(Arc::clone).unwrap_or_default();
    account.add(class);
    Some(Block { ptr, class, fresh, account })
}

impl Drop for Block {
    fn drop(&mut self) {
        LIVE.fetch_sub(self.class, Relaxed);
        self.account.live.fetch_sub(self.class, Relaxed);
        let (class, ptr) = (self.class, self.ptr);
        if EXACT {
            return give_to_system(ptr, class);
        }
        if class < MAPPED {
            let kept = LOCAL.try_with(|l| {
                let shelf = &mut l.borrow_mut().0;
                let fits = shelf.bytes + class <= LOCAL_BYTES;
                if fits {
                    shelf.put(class, ptr);
                }
                fits
            });
            if kept == Ok(true) {
                return;
            }
        }
        if CACHED.load(Relaxed).saturating_add(class) <= cache_limit().load(Relaxed) {
            shared().put(class, ptr);
        } else {
            give_to_system(ptr, class);
        }
    }
}

fn small_layout(class: usize) -> Layout {
    // `size_class` bounds the size, so this cannot fail.
    Layout::from_size_align(class, ALIGN).unwrap_or(Layout::new::<u64>())
}

fn take_from_system(class: usize) -> Option<NonNull<u8>> {
    if class < MAPPED {
        // SAFETY: the layout has a size of at least one byte.
        return NonNull::new(unsafe { alloc_zeroed(small_layout(class)) });
    }
    // SAFETY: an anonymous private mapping of a non-zero length touches no existing memory.
    let ptr = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            class,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if ptr == libc::MAP_FAILED {
        return None;
    }
    #[cfg(target_os = "linux")]
    if class >= HUGE {
        // SAFETY: advice on a mapping we own; a refusal is harmless.
        unsafe { libc::madvise(ptr, class, libc::MADV_HUGEPAGE) };
    }
    NonNull::new(ptr.cast())
}

fn give_to_system(ptr: NonNull<u8>, class: usize) {
    if class < MAPPED {
        // SAFETY: taken from `alloc_zeroed` with the same layout, and owned by the caller.
        unsafe { dealloc(ptr.as_ptr(), small_layout(class)) };
    } else {
        // SAFETY: a whole mapping made by `take_from_system` with the same length.
        unsafe { libc::munmap(ptr.as_ptr().cast(), class) };
    }
}

fn cache_limit() -> &'static AtomicUsize {
    LIMIT.get_or_init(|| {
        // SAFETY: sysconf only reads system constants.
        let (pages, size) =
            unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        AtomicUsize::new((pages.max(0) as usize).saturating_mul(size.max(0) as usize) / 4)
    })
}

/// Sets how many freed bytes may be kept for reuse; a quarter of the machine's memory at the start.
pub fn set_cache_limit(bytes: usize) {
    cache_limit().store(bytes, Relaxed);
    if CACHED.load(Relaxed) > bytes {
        release_cached();
    }
}

/// Hands all freed memory kept by this process (other threads' small blocks excepted) back to the system.
pub fn release_cached() {
    let _ = LOCAL.try_with(|l| l.borrow_mut().0.release_all());
    shared().release_all();
}

/// Bytes in use, at most, and kept for reuse.
pub fn memory_stats() -> MemoryStats {
    MemoryStats { live: LIVE.load(Relaxed), peak: PEAK.load(Relaxed), cached: CACHED.load(Relaxed) }
}

/// Makes the peak start again from what is live now.
pub fn reset_peak() {
    PEAK.store(LIVE.load(Relaxed), Relaxed);
}

/// The same for what this thread has allocated. A rank that is a thread reads its own memory here.
pub fn thread_memory_stats() -> MemoryStats {
    let cached = LOCAL.with_borrow(|l| l.0.bytes);
    ACCOUNT.with(|a| MemoryStats { live: a.live.load(Relaxed), peak: a.peak.load(Relaxed), cached })
}

/// Makes this thread's peak start again from what it has live now.
pub fn reset_thread_peak() {
    ACCOUNT.with(|a| a.peak.store(a.live.load(Relaxed), Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(planaria_checked))]
    fn classes_cover_the_request_and_waste_at_most_a_quarter() {
        for bytes in (1..5000).chain([1 << 20, (1 << 20) + 1, 3_000_001, 50_257 * 768 * 4, 1 << 33]) {
            let class = size_class(bytes).unwrap();
            assert!(class >= bytes && class.is_multiple_of(ALIGN));
            assert!(class <= bytes + bytes / 4 + 2 * ALIGN, "{bytes} -> {class}");
        }
        assert_eq!(size_class(usize::MAX), None);
    }

    #[test]
    #[cfg(not(planaria_checked))]
    fn a_freed_block_comes_back() {
        let block = allocate(3 << 20).unwrap();
        let first = block.ptr();
        assert_eq!(first.as_ptr() as usize % ALIGN, 0);
        drop(block);
        // Another test may take it in between, so look at several.
        let again: Vec<_> = (0..8).map(|_| allocate(3 << 20).unwrap()).collect();
        assert!(again.iter().any(|b| b.ptr() == first && !b.is_zero()));
    }

    #[test]
    fn a_thread_counts_what_it_has_allocated() {
        let sized = |bytes| size_class(bytes).unwrap();
        let (moved, before) = std::thread::spawn(|| {
            let kept = allocate(1000).unwrap();
            drop(allocate(5000).unwrap());
            (kept, thread_memory_stats())
        })
        .join()
        .unwrap();
        assert_eq!((before.live, before.peak), (sized(1000), sized(1000) + sized(5000)));
        // Freed elsewhere, it is taken off the account of the thread that made it, not off this one's.
        let here = thread_memory_stats().live;
        let account = moved.account.clone();
        drop(moved);
        assert_eq!((account.live.load(Relaxed), thread_memory_stats().live), (0, here));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(allocate(usize::MAX).is_none());
        assert!(allocate(1 << 60).is_none());
    }
}
