//! Workflows: plans of more than one step, from what was written.

use super::bounds::within;
use super::calls::Calls;
use super::entries::Entries;
use super::mistake::Mistakes;
use super::profiles::{NAME_CURE, Profiles, is_name};
use super::raw::{OnFailure, RawPart, RawPrefill, RawWorkflow, RawWorth};
use super::router::{Routing, Via};
use crate::pipeline::{Profile, SlotId};
use crate::pods::Pod;
use crate::workflow::protocol::{PROTOCOLS, Protocol};
use crate::workflow::{PrefillDecode, Worth};
use serde_json::Value;
use std::time::Duration;

/// Most workflows.
pub(super) const MAX_WORKFLOWS: usize = 16;

/// Checks and builds the workflows, in their order. `None` where mistakes were reported.
pub(super) fn workflows(
    raw: &Entries<RawWorkflow>,
    routing: &Routing,
    calls: Calls<'_>,
    profiles: &mut Profiles<'_>,
    mistakes: &mut Mistakes,
) -> Vec<Option<PrefillDecode>> {
    if raw.len() > MAX_WORKFLOWS {
        let problem = format!("has {} workflows; at most {MAX_WORKFLOWS} are allowed", raw.len());
        mistakes.add("workflows", problem);
    }
    let all = raw.iter().take(MAX_WORKFLOWS);
    let all = all.enumerate();
    all.map(|(i, (name, raw))| workflow(i, name, raw, routing, calls, profiles, mistakes)).collect()
}

fn workflow(
    position: usize,
    name: &str,
    raw: &RawWorkflow,
    routing: &Routing,
    calls: Calls<'_>,
    profiles: &mut Profiles<'_>,
    mistakes: &mut Mistakes,
) -> Option<PrefillDecode> {
    let before = mistakes.count();
    let at = |field: &str| format!("workflows.{}.{field}", name.escape_debug());
    if !is_name(name) {
        mistakes.add(format!("workflows.{}", name.escape_debug()), NAME_CURE);
    }
    let protocol = protocol(&raw.protocol, &at("protocol"), mistakes);
    let prefill = profiles.find(&at("prefill.profile"), &raw.prefill.profile, mistakes);
    if let Some(profile) = prefill.and_then(|prefill| profiles.get(prefill)) {
        refuse_peer(&at("prefill.profile"), profile, mistakes);
    }
    let decode = profiles.find(&at("decode.profile"), &raw.decode.profile, mistakes);
    within(
        &at("prefill.timeout_seconds"),
        raw.prefill.timeout_seconds,
        RawPrefill::TIMEOUT_SECONDS,
        mistakes,
    );
    within(&at("prefill.attempts"), raw.prefill.attempts, RawPrefill::ATTEMPTS, mistakes);
    let Worth { min_share, max_slowdown, .. } = worth(&raw.remote_prefill, &at, mistakes);
    let protocol = protocol?;
    if routing.via() == Via::FilterState {
        refuse_headers(raw, &*protocol, &at, mistakes);
    }
    let named = raw.aggregated.as_ref().and_then(|step| step.profile.as_deref());
    let aggregated = match named {
        Some(name) => profiles.find(&at("aggregated.profile"), name, mistakes),
        None => decode.filter(|_| protocol.decodes_alone()),
    };
    if named.is_none() && !protocol.decodes_alone() && raw.remote_prefill.is_set() {
        let cure = "name in aggregated.profile a profile of pods that serve requests alone";
        mistakes.add(
            at("remote_prefill"),
            format!("can't be followed: pods that decode by this protocol can't; {cure}"),
        );
    }
    let common = raw.cluster.as_deref();
    let of_prefill = raw.prefill.cluster.as_deref();
    let of_aggregated = raw.aggregated.as_ref().and_then(|step| step.cluster.as_deref());
    for (field, named) in
        [("cluster", common), ("prefill.cluster", of_prefill), ("aggregated.cluster", of_aggregated)]
    {
        calls.refuse(&at(field), named, mistakes);
    }
    let prefill_cluster = calls.need(&at("cluster"), of_prefill.or(common), mistakes);
    let aggregated_cluster = calls.cluster(of_aggregated.or(common));
    // Of pods that are found, those that can't are left out; of those that were listed, somebody meant them to.
    let unfit = |pod: &&Pod| protocol.unfit_pod(pod).is_some();
    for pod in profiles.pods().iter().filter(|pod| !pod.found && takes_part(pod)) {
        if let Some(why) = protocol.unfit_pod(pod) {
            mistakes.add(at("protocol"), why);
        }
    }
    let unfit =
        (0..).zip(profiles.pods()).filter(|(_, pod)| unfit(pod)).map(|(position, _)| position).collect();
    let (prefill, decode) = (prefill?, decode?);
    (mistakes.count() == before).then(|| PrefillDecode {
        name: name.to_owned(),
        position,
        unfit,
        prefill,
        decode,
        aggregated,
        on_failure: aggregated.filter(|_| raw.prefill.on_failure == OnFailure::Aggregated),
        timeout: Duration::from_secs(raw.prefill.timeout_seconds),
        attempts: raw.prefill.attempts,
        retries_decode: raw.decode.retry_on_connect_failure,
        worth: Worth { min_tokens: raw.remote_prefill.min_tokens as f32, min_share, max_slowdown },
        prefill_cluster,
        aggregated_cluster,
        protocol,
    })
}

