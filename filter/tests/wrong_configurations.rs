//! Every kind of wrong configuration is refused, with the path to the mistake and the cure.

use std::sync::LazyLock;
use warmpath::config::load;

const PODS: &str =
    r#""pods": [{"name": "a", "address": "10.0.0.1:8000"}, {"name": "b", "address": "10.0.0.2:8000"}]"#;

/// Words of the mistakes that it takes more than structure to see. What has no others the schema must take; what has must be
/// refused by the schema too.
const BEYOND_STRUCTURE: &[&str] = &[
    // What needs a header that is gone.
    "comes too late for a cluster_header",
    "by a header, which can't be set any more",
    // What a text must be like.
    "is no address",
    "is no key; give",
    "is no name of a header",
    "is no name; give",
    "is not a name; give",
    "is no path",
    "is no pattern; give",
    "is no series",
    "is no token; give",
    "label kv_port that is no port",
    "is empty; name the Envoy cluster",
    // What stands twice: JSON has objects, and of these the last.
    "duplicate field",
    "stands here",
    "has a tokenizer already",
    "is an earlier pod",
    "is the name of an earlier pod",
    "is the name of a built-in profile",
    // What isn't there.
    "no pod bears",
    "stands for",
    "there is no profile",
    "there is no workflow",
    "is not known; take one of",
    // What doesn't fit what stands elsewhere.
    "8 is out of range; give 9 to 3600",
    "0 entries; give 1 to 256",
    "576 ranks together",
    "33 labels together",
    "admin and no pod",
    "doesn't look at scores",
    "reads Chain",
    "reads Peer",
    "which an earlier part writes",
    "name the Envoy cluster with override_host",
    "is another than the pods' own",
    "is not used when",
    "is of no use where",
    "has no fallbacks",
    "speaks of addresses",
    "are those of metrics.engine",
    "can't be followed",
    // One of several fields, or not all of them.
    "are missing; give at least one of running",
    "none of running, waiting and kv_usage",
    "give cluster and path",
    "has no address",
    "has no cluster",
    "has no condition",
    "leads nowhere",
    "names a profile and a workflow",
    "says nothing of a pod",
];

/// Whether the schema takes a configuration. `None` where it is no JSON.
fn fits_the_schema(json: &str) -> Option<bool> {
    static SCHEMA: LazyLock<jsonschema::Validator> =
        LazyLock::new(|| jsonschema::validator_for(&warmpath::reference::schema()).expect("a schema"));
    let config = serde_json::from_str(json).ok()?;
    Some(SCHEMA.is_valid(&config))
}

/// The mistakes of a configuration, a line each; the schema sees them too, if it can.
#[track_caller]
fn mistakes(json: &str) -> String {
    let report = match load(json.as_bytes()) {
        Ok(_) => panic!("accepted: {json}"),
        Err(mistakes) => mistakes.to_string(),
    };
    if let Some(fits) = fits_the_schema(json) {
        let is_beyond = |line: &str| BEYOND_STRUCTURE.iter().any(|words| line.contains(words));
        // A thirty-third line counts those that are not listed.
        assert_eq!(fits, report.lines().take(32).all(is_beyond), "by the schema {json}:\n{report}");
    }
    report
}

/// That a configuration is taken, and by the schema too.
#[track_caller]
fn accepts(json: &str) {
    if let Err(mistakes) = load(json.as_bytes()) {
        panic!("{json}: {mistakes}");
    }
    assert_eq!(fits_the_schema(json), Some(true), "{json}");
}

/// That the only mistake is at `path` and that its text speaks of `words`.
#[track_caller]
fn refuses(json: &str, path: &str, words: &[&str]) {
    let report = mistakes(json);
    assert!(!report.contains('\n'), "more than one mistake in {json}:\n{report}");
    assert!(report.starts_with(&format!("{path}: ")), "not at {path}: {report}");
    for word in words {
        assert!(report.contains(word), "nothing of {word:?} in: {report}");
    }
}

