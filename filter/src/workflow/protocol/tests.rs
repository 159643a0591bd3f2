//! The legs of each protocol, byte for byte.

use super::*;
use crate::request::Outline;
use std::collections::BTreeMap;

/// A protocol by its configuration.
fn protocol(json: &str) -> Box<dyn Protocol> {
    let mut fields: serde_json::Map<String, Value> = serde_json::from_str(json).unwrap();
    let name = fields.remove("type").unwrap();
    let entry = PROTOCOLS.iter().find(|entry| entry.name == name).unwrap();
    let mut mistakes = Mistakes::default();
    entry.make(Value::Object(fields), "p", &mut mistakes).unwrap_or_else(|| panic!("{mistakes}"))
}

fn pod(name: &str, target: &str, labels: &[(&str, &str)]) -> Pod {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Pod {
        name: name.to_owned(),
        target: target.to_owned(),
        models: Vec::new(),
        labels: labels.collect::<BTreeMap<_, _>>(),
        weight: 1.0,
        max_in_flight: None,
        ranks: 1,
        found: false,
        cluster: None,
    }
}

struct Scene {
    protocol: Box<dyn Protocol>,
    endpoint: Endpoint,
    body: String,
    outline: Outline,
    prefill: Pod,
    decode: Pod,
}

impl Scene {
    fn new(protocol: Box<dyn Protocol>, endpoint: Endpoint, body: &str) -> Self {
        let names: Vec<_> = FIELDS.iter().chain(protocol.own_fields()).copied().collect();
        let outline = Outline::read(body.as_bytes(), &names).unwrap();
        let (prefill, decode) = (pod("p", "10.0.0.1:8000", &[]), pod("d", "10.0.0.2:8000", &[]));
        Self { protocol, endpoint, body: body.to_owned(), outline, prefill, decode }
    }

