//! What comes out of a decision.

/// Most fallbacks of one decision.
pub const MAX_FALLBACKS: usize = 8;

/// Chosen pods by position, best first: a list with a fixed bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    pods: [u16; MAX_FALLBACKS + 1],
    len: usize,
    room: usize,
}

impl Order {
    /// An empty list for one pod and this many fallbacks (at most [`MAX_FALLBACKS`]).
    pub fn new(fallbacks: usize) -> Self {
        Self { pods: [0; MAX_FALLBACKS + 1], len: 0, room: 1 + fallbacks.min(MAX_FALLBACKS) }
    }

    /// Adds a pod unless the list is full.
    pub fn push(&mut self, pod: usize) {
        self.insert(self.len, pod);
    }

    /// Puts a pod at a place, moving those behind it, of which the last falls out when the list is full.
    pub fn insert(&mut self, at: usize, pod: usize) {
        let Ok(pod) = u16::try_from(pod) else { return };
        if at > self.len || at >= self.room {
            return;
        }
        self.len = (self.len + 1).min(self.room);
        if let Some(tail) = self.pods.get_mut(at..self.len) {
            tail.rotate_right(1);
            if let Some(first) = tail.first_mut() {
                *first = pod;
            }
        }
    }

    /// How many may be in it.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Is there no room for another?
    pub fn is_full(&self) -> bool {
        self.len >= self.room
    }

    /// Those in it.
    pub fn as_slice(&self) -> &[u16] {
        self.pods.get(..self.len).unwrap_or(&[])
    }
}

/// One pod was chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// Position of the pod that serves.
    pub pod: usize,
    pub(super) order: Order,
    /// Blocks of the prompt that this pod is thought to hold.
    pub matched: u32,
    /// Blocks of the whole prompt.
    pub blocks: u32,
    /// Weighted sum of its scores.
    pub score: f32,
    /// Filters that would have left nobody and so were skipped, as bits by their place in the profile.
    pub relaxed: u32,
}

impl Decision {
    /// Positions of the pods to try after [`Decision::pod`], in order.
    pub fn fallbacks(&self) -> &[u16] {
        self.order.as_slice().get(1..).unwrap_or(&[])
    }
}

/// Nobody may serve the request: the name of the strict filter that left no pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// `type` of the filter.
    pub filter: &'static str,
    /// Whether all are busy, and nothing else is wrong.
    pub busy: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_keeps_its_bound_and_its_sequence() {
        let mut order = Order::new(2);
        for pod in [5, 7] {
            order.push(pod);
        }
        order.insert(0, 1);
        assert_eq!(order.as_slice(), [1, 5, 7]);
        order.insert(1, 2);
        assert_eq!(order.as_slice(), [1, 2, 5]);
        order.push(9);
        assert!(order.is_full());
        assert_eq!(order.as_slice(), [1, 2, 5]);
        assert_eq!(Order::new(100).room(), MAX_FALLBACKS + 1);
    }
}
