//! Why a pod was chosen, for people: response headers on demand, filter state for access logs, and refusals.

use crate::config::Router;
use crate::host::{Headers, Host};
use crate::pipeline::{Profile, Refused, Scratch};
use crate::stream::Flow;
use crate::workflow::{Limit, Sent};
use std::fmt::Write as _;

/// Pods whose scores are shown: the chosen one and its fallbacks.
const MOST_SHOWN: usize = 8;
/// Characters of a reason that are shown.
const LONGEST_REASON: usize = 200;

/// What the `x-warmpath-*` response headers will say.
#[derive(Debug, Default)]
pub struct Explanation {
    /// Why the prompt was not read, or not as tokens.
    pub step_down: Option<String>,
    /// What the prompt was compared as, where its model has a tokenizer.
    pub prompt: Option<&'static str>,
    /// The workflow that the request came to.
    pub workflow: Option<String>,
    /// Who prefilled, if it is another.
    pub prefill: Option<String>,
    /// Why the workflow was done in one step.
    pub aggregated: Option<String>,
    headers: Vec<(&'static str, String)>,
}

impl Explanation {
    /// Notes a decision.
    pub fn fill(&mut self, router: &Router, profile: &Profile, scratch: &Scratch, sent: &Sent) {
        let decision = &sent.decision;
        let mut scores = String::new();
        let fallbacks = decision.fallbacks().iter().map(|pod| usize::from(*pod));
        for position in std::iter::once(decision.pod).chain(fallbacks).take(MOST_SHOWN) {
            let Some(pod) = router.pods().get(position) else { continue };
            let _ = write!(scores, "{}{}", if scores.is_empty() { "" } else { "; " }, pod.name);
            for (name, weight, score) in profile.scores(scratch, position) {
                let _ = write!(scores, " {name}={score:.3}*{weight}");
            }
        }
        self.headers = vec![
            ("x-warmpath-pod", name(router, decision.pod).to_owned()),
            ("x-warmpath-profile", profile.name().to_owned()),
            ("x-warmpath-mode", mode(sent).to_owned()),
            ("x-warmpath-matched", format!("{}/{}", decision.matched, decision.blocks)),
            ("x-warmpath-scores", scores),
        ];
        let relaxed: Vec<_> = profile.relaxed(decision).collect();
        if !relaxed.is_empty() {
            self.headers.push(("x-warmpath-relaxed", relaxed.join(",")));
        }
    }

    /// Adds the headers to the response.
    pub fn write(&self, host: &impl Host) {
        for (name, value) in &self.headers {
            let _ = host.set_header(Headers::Response, name, value);
        }
        for (name, value) in [
            ("x-warmpath-workflow", &self.workflow),
            ("x-warmpath-prefill-pod", &self.prefill),
            ("x-warmpath-aggregated", &self.aggregated),
        ] {
            if let Some(value) = value {
                let _ = host.set_header(Headers::Response, name, value);
            }
        }
        if let Some(prompt) = self.prompt {
            let _ = host.set_header(Headers::Response, "x-warmpath-prompt", prompt);
        }
        if let Some(why) = &self.step_down {
            // It may quote what a client sent.
            let plain = why.chars().map(|c| if c.is_ascii_graphic() { c } else { ' ' });
            let why: String = plain.take(LONGEST_REASON).collect();
            let _ = host.set_header(Headers::Response, "x-warmpath-step-down", &why);
        }
    }
}

fn name(router: &Router, position: usize) -> &str {
    router.pods().get(position).map_or("", |pod| pod.name.as_str())
}

fn mode(sent: &Sent) -> &'static str {
    match (sent.by_prefix, sent.is_exact) {
        (true, true) => "exact",
        (true, false) => "approximate",
        (false, _) => "load",
    }
}

/// One line for `%FILTER_STATE(wasm.warmpath:PLAIN)%`.
pub fn filter_state(router: &Router, profile: &Profile, sent: &Sent) -> String {
    let decision = &sent.decision;
    format!(
        "pod={} profile={} mode={} matched={}/{}",
        name(router, decision.pod),
        profile.name(),
        mode(sent),
        decision.matched,
        decision.blocks
    )
}

/// Answers a request that no pod may serve, in the form of OpenAI's errors.
pub fn refuse(host: &impl Host, refused: &Refused, retry_after: u32) -> Flow {
    if refused.busy {
        let message = format!(
            "All pods that may serve this request are busy ({}). Retry after {retry_after} s.",
            refused.filter
        );
        return too_many(host, &message, retry_after);
    }
    let message = format!("No pod may serve this request: the filter {} left none.", refused.filter);
    let body = serde_json::json!({
        "error": {"message": message, "type": "service_unavailable", "param": null, "code": "no_pod"}
    });
    answer(host, 503, &[("content-type", "application/json")], &body, "warmpath_no_pod")
}

/// Answers a request that can't be served by a workflow: 4xx where that is because of what it is.
pub fn reject(host: &impl Host, status: u32, why: &str) -> Flow {
    let kind = if status < 500 { "invalid_request_error" } else { "service_unavailable" };
    let body = serde_json::json!({
        "error": {"message": why, "type": kind, "param": null, "code": "not_served"}
    });
    answer(host, status, &[("content-type", "application/json")], &body, "warmpath_not_served")
}

/// Answers. What is refused doesn't go on, whatever fails.
fn answer(
    host: &impl Host,
    status: u32,
    headers: &[(&str, &str)],
    body: &serde_json::Value,
    details: &str,
) -> Flow {
    if host.respond(status, headers, body.to_string().as_bytes(), details).is_err() {
        let _ = host.reset_request();
    }
    Flow::Pause
}

/// Answers a request that is one too many.
pub fn shed(host: &impl Host, limit: Limit, retry_after: u32) -> Flow {
    let what = match limit {
        Limit::Total(most) => format!("{most} requests are in flight, which is the limit"),
        Limit::Model(most) => format!("{most} requests are in flight for this model, which is its limit"),
    };
    too_many(host, &format!("{what}. Retry after {retry_after} s."), retry_after)
}

fn too_many(host: &impl Host, message: &str, retry_after: u32) -> Flow {
    let body = serde_json::json!({
        "error": {"message": message, "type": "rate_limit_error", "param": null, "code": "rate_limit_exceeded"}
    });
    let seconds = retry_after.to_string();
    let headers = [("content-type", "application/json"), ("retry-after", seconds.as_str())];
    answer(host, 429, &headers, &body, "warmpath_shed")
}
