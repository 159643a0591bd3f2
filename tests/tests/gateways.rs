//! The manifests of `examples/envoy-gateway` and `examples/envoy-ai-gateway`, as the xDS that the gateway would make of them, in a
//! real Envoy.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use warmpath_tests::envoy_gateway::{translate, translate_ai};
use warmpath_tests::{
    Builder, Disaggregated, Envoy, Pods, Request, Response, heeds_limits_of_routes, wait_until, words,
};

const CHAT: &str = "/v1/chat/completions";
const DESTINATION: &str = "x-gateway-destination-endpoint";

/// An Envoy of this configuration, with its admin behind the cluster that the gateway has for it.
fn envoy(config: Value) -> Builder {
    let admin =
        TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port is free");
    let socket = json!({"address": "127.0.0.1", "port_value": admin.port()});
    let endpoint = json!([{"lb_endpoints": [{"endpoint": {"address": {"socket_address": socket}}}]}]);
    Envoy::from_config(config)
        .edit("/admin/address/socket_address", socket)
        .edit("/static_resources/clusters/0/load_assignment/endpoints", endpoint)
}

fn stat(envoy: &Envoy, name: &str) -> u64 {
    envoy.stat(&format!("wasmcustom.warmpath.{name}"))
}

fn body(model: &str, text: &str) -> Vec<u8> {
    let messages = json!([{"role": "user", "content": text}]);
    json!({"model": model, "messages": messages, "max_tokens": 4}).to_string().into_bytes()
}

fn pod(answer: &Response) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.header("x-pod").expect("a pod answered").to_owned()
}

/// What every set-up must do: find the pods, come back to the warm one whatever the size of the prompt, not listen to clients, and
/// leave a failing pod.
fn does_it_all(envoy: &Envoy, pods: &Pods, model: &str) {
    wait_until("the pods to be found and heard", || {
        stat(envoy, "pods") == 4 && stat(envoy, "engines_heard") == 4
    });
    for (number, length) in [(1, 200), (2, 2_000), (3, 20_000)] {
        let prompt = body(model, &words(number, length));
        let mut homes = BTreeSet::new();
        for (way, request) in Request::all_ways(CHAT, &prompt).into_iter().enumerate() {
            let mark = format!("{number}-{way}");
            let answer = request.header("x-mark", &mark).header("x-warmpath-debug", "1").send(envoy);
            assert_eq!(answer.status, 200, "{mark} of {length} words: {}", answer.text());
            homes.insert(pod(&answer));
            let seen = pods.seen_with("x-mark", &mark);
            assert_eq!(seen.len(), 1, "{mark}");
            seen[0].assert_body(&prompt);
            let named = seen[0].header(DESTINATION).expect("it is named");
            assert!(named.starts_with(&pods.addresses()[seen[0].pod].to_string()), "{named}");
            assert_eq!(named.split(',').count(), 4, "with who may take its place: {named}");
        }
        assert_eq!(homes.len(), 1, "prompt {number} was at {homes:?}");
    }
    let first: SocketAddr = pods.addresses()[0];
    let wished = |n: usize| {
        Request::post(CHAT, body(model, &words(100 + n, 40))).header(DESTINATION, first.to_string())
    };
    let others = (0..16).filter(|n| pod(&wished(*n).send(envoy)) != "pod-1").count();
    assert!(others >= 4, "{} of 16 went where the client said", 16 - others);
    assert_eq!(stat(envoy, "astray"), 0);
    pods.fault(1, &json!({"kind": "refuse"}));
    for n in 0..12 {
        assert_ne!(pod(&Request::post(CHAT, body(model, &words(200 + n, 40))).send(envoy)), "pod-2");
    }
    assert!(stat(envoy, "moved") > 0, "nobody was sent to the pod that fails");
    assert_eq!(stat(envoy, "step_down_unheld"), 0);
    wait_until("nothing to be in flight", || stat(envoy, "in_flight") == 0);
    envoy.assert_no_trap();
}

