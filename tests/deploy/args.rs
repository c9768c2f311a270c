//! The binary accepts the command lines that the chart writes.

use node_tests::deploy::{Chart, PROFILES, Tool, overlay};
use node_tests::prelude::*;
use pathproof::config::{Config, Surroundings};
use pathproof_facts::owners::Declared;
use pathproof_facts::switches::Enforcement;
use pathproof_program::args::{Args, Command};

use crate::find::named;

/// The arguments of the only container in the pods of `pathproof-NAME`.
fn args_of(objects: &[Value], name: &str) -> Option<Vec<String>> {
    let is_it = |object: &&Value| {
        let of_pods = object["kind"] == "DaemonSet" || object["kind"] == "Deployment";
        of_pods && object["metadata"]["name"] == format!("pathproof-{name}")
    };
    let object = objects.iter().find(is_it)?;
    let args = object["spec"]["template"]["spec"]["containers"][0]["args"].as_array()?;
    let text = |arg: &Value| arg.as_str().expect("an argument is a string").to_owned();
    Some(args.iter().map(text).collect())
}

fn in_a_pod() -> Surroundings {
    Surroundings {
        node_name: Some("node-1".to_owned()),
        hostname: Some("node-1".to_owned()),
        in_cluster: true,
    }
}

/// Parses and resolves all command lines of a rendering, as `pathproof` does at start-up.
pub(crate) fn check(objects: &[Value]) {
    for name in ["agent", "rotator", "echo"] {
        let Some(args) = args_of(objects, name) else {
            continue;
        };
        let words = std::iter::once("pathproof".to_owned()).chain(args.clone());
        let parsed = <Args as clap::Parser>::try_parse_from(words)
            .unwrap_or_else(|error| panic!("{args:?}: {error}"));
        match (name, parsed.command) {
            ("agent", Command::Run(run)) => {
                Config::resolve(&run, &in_a_pod()).unwrap_or_else(|e| panic!("{args:?}: {e}"));
            }
            ("rotator", Command::Rotate(_)) | ("echo", Command::Echo(_)) => {}
            (_, other) => panic!("{name} runs {other:?}"),
        }
    }
}

#[rstest]
#[case(json!({}), "")]
#[case(json!({ "unknownPolicy": "closed" }), "--unknown-policy=closed")]
#[case(json!({ "families": "all" }), "--families=all")]
#[case(json!({ "view": "sentinel" }), "--view=sentinel")]
#[case(json!({ "healthzBindAddress": "none" }), "--healthz-bind-address=none")]
#[case(json!({ "healthzBindAddress": "[::]:10300" }), "--healthz-bind-address=[::]:10300")]
#[case(json!({ "healthzBindAddress": "::" }), "--healthz-bind-address=::")]
#[case(
    json!({ "healthzAllowCidrs": ["10.0.0.0/8", "2001:db8::"] }),
    "--healthz-allow-cidr=10.0.0.0/8,2001:db8::"
)]
#[case(json!({ "healthCheckNodePorts": "none" }), "--health-check-node-ports=none")]
#[case(json!({ "healthCheckNodePorts": "20000-22767" }), "--health-check-node-ports=20000-22767")]
#[case(
    json!({ "healthzAllowCidrs": ["10.0.0.0/8", "fd00::/8"] }),
    "--healthz-allow-cidr=10.0.0.0/8,fd00::/8"
)]
#[case(
    json!({ "admin": { "allowCidrs": ["10.244.0.0/16"] } }),
    "--admin-bind-address=0.0.0.0:19256 --admin-allow-cidr=127.0.0.1,::1,10.244.0.0/16"
)]
#[case(json!({ "admin": { "port": 19300 } }), "--admin-bind-address=127.0.0.1:19300")]
#[case(json!({ "serviceMetrics": "all" }), "--service-metrics=all")]
#[case(json!({ "drainIgnoreCidrs": ["35.191.0.0/16"] }), "--drain-ignore-cidr=35.191.0.0/16")]
#[case(
    json!({ "terminatingTaints": ["karpenter", "example.com/leaving"] }),
    "--terminating-taint=karpenter,example.com/leaving"
)]
#[case(json!({ "publishCondition": false }), "--publish-condition=off")]
#[case(json!({ "publishEvents": false }), "--publish-events=off")]
#[case(json!({ "flapDwell": "0" }), "--flap-dwell=0")]
#[case(json!({ "logFormat": "json" }), "--log-format=json")]
#[case(json!({ "logLevel": "debug" }), "--log-filter=debug,kube_client=off")]
#[case(
    json!({ "logLevel": "info,pathproof::datapath=debug" }),
    "--log-filter=info,pathproof::datapath=debug"
)]
#[case(json!({ "extraArgs": ["--attach=tcx"] }), "--attach=tcx")]
fn a_value_becomes_the_option(#[case] agent: Value, #[case] options: &str) {
    needs!(Tool::Helm.installed());
    let objects = Chart::with(json!({ "agent": agent })).render();
    let objects = objects.expect("the chart");
    let args = args_of(&objects, "agent").expect("arguments");
    let expected = format!("run --enforcement=audit --datapath=kube-proxy {options}");
    assert_eq!(args.join(" "), expected.trim_end());
    check(&objects);
}

