//! `warmpath check` on files that are right, wrong, or will hurt.

use serde_json::{Value, json};
use warmpath::check::run;

/// Exit code, output and complaints of a command line.
fn command(args: &[&str]) -> (u8, String, String) {
    let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run(&args, &mut out, &mut err);
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

fn path(name: &str) -> String {
    format!("{}/tests/check/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Exit code and output of a check.
fn check(name: &str) -> (u8, String) {
    let (code, out, _) = command(&["check", &path(name)]);
    (code, out)
}

#[test]
fn right_files_pass_without_a_warning() {
    for name in ["good-plugin.json", "good-plugin.yaml", "good-envoy.yaml", "good-clusters.yaml"] {
        assert_eq!(check(name), (0, format!("{}: right, 0 warnings\n", path(name))), "{name}");
    }
}

#[test]
fn a_mistake_in_a_bare_configuration_has_its_path() {
    let (code, out) = check("bad-plugin.yaml");
    assert_eq!(code, 1);
    assert!(out.starts_with("error: profiles.main.scorers[1].weigth: unknown field"), "{out}");
}

#[test]
fn a_mistake_in_an_envoy_file_has_the_path_in_the_file() {
    let (code, out) = check("bad-envoy.yaml");
    assert_eq!(code, 1);
    let place = "static_resources.listeners[0].filter_chains[0].filters[0].typed_config.http_filters[0].typed_config\
                 .config.configuration.value: pods[1].address: \"pod-2:8002\" is no address";
    assert!(out.starts_with(&format!("error: {place}")), "{out}");
}

#[test]
fn an_envoy_file_without_our_filter_is_wrong() {
    let (code, out) = check("other-envoy.yaml");
    assert_eq!((code, out.contains("no HTTP filter of Warmpath")), (1, true), "{out}");
}

#[test]
fn everything_that_hurts_is_warned_of_with_its_path_and_cure() {
    let (code, out) = check("bare-bones-envoy.yaml");
    assert_eq!(code, 0, "warnings are no mistakes: {out}");
    let manager = "static_resources.listeners[0].filter_chains[0].filters[0].typed_config";
    let route = format!("{manager}.route_config.virtual_hosts[0].routes[0]");
    let plugin = format!("{manager}.http_filters[0].typed_config.config");
    let cluster = "static_resources.clusters[0]";
    let options = "typed_extension_protocol_options.envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let expected = [
        (format!("{plugin}.failure_policy"), "FAIL_RELOAD"),
        (format!("{plugin}.allow_on_headers_stop_iteration"), "set it to true"),
        (format!("{route}.route.timeout"), "set it to 0s"),
        (format!("{manager}.stream_idle_timeout"), "300s"),
        (format!("{route}.route.retry_policy"), "\"connect-failure,refused-stream,reset\""),
        (format!("{route}.request_body_buffer_limit"), "limits.max_body_bytes is 8388608"),
        (format!("{cluster}.{options}.common_http_protocol_options.idle_timeout"), "set it to 4s"),
        (format!("{cluster}.circuit_breakers.thresholds[0].max_requests"), "raise it"),
        (format!("{cluster}.circuit_breakers.thresholds[0].max_pending_requests"), "raise it"),
        (format!("{cluster}.load_assignment.endpoints"), "lacks [::1]:8002, the pod \"pod-2\""),
        (format!("{plugin}.vm_config.vm_id"), "is missing"),
    ];
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), expected.len() + 1, "{out}");
    for (line, (path, words)) in lines.iter().zip(&expected) {
        assert!(line.starts_with(&format!("warning: {path}: ")), "not at {path}: {line}");
        assert!(line.contains(words), "nothing of {words:?}: {line}");
    }
    assert!(lines.last().unwrap().ends_with(&format!("right, {} warnings", expected.len())));
}

