//! What the fuzz targets share: an account of memory, and what is true of every batch that was read.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use warmpath::events::batch::{Batch, Event, Extra, MAX_EVENTS};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Longest error, in bytes: it goes into a log.
pub const MOST_SAID: usize = 1000;

/// Keeps an account of the bytes that are taken.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn took(bytes: usize) {
    PEAK.fetch_max(LIVE.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: `System` does all of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }

    /// Counts as if old and new always stood side by side, as they do in wasm.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size);
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Bytes that are taken now.
pub fn live() -> usize {
    LIVE.load(Relaxed)
}

/// Runs something that may take at most `most` bytes beside those that are taken.
///
/// # Panics
/// Where it took more at any moment.
pub fn within<T>(most: usize, run: impl FnOnce() -> T) -> T {
    let before = live();
    PEAK.store(before, Relaxed);
    let result = run();
    let took = PEAK.load(Relaxed) - before;
    assert!(took <= most, "took {took} bytes of memory where {most} are enough");
    result
}

/// Memory that is enough to read a batch of so many bytes.
///
/// An event of one byte is the dearest; a vector that grows has twice the place that it needs, beside the one that it leaves.
/// One list at a time is believed to have as many numbers as it announces, up to 4096.
pub fn enough(bytes: usize) -> usize {
    4096 + 4096 * size_of::<u64>() + bytes * 3 * size_of::<Event>()
}

/// What the documentation says of a batch that was read from so many bytes.
///
/// # Panics
/// Where it isn't so.
pub fn check_batch(batch: &Batch, bytes: usize) {
    assert!(batch.events.len() <= MAX_EVENTS);
    // Whatever is kept has at least a byte of its own.
    let mut kept = batch.events.len();
    for event in &batch.events {
        match event {
            Event::Stored(stored) => {
                assert!(stored.block_size > 0);
                assert_eq!(stored.tokens.len(), stored.names.len() * stored.block_size as usize);
                assert!(stored.extra.iter().all(|extra| Extra { block: 0, ..*extra } != Extra::default()));
                assert!(
                    stored.extra.iter().all(|extra| extra.texts[0].is_some() || extra.texts[1].is_none())
                );
                assert!(stored.extra.is_sorted_by(|one, next| one.block < next.block));
                let texts = [&stored.lora, &stored.salt].into_iter().flatten().map(String::len);
                kept += stored.names.len() + stored.tokens.len() + stored.extra.len() + texts.sum::<usize>();
            }
            Event::Removed(removed) => kept += removed.names.len(),
            Event::Cleared | Event::Unknown | Event::Unusable(_) => {}
        }
    }
    assert!(kept <= bytes, "{kept} things of {bytes} bytes");
}
