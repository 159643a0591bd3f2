//! Which pods failed lately, as the streams of one VM saw it.

/// Ticks for which a pod that failed is passed over: three seconds. Then requests try it again.
const PASSED_OVER: u64 = 30;

/// Failures of the pods of one configuration.
#[derive(Debug, Default)]
pub struct Health {
    /// By position: the tick from which the pod counts as up again.
    up_from: Vec<u64>,
}

impl Health {
    /// All of so many pods are up.
    pub fn new(pods: usize) -> Self {
        Self { up_from: vec![0; pods] }
    }

    /// A request could not be served there: no connection, a reset before the answer, or a retry that went elsewhere.
    pub fn failed(&mut self, position: usize, now: u64) {
        if let Some(up_from) = self.up_from.get_mut(position) {
            *up_from = now.saturating_add(PASSED_OVER);
        }
    }

    /// An answer arrived from there.
    pub fn answered(&mut self, position: usize) {
        if let Some(up_from) = self.up_from.get_mut(position) {
            *up_from = 0;
        }
    }

    /// Whether requests should go there.
    pub fn is_up(&self, position: usize, now: u64) -> bool {
        self.up_from.get(position).is_none_or(|up_from| now >= *up_from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_passes_a_pod_over_for_a_while_and_an_answer_ends_that() {
        let mut health = Health::new(2);
        health.failed(1, 100);
        assert!(health.is_up(0, 100));
        assert!(!health.is_up(1, 129));
        assert!(health.is_up(1, 130));
        health.failed(1, 130);
        health.answered(1);
        assert!(health.is_up(1, 131));
        health.failed(7, 1);
        assert!(health.is_up(7, 2), "a pod that isn't there harms nobody");
    }
}
