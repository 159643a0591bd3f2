//! The bytes at which a walk through a JSON string must look: quotes, backslashes and control characters.
//!
//! Prompts are long strings, so this is where parsing spends its time. 64 bytes are classified at once, with the vector
//! instructions of wasm and x86-64, or with arithmetic on whole words elsewhere.

/// Bytes classified at once.
pub(super) const WIDTH: usize = 64;

/// Bytes of one vector.
pub(super) const LANE: usize = 16;

/// The 64 bytes from `at` on, filled up with zeros behind the end of `bytes`. A zero is a control character, so a walk that
/// looks at every special byte can't run past the end unnoticed.
#[inline(always)]
pub(super) fn window<'a>(bytes: &'a [u8], at: usize, filled: &'a mut [u8; WIDTH]) -> &'a [u8; WIDTH] {
    let rest = bytes.get(at..).unwrap_or_default();
    if let Some(whole) = rest.first_chunk() {
        return whole;
    }
    *filled = [0; WIDTH];
    for (to, from) in filled.iter_mut().zip(rest) {
        *to = *from;
    }
    filled
}

/// Bit `i` is set if byte `i` is `"`, `\` or below 0x20.
#[inline(always)]
pub(super) fn special(bytes: &[u8; WIDTH]) -> u64 {
    let (lanes, _) = bytes.as_chunks();
    lanes.iter().rev().fold(0, |mask, lane| mask << LANE | u64::from(special_in_lane(lane)))
}

/// [`special`] for the bytes of one vector.
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
#[inline(always)]
pub(super) fn special_in_lane(lane: &[u8; LANE]) -> u16 {
    use std::arch::wasm32::{u8x16_bitmask, u8x16_eq, u8x16_lt, u8x16_splat, v128_load, v128_or};
    // SAFETY: `lane` is 16 readable bytes, and the load demands no alignment.
    let v = unsafe { v128_load(lane.as_ptr().cast()) };
    let stops = v128_or(u8x16_eq(v, u8x16_splat(b'"')), u8x16_eq(v, u8x16_splat(b'\\')));
    u8x16_bitmask(v128_or(stops, u8x16_lt(v, u8x16_splat(0x20))))
}

/// [`special`] for the bytes of one vector.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn special_in_lane(lane: &[u8; LANE]) -> u16 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
    };
    // SAFETY: `lane` is 16 readable bytes, the load demands no alignment, and every x86-64 has SSE2.
    let stops = unsafe {
        let v = _mm_loadu_si128(lane.as_ptr().cast());
        let quote = _mm_cmpeq_epi8(v, _mm_set1_epi8(b'"' as i8));
        let backslash = _mm_cmpeq_epi8(v, _mm_set1_epi8(b'\\' as i8));
        let control = _mm_cmpeq_epi8(_mm_min_epu8(v, _mm_set1_epi8(0x1f)), v);
        _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, backslash), control))
    };
    stops as u16
}

/// [`special`] for the bytes of one vector.
#[cfg(not(any(target_arch = "x86_64", all(target_arch = "wasm32", target_feature = "simd128"))))]
#[inline(always)]
pub(super) fn special_in_lane(lane: &[u8; LANE]) -> u16 {
    by_words(lane)
}

/// [`special_in_lane`] by arithmetic on words of eight bytes.
#[cfg(any(test, not(any(target_arch = "x86_64", all(target_arch = "wasm32", target_feature = "simd128")))))]
fn by_words(lane: &[u8; LANE]) -> u16 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const REST: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    // The top bit of each byte, set where the byte isn't zero: no carry leaves a byte.
    let nonzero = |word: u64| ((word & REST) + REST) | word;
    let (words, _) = lane.as_chunks();
    words.iter().rev().fold(0, |mask, word| {
        let word = u64::from_le_bytes(*word);
        let quote = nonzero(word ^ (LOW * u64::from(b'"')));
        let backslash = nonzero(word ^ (LOW * u64::from(b'\\')));
        let printable = nonzero(word & (LOW * 0xe0));
        let stops = !(quote & backslash & printable) & !REST;
        // Gathers the eight top bits in the highest byte.
        mask << 8 | ((stops >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u16
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn literal(bytes: &[u8; WIDTH]) -> u64 {
        (0..WIDTH).fold(0, |mask, i| mask | u64::from(matches!(bytes[i], b'"' | b'\\' | 0..0x20)) << i)
    }

    fn all_by_words(bytes: &[u8; WIDTH]) -> u64 {
        bytes.as_chunks().0.iter().rev().fold(0, |mask, lane| mask << LANE | u64::from(by_words(lane)))
    }

    #[test]
    fn every_byte_at_every_place() {
        for byte in 0..=255 {
            for at in 0..WIDTH {
                let mut bytes = [b'a'; WIDTH];
                bytes[at] = byte;
                assert_eq!(special(&bytes), literal(&bytes), "{byte:#x} at {at}");
                assert_eq!(all_by_words(&bytes), literal(&bytes), "{byte:#x} at {at}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes(bytes: [u8; 32], dense in prop::array::uniform32(prop::sample::select(&b"\"\\\x1f !#[]\x80\xa2\xdc"[..]))) {
            let mut all = [0; WIDTH];
            all[..32].copy_from_slice(&bytes);
            all[32..].copy_from_slice(&dense);
            prop_assert_eq!(special(&all), literal(&all));
            prop_assert_eq!(all_by_words(&all), literal(&all));
        }
    }

    #[test]
    fn windows_end_in_zeros() {
        let mut filled = [9; WIDTH];
        assert_eq!(window(b"abc", 1, &mut filled)[..4], *b"bc\0\0");
        assert_eq!(*window(b"abc", 7, &mut filled), [0; WIDTH]);
        let long = [b'x'; 100];
        assert_eq!(*window(&long, 36, &mut filled), [b'x'; WIDTH]);
        assert_eq!(window(&long, 37, &mut filled)[62..], *b"x\0");
    }
}
