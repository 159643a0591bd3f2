//! Selectors, and the plans that they form.

use crate::config::Router;
use crate::pipeline::{Decision, PodState, Profile, Refused, Residency, Scratch, Slots};

/// What selectors look at besides the request.
pub struct Known<'a> {
    /// The configuration.
    pub router: &'a Router,
    /// Load and health of the pods, by position.
    pub states: &'a [PodState],
    /// Who holds what.
    pub index: &'a dyn Residency,
}

/// One step of a plan: runs a profile on the slots that were prepared for it. It has no side effects, so it can be asked
/// again when more is known.
pub struct Selector<'a> {
    profile: &'a Profile,
}

impl Selector<'_> {
    /// Chooses a pod and its fallbacks.
    pub fn select(
        &self,
        known: &Known<'_>,
        slots: &mut Slots,
        scratch: &mut Scratch,
    ) -> Result<Decision, Refused> {
        known.router.decide(self.profile, known.states, known.index, slots, scratch)
    }
}

/// An ordered plan of selectors. The last one's pod gets the client's request.
pub struct Workflow<'a> {
    first: Selector<'a>,
}

impl<'a> Workflow<'a> {
    /// One profile, one pod.
    pub fn single(profile: &'a Profile) -> Self {
        Self { first: Selector { profile } }
    }

    /// Runs the plan.
    pub fn select(
        &self,
        known: &Known<'_>,
        slots: &mut Slots,
        scratch: &mut Scratch,
    ) -> Result<Decision, Refused> {
        self.first.select(known, slots, scratch)
    }
}
