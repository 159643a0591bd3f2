//! What Warmpath counts, in Envoy's own stats as `wasmcustom.warmpath.<name>`.
//!
//! One table names every metric, so that the number of names is bounded and each is defined once in a VM. Metrics
//! never fail a request: what can't be defined or written is left out.

use crate::host::{Host, MetricId, MetricKind};

macro_rules! metrics {
    ($($variant:ident $kind:ident $name:literal $doc:literal;)*) => {
        /// A metric of fixed name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Metric { $(#[doc = $doc] $variant,)* }

        /// Kind, name and meaning of every metric, in the order of [`Metric`].
        pub const METRICS: &[(MetricKind, &str, &str)] = &[$((MetricKind::$kind, concat!("warmpath.", $name), $doc),)*];
    };
}

metrics! {
    Requests Counter "requests" "Requests that Warmpath decided or refused.";
    ByPrefix Counter "decided_by_prefix" "Decided with the prompt's blocks looked up in a whole index.";
    ByEvents Counter "decided_by_events" "Of these, decisions for a pod that says itself what it holds.";
    ByLoad Counter "decided_by_load" "Decided without a prompt: nothing to read, or a step down.";
    ByRoundRobin Counter "decided_by_round_robin" "Decided by Envoy's own policy: Warmpath named no pod.";
    ByTokens Counter "decided_by_tokens" "Prompts that were compared as the engine's own tokens.";
    BlocksAsked Counter "blocks_asked" "Blocks of all prompts that were looked up.";
    BlocksMatched Counter "blocks_matched" "Of these, blocks that the chosen pod was predicted to hold.";
    DecidedAgain Counter "decided_again" "Decisions made a second time, because another worker had written meanwhile.";
    Relaxed Counter "filters_relaxed" "Filters that would have left no pod and were passed over.";
    Refused Counter "refused" "Requests answered here, because a strict filter left no pod.";
    Shed Counter "shed" "Requests answered with 429, because as many as may be are in flight; see admission.";
    Malformed Counter "step_down_malformed" "Bodies that could not be parsed; routed by load, unchanged.";
    TooLarge Counter "step_down_too_large" "Bodies over limits.max_body_bytes; routed by load, unread.";
    NotJson Counter "step_down_not_json" "Bodies that are compressed or not JSON; routed by load, unread.";
    IndexNotReady Counter "step_down_index_not_ready" "Requests decided while this VM's replica was loading or behind.";
    TokenizerNotReady Counter "step_down_tokenizer_not_ready" "Prompts compared as text, because their model's tokenizer was not there yet.";
    PromptCut Counter "step_down_prompt_cut" "Prompts compared by their first tokens alone: the rest was new, and beyond max_new_bytes.";
    NotFollowed Counter "step_down_not_followed" "Prompts compared as text, because they can't be rendered or tokenized as the engine does.";
    HostErrors Counter "step_down_host_error" "Hostcalls that failed and made a request step down.";
    Unheld Counter "step_down_unheld" "Requests sent on unread, because Envoy gave no body within a second.";
    Moved Counter "moved" "Requests that Envoy took to another pod than the first choice.";
    Astray Counter "astray" "Of these, requests that went there at Envoy's first attempt: its cluster lacks the pod, or nothing reads what Warmpath chose. The log says more.";
    Opened Counter "pods_failed" "Times that a pod was passed over from then on, because it failed.";
    PodsBusy Counter "pods_busy" "Answers by which a pod said that it is busy: 429, or 503 with Retry-After.";
    PodsPassed Gauge "pods_passed_over" "Pods that are passed over now, in the VM that keeps house.";
    FeedbackRequests Counter "feedback_requests" "Answers that told how much of the prompt was in the pod's cache.";
    FeedbackPredicted Counter "feedback_predicted_tokens" "Tokens of their prompts that were predicted to be.";
    FeedbackCached Counter "feedback_cached_tokens" "Tokens of their prompts that really were.";
    FeedbackRatio Histogram "feedback_cached_percent" "Of what was predicted, in percent; 100 where it was that or more.";
    Corrected Counter "feedback_blocks_withdrawn" "Blocks withdrawn, because an answer showed that the pod had lost them.";
    FirstToken Histogram "first_token_milliseconds" "Time to the first token of streamed answers.";
    Asked Counter "asked" "Answers of engines' metrics and of Envoy's admin.";
    AskedInVain Counter "asked_in_vain" "Such questions that got none, or none that could be read; the log says why.";
    EnginesHeard Gauge "engines_heard" "Pods of whose load an engine's metrics tell now.";
    OtherBlockSize Gauge "engines_other_block_size" "Pods whose blocks have another size than their model's tokenizers[].block_tokens.";
    Restarted Counter "engines_restarted" "Engines that began to count anew: they started, and what was routed to them is gone.";
    Pods Gauge "pods" "Pods that are decided among, in the VM that keeps house.";
    LeftOut Gauge "pods_left_out" "Endpoints that were found and can be no pods: too many, without an IP address, or under a name that no pod may have.";
    RemotePrefills Counter "prefills_remote" "Requests of a workflow that were to be prefilled by a pod of their own.";
    AggregatedShort Counter "aggregated_short" "Requests of a workflow served in one step: the prompt is shorter than remote_prefill.min_tokens.";
    AggregatedHeld Counter "aggregated_held" "The same: the decode pod holds so much of the prompt that the rest isn't worth it.";
    AggregatedFaster Counter "aggregated_faster" "The same: by remote_prefill.max_slowdown, since no prefill pod would be done soon.";
    AggregatedSame Counter "aggregated_same" "The same: one pod was the best for both steps.";
    AggregatedUnfit Counter "aggregated_unfit" "The same: the request is none that can be split; see the debug header.";
    AggregatedNoPrefill Counter "aggregated_no_prefill" "The same, or refused: no prefill pod was to be had.";
    AggregatedNoDecode Counter "aggregated_no_decode" "The same, or refused: no decode pod was to be had.";
    AggregatedFailed Counter "aggregated_failed" "The same, or refused: prefill was tried, and failed.";
    AggregatedNothing Counter "aggregated_nothing" "The same: the prefill ended with its first token, and had nothing to hand over.";
    PrefillTime Histogram "prefill_milliseconds" "Time from the call of a prefill pod to its answer.";
    PrefillsFailed Counter "prefills_failed" "Prefills that were answered with 5xx, 429 or 408, broke off, or took too long.";
    PrefillsUncalled Counter "prefills_uncalled" "Prefills for which Envoy took no call: the cluster is unknown, empty, or at its circuit breaker's bound; the log says which.";
    PrefillsRetried Counter "prefills_retried" "Prefills that were tried at another pod.";
    PrefillsRefused Counter "prefills_refused" "Prefills that were answered with another 4xx, which went to the client.";
    PrefillsUnusable Counter "prefills_unusable" "Prefills whose answer was none of the protocol's; the log says why.";
    PrefillsAbandoned Counter "prefills_abandoned" "Prefills whose client left, or whose decode failed, before they ended: their KV is held until the engine's own time-out.";
    TokensAbandoned Counter "prefill_tokens_abandoned" "Tokens that these were to prefill.";
    HandoffsLost Counter "handoffs_lost" "Requests that were handed over, and got no answer from a decode pod: their KV may be held likewise.";
    StartedAgain Counter "workflows_started_again" "Requests whose decode pod refused a handoff, or whose prefill failed while it was at work, and which one pod then did as a whole: the answer came in one piece.";
    Unserved Counter "workflows_unserved" "Requests of a workflow answered here, or broken off, because a step failed and nobody could take its place.";
    Withdrawn Counter "withdrawn" "Requests that failed, so that what they were to leave in a cache was withdrawn.";
    LogFull Counter "log_full" "Speculative entries dropped, because a checkpoint was due.";
    LogFailed Counter "log_failed" "Entries that could not be appended.";
    Unreadable Counter "shared_data_unreadable" "Entries, shards and ledgers in shared data that could not be read and were skipped.";
    VmStarted Counter "vm_started" "VMs that took up work. More than Envoy's workers and main thread: one trapped.";
    Version Gauge "version" "Version of the module whose VM took up work last: 1002003 is 1.2.3.";
    DecisionTime Histogram "decision_microseconds" "Time from the whole body to the decision, in microseconds.";
    IndexBlocks Gauge "index_blocks" "Blocks in the index.";
    IndexRefused Counter "index_blocks_refused" "Blocks for which the index had no room, over all VMs: raise index.max_blocks.";
    IndexMemory Gauge "index_memory_bytes" "Memory of one replica of the index.";
    TokenizerFailures Counter "tokenizer_failures" "Failed attempts to get or load a tokenizer, over all VMs; Envoy's log says why.";
    TokenizersReady Gauge "tokenizers_ready" "Tokenizers that are loaded, in the VM that keeps house.";
    KvEventsBatches Counter "kv_events_batches" "Batches of KV events that were taken.";
    KvEventsStored Counter "kv_events_blocks_stored" "Blocks that engines said they stored.";
    KvEventsRemoved Counter "kv_events_blocks_removed" "Blocks that engines said they removed.";
    KvEventsStarts Counter "kv_events_starts" "Engines that began to count anew: they started, and their blocks are gone.";
    KvEventsGaps Counter "kv_events_gaps" "Batches before which others were missed: their pods are uncertain.";
    KvEventsOffloaded Counter "kv_events_blocks_offloaded" "Blocks that engines stored elsewhere than on the GPU; not matched.";
    KvEventsOtherGroups Counter "kv_events_blocks_other_groups" "Blocks of layers that don't attend to the whole prompt; not matched.";
    KvEventsBlockSize Counter "kv_events_blocks_other_size" "Blocks of another size than prompts are hashed in; not matched. The log names both.";
    KvEventsRefused Counter "kv_events_blocks_refused" "Blocks beyond kv_events.cache_blocks; not matched.";
    KvEventsForgotten Counter "kv_events_blocks_forgotten" "Blocks that waited too long for the block before them; not matched.";
    KvEventsUnknown Counter "kv_events_unknown" "Events of a type that isn't known; passed.";
    KvEventsUnusable Counter "kv_events_unusable" "Events that lack what they need; the log says what.";
    KvEventsUnreadable Counter "kv_events_unreadable" "Batches that could not be decoded: their pods are uncertain.";
    KvEventsProtocol Counter "kv_events_protocol_errors" "Connections that don't speak ZMTP 3, or send more than is taken; closed.";
    KvEventsStrangers Counter "kv_events_strangers" "Publishers that speak for no configured pod, or without the token; refused.";
    KvEventsNoTokenizer Counter "kv_events_no_tokenizer" "Batches of a model without a tokenizer; passed.";
    KvEventsNoRank Counter "kv_events_no_rank" "Batches of a data-parallel rank that the pod isn't configured to have; passed.";
    KvEventsDropped Counter "kv_events_dropped" "Changes that the log would not take for too long; all feeds of the worker are uncertain.";
    ExactPods Gauge "kv_events_exact_caches" "Caches that are known by events, over all workers.";
    InFlight Gauge "in_flight" "Requests in flight over all workers.";
}