#[test]
fn envoy_gateway_without_a_patch() {
    let pods = Pods::start(4, &[]);
    let envoy = envoy(translate("envoy-gateway/warmpath.yaml", &[("vllm", pods.addresses())])).start();
    does_it_all(&envoy, &pods, "sim");
    assert_eq!(Request::post(CHAT, body("sim", &"a".repeat(34 << 20))).send(&envoy).status, 413);
}

#[test]
fn envoy_gateway_with_a_patch() {
    // Envoy Gateway 1.7 is the first on Envoy 1.37.
    if !heeds_limits_of_routes() {
        return;
    }
    let pods = Pods::start(4, &[]);
    let envoy = envoy(translate("envoy-gateway/patched.yaml", &[("vllm", pods.addresses())])).start();
    does_it_all(&envoy, &pods, "sim");
}

/// Both Services' pods are found, called and asked by the clusters of their own rules.
#[test]
fn prefill_and_decode_in_envoy_gateway_without_a_patch() {
    let (pods, alone) = (Disaggregated::start("nixl", 2, 2, &[]), Pods::start(1, &[]));
    let services = [("vllm-decode", pods.decode.addresses()), ("vllm-prefill", pods.prefill.addresses())];
    let envoy = envoy(translate("envoy-gateway/prefill-decode.yaml", &services)).start();
    wait_until("the pods to be found and heard", || {
        stat(&envoy, "pods") == 4 && stat(&envoy, "engines_heard") == 4
    });
    let text = |answer: &Response| answer.json()["choices"][0]["message"]["content"].to_string();
    for n in 0..16 {
        let prompt = body("sim", &words(n, 300));
        let expected = text(&Request::post(CHAT, prompt.clone()).send(alone.addresses()[0]));
        // Only who asks for the first time is prefilled elsewhere.
        for request in Request::all_ways(CHAT, &prompt).into_iter().skip(n % 4).take(1) {
            // Whoever asks for the rule of the prefill pods doesn't get there.
            let request = request.header("x-warmpath-prefill", "never").header("x-warmpath-debug", "1");
            let answer = request.send(&envoy);
            assert_eq!((answer.status, text(&answer)), (200, expected.clone()), "{answer:?}");
            assert!(answer.header("x-pod").is_some_and(|pod| pod.starts_with("decode-")), "{answer:?}");
            let prefilled = answer.header("x-warmpath-prefill-pod").and_then(|at| at.parse().ok());
            assert!(prefilled.is_some_and(|at| pods.prefill.addresses().contains(&at)), "{answer:?}");
        }
    }
    assert_eq!((stat(&envoy, "prefills_remote"), pods.held()), (16, 0), "all KV was fetched");
    // A handoff that is refused is started again, by the cluster in which that pod was found.
    pods.decode.fault(0, &json!({"kind": "status", "status": 503}));
    for n in 0..12 {
        let prompt = body("sim", &words(100 + n, 300));
        let expected = text(&Request::post(CHAT, prompt.clone()).send(alone.addresses()[0]));
        let answer = Request::post(CHAT, prompt).send(&envoy);
        assert_eq!((answer.status, text(&answer)), (200, expected), "{answer:?}");
    }
    assert!(stat(&envoy, "workflows_started_again") > 0, "nobody was handed to the pod that refuses");
    assert_eq!(stat(&envoy, "astray"), 0);
    wait_until("nothing to be in flight", || stat(&envoy, "in_flight") == 0);
    envoy.assert_no_trap();
}

#[test]
fn envoy_ai_gateway_without_a_patch() {
    let pods = Pods::start(4, &["--model", "llama-3"]);
    let envoy = envoy(translate_ai("envoy-ai-gateway/warmpath.yaml", &[("vllm", pods.addresses())])).start();
    does_it_all(&envoy, &pods, "llama-3");
    let other = Request::post(CHAT, body("none", "hello")).send(&envoy);
    assert_eq!((other.status, other.text().as_str()), (404, "No matching route found."));
}

