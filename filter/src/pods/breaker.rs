//! Which pods are passed over, or sent less, because of how they answered.
//!
//! A pod that can't be reached is passed over at once, and so is one that lets a first token wait for too long; one that mostly
//! fails, once enough requests say so. After a while one request at a time of each worker tries it again; if that one fails too,
//! the pod waits twice as long. A pod that says it is busy (429, or 503 with Retry-After) has not failed: it is sent less for a
//! while. What a pod thinks of a request (4xx) says nothing about the pod.

use super::Results;

/// Ticks after which a request that tries a pod again is given up, and the next may: at least; a streamed one is waited for until it
/// counts as hanging.
const PROBE_LOST: u64 = 100;
/// Doublings of the time for which a pod is passed over.
const MOST_TIMES: u32 = 16;
/// Halvings of what a busy pod is sent.
const MOST_HALVINGS: u32 = 4;
/// Most ticks for which a pod is sent less after it said so: what a Retry-After asks for beyond it is not followed.
const LONGEST_RETRY: u64 = 600;

/// When a pod is passed over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BreakerSettings {
    /// Failures, over all VMs in about ten seconds, before they may mean anything.
    pub failures: f32,
    /// Part of the answers in that time that must be failures.
    pub failure_share: f32,
    /// Ticks for which a pod is passed over at first.
    pub open_ticks: u64,
    /// The most that this grows to.
    pub max_open_ticks: u64,
    /// Ticks that a streamed answer may take to its first token; longer is a failure.
    pub first_token_ticks: u64,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failures: 5.0,
            failure_share: 0.5,
            open_ticks: 30,
            max_open_ticks: 600,
            first_token_ticks: 600,
        }
    }
}

/// When a request told something, and what was so then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The tick.
    pub now: u64,
    /// The tick at which the request was sent.
    pub began: u64,
    /// Pods that are passed over by any VM. With half of them out no more is passed over for what it answers: what all have in
    /// common is no pod's fault.
    pub out: usize,
}

/// What one request told of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It answered; what it thinks of the request is no matter.
    Answer,
    /// It said that it is busy, perhaps for how many seconds.
    Busy(Option<u32>),
    /// It answered that it failed, or took too long.
    Failure,
    /// It lets a request wait for its first token for too long.
    Hangs,
    /// It broke off, or a retry went elsewhere: it may have been busy, have failed or not be there. Envoy doesn't tell.
    BrokeOff,
    /// No connection.
    Unreachable,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum Phase {
    #[default]
    Closed,
    Open {
        /// From this tick on it may be tried.
        until: u64,
        /// Whether any answer closes it, even of a request that was sent before.
        unreachable: bool,
        /// Since when a request tries it.
        probe: Option<u64>,
    },
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    phase: Phase,
    /// How often in a row it was opened.
    times: u32,
    /// Requests in a row that broke off.
    broke_off: u32,
    halvings: u32,
    /// Tick from which it is sent twice as much again, and after how many more again.
    next_doubling: u64,
    doubling_ticks: u64,
}

/// The pods of one configuration, as one VM sees them.
#[derive(Debug, Default)]
pub struct Breaker {
    settings: BreakerSettings,
    /// By position.
    states: Vec<State>,
}

impl Breaker {
    /// All of so many pods are up.
    pub fn new(settings: BreakerSettings, pods: usize) -> Self {
        Self { settings, states: vec![State::default(); pods] }
    }

    /// The pods are others now; `before` gives the old position of each that was there.
    pub fn replace(&mut self, before: impl Iterator<Item = Option<usize>>) {
        let states = before.map(|position| position.and_then(|position| self.states.get(position)).copied());
        self.states = states.map(Option::unwrap_or_default).collect();
    }