/// What the metric `version` says of a version: Envoy's gauges are whole numbers, and its names have no labels. A part beyond 999 would
/// run into the next one; what stands behind `-` or `+` is left out.
pub fn version_number(version: &str) -> u64 {
    let release = version.split(['-', '+']).next().unwrap_or_default();
    release
        .split('.')
        .fold(0, |number: u64, part| number.saturating_mul(1000).saturating_add(part.parse().unwrap_or(0)))
}

/// The metrics of one VM.
#[derive(Debug, Default)]
pub struct Metrics {
    ids: Vec<Option<MetricId>>,
}

impl Metrics {
    /// Defines every metric of the table.
    pub fn define(host: &impl Host) -> Self {
        Self { ids: METRICS.iter().map(|(kind, name, _)| host.define_metric(*kind, name).ok()).collect() }
    }

    fn id(&self, metric: Metric) -> Option<MetricId> {
        self.ids.get(metric as usize).copied().flatten()
    }

    /// Adds to a counter or gauge. Adding 0 does nothing: Envoy would refuse it.
    pub fn add(&self, host: &impl Host, metric: Metric, by: u64) {
        if let (Some(id), Ok(by @ 1..)) = (self.id(metric), i64::try_from(by)) {
            let _ = host.increment_metric(id, by);
        }
    }

