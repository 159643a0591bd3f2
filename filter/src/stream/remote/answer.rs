//! What follows from the answers to our calls.

use super::call::{Answered, TIMED_OUT, answered, status};
use super::{Remote, With, end_prefill, pair};
use crate::config::Router;
use crate::explain;
use crate::fleet::Fleet;
use crate::host::{Headers, Host, Level};
use crate::metrics::Metric;
use crate::pods::Verdict;
use crate::stream::feedback::Prediction;
use crate::stream::progress::Sign;
use crate::stream::response::predicted;
use crate::stream::usage::{TAIL, Tail};
use crate::stream::{Content, Flow, Stream};
use crate::workflow::protocol::{Handoff, Order};
use crate::workflow::{Aggregated, PrefillDecode};
use std::borrow::Cow;
use std::rc::Rc;

impl Stream {
    /// An answer came to the call of this number.
    pub fn on_answer(&mut self, host: &impl Host, call: u32) {
        if self.pending != Some(call) {
            return;
        }
        self.pending = None;
        if self.is_answered {
            return; // Nothing can come of it any more.
        }
        if self.restart.is_some() {
            return self.on_whole(host);
        }
        let (Some(mut remote), Some(router)) = (self.remote.take(), self.router.clone()) else { return };
        let Some(workflow) = router.workflows().get(remote.workflow) else {
            explain::reject(host, 503, "its workflow is gone");
            return;
        };
        let (plugin, endpoint) = (self.plugin.clone(), remote.endpoint);
        let with = With { host, router: &router, workflow };
        let flow = match plugin.fleet.try_borrow_mut() {
            Ok(mut fleet) if remote.is_asking => self.on_learnt(with, &mut fleet, *remote),
            Ok(mut fleet) => {
                end_call(host, &mut fleet, workflow, &mut remote);
                self.on_prefill(with, &mut fleet, *remote)
            }
            // Nobody holds it between two callbacks.
            Err(_) => explain::reject(host, 503, "the prefill's answer could not be taken"),
        };
        let again = std::mem::take(&mut self.again);
        let flow = if again { self.read(host, Content::Call(endpoint)) } else { flow };
        if flow == Flow::Continue {
            let _ = host.resume_request();
        }
    }

    /// The pod was asked what the protocol has to know of it.
    fn on_learnt(&mut self, with: With<'_, impl Host>, fleet: &mut Fleet, mut remote: Remote) -> Flow {
        let With { host, router, workflow } = with;
        let settings = &self.plugin.settings;
        let question = router
            .pods()
            .get(remote.sent.decision.pod)
            .and_then(|prefill| workflow.protocol.question(prefill));
        let learnt = match status(host) {
            200 => host
                .answer_body(settings.max_body_bytes)
                .map_err(|error| error.to_string())
                .and_then(|body| workflow.protocol.learn(&body)),
            status => Err(format!("it answered with status {status}")),
        };
        let tried = match (learnt, question) {
            (Ok(learnt), Some(question)) => {
                self.plugin.learn(question.address, fleet.ticks(), learnt);
                true
            }
            (learnt, question) => {
                let address = question.map(|question| question.address).unwrap_or_default();
                let why = learnt.err().unwrap_or_default();
                self.complain(host, fleet, &format!("{address} doesn't say its engine's name: {why}"));
                fleet.metrics.add(host, Metric::PrefillsUnusable, 1);
                self.next(host, fleet, router, &mut remote)
            }
        };
        let Ok(bytes) = host.request_body(settings.max_body_bytes) else {
            return self.step_down(host, fleet, remote, Aggregated::Failed);
        };
        if !tried || !self.call(with, fleet, &mut remote, &bytes) {
            return self.step_down(host, fleet, remote, Aggregated::Failed);
        }
        if workflow.protocol.order() == Order::AtOnce && !remote.is_asking {
            return self.go_on_at_once(with, fleet, remote, &bytes);
        }
        self.remote = Some(Box::new(remote));
        Flow::Pause
    }

    /// The prefill pod answered, or didn't.
    fn on_prefill(&mut self, with: With<'_, impl Host>, fleet: &mut Fleet, mut remote: Remote) -> Flow {
        let With { host, router, workflow } = with;
        let at_once = workflow.protocol.order() == Order::AtOnce;
        let most = self.plugin.settings.max_body_bytes;
        match answered(host) {
            Answered::Well => {
                self.judge_prefill(host, fleet, router, &remote, Verdict::Answer);
                let took = host.now().saturating_sub(remote.called).as_millis();
                fleet.metrics.record(host, Metric::PrefillTime, u64::try_from(took).unwrap_or(u64::MAX));
                let answer = host.answer_body(most);
                if let Ok(answer) = &answer {
                    compare(host, fleet, &remote, answer);
                }
                if at_once {
                    end_prefill(host, fleet, &mut remote, true);
                    self.watch(remote.streams);
                    return Flow::Pause;
                }
                match answer.map_err(|error| error.to_string()) {
                    Ok(answer) => self.on_handoff(with, fleet, remote, &answer),
                    Err(why) => self.on_unusable(host, fleet, router, remote, &why),
                }
            }
            Answered::ClientError => {
                self.judge_prefill(host, fleet, router, &remote, Verdict::Answer);
                fleet.metrics.add(host, Metric::PrefillsRefused, 1);
                end_prefill(host, fleet, &mut remote, false);
                self.pass_on(host, fleet)
            }
            Answered::Not(verdict) => {
                fleet.metrics.add(host, Metric::PrefillsFailed, 1);
                // Where both are at it, one that took too long may have waited for the other.
                if !(at_once && status(host) == TIMED_OUT) {
                    self.judge_prefill(host, fleet, router, &remote, verdict);
                }
                if at_once {
                    end_prefill(host, fleet, &mut remote, false);
                    if !self.answer.has_begun() && self.start_again(host, fleet) {
                        return Flow::Pause;
                    }
                    return self.fail(host, fleet, "prefill failed");
                }
                let Ok(bytes) = host.request_body(most) else {
                    return self.step_down(host, fleet, remote, Aggregated::Failed);
                };
                if self.next(host, fleet, router, &mut remote) && self.call(with, fleet, &mut remote, &bytes)
                {
                    self.remote = Some(Box::new(remote));
                    return Flow::Pause;
                }
                self.step_down(host, fleet, remote, Aggregated::Failed)
            }
        }
    }

