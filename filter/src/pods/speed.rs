//! How long a first token takes: a line through what the whole fleet did, and how much slower or faster each pod is.
//!
//! One line for all is fitted by least squares: so many seconds whatever the prompt, and so many for each thousand tokens that
//! are ahead. A pod's slowness is the time that its first tokens took over the time that the line gives for them. Both begin
//! as if a few ordinary first tokens had been seen, so that neither one odd answer nor none leads astray, and what was learnt
//! long ago weighs less: a pod that was slow and got nothing since is tried again.

use super::Pace;

/// What is assumed before anything was seen: an engine that prefills ten thousand tokens a second.
const USUAL: Speed = Speed { base: 0.02, per_thousand: 0.1 };
/// First tokens that this counts for.
const USUAL_COUNT: f32 = 2.0;
/// First tokens by which a pod is thought to be like the fleet.
const LIKE_OTHERS: f32 = 2.0;
/// How many times slower or faster a pod may look and be like the others: what is ahead of a first token is known only about, and
/// who happens to have what is asked for would look fast, and get more of it.
const NOISE: f32 = 1.3;
/// A pod is never thought to be slower than this, or faster than its inverse.
const MOST_SLOWNESS: f32 = 50.0;

/// Seconds until a first token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Seconds whatever the prompt.
    pub base: f32,
    /// Seconds for each thousand tokens that are ahead.
    pub per_thousand: f32,
}

impl Default for Speed {
    fn default() -> Self {
        USUAL
    }
}

impl Speed {
    /// The line through what the whole fleet did.
    pub fn fit(seen: &Pace) -> Self {
        let mut sums = *seen;
        // Ordinary first tokens of two sizes, so that there always is a line.
        for tokens in [0, 4000] {
            let usual = Pace::of(tokens, USUAL.seconds(tokens as f32));
            (0..USUAL_COUNT as u32).for_each(|_| sums.add(&usual));
        }
        let Pace { count, work, seconds, work_squared, work_seconds } = sums;
        let spread = count * work_squared - work * work;
        let per_thousand = (count * work_seconds - work * seconds) / spread;
        let base = (seconds - per_thousand * work) / count;
        let line = match (base > 0.0, per_thousand > 0.0) {
            (true, true) => Self { base, per_thousand },
            // More work never takes less time, and none takes some.
            (_, false) => Self { base: seconds / count, per_thousand: 0.0 },
            (false, true) => Self { base: 0.0, per_thousand: work_seconds / work_squared },
        };
        let sane = line.base.is_finite() && line.per_thousand.is_finite();
        if sane { line } else { USUAL }
    }

    /// Seconds until the first token behind so many others.
    pub fn seconds(&self, tokens: f32) -> f32 {
        self.base + self.per_thousand * tokens / 1000.0
    }

    /// How many times longer a pod takes than the fleet.
    pub fn slowness(&self, pod: &Pace) -> f32 {
        let expected = pod.count * self.base + pod.work * self.per_thousand;
        let prior = LIKE_OTHERS * if pod.count > 0.0 { expected / pod.count } else { 1.0 };
        let slowness = (pod.seconds + prior) / (expected + prior);
        if !slowness.is_finite() {
            return 1.0;
        }
        let beyond = if slowness > 1.0 { (slowness / NOISE).max(1.0) } else { (slowness * NOISE).min(1.0) };
        beyond.clamp(1.0 / MOST_SLOWNESS, MOST_SLOWNESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(one: f32, other: f32, share: f32) -> bool {
        (one - other).abs() <= share * other.abs().max(1e-3)
    }

    #[test]
    fn without_anything_seen_all_are_alike() {
        let speed = Speed::fit(&Pace::default());
        assert!(close(speed.base, USUAL.base, 0.01) && close(speed.per_thousand, USUAL.per_thousand, 0.01));
        assert_eq!(speed.slowness(&Pace::default()), 1.0);
    }

    #[test]
    fn one_slow_answer_is_not_yet_a_slow_pod_and_many_are() {
        let speed = USUAL;
        let slow = |count: usize| {
            let mut pace = Pace::default();
            (0..count).for_each(|_| pace.add(&Pace::of(1000, 3.0 * USUAL.seconds(1000.0))));
            speed.slowness(&pace)
        };
        assert!((1.0..1.5).contains(&slow(1)), "{}", slow(1));
        assert!((2.1..2.4).contains(&slow(40)), "{}", slow(40));
    }

    proptest! {
        /// Against the line that the answers were made by.
        #[test]
        fn the_line_is_found(base in 0.001..1.0_f32, per_thousand in 0.001..2.0_f32, tokens in prop::collection::vec(0..50_000_u32, 200..400)) {
            let truth = Speed { base, per_thousand };
            let mut seen = Pace::default();
            tokens.iter().for_each(|tokens| seen.add(&Pace::of(*tokens, truth.seconds(*tokens as f32))));
            let fitted = Speed::fit(&seen);
            for at in [2_000.0, 20_000.0, 40_000.0] {
                prop_assert!(close(fitted.seconds(at), truth.seconds(at), 0.25), "{fitted:?} for {truth:?} at {at}");
            }
        }

        #[test]
        fn whatever_the_sums_times_are_positive(count in 0.0..1e6_f32, work in 0.0..1e6_f32, seconds in 0.0..1e6_f32, work_squared in 0.0..1e9_f32, work_seconds in 0.0..1e9_f32) {
            let pace = Pace { count, work, seconds, work_squared, work_seconds };
            let speed = Speed::fit(&pace);
            prop_assert!(speed.base >= 0.0 && speed.per_thousand >= 0.0 && speed.seconds(1e6).is_finite());
            let slowness = speed.slowness(&pace);
            prop_assert!((1.0 / MOST_SLOWNESS..=MOST_SLOWNESS).contains(&slowness));
        }
    }
}
