//! What is different where others hold the headers: they go on before the body is read, and nothing can be changed in them later.

use super::decide::Unread;
use super::remote::allow_retries;
use super::{Content, Flow, Stream};
use crate::config::{Router, Via};
use crate::host::{Headers, Host, HostResult, Length};
use crate::metrics::Metric;

impl Stream {
    /// Holds the body alone: what stands behind this filter holds the headers. What they must say is said now.
    pub(super) fn go_ahead(&mut self, host: &impl Host, router: &Router, content: Content) -> Flow {
        if router.is_guarded() {
            // The body may become another, and a handoff is nobody's but the pod's that is named.
            let said =
                host.remove_header(Headers::Request, "content-length").and_then(|()| allow_retries(host, 0));
            if said.is_err() {
                self.unread = Some(Unread::Unheld);
                self.plugin.count(host, Metric::HostErrors);
                return self.decide(host, None, None);
            }
        }
        let headers = std::mem::take(&mut self.headers);
        self.ask_for_load(host, &headers);
        self.headers = headers;
        self.hold(content);
        Flow::Continue
    }

    /// Makes the held body another.
    pub(super) fn replace_body(&self, host: &impl Host, body: &[u8]) -> HostResult<()> {
        let length = match self.plugin.settings.routing.via() {
            Via::Header => Length::Set,
            Via::FilterState => Length::Removed,
        };
        host.replace_request_body(body, length)
    }
}