#[rstest]
#[case("beside-kube-proxy", "", Some(Declared::KubeProxy))]
#[case("beside-kube-proxy", "cilium", Some(Declared::Cilium))]
#[case("beside-kube-proxy", "none", None)]
#[case("cilium", "", Some(Declared::Cilium))]
#[case("standalone", "", None)]
#[case("standalone", "kube-proxy", Some(Declared::KubeProxy))]
fn the_profile_declares_the_datapath(
    #[case] profile: &str,
    #[case] datapath: &str,
    #[case] expected: Option<Declared>,
) {
    needs!(Tool::Helm.installed());
    let chart = Chart::with(json!({ "profile": profile, "agent": { "datapath": datapath } }));
    let config = config(&chart.render().expect("the chart"));
    let declared = config.sentinel.and_then(|sentinel| sentinel.datapath);
    assert_eq!(declared, expected);
}

#[test]
fn the_base_audits_and_a_component_enforces() {
    needs!(Tool::Kubectl.installed());
    for profile in PROFILES.into_iter().filter(|profile| *profile != "rke1") {
        for (components, expected) in [
            (&[][..], Enforcement::Audit),
            (&["enforce"], Enforcement::Enforce),
            (&["pod-monitor", "enforce"], Enforcement::Enforce),
            (&["enforce", "pod-monitor"], Enforcement::Enforce),
        ] {
            let objects = overlay(profile, components).expect("an overlay");
            assert_eq!(enforcement(&objects), expected, "{profile} {components:?}");
            let actions = match expected {
                Enforcement::Audit => json!(["Warn", "Audit"]),
                Enforcement::Enforce => json!(["Deny"]),
            };
            let reserving = objects.iter().filter(|object| {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let is_binding = object["kind"] == "ValidatingAdmissionPolicyBinding";
                is_binding && name.starts_with("pathproof-reserved-")
            });
            let found: Vec<_> = reserving
                .map(|one| &one["spec"]["validationActions"])
                .collect();
            assert_eq!(found, [&actions; 4], "{profile} {components:?}");
        }
    }
}

fn enforcement(objects: &[Value]) -> Enforcement {
    config(objects).healthz.enforcement
}

/// The configuration that the agent of a rendering gets from its command line.
fn config(objects: &[Value]) -> Config {
    let args = args_of(objects, "agent").expect("arguments");
    let words = std::iter::once("pathproof".to_owned()).chain(args);
    let parsed = <Args as clap::Parser>::try_parse_from(words).expect("a command line");
    let Command::Run(run) = parsed.command else {
        panic!("{parsed:?}");
    };
    Config::resolve(&run, &in_a_pod()).expect("a configuration")
}

/// All processes, slices, bindings and policies use the same namespace and the same addresses.
#[test]
fn everything_follows_the_namespace_and_the_addresses() {
    needs!(Tool::Helm.installed());
    let sentinel = json!({ "endpointIPv4": "192.0.2.2", "clientIPv4": "192.0.2.1" });
    let agent = json!({ "healthzBindAddress": ":10300", "admin": { "port": 19300 } });
    let chart = Chart::with(json!({ "sentinel": sentinel, "agent": agent }));
    let elsewhere = chart.option("--namespace", "elsewhere");
    let objects = elsewhere.render().expect("the chart");
    check(&objects);
    let service = "--sentinel-service=elsewhere/pathproof-sentinel";
    let client = "--sentinel-client-address=192.0.2.1,2001:2::1";
    let endpoint = "--sentinel-endpoint-address=192.0.2.2,2001:2::2";
    for name in ["agent", "rotator"] {
        let args = args_of(&objects, name).expect("arguments");
        assert!(args.iter().any(|arg| arg == service), "{args:?}");
        assert!(args.iter().any(|arg| arg == client), "{args:?}");
        assert!(args.iter().any(|arg| arg == endpoint), "{args:?}");
    }
    policies_follow(&objects);
    for object in &objects {
        let subjects = object["subjects"].as_array().into_iter().flatten();
        for subject in subjects {
            assert_eq!(subject["namespace"], "elsewhere", "{object}");
        }
        let namespace = &object["metadata"]["namespace"];
        let allowed = ["elsewhere", "default"];
        assert!(
            namespace.is_null() || allowed.iter().any(|name| namespace == name),
            "{object}"
        );
    }
}

