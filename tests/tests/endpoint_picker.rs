//! In the place of an endpoint picker, as the Gateway API Inference Extension's protocol has it (1.0).

use serde_json::{Value, json};
use std::collections::BTreeSet;
use warmpath_tests::{Builder, Envoy, Pods, Request, root, wait_until, words};

const CHAT: &str = "/v1/chat/completions";
const DESTINATION: &str = "x-gateway-destination-endpoint";
const SUBSET: &str = "x-gateway-destination-endpoint-subset";
const SERVED: &str = "x-gateway-destination-endpoint-served";
const CLUSTER: &str = "/static_resources/clusters/0";

fn ask(number: usize) -> Request {
    let messages = json!([{"role": "user", "content": words(number, 60)}]);
    Request::json(CHAT, &json!({"model": "sim", "messages": messages, "max_tokens": 4}))
}

fn picker(pods: &Pods) -> Builder {
    Envoy::builder().pods(pods).plugin("/routing", json!({"endpoint_picker": true}))
}

/// The same, where a stock filter holds the headers.
fn picker_by_state(pods: &Pods) -> Builder {
    Envoy::from_template(&root().join("examples/filter-state/envoy.yaml"))
        .pods(pods)
        .plugin("/routing/endpoint_picker", json!(true))
}

const WAYS: [fn(&Pods) -> Builder; 2] = [picker, picker_by_state];

/// A filter of the gateway's that names a subset.
fn subset(value: Value) -> Value {
    json!({"name": "subset", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
        "metadata": [{"metadata_namespace": "envoy.lb.subset_hint", "value": {SUBSET: value}}],
    }})
}

#[test]
fn a_gateway_narrows_the_choice_and_is_told_who_served() {
    let pods = Pods::start(3, &[]);
    let [first, second, third] = [0, 1, 2].map(|n| pods.addresses()[n].to_string());
    let forms = [json!([second, third]), json!(format!("{second}, {third}"))];
    for (picker, named) in WAYS.into_iter().flat_map(|way| forms.iter().map(move |form| (way, form))) {
        let narrowed = picker(&pods).filter_before(subset(named.clone())).start();
        let mut used = BTreeSet::new();
        for n in 0..20 {
            // What a client says of it doesn't count.
            let answer = ask(n).header(SUBSET, &first).send(&narrowed);
            let pod = answer.header("x-pod").expect("a pod").to_owned();
            let served = if pod == "pod-2" { &second } else { &third };
            assert_eq!(answer.header(SERVED), Some(served.as_str()), "{named}: {pod}");
            used.insert(pod);
        }
        assert!(used.iter().eq(["pod-2", "pod-3"]), "{named}: {used:?}");
        narrowed.assert_no_trap();
    }
}

#[test]
fn who_served_can_be_kept_from_clients_by_a_filter_before() {
    let pods = Pods::start(1, &[]);
    let hide = json!({"name": "hide", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
        "mutations": {"response_mutations": [{"remove": SERVED}]},
    }});
    let envoy = picker(&pods).filter_before(hide).start();
    let answer = ask(1).send(&envoy);
    assert_eq!((answer.status, answer.header(SERVED)), (200, None));
}

#[test]
fn where_the_subset_leaves_nobody_it_is_503() {
    let pods = Pods::start(2, &[]);
    let forms = [
        json!([]),
        json!(""),
        json!(["10.9.9.9:1"]),
        json!("10.9.9.9:1,10.9.9.8:1"),
        // What Envoy doesn't hand over, and what is no address.
        json!([null]),
        json!({"a": "10.9.9.9:1"}),
        json!(7),
    ];
    for (picker, nobody) in WAYS.into_iter().flat_map(|way| forms.iter().map(move |form| (way, form))) {
        let envoy = picker(&pods).filter_before(subset(nobody.clone())).start();
        let answer = ask(1).send(&envoy);
        let code = answer.json()["error"]["code"].as_str().map(str::to_owned);
        assert_eq!((answer.status, code.as_deref()), (503, Some("no_pod")), "{nobody}");
    }
    // Nor may Envoy choose by itself while no pod is found.
    let unfound =
        json!({"discovery": {"cluster": "admin", "pods_of": ["none"]}, "routing": {"endpoint_picker": true}});
    let envoy = picker(&pods).plugin("", unfound).filter_before(subset(json!(["10.9.9.9:1"]))).start();
    assert_eq!(ask(1).send(&envoy).status, 503);
    assert_eq!(pods.seen().len(), 0);
}

