//! Selectors, and the plans that they form.

use crate::config::Router;
use crate::pipeline::{Decision, Profile, Refused, Scratch, Seen, Slots};

/// One step of a plan: runs a profile on the slots that were prepared for it. It has no side effects, so it can be asked
/// again when more is known.
pub struct Selector<'a> {
    router: &'a Router,
    profile: &'a Profile,
}

impl Selector<'_> {
    /// Chooses a pod and its fallbacks.
    pub fn select(
        &self,
        seen: &Seen<'_>,
        slots: &mut Slots,
        scratch: &mut Scratch,
    ) -> Result<Decision, Refused> {
        self.router.decide(self.profile, seen, slots, scratch)
    }
}

/// An ordered plan of selectors. The last one's pod gets the client's request.
pub struct Workflow<'a> {
    first: Selector<'a>,
}

impl<'a> Workflow<'a> {
    /// One profile, one pod.
    pub fn single(router: &'a Router, profile: &'a Profile) -> Self {
        Self { first: Selector { router, profile } }
    }

    /// Runs the plan.
    pub fn select(
        &self,
        seen: &Seen<'_>,
        slots: &mut Slots,
        scratch: &mut Scratch,
    ) -> Result<Decision, Refused> {
        self.first.select(seen, slots, scratch)
    }
}