/// Refuses what needs headers set once the body is known, where those are on their way by then.
fn refuse_headers(
    raw: &RawWorkflow,
    protocol: &dyn Protocol,
    at: &dyn Fn(&str) -> String,
    mistakes: &mut Mistakes,
) {
    const CURE: &str = "set routing.via to \"header\"";
    if protocol.sets_headers() {
        let problem =
            "hands over by a header, which can't be set any more where routing.via is \"filter-state\"";
        mistakes.add(at("protocol"), format!("{problem}; {CURE}, or take another protocol"));
    }
    if raw.decode.retry_on_connect_failure {
        let problem = "goes by a header, which can't be set any more where routing.via is \"filter-state\"";
        mistakes.add(at("decode.retry_on_connect_failure"), format!("{problem}; {CURE}, or remove it"));
    }
}

fn worth(raw: &RawWorth, at: &dyn Fn(&str) -> String, mistakes: &mut Mistakes) -> Worth {
    within(&at("remote_prefill.min_tokens"), raw.min_tokens, RawWorth::MIN_TOKENS, mistakes);
    within(&at("remote_prefill.min_share"), raw.min_share, RawWorth::MIN_SHARE, mistakes);
    within(&at("remote_prefill.max_slowdown"), raw.max_slowdown, RawWorth::MAX_SLOWDOWN, mistakes);
    Worth {
        min_tokens: raw.min_tokens as f32,
        min_share: raw.min_share,
        max_slowdown: raw.max_slowdown.unwrap_or(f32::INFINITY),
    }
}

fn protocol(raw: &RawPart, path: &str, mistakes: &mut Mistakes) -> Option<Box<dyn Protocol>> {
    let known = || {
        let names: Vec<_> = PROTOCOLS.iter().map(|entry| format!("\"{}\"", entry.name)).collect();
        names.join(", ")
    };
    let mut fields = raw.clone();
    let name = match fields.remove("type") {
        Some(Value::String(name)) => name,
        _ => {
            mistakes.add(path, format!("names no protocol; add \"type\": one of {}", known()));
            return None;
        }
    };
    match PROTOCOLS.iter().find(|entry| entry.name == name) {
        Some(entry) => entry.make(fields.into_value(), path, mistakes),
        None => {
            let problem =
                format!("there is no protocol \"{}\"; take one of {}", name.escape_debug(), known());
            mistakes.add(format!("{path}.type"), problem);
            None
        }
    }
}

/// Whether a pod has a part in workflows, by what the built-in profiles go by.
fn takes_part(pod: &Pod) -> bool {
    pod.labels.get("role").is_some_and(|role| matches!(role.as_str(), "prefill" | "decode" | "both"))
}

/// A profile that looks at an earlier step's pod is of no use where there is none.
pub(super) fn refuse_peer(path: &str, profile: &Profile, mistakes: &mut Mistakes) {
    if profile.reads(SlotId::Peer) {
        let cure = "it is for the decode step of a workflow; take another here";
        let problem =
            format!("{:?} reads Peer, the pod of an earlier step, and there is none; {cure}", profile.name());
        mistakes.add(path, problem);
    }
}