/// Checks which accounts the policies restrict, and which addresses and ports they reserve.
fn policies_follow(objects: &[Value]) {
    let policy = |name: &str| &named(objects, "ValidatingAdmissionPolicy", name)["spec"];
    let condition = |policy: &Value| policy["matchConditions"][0]["expression"].clone();
    for (name, account) in [
        ("pathproof-agent", "pathproof-agent"),
        ("pathproof-agent-events", "pathproof-agent"),
        ("pathproof-rotator", "pathproof-rotator"),
    ] {
        let who = format!("system:serviceaccount:elsewhere:{account}");
        let expected = format!("request.userInfo.username == \"{who}\"");
        assert_eq!(condition(policy(name)), json!(expected), "{name}");
    }
    let addresses = r#"["192.0.2.1", "192.0.2.2", "2001:2::1", "2001:2::2"]"#;
    for name in [
        "pathproof-reserved-services",
        "pathproof-reserved-endpoints",
    ] {
        let policy = policy(name);
        let expected = r#"request.namespace != "elsewhere""#;
        assert_eq!(condition(policy), json!(expected), "{name}");
        let variables = policy["variables"].as_array().expect("variables");
        let expressions = || {
            variables
                .iter()
                .filter_map(|one| one["expression"].as_str())
        };
        assert!(expressions().any(|one| one.contains(addresses)), "{policy}");
        let ports = "params == null ? [10256, 10300, 19300] : ";
        let has_ports = expressions().any(|one| one.starts_with(ports));
        assert_eq!(has_ports, name.ends_with("services"), "{policy}");
    }
    let endpoints = r#"["192.0.2.2", "2001:2::2"]"#;
    let rotator = policy("pathproof-rotator").to_string();
    assert!(rotator.replace('\\', "").contains(endpoints), "{rotator}");
    let binding = |of: &str| {
        let name = format!("pathproof-reserved-services{of}");
        &named(objects, "ValidatingAdmissionPolicyBinding", &name)["spec"]
    };
    assert!(binding("")["paramRef"].is_null());
    for of in ["sentinel", "echo"] {
        let name = format!("pathproof-{of}");
        named(objects, "Service", &name);
        let param = json!({
            "namespace": "elsewhere", "name": name, "parameterNotFoundAction": "Allow",
        });
        assert_eq!(binding(&format!("-{of}"))["paramRef"], param);
    }
}

/// The kubelet's probes use loopback, whatever `allowCidrs` contains, and the configured port.
#[test]
fn probes_follow_the_admin_port_and_stay_on_loopback() {
    needs!(Tool::Helm.installed());
    let admin = json!({ "port": 19300, "allowCidrs": ["10.0.0.0/8"] });
    let objects = Chart::with(json!({ "agent": { "admin": admin } })).render();
    let objects = objects.expect("the chart");
    let agent = named(&objects, "DaemonSet", "pathproof-agent");
    let container = &agent["spec"]["template"]["spec"]["containers"][0];
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["host"], "127.0.0.1");
        assert_eq!(container[probe]["httpGet"]["port"], 19300);
    }
    // `pathproof status` in the pod uses this port by the environment variable.
    let asked = json!({ "name": "PATHPROOF_ADMIN_ADDRESS", "value": "127.0.0.1:19300" });
    let variables = container["env"].as_array().expect("variables");
    assert!(variables.contains(&asked), "{variables:?}");
    let allowed = "--admin-allow-cidr=127.0.0.1,::1,10.0.0.0/8";
    let args = container["args"].as_array().expect("arguments");
    assert!(args.iter().any(|arg| arg == allowed), "{args:?}");
}