    /// Takes note of what a request told. `results` is how the pod answered lately, over all VMs and this request included. Says
    /// whether the pod is passed over from now on.
    pub fn judge(&mut self, position: usize, verdict: Verdict, at: Moment, results: Results) -> bool {
        let Moment { now, began, out } = at;
        let few = (out + 1) * 2 <= self.states.len();
        let BreakerSettings { failures, failure_share, .. } = self.settings;
        let Some(state) = self.states.get_mut(position) else { return false };
        // What was sent before is no try.
        let tried = matches!(state.phase, Phase::Open { until, .. } if began >= until);
        let opens = match verdict {
            Verdict::Answer => {
                state.broke_off = 0;
                if tried || matches!(state.phase, Phase::Open { unreachable: true, .. }) {
                    (state.phase, state.times) = (Phase::Closed, 0);
                }
                false
            }
            Verdict::Busy(retry_after) => {
                state.busy(retry_after, now);
                if tried {
                    (state.phase, state.times) = (Phase::Closed, 0);
                }
                false
            }
            Verdict::Unreachable => true,
            Verdict::Hangs => tried || few,
            // Once it may have been busy. Again, with no answer between, it is of no use, whatever it says.
            Verdict::BrokeOff => {
                state.broke_off = state.broke_off.saturating_add(1);
                state.busy(None, now);
                tried || few && state.broke_off > 1
            }
            Verdict::Failure => {
                let total = results.answers + results.failures;
                tried || few && results.failures >= failures && results.failures >= failure_share * total
            }
        };
        let opens = opens && (tried || state.phase == Phase::Closed);
        if opens {
            let until = now.saturating_add(self.settings.ticks(state.times));
            state.times = (state.times + 1).min(MOST_TIMES);
            let unreachable = matches!(verdict, Verdict::Unreachable | Verdict::BrokeOff);
            state.phase = Phase::Open { until, unreachable, probe: None };
        }
        opens
    }

    /// A request was sent there: if it tries a pod that failed, others wait for what comes of it.
    pub fn sent(&mut self, position: usize, now: u64) {
        if let Some(State { phase: Phase::Open { probe, until, .. }, .. }) = self.states.get_mut(position)
            && now >= *until
        {
            *probe = Some(now);
        }
    }

    /// A request that was sent there `at` went elsewhere: if it was to try the pod, another may.
    pub fn unsent(&mut self, position: usize, at: u64) {
        if let Some(State { phase: Phase::Open { probe, .. }, .. }) = self.states.get_mut(position)
            && *probe == Some(at)
        {
            *probe = None;
        }
    }

    /// Whether requests should go there.
    pub fn allows(&self, position: usize, now: u64) -> bool {
        match self.states.get(position).map(|state| state.phase) {
            Some(Phase::Open { until, probe, .. }) => {
                let lost = PROBE_LOST.max(self.settings.first_token_ticks);
                now >= until && probe.is_none_or(|since| now.saturating_sub(since) >= lost)
            }
            _ => true,
        }
    }

    /// Whether it is passed over, and not yet to be tried.
    pub fn is_open(&self, position: usize, now: u64) -> bool {
        let phase = self.states.get(position).map(|state| state.phase);
        matches!(phase, Some(Phase::Open { until, .. }) if now < until)
    }

    /// Part of its capacity that a pod is sent requests by, above 0.
    pub fn share(&mut self, position: usize, now: u64) -> f32 {
        let Some(state) = self.states.get_mut(position) else { return 1.0 };
        while state.halvings > 0 && now >= state.next_doubling {
            state.halvings -= 1;
            state.next_doubling = state.next_doubling.saturating_add(state.doubling_ticks);
        }
        (-(state.halvings as f32)).exp2()
    }

    /// Another VM no longer passes the pod over: this one tries it, too, before it sends it everything.
    pub fn try_again(&mut self, position: usize, now: u64) {
        if let Some(state) = self.states.get_mut(position)
            && state.phase == Phase::Closed
        {
            state.phase = Phase::Open { until: now, unreachable: true, probe: None };
        }
    }
}

impl BreakerSettings {
    /// Ticks for which a pod is passed over that was so many times before.
    fn ticks(&self, times: u32) -> u64 {
        self.open_ticks.saturating_mul(1 << times.min(MOST_TIMES)).min(self.max_open_ticks)
    }
}