/// Warnings about the good file with one piece of text replaced.
fn warnings_with(from: &str, to: &str) -> Vec<String> {
    let good = std::fs::read_to_string(path("good-envoy.yaml")).unwrap();
    assert!(good.contains(from), "{from}");
    let value: serde_json::Value = serde_saphyr::from_str(&good.replace(from, to)).unwrap();
    let report = warmpath::check::check(&value);
    assert!(report.mistakes.is_empty(), "{report}");
    report.warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn values_at_the_edge() {
    for (from, to, expected) in [
        ("timeout: 0s\n", "timeout: 15s\n", Some("route.timeout: is not 0s")),
        ("idle_timeout: 4s", "idle_timeout: 5s", Some("idle_timeout: is not below 5s")),
        ("idle_timeout: 4s", "idle_timeout: 4.999s", None),
        ("idle_timeout: 4s", "idle_timeout: 0s", Some("idle_timeout: is not below 5s")),
        ("buffer_limit: 8388608", "buffer_limit: 8388607", Some("request_body_buffer_limit: is 8388607")),
        ("max_requests: 65536", "max_requests: 1024", Some("thresholds[0].max_requests: is not above 1024")),
        ("refused-stream,reset", "refused-stream", Some("retry_policy.retry_on: doesn't retry on reset")),
        ("stream_idle_timeout: 300s", "stream_idle_timeout: 0s", Some("stream_idle_timeout: is not set")),
        ("FAIL_RELOAD", "FAIL_OPEN", Some("goes on without Warmpath, and to the pods that clients name")),
        ("failure_policy: FAIL_RELOAD", "fail_open: true", Some("that worker goes on without Warmpath")),
        ("FAIL_RELOAD", "FAIL_CLOSED", Some("that worker answers 503")),
        ("cluster: pods\n", "cluster: other\n", None),
        (
            "override_host_sources: [{header: x-gateway-destination-endpoint}]",
            "override_host_sources: [{header: x-other}]",
            Some("no route by which a chosen pod is reached"),
        ),
        ("port_value: 8001", "port_value: 9001", Some("lacks 127.0.0.1:8001")),
    ] {
        let warnings = warnings_with(from, to);
        match expected {
            None => assert!(warnings.is_empty(), "{to}: {warnings:?}"),
            Some(expected) => {
                assert_eq!(warnings.len(), 1, "{to}: {warnings:?}");
                assert!(warnings[0].contains(expected), "{to}: {warnings:?}");
            }
        }
    }
}

#[test]
fn a_choice_in_filter_state_must_be_waited_for_and_read() {
    let file = format!("{}/../examples/filter-state/envoy.yaml", env!("CARGO_MANIFEST_DIR"));
    let good: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let warnings = |change: &dyn Fn(&mut Value)| {
        let mut value = good.clone();
        change(value.pointer_mut(manager).unwrap());
        let report = warmpath::check::check(&value);
        assert!(report.mistakes.is_empty(), "{report}");
        report.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let filters = |manager: &mut Value, change: &dyn Fn(&mut Vec<Value>)| {
        change(manager["http_filters"].as_array_mut().unwrap());
    };
    assert_eq!(warnings(&|_| ()), [] as [String; 0]);

    let buffer = "http_filters: has no envoy.filters.http.buffer behind";
    for found in [
        warnings(&|manager| filters(manager, &|filters| drop(filters.remove(1)))),
        // Before Warmpath it holds nothing for it.
        warnings(&|manager| filters(manager, &|filters| filters.swap(0, 1))),
    ] {
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(buffer), "{found:?}");
    }

    let unset = |manager: &mut Value| {
        manager["route_config"].as_object_mut().unwrap().remove("request_headers_to_add");
    };
    let found = warnings(&unset);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("request_headers_to_add: doesn't set x-gateway-destination-endpoint"),
        "{found:?}"
    );
    assert!(found[0].contains("%FILTER_STATE(wasm.warmpath.destination:PLAIN)%"), "{found:?}");
    // A filter may set it as well, unless the headers pass it before they are held.
    let header = json!({"key": "X-Gateway-Destination-Endpoint", "value": "%FILTER_STATE(wasm.warmpath.destination:PLAIN)%"});
    let sets = json!({"name": "m", "typed_config": {"mutations": {"request_mutations": [{"append": {"header": header}}]}}});
    for (at, expected) in [(2, 0), (1, 1), (0, 1)] {
        let found = warnings(&|manager| {
            unset(manager);
            filters(manager, &|filters| filters.insert(at, sets.clone()));
        });
        assert_eq!(found.len(), expected, "{at}: {found:?}");
    }
    // Pods with ranks need a second header, whether they are configured or found.
    let configure = |manager: &mut Value, change: &dyn Fn(&mut Value)| {
        let text = &mut manager["http_filters"][0]["typed_config"]["config"]["configuration"]["value"];
        let mut plugin = serde_json::from_str(text.as_str().unwrap()).unwrap();
        change(&mut plugin);
        *text = plugin.to_string().into();
    };
    let rank = json!({
        "header": {"key": "x-data-parallel-rank", "value": "%FILTER_STATE(wasm.warmpath.rank:PLAIN)%"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    });
    for ranks in
        [&(|plugin: &mut Value| plugin["pods"][0]["ranks"] = 2.into()) as &dyn Fn(&mut Value), &|plugin| {
            plugin["discovery"] = json!({"cluster": "admin", "pods_of": ["x*"], "rules": [{"ranks": 2}]})
        }]
    {
        let found = warnings(&|manager| configure(manager, ranks));
        assert!(found.iter().any(|one| one.contains("doesn't set x-data-parallel-rank")), "{found:?}");
        let found = warnings(&|manager| {
            configure(manager, ranks);
            manager["route_config"]["request_headers_to_add"].as_array_mut().unwrap().push(rank.clone());
        });
        assert!(!found.iter().any(|one| one.contains("rank")), "{found:?}");
    }
    let limit = |manager: &mut Value| {
        manager["http_filters"][1]["typed_config"]["max_request_bytes"] = json!("1000000")
    };
    let found = warnings(&limit);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("http_filters[1].typed_config.max_request_bytes: is 1000000"), "{found:?}");
    // Routes that can't be seen may do all of it.
    let found = warnings(&|manager| drop(manager.as_object_mut().unwrap().remove("route_config")));
    assert_eq!(found, [] as [String; 0]);
}

