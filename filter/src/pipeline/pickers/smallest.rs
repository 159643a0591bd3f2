//! The few smallest by a key, in one pass: most pods are beaten by the last of them at once.

use crate::pipeline::decision::{MAX_FALLBACKS, Order};
use crate::pipeline::positions::Positions;

/// Fills an empty `order` with the pods of the smallest keys, the smallest first.
pub fn smallest<K: Copy + PartialOrd>(among: &Positions, order: &mut Order, mut key: impl FnMut(usize) -> K) {
    let mut keys = [None::<K>; MAX_FALLBACKS + 1];
    let Some(keys) = keys.get_mut(..order.room()) else { return };
    for pod in among.iter() {
        let key = key(pod);
        let smaller = |held: &Option<K>| held.is_none_or(|held| key < held);
        if !keys.last().is_some_and(smaller) {
            continue;
        }
        let Some(at) = keys.iter().position(smaller) else { continue };
        if let Some(tail) = keys.get_mut(at..) {
            tail.rotate_right(1);
            if let Some(first) = tail.first_mut() {
                *first = Some(key);
            }
        }
        order.insert(at, pod);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_sorting_would(keys in prop::collection::vec(any::<u16>(), 0..100), fallbacks in 0..12_usize) {
            let mut order = Order::new(fallbacks);
            let key = |pod: usize| (keys[pod], pod);
            smallest(&Positions::first(keys.len()), &mut order, key);
            let mut sorted: Vec<_> = (0..keys.len()).collect();
            sorted.sort_by_key(|pod| key(*pod));
            sorted.truncate(1 + fallbacks.min(MAX_FALLBACKS));
            let chosen: Vec<_> = order.as_slice().iter().map(|pod| usize::from(*pod)).collect();
            prop_assert_eq!(chosen, sorted);
        }
    }
}