    /// The prefill pod did its part: the decode pod goes on.
    fn on_handoff(
        &mut self,
        with: With<'_, impl Host>,
        fleet: &mut Fleet,
        mut remote: Remote,
        answer: &[u8],
    ) -> Flow {
        let With { host, router, workflow } = with;
        let Ok(bytes) = host.request_body(self.plugin.settings.max_body_bytes) else {
            return self.on_unusable(host, fleet, router, remote, "the request's body is gone");
        };
        let handoff = match self.sent.as_ref().and_then(|sent| pair(router, &remote, sent, &bytes)) {
            Some(pair) => workflow.protocol.decode(&pair, answer),
            None => Err("a pod is gone".to_owned()),
        };
        match handoff {
            Ok(Handoff::Decode(leg)) => {
                let gone_on = self.hand_over(with, fleet, &remote, &bytes, leg);
                end_prefill(host, fleet, &mut remote, true);
                if gone_on {
                    self.keep(workflow, &remote, Cow::Owned(bytes));
                    return Flow::Continue;
                }
                fleet.metrics.add(host, Metric::HandoffsLost, 1);
                self.fail(host, fleet, "the request could not be edited")
            }
            Ok(Handoff::Nothing) => self.step_down(host, fleet, remote, Aggregated::Nothing),
            Err(why) => self.on_unusable(host, fleet, router, remote, &why),
        }
    }

    /// What the prefill pod answered is none of the protocol's answers. Another would answer so, too.
    fn on_unusable(
        &mut self,
        host: &impl Host,
        fleet: &mut Fleet,
        router: &Rc<Router>,
        remote: Remote,
        why: &str,
    ) -> Flow {
        fleet.metrics.add(host, Metric::PrefillsUnusable, 1);
        let pod = router.pods().get(remote.sent.decision.pod).map_or("", |pod| pod.name.as_str());
        self.complain(host, fleet, &format!("the prefill of {pod} can't be handed over: {why}"));
        self.step_down(host, fleet, remote, Aggregated::Failed)
    }

    pub(super) fn complain(&self, host: &impl Host, fleet: &Fleet, what: &str) {
        if self.plugin.complaints.may(Metric::PrefillsUnusable, fleet.ticks()) {
            host.log(Level::Warn, &format!("warmpath: {what}"));
        }
    }

    /// The client gets the prefill pod's answer, which says what is wrong with the request.
    fn pass_on(&mut self, host: &impl Host, fleet: &mut Fleet) -> Flow {
        let most = self.plugin.settings.max_body_bytes;
        let headers = host.headers(Headers::Answer).unwrap_or_default();
        let kind = headers.text("content-type").unwrap_or_default();
        let (status, body) = (status(host), host.answer_body(most).unwrap_or_default());
        let all = [("content-type", &*kind)];
        self.end(host, fleet, |host| {
            let headers = if kind.is_empty() { &all[..0] } else { &all[..] };
            host.respond(status.into(), headers, &body, "warmpath_prefill_refused").is_ok()
        })
    }
}

/// The call of a prefill ended: how long it took tells of the pod's pace.
fn end_call(host: &impl Host, fleet: &mut Fleet, workflow: &PrefillDecode, remote: &mut Remote) {
    // Where both are at it, the time has the other pod's in it.
    let sign = match (status(host), workflow.protocol.order()) {
        (200, Order::InTurn) => Sign::Prefilled,
        _ => Sign::Nothing,
    };
    if let Some(progress) = &mut remote.progress {
        progress.first_token(host, fleet, sign);
    }
}

/// Holds what the prefill pod says it had in its cache against what was predicted.
fn compare(host: &impl Host, fleet: &mut Fleet, remote: &Remote, answer: &[u8]) {
    let mut tail = Tail::default();
    tail.push(answer.get(answer.len().saturating_sub(TAIL)..).unwrap_or_default());
    let (Some(usage), Some(prediction)) =
        (tail.usage(), predicted(&remote.sent, &remote.slots, remote.sent.decision.pod))
    else {
        return;
    };
    if let Some(cached) = usage.cached {
        Prediction::compare(&prediction, host, fleet, usage.prompt, cached, &remote.slots.chain.hashes);
    }
}