#[test]
fn filters_under_different_vm_ids_are_warned_of() {
    let text = std::fs::read_to_string(path("good-clusters.yaml")).unwrap();
    let mut value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    let manager = "/staticResources/listeners/1/filterChains/0/filters/0/typedConfig";
    let id = format!("{manager}/httpFilters/0/typedConfig/config/vmConfig/vmId");
    *value.pointer_mut(&id).unwrap() = "other".into();
    let report = warmpath::check::check(&value).to_string();
    assert!(report.contains("vm_id: is \"other\" here and \"warmpath\" elsewhere"), "{report}");
    let value: serde_json::Value =
        serde_saphyr::from_str(&text.replace("name: green\n", "name: grey\n")).unwrap();
    let report = warmpath::check::check(&value).to_string();
    assert!(report.contains("has no cluster \"green\""), "{report}");
}

#[test]
fn a_tokenizer_s_cluster_must_be_there() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/exact-tokens/envoy.yaml");
    let text = std::fs::read_to_string(example).unwrap();
    let report = |text: &str| {
        let value: serde_json::Value = serde_saphyr::from_str(text).unwrap();
        warmpath::check::check(&value).to_string()
    };
    assert_eq!(report(&text), "");
    let other = text.replace(r#""cluster": "tokenizers""#, r#""cluster": "files""#);
    assert!(
        report(&other).contains("has no cluster \"files\", from which a tokenizer"),
        "{}",
        report(&other)
    );
    let built_in = text.replace(r#""cluster": "tokenizers", "path": "/qwen3/""#, r#""built_in": "qwen3""#);
    assert!(report(&built_in).contains(r#""qwen3" must be in the module"#), "{}", report(&built_in));
}

#[test]
fn clusters_of_discovery_must_be_there() {
    let report = |file: &str, from: &str, to: &str, then: (&str, &str)| {
        let text = std::fs::read_to_string(path(file)).unwrap();
        assert!(text.contains(from) && text.contains(then.0), "{from} {}", then.0);
        let text = text.replacen(from, to, 1).replace(then.0, then.1);
        warmpath::check::check(&serde_saphyr::from_str(&text).unwrap()).to_string()
    };
    let pods = r#""pods": ["#;
    let good = |discovery: &str| {
        report("good-envoy.yaml", pods, &format!(r#""discovery": {discovery}, {pods}"#), ("", ""))
    };
    let place = "warning: static_resources.clusters: has no cluster";
    assert_eq!(good(r#"{"cluster": "pods", "pods_of": ["later-*"]}"#), "");
    assert_eq!(
        good(r#"{"cluster": "admin", "pods_of": ["pods", "gpus", "later-*"]}"#),
        format!(
            "{place} \"admin\", by which Envoy's admin is asked for pods; add it\n\
             {place} \"gpus\", in which pods are to be found; add it\n"
        )
    );
    // Clusters that are pods by a pattern are looked at like those that are listed.
    let listed = "pods: [{cluster: blue}, {cluster: green}]";
    let found = "discovery: {cluster: blue, pods_of: [gr*]}";
    let slow = ("idleTimeout: 4s", "idleTimeout: 5s");
    assert_eq!(report("good-clusters.yaml", listed, found, ("", "")), "");
    let slow = report("good-clusters.yaml", listed, found, slow);
    assert!(slow.lines().count() == 1 && slow.contains("clusters[1].typedExtension"), "{slow}");
}

#[test]
fn listeners_of_kv_events_are_checked() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/kv-events/envoy.yaml");
    let text = std::fs::read_to_string(example).unwrap();
    let report = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let value: serde_json::Value = serde_saphyr::from_str(&text.replacen(from, to, 1)).unwrap();
        let report = warmpath::check::check(&value);
        assert!(report.mistakes.is_empty(), "{report}");
        report.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(report("pods", "pods"), [""; 0]);
    let wrong = text.replacen("root_id: kv-events-zmq", "root_id: zmq", 1);
    let wrong = warmpath::check::check(&serde_saphyr::from_str(&wrong).unwrap());
    assert_eq!(wrong.mistakes.len(), 1, "{wrong}");
    assert!(wrong.mistakes[0].to_string().contains("root_id: is wrong: a network filter"), "{wrong}");
    let other_settings = r#"configuration: {"@type": "x/google.protobuf.StringValue", value: '{"pods": [{"address": "1.1.1.1:1"}]}'}"#;
    for (from, to, expected) in [
        ("limit_bytes: 65536", "limit_bytes: 1048576", &["limit_bytes: is 1048576: a worker takes"][..]),
        ("limit_bytes: 8388608", "limit_bytes: 65536", &["though kv_events.max_message_bytes is 4194304"]),
        ("network.echo.v3.Echo", "network.tcp_proxy.v3.TcpProxy", &["has no envoy.filters.network.echo"]),
        (
            "address: 127.0.0.1, port_value: 8082",
            "address: 0.0.0.0, port_value: 8082",
            &["has no kv_events.token: whoever reaches"],
        ),
        // A second filter for requests, whose listener has no route to a pod.
        ("root_id: kv-events-http", "root_id: http", &["no route by which a chosen pod is reached"]),
        (
            "root_id: kv-events-http\n                        failure_policy: FAIL_RELOAD\n                        \
             allow_on_headers_stop_iteration: true\n                        vm_config: *vm\n                        \
             configuration: *settings",
            &format!(
                "root_id: kv-events-http\n                        failure_policy: FAIL_RELOAD\n                        \
             allow_on_headers_stop_iteration: true\n                        vm_config: *vm\n                        {other_settings}"
            ),
            &["has other pods, tokenizers, blocks or index", "has no tokenizers"],
        ),
    ] {
        let warnings = report(from, to);
        assert_eq!(warnings.len(), expected.len(), "{to}: {warnings:?}");
        for (warning, expected) in warnings.iter().zip(expected) {
            assert!(warning.contains(expected), "{to}: {warnings:?}");
        }
    }
}

#[test]
fn what_cannot_be_read_has_a_code_of_its_own() {
    let (code, _, err) = command(&["check", &path("broken.yaml")]);
    assert!(code == 2 && err.contains("broken.yaml"), "{err}");
    let (code, _, err) = command(&["check", &path("doubled.yaml")]);
    assert!(code == 2 && err.contains("pods"), "{err}");
    let (code, _, err) = command(&["check", &path("nowhere.yaml")]);
    assert!(code == 2 && err.contains("nowhere.yaml"), "{err}");
    for args in [&[][..], &["check"], &["chek", "x"], &["check", "a", "b"]] {
        let (code, out, err) = command(args);
        assert_eq!((code, out.is_empty(), err.starts_with("usage: warmpath check FILE")), (2, true, true));
    }
}

#[test]
fn built_in_writes_what_a_module_includes() {
    let out = std::env::temp_dir().join(format!("warmpath-built-in-{}", std::process::id()));
    let bytes = format!("{}/../tests/data/bytes", env!("CARGO_MANIFEST_DIR"));
    let written = out.display().to_string();
    assert_eq!(command(&["built-in", &written, &bytes]), (0, String::new(), String::new()));
    let list = std::fs::read_to_string(out.join("built_in.rs")).unwrap();
    let image = out.join("bytes.image");
    assert!(list.contains(&format!("name: \"bytes\", image: include_bytes!({image:?})")), "{list}");
    let mut tokenizer = warmpath::prompt::Tokenizer::load(&std::fs::read(image).unwrap(), 1, 0).unwrap();
    let mut ids = Vec::new();
    tokenizer.encode("<|user|>A", &mut ids).unwrap();
    assert_eq!(ids, [256, 65]);
    let (code, _, err) = command(&["built-in", &written, &bytes, &bytes]);
    assert!(code == 1 && err.contains("another folder of the name \"bytes\""), "{err}");
    let (code, _, err) = command(&["built-in", &written, "no/such"]);
    assert!(code == 1 && err.starts_with("no/such/tokenizer.json: "), "{err}");
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn the_version_is_the_crate_s() {
    let version = format!("warmpath {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(command(&["--version"]), (0, version, String::new()));
}

#[test]
fn the_reference_and_the_schema_are_printed() {
    let (code, out, _) = command(&["reference"]);
    assert_eq!((code, out), (0, warmpath::reference::page()));
    let (code, out, _) = command(&["schema"]);
    let schema: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, schema), (0, warmpath::reference::schema()));
}

#[test]
fn every_example_is_right() {
    let examples = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples")).unwrap();
    let files = examples.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
    let mut checked = 0;
    for file in files.map(|file| file.unwrap().path()) {
        let name = file.file_name().unwrap().to_str().unwrap();
        if name == "envoy.yaml" || name.ends_with(".json") {
            let path = file.to_str().unwrap();
            let (code, out, _) = command(&["check", path]);
            assert_eq!((code, out), (0, format!("{path}: right, 0 warnings\n")));
            checked += 1;
        }
    }
    assert!(checked >= 19, "{checked}");
}

#[test]
fn what_would_harm_pods_that_hand_over_kv_is_warned_of() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/prefill-decode-nixl/envoy.yaml");
    let text = std::fs::read_to_string(example).unwrap();
    let path = std::env::temp_dir().join(format!("warmpath-handoff-{}.yaml", std::process::id()));
    let checked = |text: &str| {
        std::fs::write(&path, text).unwrap();
        command(&["check", path.to_str().unwrap()])
    };
    for (from, to, words) in [
        ("retry_on: connect-failure,refused-stream\n", "retry_on: connect-failure,reset\n", "has \"reset\""),
        ("name: x-warmpath-handoff", "name: x-other", "has no route for requests with a handoff"),
        (
            "present_match: true",
            "present_match: true, invert_match: true",
            "has no route for requests with a handoff",
        ),
        (r#"{"cluster": "prefill"}"#, r#"{"cluster": "elsewhere"}"#, "has no cluster \"elsewhere\""),
        (
            "stream_idle_timeout: 300s\n",
            "stream_idle_timeout: 300s\n                upgrade_configs: [{ upgrade_type: websocket }]\n",
            "upgrade_configs: lets clients upgrade connections",
        ),
        (
            "cluster: decode\n",
            "cluster: decode\n                            upgrade_configs: [{ upgrade_type: websocket }]\n",
            "route.upgrade_configs: lets clients upgrade connections",
        ),
    ] {
        assert!(text.contains(from), "{from:?} is no longer in the example");
        let (code, out, _) = checked(&text.replacen(from, to, 1));
        assert_eq!(code, 0);
        assert!(out.contains(words), "{to}: {out}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn plugin_configurations_in_manifests_are_checked() {
    let examples = format!("{}/../examples", env!("CARGO_MANIFEST_DIR"));
    let run = |text: &str| {
        let report = warmpath::check::check(&warmpath::check::parse(text).unwrap());
        (
            report.mistakes.iter().map(ToString::to_string).collect::<Vec<_>>(),
            report.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        )
    };
    let none: [String; 0] = [];
    for (file, at) in [
        ("envoy-gateway/warmpath.yaml", "EnvoyExtensionPolicy warmpath: spec.wasm[0].config: "),
        ("envoy-gateway/patched.yaml", "EnvoyExtensionPolicy warmpath: spec.wasm[0].config: "),
        ("envoy-gateway/prefill-decode.yaml", "EnvoyExtensionPolicy warmpath: spec.wasm[0].config: "),
        ("envoy-ai-gateway/warmpath.yaml", "EnvoyExtensionPolicy warmpath: spec.wasm[0].config: "),
        ("istio/wasmplugin.yaml", "WasmPlugin warmpath: spec.pluginConfig: "),
        (
            "istio/envoyfilter.yaml",
            "EnvoyFilter warmpath: spec.configPatches[0].patch.value.typed_config.config",
        ),
    ] {
        let text = std::fs::read_to_string(format!("{examples}/{file}")).unwrap();
        assert_eq!(run(&text), (none.to_vec(), none.to_vec()), "{file}");
        let (mistakes, _) = run(&text.replace("pods_of", "pods_off"));
        assert!(!mistakes.is_empty(), "{file}");
        assert!(mistakes.iter().all(|mistake| mistake.starts_with(at)), "{file}: {mistakes:?}");
    }
    // What nothing sets can't be waited for.
    for (file, from, to) in [
        ("envoy-gateway/warmpath.yaml", "        routing: { via: filter-state }\n", ""),
        ("envoy-gateway/patched.yaml", "path: allow_on_headers_stop_iteration", "path: other"),
        ("istio/wasmplugin.yaml", "    routing: { via: filter-state }\n", ""),
        ("istio/envoyfilter.yaml", "allow_on_headers_stop_iteration: true", "root_id: warmpath"),
    ] {
        let text = std::fs::read_to_string(format!("{examples}/{file}")).unwrap();
        assert!(text.contains(from), "{file}");
        let (mistakes, warnings) = run(&text.replace(from, to));
        assert_eq!((mistakes.len(), warnings.len()), (0, 1), "{file}: {mistakes:?} {warnings:?}");
        assert!(warnings[0].contains("allow_on_headers_stop_iteration"), "{file}: {warnings:?}");
    }
    let gateway = std::fs::read_to_string(format!("{examples}/istio/gateway.yaml")).unwrap();
    assert!(run(&gateway).0[0].contains("no plugin configuration of Warmpath is in these manifests"));
}

#[test]
fn what_envoys_admin_dumped_is_an_envoy_configuration() {
    let good = std::fs::read_to_string(path("good-envoy.yaml")).unwrap();
    let good: Value = serde_saphyr::from_str(&good).unwrap();
    let listener = &good["static_resources"]["listeners"][0];
    let dump = |listener: &Value| {
        let active = json!({"active_state": {"listener": listener}});
        warmpath::check::check(&json!({"configs": [{"dynamic_listeners": [active]}]})).to_string()
    };
    assert_eq!(dump(listener), "");
    let broken = listener.to_string().replace("FAIL_RELOAD", "FAIL_CLOSED");
    assert!(
        dump(&serde_json::from_str(&broken).unwrap())
            .contains("configs[0].dynamic_listeners[0].active_state")
    );
}

/// Where none is named, pods are called by the clusters in which they are found.
#[test]
fn clusters_by_which_found_pods_are_called_must_take_hosts_from_the_header() {
    let text = std::fs::read_to_string(path("good-envoy.yaml")).unwrap();
    let mut value: Value = serde_saphyr::from_str(&text).unwrap();
    let mut other = value["static_resources"]["clusters"][0].clone();
    other["name"] = "other".into();
    other.as_object_mut().unwrap().remove("load_balancing_policy");
    value["static_resources"]["clusters"].as_array_mut().unwrap().push(other);
    let warnings = |more: Value| {
        let mut plugin = json!({"discovery": {"cluster": "other", "pods_of": ["pods", "more"]}});
        plugin.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let text = value.to_string();
        let mut value: Value = serde_json::from_str(&text).unwrap();
        value["static_resources"]["clusters"][1]["name"] = "more".into();
        let filters = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters";
        let configuration = format!("{filters}/0/typed_config/config/configuration");
        let string = "type.googleapis.com/google.protobuf.StringValue";
        *value.pointer_mut(&configuration).unwrap() = json!({"@type": string, "value": plugin.to_string()});
        let report = warmpath::check::check(&value);
        assert!(report.mistakes.is_empty(), "{report}");
        report.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let words = "cluster \"more\" has no override_host";
    let all =
        |more: Value| warnings(more).iter().filter(|one| one.contains(words)).cloned().collect::<Vec<_>>();
    assert_eq!(all(json!({})), [] as [String; 0]);
    let asked = all(json!({"metrics": {}}));
    assert!(asked.len() == 1 && asked[0].contains("chance which engine is asked"), "{asked:?}");
    assert_eq!(all(json!({"metrics": {"cluster": "pods"}})), [] as [String; 0]);
    let called = all(json!({"workflows": {"w": {"protocol": {"type": "nixl"}}}}));
    assert!(called.len() == 1 && called[0].contains("chance which pod a workflow calls"), "{called:?}");
}