impl State {
    /// Halves what it is sent, once a tick at most: requests that were under way together tell of one moment.
    fn busy(&mut self, retry_after: Option<u32>, now: u64) {
        let ticks = (u64::from(retry_after.unwrap_or(1)) * 10).clamp(10, LONGEST_RETRY);
        let since = self.next_doubling.saturating_sub(self.doubling_ticks);
        if self.halvings == 0 || now > since {
            self.halvings = (self.halvings + 1).min(MOST_HALVINGS);
        }
        (self.doubling_ticks, self.next_doubling) = (ticks, now.saturating_add(ticks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: Results = Results { answers: 4.0, failures: 6.0 };
    const FAIR: Results = Results { answers: 40.0, failures: 6.0 };

    /// Judges a request that was sent at that very tick.
    fn judge(breaker: &mut Breaker, position: usize, verdict: Verdict, now: u64, results: Results) {
        let out = (0..breaker.states.len()).filter(|pod| !breaker.allows(*pod, now)).count();
        breaker.judge(position, verdict, Moment { now, began: now, out }, results);
    }

    fn breaker(pods: usize) -> Breaker {
        Breaker::new(BreakerSettings::default(), pods)
    }

    #[test]
    fn an_unreachable_pod_is_passed_over_and_an_answer_ends_that() {
        let mut breaker = breaker(2);
        judge(&mut breaker, 1, Verdict::Unreachable, 100, Results::FAILURE);
        assert!(breaker.allows(0, 100));
        assert!(!breaker.allows(1, 129) && breaker.is_open(1, 129));
        assert!(breaker.allows(1, 130) && !breaker.is_open(1, 130), "one may try");
        breaker.sent(1, 130);
        assert!(!breaker.allows(1, 131), "and others wait");
        breaker.unsent(1, 129);
        assert!(!breaker.allows(1, 131), "it was another that went elsewhere");
        breaker.unsent(1, 130);
        assert!(breaker.allows(1, 131), "it never got there");
        breaker.sent(1, 130);
        judge(&mut breaker, 1, Verdict::Answer, 131, Results::ANSWER);
        assert!(breaker.allows(1, 131));
        judge(&mut breaker, 7, Verdict::Unreachable, 1, Results::FAILURE);
        assert!(breaker.allows(7, 2), "a pod that isn't there harms nobody");
    }

    #[test]
    fn who_fails_again_waits_twice_as_long() {
        let mut breaker = breaker(2);
        let mut now = 0;
        for ticks in [30, 60, 120, 240, 480, 600, 600] {
            judge(&mut breaker, 0, Verdict::Unreachable, now, Results::FAILURE);
            judge(&mut breaker, 0, Verdict::Unreachable, now, Results::FAILURE);
            assert!(!breaker.allows(0, now + ticks - 1) && breaker.allows(0, now + ticks), "{ticks}");
            now += ticks;
            breaker.sent(0, now);
        }
        let lost = BreakerSettings::default().first_token_ticks;
        assert!(!breaker.allows(0, now + lost - 1), "nothing came of the try so far");
        assert!(breaker.allows(0, now + lost), "it is lost: the next may try");
    }

    #[test]
    fn a_retry_that_went_elsewhere_once_may_mean_that_it_was_busy() {
        let mut breaker = breaker(4);
        judge(&mut breaker, 0, Verdict::BrokeOff, 0, Results::FAILURE);
        assert!(breaker.allows(0, 0));
        assert_eq!(breaker.share(0, 0), 0.5);
        judge(&mut breaker, 0, Verdict::Answer, 1, FAIR);
        judge(&mut breaker, 0, Verdict::BrokeOff, 2, FAIR);
        assert!(breaker.allows(0, 2));
        judge(&mut breaker, 0, Verdict::BrokeOff, 3, FAIR);
        assert!(!breaker.allows(0, 3), "twice, and no answer between");
        (1..4).for_each(|pod| (0..9).for_each(|_| judge(&mut breaker, pod, Verdict::BrokeOff, 3, BAD)));
        assert_eq!((0..4).filter(|pod| breaker.allows(*pod, 3)).count(), 2, "never more than half");
    }

    #[test]
    fn failures_count_when_they_are_many_and_most() {
        let mut breaker = breaker(4);
        judge(&mut breaker, 0, Verdict::Failure, 0, Results::FAILURE);
        judge(&mut breaker, 0, Verdict::Failure, 0, FAIR);
        assert!(breaker.allows(0, 0));
        judge(&mut breaker, 0, Verdict::Failure, 0, BAD);
        assert!(!breaker.allows(0, 0));
        judge(&mut breaker, 0, Verdict::Answer, 5, BAD);
        assert!(!breaker.allows(0, 5), "an answer of before is no proof");
        breaker.sent(0, 30);
        judge(&mut breaker, 0, Verdict::Failure, 31, FAIR);
        assert!(!breaker.allows(0, 90), "what tried it failed");
        judge(&mut breaker, 0, Verdict::Answer, 95, FAIR);
        assert!(breaker.allows(0, 95));
    }

    #[test]
    fn what_half_of_the_pods_have_in_common_is_not_their_fault() {
        let mut breaker = breaker(4);
        (0..4).for_each(|pod| judge(&mut breaker, pod, Verdict::Hangs, 0, BAD));
        assert_eq!((0..4).filter(|pod| breaker.allows(*pod, 0)).count(), 2);
        let mut alone = Breaker::new(BreakerSettings::default(), 1);
        judge(&mut alone, 0, Verdict::Failure, 0, BAD);
        assert!(alone.allows(0, 0));
    }

    #[test]
    fn a_busy_pod_is_sent_less_and_by_and_by_more_again() {
        let mut breaker = breaker(1);
        assert_eq!(breaker.share(0, 0), 1.0);
        (0..10).for_each(|_| judge(&mut breaker, 0, Verdict::Busy(None), 5, Results::default()));
        assert_eq!(breaker.share(0, 5), 0.5, "one moment");
        judge(&mut breaker, 0, Verdict::Busy(Some(3)), 6, Results::default());
        assert_eq!(breaker.share(0, 35), 0.25);
        assert_eq!(breaker.share(0, 36), 0.5);
        assert_eq!(breaker.share(0, 66), 1.0);
        for now in 100..200 {
            judge(&mut breaker, 0, Verdict::Busy(Some(u32::MAX)), now, Results::default());
        }
        assert_eq!(breaker.share(0, 200), 1.0 / 16.0, "never nothing");
        assert_eq!(breaker.share(0, 200 + 5 * LONGEST_RETRY), 1.0);
        assert!(breaker.allows(0, 200), "busy is not broken");
    }

    #[test]
    fn only_what_was_sent_since_is_a_try() {
        let mut breaker = breaker(4);
        let at = |now, began, out| Moment { now, began, out };
        judge(&mut breaker, 0, Verdict::Hangs, 0, BAD);
        assert!(!breaker.judge(0, Verdict::Failure, at(40, 10, 0), FAIR), "it was sent before");
        assert!(breaker.allows(0, 40), "so it may still be tried");
        breaker.judge(0, Verdict::Answer, at(41, 10, 0), FAIR);
        breaker.sent(0, 42);
        assert!(!breaker.allows(0, 43), "an answer to an earlier request proves nothing");
        breaker.judge(0, Verdict::Answer, at(44, 42, 0), FAIR);
        assert!(breaker.allows(0, 44));
        assert!(
            !breaker.judge(1, Verdict::Failure, at(50, 50, 2), BAD),
            "other VMs pass over half of them already"
        );
    }

    #[test]
    fn what_another_vm_passed_over_is_tried_by_one_request() {
        let mut breaker = breaker(2);
        breaker.try_again(0, 10);
        assert!(breaker.allows(0, 10) && !breaker.is_open(0, 10));
        breaker.sent(0, 10);
        assert!(!breaker.allows(0, 11));
        judge(&mut breaker, 0, Verdict::Answer, 12, FAIR);
        assert!(breaker.allows(0, 12));
    }

    #[test]
    fn who_stays_keeps_what_is_known_of_it() {
        let mut breaker = breaker(3);
        judge(&mut breaker, 2, Verdict::Unreachable, 0, Results::FAILURE);
        breaker.replace([Some(2), None, Some(0), Some(9)].into_iter());
        assert_eq!([0, 1, 2, 3].map(|pod| breaker.allows(pod, 1)), [false, true, true, true]);
    }
}
