//! Random bytes for crates that ask for them, all of which seed hash tables of our own data. There is no such hostcall: these
//! come from the clock, and are not for secrets.
#![allow(unsafe_code)]

use super::EnvoyHost;
use crate::host::Host;
use std::cell::Cell;
use xxhash_rust::xxh3::xxh3_64_with_seed;

thread_local! {
    static STATE: Cell<u64> = const { Cell::new(0) };
}

/// What getrandom calls in a build with `--cfg getrandom_backend="custom"`. Its `Error` is a number in 32 bits.
///
/// # Safety
/// `len` bytes from `dest` on must be writable.
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(
    dest: *mut u8,
    len: usize,
) -> Result<(), std::num::NonZeroU32> {
    // SAFETY: getrandom owns these bytes; the vector is of the length that is copied.
    unsafe { std::ptr::copy_nonoverlapping(bytes(len).as_ptr(), dest, len) };
    Ok(())
}

fn bytes(len: usize) -> Vec<u8> {
    let words = std::iter::repeat_with(|| {
        let now = EnvoyHost.now().as_nanos() as u64;
        let next = xxh3_64_with_seed(&now.to_le_bytes(), STATE.get());
        STATE.set(next);
        next.to_le_bytes()
    });
    words.flatten().take(len).collect()
}