#[test]
fn endpoints_are_named_in_order_and_what_must_be_dropped_is_429() {
    let pods = Pods::start(3, &["--speedup", "1", "--decode-rate", "5"]);
    let envoy = picker(&pods).plugin("/admission", json!({"max_in_flight": 1})).start();
    let slow = json!({"model": "sim", "prompt": "x", "max_tokens": 100, "stream": true});
    let first = Request::json("/v1/completions", &slow).stream(&envoy);
    let seen = pods.seen();
    let named: Vec<_> = seen[0].header(DESTINATION).expect("it is named").split(',').collect();
    let known: BTreeSet<_> = pods.addresses().iter().map(ToString::to_string).collect();
    assert_eq!(
        (named.len(), named[0]),
        (
            3,
            known
                .iter()
                .find(|pod| **pod == pods.addresses()[seen[0].pod].to_string())
                .map(String::as_str)
                .expect("it is there")
        )
    );
    assert!(named.iter().all(|pod| known.contains(*pod)), "{named:?}");
    wait_until("the first to be counted", || envoy.stat("wasmcustom.warmpath.in_flight") == 1);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(ask(1).send(&envoy).status, 429);
    drop(first);
}

/// Envoy AI Gateway makes of an InferencePool a cluster that goes where the header says, whoever is there; of one address.
#[test]
fn an_inference_pool_of_envoy_ai_gateway_goes_where_it_is_sent() {
    let pods = Pods::start(3, &[]);
    let envoy = picker(&pods)
        .plugin("/routing/fallbacks", json!(0))
        .edit(&format!("{CLUSTER}/type"), json!("ORIGINAL_DST"))
        .edit(&format!("{CLUSTER}/lb_policy"), json!("CLUSTER_PROVIDED"))
        .edit(&format!("{CLUSTER}/load_balancing_policy"), Value::Null)
        .edit(&format!("{CLUSTER}/load_assignment"), Value::Null)
        .edit(
            &format!("{CLUSTER}/original_dst_lb_config"),
            json!({"use_http_header": true, "http_header_name": DESTINATION}),
        )
        .start();
    every_prompt_stays(&envoy, &pods);
}

/// Istio makes of one a cluster that reads metadata alone, into which a stock filter copies the header.
#[test]
fn an_inference_pool_of_istio_goes_where_it_is_sent() {
    let pods = Pods::start(3, &[]);
    let source = json!([{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}]);
    let policy = "load_balancing_policy/policies/0/typed_extension_config/typed_config/override_host_sources";
    let copies = json!({"name": "copies", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
        "request_rules": [{"header": DESTINATION, "on_header_present": {"metadata_namespace": "envoy.lb", "key": DESTINATION}}],
    }});
    let filters = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters";
    let router = json!({"name": "envoy.filters.http.router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}});
    let envoy = picker(&pods)
        .edit(&format!("{CLUSTER}/{policy}"), source)
        .edit(&format!("{filters}/1"), copies)
        .edit(&format!("{filters}/-"), router)
        .start();
    every_prompt_stays(&envoy, &pods);
}

fn every_prompt_stays(envoy: &Envoy, pods: &Pods) {
    let mut used = BTreeSet::new();
    for n in 0..8 {
        let homes: BTreeSet<_> = (0..4)
            .map(|_| {
                let answer = ask(n).send(envoy);
                assert_eq!(answer.status, 200, "{}", answer.text());
                let pod = answer.header("x-pod").expect("a pod").to_owned();
                let number: usize = pod.trim_start_matches("pod-").parse().expect("a number");
                assert_eq!(answer.header(SERVED), Some(pods.addresses()[number - 1].to_string().as_str()));
                pod
            })
            .collect();
        assert_eq!(homes.len(), 1, "{homes:?}");
        used.extend(homes);
    }
    assert!(used.len() > 1, "{used:?}");
    assert_eq!(envoy.stat("wasmcustom.warmpath.astray"), 0);
    envoy.assert_no_trap();
}