    /// Sets a gauge, or records a value of a histogram.
    pub fn record(&self, host: &impl Host, metric: Metric, value: u64) {
        if let Some(id) = self.id(metric) {
            let _ = host.record_metric(id, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::{FakeHost, FakeShared};

    #[test]
    fn every_metric_has_a_name_of_its_own() {
        let mut names: Vec<_> = METRICS.iter().map(|m| m.1).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len());
    }

    #[test]
    fn versions_are_numbers_in_their_order() {
        assert_eq!(version_number("0.1.0"), 1_000);
        assert_eq!(version_number("1.2.3"), 1_002_003);
        assert_eq!(version_number("12.34.567-rc.1+a.b"), 12_034_567);
        assert_eq!(version_number("none"), 0);
    }

    #[test]
    fn counts_and_records_under_the_table_s_names() {
        let host = FakeHost::new(&FakeShared::default());
        let metrics = Metrics::define(&host);
        metrics.add(&host, Metric::Requests, 2);
        metrics.add(&host, Metric::Requests, 0);
        metrics.record(&host, Metric::IndexBlocks, 7);
        assert_eq!(host.metric("warmpath.requests"), 2);
        assert_eq!(host.metric("warmpath.index_blocks"), 7);
    }

    #[test]
    fn a_metric_that_cannot_be_defined_is_left_out() {
        let host = FakeHost::new(&FakeShared::default());
        host.state.borrow_mut().failing.push("define_metric");
        let metrics = Metrics::define(&host);
        metrics.add(&host, Metric::Requests, 1);
        assert_eq!(host.metric("warmpath.requests"), 0);
    }
}
