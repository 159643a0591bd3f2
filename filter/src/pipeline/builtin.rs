//! The profiles that come with Warmpath, in the language in which users write theirs.

/// A profile that every configuration knows.
pub struct BuiltIn {
    /// What `profile` and `select` call it.
    pub name: &'static str,
    /// One paragraph.
    pub doc: &'static str,
    /// As it would stand under `profiles`.
    pub json: &'static str,
}

/// All of them.
pub static BUILT_IN: &[BuiltIn] = &[
    BuiltIn {
        name: "prefix-aware",
        doc: "Requests go where their prefix is cached, unless load forbids. A conversation stays on its pod; a prompt \
            that many share spreads over pods as load asks for it; a new pod gets its part.",
        json: r#"{
  "prepare": [{"type": "prefix"}],
  "filters": [
    {"type": "health"},
    {"type": "model"},
    {"type": "concurrency-cap", "factor": 1.25, "slack": 4},
    {"type": "concurrency-floor", "share": 0.33}
  ],
  "scorers": [
    {"type": "prefix", "weight": 2, "sharing": 2},
    {"type": "in-flight", "weight": 1, "tolerance": 2, "busy": 8}
  ],
  "picker": {"type": "best"}
}"#,
    },
    BuiltIn {
        name: "cost-aware",
        doc: "The pod that will give the first token soonest, by the tokens that wait there, those of the prompt that it doesn't \
            hold, and how fast it was; of equals the one that holds more of the prompt, since each copy elsewhere costs room and \
            work later. For fleets of unequal pods, and where few prefixes make most of the load.",
        json: r#"{
  "prepare": [{"type": "prefix"}],
  "filters": [
    {"type": "health"},
    {"type": "model"}
  ],
  "scorers": [
    {"type": "predicted-ttft", "weight": 1},
    {"type": "prefix", "weight": 0.5}
  ],
  "picker": {"type": "best"}
}"#,
    },
    BuiltIn {
        name: "prefill",
        doc: "For the first step of a workflow: of the pods labelled `role: prefill` or `both`, the one that will be done soonest; of \
            equals the one that holds more of the prompt.",
        json: r#"{
  "prepare": [{"type": "prefix"}],
  "filters": [
    {"type": "label", "label": "role", "any_of": ["prefill", "both"], "strict": true},
    {"type": "health", "strict": true},
    {"type": "model", "strict": true}
  ],
  "scorers": [
    {"type": "predicted-ttft", "weight": 1},
    {"type": "prefix", "weight": 0.5}
  ],
  "picker": {"type": "best"}
}"#,
    },
    BuiltIn {
        name: "decode",
        doc: "For the second: of the pods labelled `role: decode` or `both`, one with few requests, that holds much of the prompt and \
            is near the prefill pod.",
        json: r#"{
  "prepare": [{"type": "prefix"}],
  "filters": [
    {"type": "label", "label": "role", "any_of": ["decode", "both"], "strict": true},
    {"type": "health"},
    {"type": "model"}
  ],
  "scorers": [
    {"type": "in-flight", "weight": 2, "tolerance": 2, "busy": 8},
    {"type": "prefix", "weight": 1},
    {"type": "affinity", "weight": 0.5}
  ],
  "picker": {"type": "best"}
}"#,
    },
    BuiltIn {
        name: "sticky-session",
        doc: "A session stays on the pod that it began on, whatever the load, as long as that pod answers. A new session, \
            and a request without one, goes to the least loaded pod.",
        json: r#"{
  "prepare": [{"type": "session"}],
  "filters": [{"type": "health"}, {"type": "model"}],
  "scorers": [{"type": "session"}],
  "picker": {"type": "best"}
}"#,
    },
    BuiltIn {
        name: "consistent-hash",
        doc: "Bounded-load consistent hashing, by session where the client names one, else by user, else by the first \
            four blocks of the prompt. Needs no memory of what went where. Without any of these: least requests.",
        json: r#"{
  "prepare": [{"type": "prefix"}, {"type": "hash-key", "from": [{"header": "x-session-id"}, "user", {"prefix": 4}]}],
  "filters": [{"type": "health"}, {"type": "model"}, {"type": "concurrency-cap", "factor": 1.25, "slack": 4}],
  "scorers": [{"type": "consistent-hash"}],
  "picker": {"type": "best"}
}"#,
    },
    BuiltIn {
        name: "least-requests",
        doc: "The pod with the fewest requests in flight.",
        json: r#"{
  "filters": [{"type": "health"}, {"type": "model"}],
  "picker": {"type": "best"}
}"#,
    },
    BuiltIn {
        name: "round-robin",
        doc: "Each pod in its turn.",
        json: r#"{
  "filters": [{"type": "health"}, {"type": "model"}],
  "picker": {"type": "round-robin"}
}"#,
    },
    BuiltIn {
        name: "random",
        doc: "Any pod, by `weight`.",
        json: r#"{
  "filters": [{"type": "health"}, {"type": "model"}],
  "picker": {"type": "weighted-random"}
}"#,
    },
];