/// The policies are of the Gateway, so that Warmpath meets what other rules send to a provider.
#[test]
fn what_another_rule_sends_elsewhere_passes_and_is_forgotten() {
    let pods = Pods::start(2, &["--model", "llama-3"]);
    let provider = Pods::start(1, &["--model", "gpt"]);
    let mut config = translate_ai("envoy-ai-gateway/warmpath.yaml", &[("vllm", pods.addresses())]);
    let elsewhere = translate_ai("envoy-ai-gateway/warmpath.yaml", &[("vllm", provider.addresses())]);
    let cluster = "httproute/default/llm/rule/1";
    let mut theirs = elsewhere["static_resources"]["clusters"][1].clone();
    theirs["name"] = cluster.into();
    theirs["load_assignment"]["cluster_name"] = cluster.into();
    config["static_resources"]["clusters"].as_array_mut().expect("clusters").push(theirs);
    let manager = "/static_resources/listeners/0/default_filter_chain/filters/0/typed_config";
    let routes = config.pointer_mut(&format!("{manager}/route_config/virtual_hosts/0/routes"));
    let routes = routes.and_then(Value::as_array_mut).expect("routes");
    let mut other = routes[0].clone();
    other["name"] = format!("{cluster}/match/0/*").into();
    other["match"]["headers"][0]["string_match"]["exact"] = "gpt".into();
    other["route"]["cluster"] = cluster.into();
    routes.insert(1, other);
    let envoy = envoy(config).start();
    wait_until("the pods to be found and heard", || stat(&envoy, "engines_heard") == 2);

    let ask = |model: &str| {
        Request::post(CHAT, body(model, &words(1, 400))).header("x-warmpath-debug", "1").send(&envoy)
    };
    let matched = |answer: &Response| answer.header("x-warmpath-matched").expect("asked").to_owned();
    for _ in 0..8 {
        let answer = ask("gpt");
        assert_eq!((answer.status, matched(&answer).starts_with("0/")), (200, true));
    }
    assert_eq!((provider.seen().len(), pods.seen().len()), (8, 0));
    for turn in 0..4 {
        assert_eq!(matched(&ask("llama-3")).starts_with("0/"), turn == 0);
    }
    assert_eq!((provider.seen().len(), pods.seen().len()), (8, 4));
    assert_eq!((stat(&envoy, "moved"), stat(&envoy, "astray")), (0, 0));
    wait_until("nothing to be in flight", || stat(&envoy, "in_flight") == 0);
    envoy.assert_no_trap();
}

#[test]
fn the_check_has_nothing_to_say_but_what_a_policy_cannot_set() {
    let pods = ["10.0.0.1:8000", "10.0.0.2:8000"].map(|at| at.parse().expect("an address"));
    let one = [("vllm", &pods[..])];
    let two = [("vllm-decode", &pods[..1]), ("vllm-prefill", &pods[1..])];
    let reload = "failure_policy: is not FAIL_RELOAD: should the VM of a worker ever trap, that worker";
    for (config, expected) in [
        (translate("envoy-gateway/warmpath.yaml", &one), &[reload][..]),
        (translate("envoy-gateway/patched.yaml", &one), &[]),
        (translate("envoy-gateway/prefill-decode.yaml", &two), &[reload]),
        (translate_ai("envoy-ai-gateway/warmpath.yaml", &one), &[reload]),
    ] {
        let report = warmpath::check::check(&config);
        assert!(report.mistakes.is_empty(), "{report}");
        let warnings: Vec<_> = report.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings.len(), expected.len(), "{report}");
        assert!(warnings.iter().zip(expected).all(|(warning, words)| warning.contains(words)), "{report}");
    }
}
