//! How long work takes: a rate for prefill, one for decode, and a factor by which all is sped up.

use std::time::Duration;

/// Rates in simulated time, and what turns it into real time.
#[derive(Clone, Copy, Debug)]
pub struct TimeModel {
    /// Prompt tokens computed in a second.
    pub prefill_rate: f64,
    /// Tokens that one request generates in a second.
    pub decode_rate: f64,
    /// Simulated seconds in a real one; infinite means that nothing takes time.
    pub speedup: f64,
    /// Least real time between two chunks of a stream, to be light on the CPU.
    pub chunk: Duration,
}

impl TimeModel {
    /// Real time to compute `tokens` of a prompt, `slowness` times slower than usual.
    pub fn prefill(&self, tokens: usize, slowness: f64) -> Duration {
        self.real(tokens as f64 / self.prefill_rate * slowness)
    }

    /// Real time to generate `tokens` after the first.
    pub fn decode(&self, tokens: usize, slowness: f64) -> Duration {
        self.real(tokens as f64 / self.decode_rate * slowness)
    }

    /// How many tokens, of `most`, one request generates in `real` time after the first.
    pub fn decoded_in(&self, real: Duration, slowness: f64, most: usize) -> usize {
        // A millionth more: 3 tokens take 3 / 50 s, and 3 / 50 s * 50 may be a hair under 3.
        let tokens = real.as_secs_f64() * self.speedup * self.decode_rate / slowness * (1.0 + 1e-6);
        // Infinite speed-up makes an instant NaN tokens: all of them.
        if tokens.is_nan() { most } else { (tokens as usize).min(most) }
    }

    fn real(&self, simulated: f64) -> Duration {
        // Bounded so that deadlines can be computed: no test waits a month.
        Duration::try_from_secs_f64(simulated / self.speedup).unwrap_or(Duration::MAX).min(MONTH)
    }
}

const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model(speedup: f64) -> TimeModel {
        TimeModel { prefill_rate: 1000.0, decode_rate: 50.0, speedup, chunk: Duration::ZERO }
    }

    #[test]
    fn rates_speed_up_and_slowness_multiply() {
        assert_eq!(model(1.0).prefill(500, 1.0), Duration::from_millis(500));
        assert_eq!(model(10.0).prefill(500, 2.0), Duration::from_millis(100));
        assert_eq!(model(1.0).decode(5, 1.0), Duration::from_millis(100));
        assert_eq!(model(1.0).decoded_in(Duration::from_millis(59), 1.0, 9), 2);
        assert_eq!(model(1.0).decoded_in(Duration::from_millis(200), 2.0, 9), 5);
        assert_eq!(model(1.0).decoded_in(Duration::from_secs(9), 1.0, 9), 9);
    }

    #[test]
    fn infinite_speed_takes_no_time() {
        let instant = model(f64::INFINITY);
        assert_eq!(instant.prefill(1_000_000, 3.0), Duration::ZERO);
        assert_eq!(instant.decode(1_000_000, 3.0), Duration::ZERO);
        assert_eq!(instant.decoded_in(Duration::ZERO, 3.0, 77), 77);
    }

    #[test]
    fn no_slowness_overflows() {
        assert_eq!(model(1.0).prefill(usize::MAX, f64::MAX), MONTH);
    }

    proptest! {
        #[test]
        fn when_a_token_is_due_it_is_there(tokens in 0usize..100_000, speedup in 0.1f64..1000.0, slowness in 0.1f64..50.0) {
            let time = model(speedup);
            let due = time.decode(tokens, slowness);
            // Durations are whole nanoseconds; at these rates that is less than a token.
            let there = time.decoded_in(due + Duration::from_nanos(1), slowness, usize::MAX);
            prop_assert!(there == tokens || there == tokens + 1, "{there} of {tokens}");
        }
    }
}