    fn pair(&self) -> Pair<'_> {
        Pair {
            body: Body {
                endpoint: self.endpoint,
                fields: Fields { bytes: self.body.as_bytes(), outline: &self.outline },
            },
            prefill: &self.prefill,
            decode: &self.decode,
            secret: 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210,
            learnt: "engine-1",
        }
    }

    fn leg(&self, leg: Leg) -> (String, Vec<(&'static str, String)>) {
        let body = self.pair().body;
        let edited = body.edited(self.protocol.strip(&body), leg.edits);
        (String::from_utf8(edited).unwrap(), leg.headers)
    }

    fn prefill(&self) -> (String, Vec<(&'static str, String)>) {
        self.leg(self.protocol.prefill(&self.pair()))
    }

    fn decode(&self, answer: &str) -> (String, Vec<(&'static str, String)>) {
        match self.protocol.decode(&self.pair(), answer.as_bytes()) {
            Ok(Handoff::Decode(leg)) => {
                assert!(leg.headers.is_empty() || self.protocol.sets_headers());
                self.leg(leg)
            }
            other => panic!("{other:?}"),
        }
    }

    fn unfit(&self) -> Option<&'static str> {
        let body = self.pair().body;
        body.unfit().or_else(|| self.protocol.unfit(&body))
    }
}

const CHAT: &str = r#"{"model":"m","messages":[],"seed":18446744073709551615,"max_completion_tokens":900,"min_tokens":7,"stream":true,"stream_options":{"include_usage":true},"logprobs":true,"kv_transfer_params":{"do_remote_prefill":true},"top_p":1.0}"#;

#[test]
fn nixl_prefills_one_token_and_passes_on_what_it_is_told_as_it_is() {
    let scene = Scene::new(protocol(r#"{"type":"nixl"}"#), Endpoint::Chat, CHAT);
    let (body, headers) = scene.prefill();
    assert_eq!(
        body,
        r#"{"model":"m","messages":[],"seed":18446744073709551615,"max_completion_tokens":1,"min_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null},"top_p":1.0,"max_tokens":1}"#
    );
    assert!(headers.is_empty());
    let params = r#"{"do_remote_prefill": true, "remote_block_ids":[[9007199254740993]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":5600,"new":{"x":1.50}}"#;
    let (body, _) = scene.decode(&format!(r#"{{"id":"x","choices":[],"kv_transfer_params":{params}}}"#));
    assert_eq!(body, CHAT.replace(r#"{"do_remote_prefill":true}"#, params), "the client's request, and this");
}

#[test]
fn nixl_hands_over_nothing_that_would_crash_an_engine() {
    let scene = Scene::new(protocol(r#"{"type":"nixl"}"#), Endpoint::Chat, CHAT);
    let whole = r#"{"do_remote_prefill":true,"remote_block_ids":[1],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1}"#;
    let told = |params: &str| {
        let answer = format!(r#"{{"kv_transfer_params":{params}}}"#);
        scene.protocol.decode(&scene.pair(), answer.as_bytes())
    };
    assert!(told(whole).is_ok());
    assert!(told(&whole.replace(r#""remote_request_id":"r","#, "")).is_ok(), "before 0.13 there was none");
    for (part, without) in [
        ("[1]", "[]"),
        ("[1]", "[[], [ ]]"),
        ("[1]", "null"),
        ("true", "false"),
        (r#""do_remote_prefill":true,"#, ""),
        (r#""remote_port":1"#, r#""remote_port":null"#),
        (r#""remote_host":"h","#, ""),
        (r#""remote_engine_id":"e","#, ""),
        (whole, "[]"),
        (whole, r#""text""#),
    ] {
        assert!(told(&whole.replace(part, without)).is_err(), "{part} -> {without}");
    }
    assert_eq!(told("null"), Ok(Handoff::Nothing), "it ended before it was done");
    for answer in ["", "{}", "[]", "{\"kv_transfer_params\":", "\u{0}"] {
        assert!(scene.protocol.decode(&scene.pair(), answer.as_bytes()).is_err(), "{answer}");
    }
}

#[test]
fn tokens_are_capped_in_the_spelling_of_each_endpoint() {
    for (endpoint, body, expected) in [
        (
            Endpoint::Completions,
            r#"{"prompt":"a","max_tokens":9}"#,
            r#"{"prompt":"a","max_tokens":1,"stream":false,"min_tokens":1"#,
        ),
        (
            Endpoint::Responses,
            r#"{"input":"a","max_output_tokens":900}"#,
            r#"{"input":"a","max_output_tokens":1,"stream":false,"store":false"#,
        ),
        (Endpoint::Messages, r#"{"max_tokens":900}"#, r#"{"max_tokens":1,"stream":false"#),
    ] {
        let (body, _) = Scene::new(protocol(r#"{"type":"nixl"}"#), endpoint, body).prefill();
        assert!(body.starts_with(expected), "{body}");
    }
}

#[test]
fn sglang_meets_in_a_room_at_the_prefill_pod_with_the_client_s_own_request() {
    let body = r#"{"text":"a","sampling_params":{"max_new_tokens":9},"bootstrap_host":"2.2.2.2","bootstrap_room":1,"routed_dp_rank":3}"#;
    let mut scene = Scene::new(protocol(r#"{"type":"sglang"}"#), Endpoint::Generate, body);
    let expected = |host: &str, port: u16| {
        let room = (0xfedc_ba98_7654_3210_u64 >> 2) + 1;
        format!(
            r#"{{"text":"a","sampling_params":{{"max_new_tokens":9}},"bootstrap_host":"{host}","bootstrap_room":{room},"bootstrap_port":{port}}}"#
        )
    };
    assert_eq!(scene.decode("").0, expected("10.0.0.1", 8998));
    let prefill = expected("10.0.0.1", 8998).trim_end_matches('}').to_owned() + r#","stream":false}"#;
    assert_eq!(scene.prefill().0, prefill, "the same, in one piece");
    scene.prefill = pod("p", "10.0.0.1:8000", &[("kv_host", "p.example"), ("kv_port", "9001")]);
    assert_eq!(scene.decode("").0, expected("p.example", 9001));
    let named = protocol(r#"{"type":"sglang"}"#);
    assert!(named.unfit_pod(&Pod { ranks: 2, ..pod("p", "10.0.0.1:80", &[]) }).is_some());
    assert!(named.unfit_pod(&pod("p", "cluster-1", &[])).is_some(), "a cluster has no address");
    assert!(named.unfit_pod(&pod("p", "10.0.0.1:80", &[("kv_port", "x")])).is_some());
    assert!(named.unfit_pod(&pod("p", "cluster-1", &[("kv_host", "h")])).is_none());
}

#[test]
fn p2p_nccl_names_both_pods_in_the_request_s_name() {
    let body = r#"{"prompt":"a","max_tokens":9,"request_id":"mine"}"#;
    let scene = Scene::new(protocol(r#"{"type":"p2p-nccl","port":21001}"#), Endpoint::Completions, body);
    let id = "___prefill_addr_10.0.0.1:21001___decode_addr_10.0.0.2:21001_0123456789ab4deebedcba9876543210";
    let (prefill, headers) = scene.prefill();
    assert_eq!(prefill, r#"{"prompt":"a","max_tokens":1,"stream":false,"min_tokens":1}"#);
    assert_eq!(headers.len(), 1);
    assert_eq!(headers[0].0, "x-request-id");
    let uuid = scene.pair().uuid().replace('-', "");
    assert_eq!(headers[0].1, id.replace("0123456789ab4deebedcba9876543210", &uuid));
    let (decode, other) = scene.decode("whatever");
    assert_eq!((decode.as_str(), other), (r#"{"prompt":"a","max_tokens":9}"#, headers));
}

#[test]
fn mooncake_names_the_transfer_and_the_engine_and_only_where_there_will_be_one() {
    let scene = Scene::new(
        protocol(r#"{"type":"mooncake","bootstrap_cluster":"boot"}"#),
        Endpoint::Chat,
        r#"{"messages":[],"max_tokens":9}"#,
    );
    let question = scene.protocol.question(&scene.prefill).unwrap();
    assert_eq!((question.cluster.as_str(), question.address.as_str()), ("boot", "10.0.0.1:8998"));
    let ranks = r#"{"0":{"engine_id":"e-1","worker_addr":{"0":{"0":"tcp://10.0.0.1:1"}}}}"#;
    assert_eq!(scene.protocol.learn(ranks.as_bytes()).as_deref(), Ok("e-1"));
    for wrong in ["{}", "[]", r#"{"0":{"engine_id":""}}"#, "", r#"{"0":{}}"#] {
        assert!(scene.protocol.learn(wrong.as_bytes()).is_err(), "{wrong}");
    }
    let transfer = format!("xfer-{}", scene.pair().uuid());
    let value = |body: &str| serde_json::from_str::<Value>(body).unwrap()["kv_transfer_params"].clone();
    let told =
        serde_json::json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": transfer});
    assert_eq!(value(&scene.prefill().0), told);
    let told = serde_json::json!({
        "do_remote_decode": false, "do_remote_prefill": true, "transfer_id": transfer,
        "remote_bootstrap_addr": "http://10.0.0.1:8998", "remote_engine_id": "engine-1",
    });
    assert_eq!(value(&scene.decode(r#"{"choices":[{"finish_reason":"length"}]}"#).0), told);
    assert_eq!(value(&scene.decode(r#"{"stop_reason":"max_tokens"}"#).0), told);
    let ended = |answer: &str| scene.protocol.decode(&scene.pair(), answer.as_bytes());
    assert_eq!(ended(r#"{"choices":[{"finish_reason":"stop"}]}"#), Ok(Handoff::Nothing));
    assert!(ended("{}").is_err() && ended("").is_err());
}

#[test]
fn tensorrt_llm_goes_on_from_its_parameters_with_the_tokens_of_the_prompt() {
    let params = r#"{"request_type":"context_only","first_gen_tokens":[9007199254740993],"ctx_request_id":18446744073709551615,"encoded_opaque_state":"AAE=","disagg_request_id":4398046511105,"ctx_usage":null}"#;
    let answer = format!(
        r#"{{"choices":[{{"finish_reason":"length","disaggregated_params":{params}}}],"usage":{{"prompt_tokens":2}},"prompt_token_ids":[1,2]}}"#
    );
    let gone_on = params
        .replace("context_only", "generation_only")
        .replace(r#""ctx_usage":null"#, r#""ctx_usage":{"prompt_tokens":2}"#);
    let body = r#"{"prompt":"a","max_tokens":9,"stream":true,"prompt_token_ids":[7]}"#;
    let scene = Scene::new(protocol(r#"{"type":"tensorrt-llm"}"#), Endpoint::Completions, body);
    let id = 0xfedc_ba98_7654_3210_u64 >> 1;
    assert_eq!(
        scene.prefill().0,
        format!(
            r#"{{"prompt":"a","max_tokens":9,"stream":false,"disaggregated_params":{{"request_type":"context_only","disagg_request_id":{id}}}}}"#
        ),
        "nothing that it doesn't know, and no other limit"
    );
    assert_eq!(
        scene.decode(&answer).0,
        format!(r#"{{"prompt":[1,2],"max_tokens":9,"stream":true,"disaggregated_params":{gone_on}}}"#)
    );
    let nested = answer.replace("[1,2]", "[[1,2]]");
    assert_eq!(scene.decode(&nested).0, scene.decode(&answer).0, "as completions have it");
    let chat = Scene::new(protocol(r#"{"type":"tensorrt-llm"}"#), Endpoint::Chat, r#"{"messages":[]}"#);
    assert_eq!(
        chat.decode(&answer).0,
        format!(r#"{{"messages":[],"disaggregated_params":{gone_on},"prompt_token_ids":[1,2]}}"#)
    );
    let told = |answer: &str| chat.protocol.decode(&chat.pair(), answer.as_bytes());
    assert_eq!(told(&answer.replace("length", "stop")), Ok(Handoff::Nothing));
    for wrong in ["", "{}", r#"{"choices":[]}"#, r#"{"choices":[{"finish_reason":"length"}]}"#] {
        assert!(told(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_can_t_be_split_is_known() {
    for (endpoint, body, is_fit) in [
        (Endpoint::Chat, r#"{"n":1,"best_of":null}"#, true),
        (Endpoint::Chat, r#"{"n":2}"#, false),
        (Endpoint::Completions, r#"{"best_of":3}"#, false),
        (Endpoint::Chat, r#"{"use_beam_search":true}"#, false),
        (Endpoint::Completions, r#"{"prompt":"a"}"#, true),
        (Endpoint::Completions, r#"{"prompt":[1, 2]}"#, true),
        (Endpoint::Completions, r#"{"prompt":[ "a"]}"#, true),
        (Endpoint::Completions, r#"{"prompt":[ "a", "b"]}"#, false),
        (Endpoint::Completions, r#"{"prompt":[[1],[2]]}"#, false),
        (Endpoint::Generate, r#"{"text":["a","b"]}"#, false),
        (Endpoint::Generate, r#"{"input_ids":[1]}"#, true),
        (Endpoint::Generate, r#"{"sampling_params":{"n":2}}"#, false),
        (Endpoint::Generate, r#"{"sampling_params":{"n":1}}"#, true),
        (Endpoint::Responses, r#"{"previous_response_id":"r"}"#, false),
        (Endpoint::Responses, r#"{"background":true}"#, false),
        (Endpoint::Responses, r#"{"tools":[{"type":"function"}]}"#, true),
        (Endpoint::Responses, r#"{"tools":[{"type":"mcp"}]}"#, false),
        (Endpoint::Responses, r#"{"tools":7}"#, false),
        (Endpoint::Messages, r#"{"tool_choice":{"type":"tool","name":"f"}}"#, false),
        (Endpoint::Messages, r#"{"tool_choice":{"type":"auto"}}"#, true),
    ] {
        let scene = Scene::new(protocol(r#"{"type":"nixl"}"#), endpoint, body);
        assert_eq!(scene.unfit().is_none(), is_fit, "{body}");
    }
}

#[test]
fn a_client_can_t_speak_the_engines_protocol_in_any_place() {
    let body = r#"{"kv_transfer_params":{},"\u006bv_transfer_params":1,"ec_transfer_params":2,"vllm_xargs":{"a":1,"kv_transfer_params":""},"n":1}"#;
    let scene = Scene::new(protocol(r#"{"type":"nixl"}"#), Endpoint::Chat, body);
    let of = scene.pair().body;
    let stripped = of.edited(scene.protocol.strip(&of), Vec::new());
    assert_eq!(str::from_utf8(&stripped).unwrap(), r#"{"vllm_xargs":{"a":1},"n":1}"#);
    let deeper = r#"{"token_ids":[1],"sampling_params":{"seed":1,"extra_args":{"kv_transfer_params":{"remote_host":"h"}}}}"#;
    let deeper = Scene::new(protocol(r#"{"type":"nixl"}"#), Endpoint::Chat, deeper);
    let of = deeper.pair().body;
    let stripped = of.edited(deeper.protocol.strip(&of), Vec::new());
    assert_eq!(str::from_utf8(&stripped).unwrap(), r#"{"token_ids":[1],"sampling_params":{"seed":1}}"#);
    // More of them than are noted, so that it can't be looked through.
    let many = vec![r#""kv_transfer_params":"""#; 300].join(",");
    let many = format!(r#"{{"vllm_xargs":{{{many}}},"n":1}}"#);
    let many = Scene::new(protocol(r#"{"type":"nixl"}"#), Endpoint::Chat, &many);
    let of = many.pair().body;
    assert_eq!(of.edited(many.protocol.strip(&of), Vec::new()), br#"{"n":1}"#);
    let harmless = Scene::new(protocol(r#"{"type":"nixl"}"#), Endpoint::Chat, r#"{"vllm_xargs":{"a":1}}"#);
    assert!(harmless.protocol.strip(&harmless.pair().body).is_empty());
}

#[test]
fn a_uuid_is_one() {
    let scene = Scene::new(protocol(r#"{"type":"nixl"}"#), Endpoint::Chat, "{}");
    let uuid = scene.pair().uuid();
    let parts: Vec<_> = uuid.split('-').map(str::len).collect();
    assert_eq!(parts, [8, 4, 4, 4, 12]);
    assert_eq!(uuid.as_bytes()[14], b'4');
    assert!(b"89ab".contains(&uuid.as_bytes()[19]), "{uuid}");
}

#[test]
fn no_two_protocols_are_called_alike_and_none_takes_fields_that_it_does_not_know() {
    let mut names: Vec<_> = PROTOCOLS.iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), PROTOCOLS.len());
    for entry in PROTOCOLS {
        let mut mistakes = Mistakes::default();
        assert!(entry.make(serde_json::json!({"no_such_field": 1}), "p", &mut mistakes).is_none());
        assert!(mistakes.to_string().contains("unknown field `no_such_field`"), "{}: {mistakes}", entry.name);
    }
}