/// As [`refuses`], for a profile `main` of right pods.
#[track_caller]
fn refuses_profile(profile: &str, path: &str, words: &[&str]) {
    refuses(&format!(r#"{{{PODS}, "profile": "main", "profiles": {{"main": {profile}}}}}"#), path, words);
}

/// As [`refuses`], for one more field beside right pods.
#[track_caller]
fn refuses_field(field: &str, path: &str, words: &[&str]) {
    refuses(&format!("{{{PODS}, {field}}}"), path, words);
}

/// As [`refuses`], for one pod.
#[track_caller]
fn refuses_pod(pod: &str, path: &str, words: &[&str]) {
    refuses(&format!(r#"{{"pods": [{pod}]}}"#), path, words);
}

#[test]
fn what_is_no_configuration_at_all() {
    refuses("", "configuration", &["empty", "pods"]);
    refuses("  \n", "configuration", &["empty"]);
    refuses("{\"pods\": [", "pods", &["EOF", "line 1 column 10"]);
    refuses("[]", "configuration", &["invalid"]);
    refuses(r#" [[{"address": "10.0.0.1:1"}]]"#, "configuration", &["invalid", "one JSON object"]);
    refuses("{}", "configuration", &["missing field `pods`"]);
    refuses(&format!("{{{PODS}}} {{}}"), "configuration", &["trailing", "only one JSON object"]);
    refuses(
        &" ".repeat((1 << 20) + 1).replacen(' ', "x", 1),
        "configuration",
        &["1048577 bytes", "at most 1048576"],
    );
    refuses(&format!("{{\"pods\": {}", "[".repeat(1000)), "pods[0][0]", &["invalid type: sequence"]);
    let deep = format!(r#""profiles": {{"main": {{"prepare": [{{"type": {}"#, "[".repeat(1000));
    let report = mistakes(&format!("{{{PODS}, {deep}"));
    assert!(report.starts_with("profiles.main.prepare[0].type[0][0]"), "{report}");
    assert!(report.contains("recursion limit") && report.len() < 2000, "{report}");
}

#[test]
fn unknown_fields_and_doubled_ones_at_every_level() {
    refuses_field(r#""prfile": "random""#, "prfile", &["unknown field", "`profile`"]);
    refuses_field(
        r#""profile": "random", "profile": "random""#,
        "configuration",
        &["duplicate field `profile`"],
    );
    refuses_pod(r#"{"address": "10.0.0.1:1", "modls": []}"#, "pods[0].modls", &["unknown field", "`models`"]);
    refuses_field(r#""blocks": {"sise": 1}"#, "blocks.sise", &["unknown field", "`size`"]);
    refuses_field(r#""index": {"max": 1}"#, "index.max", &["unknown field", "`max_blocks`"]);
    refuses_field(r#""limits": {"max": 1}"#, "limits.max", &["unknown field", "`max_body_bytes`"]);
    refuses_field(r#""routing": {"from": 1}"#, "routing.from", &["unknown field", "`header`"]);
    refuses_field(r#""select": [{"profil": "random"}]"#, "select[0].profil", &["unknown field", "`profile`"]);
    refuses_field(
        r#""select": [{"profile": "random", "header": {"nam": "x"}}]"#,
        "select[0].header.nam",
        &["unknown field", "`name`"],
    );
    refuses_profile(r#"{"scorer": []}"#, "profiles.main.scorer", &["unknown field", "`scorers`"]);
    refuses_field(
        r#""profiles": {"main": {"picker": {"type": "best"}}, "main": {"picker": {"type": "best"}}}"#,
        "profiles",
        &["\"main\" stands here twice"],
    );
    refuses_profile(r#"{"picker": {"type": "best", "type": "random"}}"#, "profiles.main.picker", &["twice"]);
    refuses_profile(
        r#"{"scorers": [{"type": "in-flight"}, {"type": "in-flight", "weigth": 3}], "picker": {"type": "best"}}"#,
        "profiles.main.scorers[1].weigth",
        &["unknown field", "`busy`"],
    );
    refuses_profile(
        r#"{"filters": [{"type": "health", "weight": 3}], "picker": {"type": "best"}}"#,
        "profiles.main.filters[0].weight",
        &["unknown field"],
    );
}

#[test]
fn values_of_a_wrong_type() {
    refuses(r#"{"pods": 3}"#, "pods", &["expected a sequence"]);
    refuses_pod(r#"{"address": 3}"#, "pods[0].address", &["expected a string"]);
    refuses_pod(r#"{"address": "10.0.0.1:1", "weight": "2"}"#, "pods[0].weight", &["expected f32"]);
    refuses_field(r#""blocks": {"size": -1}"#, "blocks.size", &["invalid value"]);
    refuses_field(r#""routing": {"by": "name"}"#, "routing.by", &["`address`", "`cluster`"]);
    refuses_profile(r#"{"picker": {"type": 3}}"#, "profiles.main.picker.type", &["3 is no name", "\"best\""]);
    refuses_profile(
        r#"{"filters": [{"type": "concurrency-cap", "slack": "a"}], "picker": {"type": "best"}}"#,
        "profiles.main.filters[0].slack",
        &["expected u32"],
    );
    refuses_profile(
        r#"{"filters": [{"type": "health", "strict": 1}], "picker": {"type": "best"}}"#,
        "profiles.main.filters[0].strict",
        &["neither true nor false"],
    );
}

#[test]
fn pods_that_cannot_be() {
    refuses(r#"{"pods": []}"#, "pods", &["0 entries", "1 to 256"]);
    let many: Vec<_> = (0..257).map(|i| format!(r#"{{"address": "10.0.0.1:{}"}}"#, i + 1)).collect();
    refuses(&format!(r#"{{"pods": [{}]}}"#, many.join(",")), "pods", &["257 entries", "1 to 256"]);
    refuses_pod(r#"{"name": "a"}"#, "pods[0]", &["no address", "\"address\": \"ip:port\""]);
    refuses_pod(
        r#"{"address": "pod-1:8000"}"#,
        "pods[0].address",
        &["pod-1:8000", "10.0.0.1:8000", "not resolved"],
    );
    refuses_pod(r#"{"address": "10.0.0.1"}"#, "pods[0].address", &["ip:port"]);
    refuses_pod(r#"{"address": "10.0.0.1:1", "cluster": "c"}"#, "pods[0].cluster", &["remove it"]);
    refuses_pod(r#"{"address": "10.0.0.1:1", "name": ""}"#, "pods[0].name", &["1 to 128"]);
    refuses_pod(r#"{"address": "10.0.0.1:1", "name": "a\nb"}"#, "pods[0].name", &["a\\nb", "printable"]);
    refuses_pod(r#"{"address": "10.0.0.1:1", "weight": 0}"#, "pods[0].weight", &["0.01 to 100"]);
    refuses_pod(r#"{"address": "10.0.0.1:1", "weight": 1e9}"#, "pods[0].weight", &["0.01 to 100"]);
    refuses_pod(r#"{"address": "10.0.0.1:1", "weight": 1e99}"#, "pods[0].weight", &["out of range"]);
    refuses_pod(
        r#"{"address": "10.0.0.1:1", "max_in_flight": 0}"#,
        "pods[0].max_in_flight",
        &["1 to 1000000"],
    );
    refuses_pod(r#"{"address": "10.0.0.1:1", "models": ["a", ""]}"#, "pods[0].models[1]", &["1 to 256"]);
    refuses_pod(r#"{"address": "10.0.0.1:1", "labels": {"a": ""}}"#, "pods[0].labels.a", &["1 to 128"]);
    refuses_pod(r#"{"address": "10.0.0.1:1", "labels": {"a": "b", "a": "c"}}"#, "pods[0].labels", &["twice"]);
    let models: Vec<_> = (0..65).map(|i| format!("\"m{i}\"")).collect();
    refuses_pod(
        &format!(r#"{{"address": "10.0.0.1:1", "models": [{}]}}"#, models.join(",")),
        "pods[0].models",
        &["65 models", "at most 64"],
    );
    refuses(
        r#"{"pods": [{"name": "a", "address": "10.0.0.1:1"}, {"name": "a", "address": "10.0.0.2:1"}]}"#,
        "pods[1].name",
        &["\"a\"", "earlier pod"],
    );
    refuses(
        r#"{"pods": [{"name": "a", "address": "10.0.0.1:1"}, {"name": "b", "address": "10.0.0.1:1"}]}"#,
        "pods[1]",
        &["10.0.0.1:1", "list each once"],
    );
    let by_cluster = |pod: &str| format!(r#"{{"routing": {{"by": "cluster"}}, "pods": [{pod}]}}"#);
    refuses(&by_cluster(r#"{"name": "a"}"#), "pods[0]", &["no cluster", "\"cluster\": NAME"]);
    refuses(&by_cluster(r#"{"cluster": "a", "address": "10.0.0.1:1"}"#), "pods[0].address", &["remove it"]);
}

#[test]
fn numbers_and_names_out_of_bounds() {
    refuses_field(r#""blocks": {"size": 8}"#, "blocks.size", &["8 is out of range", "16 to 65536"]);
    refuses_field(r#""index": {"max_blocks": 1}"#, "index.max_blocks", &["1000 to 16000000"]);
    refuses_field(r#""index": {"pod_blocks": 0}"#, "index.pod_blocks", &["1 to 16000000"]);
    refuses_field(r#""index": {"ttl_seconds": 0}"#, "index.ttl_seconds", &["1 to 2592000"]);
    refuses_field(r#""limits": {"max_body_bytes": 1}"#, "limits.max_body_bytes", &["1024 to 67108864"]);
    refuses_field(r#""limits": {"max_messages": 0}"#, "limits.max_messages", &["1 to 100000"]);
    refuses_field(r#""limits": {"max_parts": 0}"#, "limits.max_parts", &["1 to 100000"]);
    refuses_field(r#""routing": {"fallbacks": 9}"#, "routing.fallbacks", &["9 is out of range", "0 to 8"]);
    refuses_field(r#""routing": {"header": "a b"}"#, "routing.header", &["\"a b\" is no name"]);
    refuses_field(r#""debug_header": """#, "debug_header", &["no name of a header"]);
    refuses(
        r#"{"pods": [{"cluster": "a"}], "routing": {"by": "cluster", "fallbacks": 1}}"#,
        "routing.fallbacks",
        &["remove it"],
    );
}

#[test]
fn profiles_that_do_not_exist_or_may_not_be_called_so() {
    refuses_field(r#""profile": "fast""#, "profile", &["no profile \"fast\"", "prefix-aware", "round-robin"]);
    refuses_field(r#""profiles": {"a b": {}}"#, "profiles.a b", &["letters, digits"]);
    refuses_field(
        r#""profiles": {"random": {"picker": {"type": "random"}}}"#,
        "profiles.random",
        &["built-in", "give yours another"],
    );
    let many: Vec<_> = (0..33).map(|i| format!(r#""p{i}": {{"picker": {{"type": "random"}}}}"#)).collect();
    refuses_field(
        &format!(r#""profiles": {{{}}}"#, many.join(",")),
        "profiles",
        &["33 profiles", "at most 32"],
    );
}

#[test]
fn parts_that_do_not_exist_or_stand_in_the_wrong_place() {
    refuses_profile(r#"{"picker": {}}"#, "profiles.main.picker", &["names no part", "\"type\"", "\"best\""]);
    refuses_profile(
        r#"{"scorers": [{"type": "prefx"}], "picker": {"type": "best"}}"#,
        "profiles.main.scorers[0].type",
        &["no scorer \"prefx\"", "\"prefix\"", "\"in-flight\""],
    );
    refuses_profile(
        r#"{"scorers": [{"type": "health"}], "picker": {"type": "best"}}"#,
        "profiles.main.scorers[0].type",
        &["\"health\" is a filter", "move it to filters"],
    );
    let many = vec![r#"{"type": "health"}"#; 17].join(",");
    refuses_profile(
        &format!(r#"{{"filters": [{many}], "picker": {{"type": "best"}}}}"#),
        "profiles.main.filters",
        &["17 parts", "at most 16"],
    );
}

#[test]
fn profiles_that_do_not_fit_together() {
    refuses_profile("{}", "profiles.main.picker", &["is missing", "{\"type\": NAME}", "\"best\""]);
    refuses_profile(
        r#"{"scorers": [{"type": "prefix"}], "picker": {"type": "best"}}"#,
        "profiles.main.scorers[0]",
        &["reads Chain and Residency", "{\"type\": \"prefix\"}", "in prepare"],
    );
    refuses_profile(
        r#"{"prepare": [{"type": "hash-key", "from": [{"prefix": 2}]}, {"type": "prefix"}], "picker": {"type": "best"}}"#,
        "profiles.main.prepare[0]",
        &["hash-key reads Chain", "before it"],
    );
    refuses_profile(
        r#"{"prepare": [{"type": "session"}, {"type": "session"}], "picker": {"type": "best"}}"#,
        "profiles.main.prepare[1]",
        &["session writes Session and SessionResidency, which an earlier part writes"],
    );
    refuses_profile(
        r#"{"scorers": [{"type": "in-flight"}], "picker": {"type": "random"}}"#,
        "profiles.main.picker",
        &["random doesn't look at scores", "remove the scorers"],
    );
}

#[test]
fn fields_of_parts_out_of_bounds() {
    for (stage, part, field, words) in [
        ("filters", r#"{"type": "concurrency-cap", "factor": 0.5}"#, ".factor", "1 to 100"),
        ("filters", r#"{"type": "concurrency-cap", "slack": 100001}"#, ".slack", "0 to 100000"),
        ("filters", r#"{"type": "concurrency-cap", "max_in_flight": 0}"#, ".max_in_flight", "1 to 1000000"),
        ("filters", r#"{"type": "concurrency-floor", "share": 1.5}"#, ".share", "more than 0, and up to 1"),
        ("filters", r#"{"type": "label", "any_of": ["x"]}"#, "", "missing field `label`"),
        ("filters", r#"{"type": "label", "label": "role", "any_of": []}"#, ".any_of", "is empty"),
        ("filters", r#"{"type": "label", "label": "role", "any_of": ["x"]}"#, ".any_of", "no pod bears"),
        ("prepare", r#"{"type": "hash-key"}"#, "", "missing field `from`"),
        ("prepare", r#"{"type": "hash-key", "from": []}"#, ".from", "1 to 8"),
        ("prepare", r#"{"type": "hash-key", "from": ["usr"]}"#, ".from[0]", "`user`"),
        ("prepare", r#"{"type": "session", "from": [{"header": "a b"}]}"#, ".from[0].header", "\"a b\""),
        ("prepare", r#"{"type": "session", "from": ["user", {"cookie": ""}]}"#, ".from[1].cookie", "no"),
        ("prepare", r#"{"type": "session", "from": ["model"]}"#, ".from[0]", "no session"),
    ] {
        let profile = format!(r#"{{"{stage}": [{part}], "picker": {{"type": "best"}}}}"#);
        refuses_profile(&profile, &format!("profiles.main.{stage}[0]{field}"), &[words]);
    }
    for (stage, part, field, words) in [
        ("filters", r#"{"type": "prefix-threshold", "min_share": 0}"#, ".min_share", "more than 0"),
        ("scorers", r#"{"type": "prefix", "sharing": 5}"#, ".sharing", "0 to 4"),
        ("scorers", r#"{"type": "in-flight", "busy": 0}"#, ".busy", "1 to 10000"),
        ("scorers", r#"{"type": "in-flight", "tolerance": -1}"#, ".tolerance", "0 to 10000"),
        ("scorers", r#"{"type": "in-flight", "weight": -1}"#, ".weight", "0 to 1000"),
        ("scorers", r#"{"type": "in-flight", "weight": "much"}"#, ".weight", "0 to 1000"),
    ] {
        let profile = format!(
            r#"{{"prepare": [{{"type": "prefix"}}], "{stage}": [{part}], "picker": {{"type": "best"}}}}"#
        );
        refuses_profile(&profile, &format!("profiles.main.{stage}[0]{field}"), &[words]);
    }
    let profile = r#"{"prepare": [{"type": "prefix"}, {"type": "hash-key", "from": [{"prefix": 0}]}], "picker": {"type": "best"}}"#;
    refuses_profile(profile, "profiles.main.prepare[1].from[0].prefix", &["1 to 4096"]);
}

#[test]
fn rules_that_cannot_be() {
    refuses_field(r#""select": [{"profile": "random"}]"#, "select[0]", &["no condition"]);
    refuses_field(r#""select": [{"path": "/a"}]"#, "select[0]", &["leads nowhere; add profile or workflow"]);
    refuses_field(
        r#""select": [{"path": "/a", "profile": "x"}]"#,
        "select[0].profile",
        &["no profile \"x\""],
    );
    for path in ["v1", "/a*b", "*", "/a?b", ""] {
        let field = format!(r#""select": [{{"path": "{path}", "profile": "random"}}]"#);
        refuses_field(&field, "select[0].path", &["no path pattern", "/v1/*"]);
    }
    refuses_field(
        r#""select": [{"header": {"name": "a:b"}, "profile": "random"}]"#,
        "select[0].header.name",
        &["no name of a header"],
    );
    let many = vec![r#"{"path": "/a", "profile": "random"}"#; 65].join(",");
    refuses_field(&format!(r#""select": [{many}]"#), "select", &["65 rules", "at most 64"]);
}

#[test]
fn all_mistakes_are_found_at_once_within_a_bound() {
    let report = mistakes(
        r#"{"pods": [{"address": "x"}, {}], "blocks": {"size": 1}, "profile": "y",
            "profiles": {"main": {"scorers": [{"type": "z"}]}}}"#,
    );
    let paths: Vec<_> = report.lines().filter_map(|line| line.split(": ").next()).collect();
    let expected = [
        "pods[0].address",
        "pods[1]",
        "blocks.size",
        "profiles.main.scorers[0].type",
        "profiles.main.picker",
        "profile",
    ];
    assert_eq!(paths, expected, "{report}");

    let many = vec![r#"{"address": "x"}"#; 200].join(",");
    let report = mistakes(&format!(r#"{{"pods": [{many}]}}"#));
    assert_eq!(report.lines().count(), 33);
    assert!(report.contains("more"), "{report}");
}

#[test]
fn tokenizers() {
    let refuses = |fields: &str, path: &str, words: &[&str]| {
        refuses_field(&format!(r#""tokenizers": [{{{fields}}}]"#), &format!("tokenizers[0].{path}"), words);
    };
    let right = r#""models": ["m"], "cluster": "c", "path": "/p""#;
    accepts(&format!(r#"{{{PODS}, "tokenizers": [{{{right}}}]}}"#));
    refuses(r#""models": [], "cluster": "c", "path": "/p""#, "models", &["empty"]);
    refuses(r#""models": ["m", "m"], "cluster": "c", "path": "/p""#, "models", &["\"m\"", "already"]);
    refuses(r#""models": ["m"], "cluster": "", "path": "/p""#, "cluster", &["empty", "Envoy cluster"]);
    refuses(r#""models": ["m"], "cluster": "c", "path": "p""#, "path", &["\"p\"", "/qwen3/"]);
    refuses(r#""models": ["m"], "cluster": "c", "path": "/a b?c""#, "path", &["no path"]);
    refuses(&format!(r#"{right}, "block_tokens": 0"#), "block_tokens", &["0", "1"]);
    refuses(&format!(r#"{right}, "timeout_seconds": 61"#), "timeout_seconds", &["60"]);
    refuses(&format!(r#"{right}, "memory_bytes": 9999999999"#), "memory_bytes", &["9999999999"]);
    refuses(&format!(r#"{right}, "max_new_bytes": 1000"#), "max_new_bytes", &["1000", "16384"]);
    let built_in = format!(r#"{{{PODS}, "tokenizers": [{{"models": ["m"], "built_in": "m"}}]}}"#);
    accepts(&built_in);
    for fields in [r#""models": ["m"]"#, r#""models": ["m"], "path": "/p""#] {
        refuses(fields, "cluster", &["cluster and path", "built_in"]);
    }
    refuses(&format!(r#"{right}, "built_in": "m""#), "cluster", &["cluster and path", "built_in alone"]);
    refuses(&format!(r#"{right}, "block_size": 16"#), "block_size", &["unknown field"]);
}

#[test]
fn kv_events_and_ranks() {
    let right = r#""kv_events": {"pod_by": "address", "token": "0123456789abcdef", "max_message_bytes": 65536, "cache_blocks": 1000}"#;
    accepts(&format!("{{{PODS}, {right}}}"));
    for (fields, path, words) in [
        (r#""pod_by": "name""#, "kv_events.pod_by", &["unknown variant `name`", "topic"][..]),
        (r#""token": "short""#, "kv_events.token", &["16 to 4096"]),
        (r#""token": "with a space in it""#, "kv_events.token", &["without spaces"]),
        (r#""max_message_bytes": 100"#, "kv_events.max_message_bytes", &["100 is out of range"]),
        (r#""cache_blocks": 1"#, "kv_events.cache_blocks", &["1 is out of range"]),
        (r#""port": 5557"#, "kv_events.port", &["unknown field"]),
    ] {
        refuses_field(&format!(r#""kv_events": {{{fields}}}"#), path, words);
    }
    let ranks = |ranks: u32, pods: usize| {
        let pod = |n| format!(r#"{{"address": "10.0.0.1:{}", "ranks": {ranks}}}"#, 1000 + n);
        format!(r#"{{"pods": [{}]}}"#, (0..pods).map(pod).collect::<Vec<_>>().join(","))
    };
    accepts(&ranks(64, 8));
    refuses(&ranks(0, 1), "pods[0].ranks", &["0 is out of range"]);
    refuses(&ranks(65, 1), "pods[0].ranks", &["65 is out of range"]);
    refuses(&ranks(64, 9), "pods", &["576 ranks together", "at most 512"]);
}

#[test]
fn discovery() {
    let right = r#""cluster": "admin", "pods_of": ["pods", "engine-*"]"#;
    for more in [
        "",
        r#", "period_seconds": 60, "timeout_seconds": 60"#,
        r#", "rules": [{"labels": {"a": "b"}}]"#,
        r#", "rules": [{"match": {"hostname": "prefill-*", "zone": "a", "cluster": "*", "address": "10.0.1.*"}, "ranks": 2}]"#,
        r#", "rules": [{"models": []}]"#,
    ] {
        for pods in ["", r#""pods": [], "#, r#""pods": [{"address": "10.0.0.1:1"}], "#] {
            let json = format!(r#"{{{pods}"discovery": {{{right}{more}}}}}"#);
            accepts(&json);
        }
    }
    refuses("{}", "configuration", &["missing field `pods`", "`discovery`"]);
    let rule = |rule: &str| format!(r#"{right}, "rules": [{{{rule}}}]"#);
    let many = |text: &str, count: usize| vec![text; count].join(",");
    for (fields, path, words) in [
        (r#""pods_of": ["a"]"#.to_owned(), "", &["missing field `cluster`"][..]),
        (r#""cluster": "a""#.to_owned(), "", &["missing field `pods_of`"]),
        (format!(r#"{right}, "period": 1"#), ".period", &["unknown field", "`period_seconds`"]),
        (r#""cluster": "", "pods_of": ["a"]"#.to_owned(), ".cluster", &["1 to 128"]),
        (r#""cluster": "a", "pods_of": []"#.to_owned(), ".pods_of", &["0 entries", "1 to 32"]),
        (r#""cluster": "a", "pods_of": "b""#.to_owned(), ".pods_of", &["expected a sequence"]),
        (r#""cluster": "a", "pods_of": ["b", "b"]"#.to_owned(), ".pods_of[1]", &["\"b\"", "already"]),
        (r#""cluster": "a", "pods_of": ["b", ""]"#.to_owned(), ".pods_of[1]", &["\"\" is no pattern"]),
        (r#""cluster": "a", "pods_of": ["*-b"]"#.to_owned(), ".pods_of[0]", &["one * at the end"]),
        (r#""cluster": "a", "pods_of": ["b**"]"#.to_owned(), ".pods_of[0]", &["one * at the end"]),
        (r#""cluster": "a", "pods_of": ["b\n"]"#.to_owned(), ".pods_of[0]", &["b\\n", "printable"]),
        (r#""cluster": "a", "pods_of": ["b", "*"]"#.to_owned(), ".pods_of[1]", &["admin", "no pod"]),
        (format!(r#"{right}, "period_seconds": 0"#), ".period_seconds", &["0 is out of range", "1 to 60"]),
        (format!(r#"{right}, "timeout_seconds": 61"#), ".timeout_seconds", &["61", "1 to 60"]),
        (
            format!(r#"{right}, "rules": [{}]"#, many(r#"{"ranks": 2}"#, 65)),
            ".rules",
            &["65 rules", "at most 64"],
        ),
        (rule(""), ".rules[0]", &["says nothing", "models, labels"]),
        (rule(r#""match": {"zone": "a"}, "models": null"#), ".rules[0]", &["says nothing"]),
        (rule(r#""name": "a""#), ".rules[0].name", &["unknown field", "`models`"]),
        (
            rule(r#""match": {"label": "a"}, "ranks": 2"#),
            ".rules[0].match.label",
            &["unknown field", "`zone`"],
        ),
        (rule(r#""match": {"zone": ""}, "ranks": 2"#), ".rules[0].match.zone", &["no pattern"]),
        (rule(r#""match": {"hostname": "a*b"}, "ranks": 2"#), ".rules[0].match.hostname", &["no pattern"]),
        (rule(r#""match": {"address": 1}, "ranks": 2"#), ".rules[0].match.address", &["expected a string"]),
        (rule(r#""weight": 0"#), ".rules[0].weight", &["0.01 to 100"]),
        (rule(r#""max_in_flight": 0"#), ".rules[0].max_in_flight", &["1 to 1000000"]),
        (rule(r#""ranks": 65"#), ".rules[0].ranks", &["1 to 64"]),
        (rule(r#""models": ["a", ""]"#), ".rules[0].models[1]", &["1 to 256"]),
        (rule(r#""labels": {"a": "b", "a": "c"}"#), ".rules[0].labels", &["twice"]),
        (rule(r#""labels": {"a": "b,c"}"#), ".rules[0].labels.a", &["without commas"]),
    ] {
        refuses(&format!(r#"{{"discovery": {{{fields}}}}}"#), &format!("discovery{path}"), words);
    }
    let label = |i: usize| format!(r#"{{"labels": {{"l{}": "x"}}}}"#, i % 33);
    let rules = |count| (0..count).map(label).collect::<Vec<_>>().join(",");
    let json = |count| format!(r#"{{"discovery": {{{right}, "rules": [{}]}}}}"#, rules(count));
    refuses(&json(64), "discovery.rules", &["33 labels together", "at most 32"]);
    accepts(&json(32));
    let long = "x".repeat(257);
    refuses_field(
        &format!(r#""discovery": {{"cluster": "a", "pods_of": ["{long}"]}}"#),
        "discovery.pods_of[0]",
        &["1 to 256"],
    );
    // Pods come later, but a value must be there even so.
    let label = |any_of: &str| {
        let filter = format!(r#"{{"type": "label", "label": "role", "any_of": [{any_of}]}}"#);
        let profile = format!(r#"{{"filters": [{filter}], "picker": {{"type": "best"}}}}"#);
        format!(r#"{{"discovery": {{{right}}}, "profile": "main", "profiles": {{"main": {profile}}}}}"#)
    };
    accepts(&label(r#""decode""#));
    refuses(&label(""), "profiles.main.filters[0].any_of", &["is empty"]);
}

#[test]
fn aliases_stand_for_models_that_are_there() {
    let tokenizers =
        |fields: &str| format!(r#""tokenizers": [{{"models": ["m", "lora"], "built_in": "m", {fields}}}]"#);
    let right = format!("{{{PODS}, {}}}", tokenizers(r#""aliases": {"other": "m"}"#));
    let router = load(right.as_bytes()).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let settings = &router.settings().tokenizers[0];
    let model = |asked| settings.model(asked).unwrap();
    assert_eq!(
        [model(Some("m")), model(Some("other")), model(Some("lora")), model(None)],
        ["m", "m", "lora", "m"]
    );
    assert!(settings.serves("other") && settings.serves("lora") && !settings.serves("x"));
    let path = "tokenizers[0].aliases";
    refuses_field(&tokenizers(r#""aliases": {"other": "x"}"#), path, &["\"other\" stands for \"x\""]);
    let twice = tokenizers(r#""aliases": {"lora": "m"}"#);
    refuses_field(&twice, "tokenizers[0].models", &["\"lora\" has a tokenizer already"]);
}

#[test]
fn metrics() {
    let by_cluster =
        |field: &str| format!(r#"{{"pods": [{{"cluster": "a"}}], "routing": {{"by": "cluster"}}, {field}}}"#);
    for (fields, path, words) in [
        ("{}", "metrics.cluster", &["missing", "override_host"][..]),
        (
            r#"{"cluster": "c", "engine": "vlm"}"#,
            "metrics.engine",
            &["\"vlm\"", "vllm, sglang, tensorrt-llm, max, or custom"],
        ),
        (
            r#"{"cluster": "c", "engine": "custom"}"#,
            "metrics.names",
            &["missing", "running, waiting and kv_usage"],
        ),
        (
            r#"{"cluster": "c", "engine": "vllm", "names": {"running": "r"}}"#,
            "metrics.names",
            &["those of metrics.engine"],
        ),
        (
            r#"{"cluster": "c", "engine": "custom", "names": {"running": "r r"}}"#,
            "metrics.names",
            &["\"r r\"", "no series"],
        ),
        (r#"{"cluster": "c", "engine": "custom", "names": {"lora": "l"}}"#, "metrics.names", &["none of"]),
        (r#"{"cluster": "c", "path": "metrics"}"#, "metrics.path", &["\"metrics\"", "/metrics"]),
        (
            r#"{"cluster": "c", "period_milliseconds": 100}"#,
            "metrics.period_milliseconds",
            &["100", "200 to 60000"],
        ),
        (
            r#"{"cluster": "c", "timeout_milliseconds": 0}"#,
            "metrics.timeout_milliseconds",
            &["0 is out of range"],
        ),
        (r#"{"cluster": "c", "stale_seconds": 0}"#, "metrics.stale_seconds", &["1 to 600"]),
        (r#"{"cluster": "c", "port": 0}"#, "metrics.port", &["1 to 65535"]),
        (r#"{"cluster": "c", "api_key": "a b"}"#, "metrics.api_key", &["printable"]),
        (r#"{"cluster": "c", "enigne": "vllm"}"#, "metrics.enigne", &["unknown field `enigne`", "`engine`"]),
    ] {
        refuses_field(&format!(r#""metrics": {fields}"#), path, words);
    }
    let discovery = r#""discovery": {"cluster": "admin", "pods_of": ["pods"]}"#;
    accepts(&format!(r#"{{{discovery}, "metrics": {{}}}}"#));
    refuses(
        &format!(r#"{{{discovery}, "metrics": {{"port": 9000}}}}"#),
        "metrics.port",
        &["metrics.cluster"],
    );
    // Found in several clusters, each pod is asked by its own, unless there are pods that nobody found.
    let several = r#""discovery": {"cluster": "admin", "pods_of": ["a", "b-*"]}"#;
    accepts(&format!(r#"{{{several}, "metrics": {{}}}}"#));
    let split = r#""workflows": {"w": {"protocol": {"type": "nixl"}}}"#;
    accepts(&format!(r#"{{{several}, {split}}}"#));
    refuses(&format!(r#"{{{PODS}, {several}, "metrics": {{}}}}"#), "metrics.cluster", &["missing"]);
    refuses(&format!(r#"{{{PODS}, {several}, {split}}}"#), "workflows.w.cluster", &["missing"]);
    accepts(&by_cluster(r#""metrics": {}"#));
    refuses(&by_cluster(r#""metrics": {"port": 9000}"#), "metrics.port", &["of no use"]);
    refuses(&by_cluster(r#""metrics": {"cluster": "c"}"#), "metrics.cluster", &["of no use"]);
    let custom = r#"{"cluster": "c", "engine": "custom", "names": {"waiting": "q{kind=\"all\"}",
        "kv_usage": {"used": "u", "total": "t"}, "block_size": {"series": "i", "label": "size"}, "blocks": "b"}}"#;
    accepts(&format!(r#"{{{PODS}, "metrics": {custom}}}"#));
}

#[test]
fn breaker_and_admission() {
    for (fields, path, words) in [
        (r#""breaker": {"failures": 0}"#, "breaker.failures", &["1 to 10000"][..]),
        (r#""breaker": {"failure_share": 0}"#, "breaker.failure_share", &["more than 0, and up to 1"]),
        (r#""breaker": {"open_seconds": 0}"#, "breaker.open_seconds", &["1 to 3600"]),
        (
            r#""breaker": {"open_seconds": 9, "max_open_seconds": 8}"#,
            "breaker.max_open_seconds",
            &["9 to 3600"],
        ),
        (r#""breaker": {"first_token_seconds": 0}"#, "breaker.first_token_seconds", &["1 to 3600"]),
        (r#""breaker": {"failure": 1}"#, "breaker.failure", &["unknown field `failure`", "`failures`"]),
        (r#""admission": {"max_in_flight": 0}"#, "admission.max_in_flight", &["1 to 1000000"]),
        (
            r#""admission": {"max_in_flight_per_pod": 0}"#,
            "admission.max_in_flight_per_pod",
            &["1 to 1000000"],
        ),
        (r#""admission": {"models": {"m": 0}}"#, "admission.models.m", &["1 to 1000000"]),
        (r#""admission": {"models": {"m": 1, "m": 2}}"#, "admission.models", &["\"m\" stands here twice"]),
        (r#""admission": {"retry_after_seconds": 0}"#, "admission.retry_after_seconds", &["1 to 3600"]),
    ] {
        refuses_field(fields, path, words);
    }
    let many: Vec<_> = (0..65).map(|n| format!(r#""m{n}": 1"#)).collect();
    let many = format!(r#""admission": {{"models": {{{}}}}}"#, many.join(","));
    refuses_field(&many, "admission.models", &["65 models", "at most 64"]);
}

#[test]
fn parts_that_look_at_load() {
    refuses_profile(
        r#"{"scorers": [{"type": "predicted-ttft"}], "picker": {"type": "best"}}"#,
        "profiles.main.scorers[0]",
        &["reads Chain and Residency", "\"prefix\""],
    );
    let with = |kind: &str, part: &str| {
        format!(r#"{{"prepare": [{{"type": "prefix"}}], "{kind}": [{part}], "picker": {{"type": "best"}}}}"#)
    };
    for (part, field, words) in [
        (r#"{"type": "predicted-ttft", "tolerance": -1}"#, "tolerance", &["0 to 10"]),
        (r#"{"type": "token-load", "prefill": 1001}"#, "prefill", &["0 to 1000"]),
        (r#"{"type": "token-load", "context": -1}"#, "context", &["0 to 1000"]),
        (r#"{"type": "token-load", "bound": 0}"#, "bound", &["1 to 1000000000"]),
    ] {
        refuses_profile(&with("scorers", part), &format!("profiles.main.scorers[0].{field}"), words);
    }
    for (part, field, words) in [
        (r#"{"type": "stick-or-spill", "min_share": 0}"#, "min_share", &["more than 0"]),
        (
            r#"{"type": "stick-or-spill", "patience_milliseconds": 600001}"#,
            "patience_milliseconds",
            &["0 to 600000"],
        ),
    ] {
        refuses_profile(&with("filters", part), &format!("profiles.main.filters[0].{field}"), words);
    }
}

#[test]
fn what_needs_headers_is_refused_where_they_are_gone() {
    let json = r#"{"pods": [{"cluster": "a"}], "routing": {"by": "cluster", "via": "filter-state"}}"#;
    refuses(json, "routing.via", &["too late for a cluster_header", "route by address"]);
    refuses_field(
        r#""routing": {"via": "carrier-pigeon"}"#,
        "routing.via",
        &["unknown variant", "filter-state"],
    );
    let workflow = |protocol: &str, more: &str| {
        let pods = r#""pods": [{"name": "a", "address": "10.0.0.1:80", "labels": {"role": "both"}}]"#;
        let workflow = format!(r#"{{"protocol": {{"type": "{protocol}"}}, "cluster": "pods"{more}}}"#);
        format!(
            r#"{{{pods}, "routing": {{"via": "filter-state"}}, "workflow": "w", "workflows": {{"w": {workflow}}}}}"#
        )
    };
    for protocol in ["nixl", "sglang", "tensorrt-llm"] {
        assert!(load(workflow(protocol, "").as_bytes()).is_ok(), "{protocol} hands over in the body");
    }
    refuses(&workflow("p2p-nccl", ""), "workflows.w.protocol", &["by a header", "routing.via to \"header\""]);
    let retries = r#", "decode": {"retry_on_connect_failure": true}"#;
    let path = "workflows.w.decode.retry_on_connect_failure";
    refuses(&workflow("nixl", retries), path, &["by a header", "remove it"]);
}

#[test]
fn an_endpoint_picker_routes_by_address() {
    let json = r#"{"pods": [{"cluster": "a"}], "routing": {"by": "cluster", "endpoint_picker": true}}"#;
    refuses(json, "routing.endpoint_picker", &["route by address"]);
}

/// As [`refuses`], for one workflow over pods of both roles.
#[track_caller]
fn refuses_workflow(workflow: &str, path: &str, words: &[&str]) {
    let pods = r#""pods": [{"name": "p", "address": "10.0.0.1:80", "labels": {"role": "prefill"}},
        {"name": "d", "address": "10.0.0.2:80", "labels": {"role": "decode"}}]"#;
    refuses(&format!(r#"{{{pods}, "workflow": "w", "workflows": {{"w": {workflow}}}}}"#), path, words);
}

#[test]
fn workflows_that_cannot_be() {
    let nixl = r#""protocol": {"type": "nixl"}, "cluster": "pods""#;
    for (workflow, path, words) in [
        (r#"{"cluster": "pods"}"#.to_owned(), "workflows.w", &["missing field `protocol`"][..]),
        (
            r#"{"protocol": {"type": "carrier-pigeon"}, "cluster": "pods"}"#.to_owned(),
            "workflows.w.protocol.type",
            &["carrier-pigeon", "\"nixl\""],
        ),
        (
            r#"{"protocol": {}, "cluster": "pods"}"#.to_owned(),
            "workflows.w.protocol",
            &["one of", "\"sglang\""],
        ),
        (
            r#"{"protocol": {"type": "nixl", "port": 1}, "cluster": "pods"}"#.to_owned(),
            "workflows.w.protocol.port",
            &["unknown field"],
        ),
        (
            r#"{"protocol": {"type": "mooncake"}, "cluster": "pods"}"#.to_owned(),
            "workflows.w.protocol",
            &["missing field `bootstrap_cluster`"],
        ),
        (
            r#"{"protocol": {"type": "nixl"}}"#.to_owned(),
            "workflows.w.cluster",
            &["is missing", "override_host"],
        ),
        (
            format!(r#"{{{nixl}, "prefill": {{"timeout_seconds": 0}}}}"#),
            "workflows.w.prefill.timeout_seconds",
            &["1 to 3600"],
        ),
        (format!(r#"{{{nixl}, "prefill": {{"attempts": 9}}}}"#), "workflows.w.prefill.attempts", &["1 to 8"]),
        (
            format!(r#"{{{nixl}, "prefill": {{"profile": "decode"}}}}"#),
            "workflows.w.prefill.profile",
            &["reads Peer", "decode step"],
        ),
        (
            format!(r#"{{{nixl}, "decode": {{"profile": "no-such"}}}}"#),
            "workflows.w.decode.profile",
            &["no profile \"no-such\""],
        ),
        (
            format!(r#"{{{nixl}, "remote_prefill": {{"min_share": 2}}}}"#),
            "workflows.w.remote_prefill.min_share",
            &["0 to 1"],
        ),
        (
            r#"{"protocol": {"type": "sglang"}, "cluster": "pods", "remote_prefill": {"min_tokens": 9}}"#
                .to_owned(),
            "workflows.w.remote_prefill",
            &["can't be followed", "aggregated.profile"],
        ),
    ] {
        refuses_workflow(&workflow, path, words);
    }
    let odd = r#"{"pods": [{"name": "p", "address": "10.0.0.1:80", "labels": {"role": "prefill", "kv_port": "x"}},
        {"name": "d", "address": "10.0.0.2:80", "labels": {"role": "decode"}}],
        "workflows": {"w": {"protocol": {"type": "sglang"}, "cluster": "pods"}}}"#;
    refuses(odd, "workflows.w.protocol", &["the pod \"p\"", "kv_port"]);
    refuses_field(r#""workflow": "w""#, "workflow", &["no workflow \"w\"", "none"]);
    refuses_field(r#""workflow": "w", "profile": "random""#, "configuration", &["a profile and a workflow"]);
    refuses_field(
        r#""select": [{"path": "/a", "profile": "random", "workflow": "w"}]"#,
        "select[0]",
        &["a profile and a workflow"],
    );
    // A step's profile is of no use alone.
    let near = r#""profile": "near", "profiles": {"near": {"scorers": [{"type": "affinity"}], "picker": {"type": "best"}}}"#;
    refuses_field(near, "profile", &["reads Peer"]);
}
