//! Storage that grows by chunks.
//!
//! A vector that doubles would copy tens of megabytes within one request and keep both copies: wasm memory never
//! shrinks. Freed places are used again, last freed first.

/// Index of nothing.
pub const NIL: u32 = u32::MAX;

const CHUNK: usize = 4096;

/// What a slab holds: a value that, while it is free, keeps the index of the next free one.
pub trait Item: Copy {
    /// A free item.
    fn vacant(next: u32) -> Self;
    /// The index that [`Item::vacant`] was given.
    fn next_vacant(&self) -> u32;
}

/// Items under indices that stay.
#[derive(Debug)]
pub struct Slab<T> {
    chunks: Vec<Box<[T; CHUNK]>>,
    /// How many places were ever taken.
    used: u32,
    /// First free place below `used`.
    free: u32,
}

impl<T: Item> Slab<T> {
    pub const fn new() -> Self {
        Self { chunks: Vec::new(), used: 0, free: NIL }
    }

    /// Keeps an item and says where; `None` only when all 2^32 - 1 indices are taken.
    pub fn insert(&mut self, item: T) -> Option<u32> {
        let index = self.free;
        if let Some(place) = self.get_mut(index) {
            let next = place.next_vacant();
            *place = item;
            self.free = next;
            return Some(index);
        }
        let index = self.used;
        if index as usize / CHUNK == self.chunks.len() {
            self.chunks.push(vec![T::vacant(NIL); CHUNK].into_boxed_slice().try_into().ok()?);
        }
        self.used = index.checked_add(1).filter(|&used| used != NIL)?;
        *self.get_mut(index)? = item;
        Some(index)
    }

    /// Frees a place that is taken.
    pub fn free(&mut self, index: u32) {
        let next = self.free;
        if let Some(place) = self.get_mut(index) {
            *place = T::vacant(next);
            self.free = index;
        }
    }

    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.chunks.get(index as usize / CHUNK)?.get(index as usize % CHUNK)
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.chunks.get_mut(index as usize / CHUNK)?.get_mut(index as usize % CHUNK)
    }

    pub fn memory_bytes(&self) -> usize {
        self.chunks.len() * size_of::<[T; CHUNK]>() + self.chunks.capacity() * size_of::<Box<[T; CHUNK]>>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    impl Item for u64 {
        fn vacant(next: u32) -> Self {
            u64::from(next)
        }
        fn next_vacant(&self) -> u32 {
            *self as u32
        }
    }

    proptest! {
        #[test]
        fn keeps_what_it_is_given(ops in prop::collection::vec((any::<u64>(), 0..4usize), 0..300)) {
            let (mut slab, mut reference) = (Slab::new(), HashMap::new());
            for (value, op) in ops {
                let taken: Vec<u32> = reference.keys().copied().collect();
                if op == 0 && !taken.is_empty() {
                    let index = taken[value as usize % taken.len()];
                    slab.free(index);
                    reference.remove(&index);
                } else {
                    let index = slab.insert(value).unwrap();
                    prop_assert!(reference.insert(index, value).is_none(), "place {} given twice", index);
                }
                for (&index, value) in &reference {
                    prop_assert_eq!(slab.get(index), Some(value));
                }
            }
        }
    }

    #[test]
    fn grows_by_chunks_and_uses_freed_places_again() {
        let mut slab = Slab::new();
        let places: Vec<u32> = (0..2 * CHUNK as u64 + 1).map(|n| slab.insert(n).unwrap()).collect();
        let bytes = slab.memory_bytes();
        assert!(bytes < 4 * CHUNK * 8, "{bytes}");
        places.iter().for_each(|&place| slab.free(place));
        (0..places.len() as u64).for_each(|n| assert!(slab.insert(n).is_some()));
        assert_eq!(slab.memory_bytes(), bytes);
        assert_eq!(slab.get(NIL), None);
    }
}
