//! A real API server accepts the shipped objects of each profile, and helm installs and uninstalls them.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Result;
use node_tests::cluster::{Api, ControlPlane, Servers, documents, namespace};
use node_tests::deploy::{Chart, PROFILES, REGISTRY, Tool, folder, said};
use node_tests::prelude::*;

use crate::scene::PATIENCE;

/// An API server without nodes, and its clients.
pub(crate) struct Cluster {
    pub(crate) api: Api,
    kubeconfig: PathBuf,
    pub(crate) control: ControlPlane,
    // Dropped last, after the servers.
    pub(crate) world: World,
}

impl Cluster {
    pub(crate) fn start() -> Needed<Self> {
        skip::root()?;
        Tool::Helm.installed()?;
        Tool::Kubectl.installed()?;
        let servers = Servers::needed()?;
        let world = World::builder().build().expect("build a world");
        let control = ControlPlane::start(&world, &servers).expect("a control plane");
        let api = control.api().expect("a client");
        until(PATIENCE, || api.get("/api/v1/namespaces/default").ok()).expect("namespaces");
        namespace(&api, "pathproof").expect("a namespace");
        let kubeconfig = world.dir().join("admin.kubeconfig");
        fs::write(&kubeconfig, control.admin_kubeconfig()).expect("a kubeconfig");
        Ok(Self {
            api,
            kubeconfig,
            control,
            world,
        })
    }

    pub(crate) fn command(&self, tool: Tool) -> Command {
        let program = tool.find().expect("a tool");
        let mut command = self.world.worker.command(program);
        command.env("KUBECONFIG", &self.kubeconfig);
        for home in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(home, self.world.dir().join("helm"));
        }
        command
    }

    fn helm(&self, verb: &str, words: &[&str]) -> String {
        self.helm_of(Tool::Helm, verb, words)
    }

    pub(crate) fn helm_of(&self, helm: Tool, verb: &str, words: &[&str]) -> String {
        let done = self.try_helm(helm, verb, words);
        done.unwrap_or_else(|error| panic!("{helm:?} {verb} {words:?}: {error:#}"))
    }

    fn try_helm(&self, helm: Tool, verb: &str, words: &[&str]) -> Result<String> {
        let mut command = self.command(helm);
        command.args([verb, "pathproof", "--namespace", "pathproof"]);
        if verb != "uninstall" {
            command.arg(folder().join("chart"));
            command.arg(format!("--set=image.registry={REGISTRY}"));
        }
        said(command.args(words))
    }

    /// Validates objects strictly with the API server, without creating them.
    fn looks_at(&self, objects: &[Value]) -> Result<(), String> {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let mut command = self.command(Tool::Kubectl);
        command
            .args([
                "apply",
                "--dry-run=server",
                "--validate=strict",
                "--filename=-",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("start kubectl");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(list.to_string().as_bytes()).expect("write");
        drop(input);
        let output = child.wait_with_output().expect("kubectl ends");
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

#[test]
fn an_api_server_takes_what_is_shipped() {
    let cluster = needs!(Cluster::start());
    an_api_server_takes_every_profile(&cluster);
    an_api_server_takes_the_objects_of_every_values_file(&cluster);
    notes_say_what_to_do_next_with_each_profile(&cluster);
    a_namespace_that_forbids_the_agents_is_refused(&cluster);
    helm_takes_away_what_it_brought(&cluster);
    a_canary_leaves_the_first_release_alone(&cluster);
}

fn an_api_server_takes_every_profile(cluster: &Cluster) {
    for profile in PROFILES {
        let objects = Chart::with(json!({ "profile": profile })).render();
        let mut objects = objects.expect("the chart");
        cluster
            .looks_at(&objects)
            .unwrap_or_else(|error| panic!("{profile}: {error}"));
        let without = json!({ "profile": profile, "sentinel": { "enabled": false } });
        if profile != "rke1" {
            let objects = Chart::with(without).render().expect("the chart");
            let taken = cluster.looks_at(&objects);
            taken.unwrap_or_else(|error| panic!("{profile} without a sentinel: {error}"));
        }
        // Check that the validation works: it must refuse an unknown field.
        objects[0]["metadata"]["unknown"] = json!("x");
        let error = cluster.looks_at(&objects).expect_err("an unknown field");
        assert!(error.contains("unknown"), "{error}");
    }
}

/// Only built-in kinds of objects, because the API server has no Prometheus Operator.
fn an_api_server_takes_the_objects_of_every_values_file(cluster: &Cluster) {
    let files = fs::read_dir(folder().join("chart/ci")).expect("values files");
    for file in files {
        let path = file.expect("a file").path();
        let text = fs::read_to_string(&path).expect("a values file");
        let values = documents(&text).expect("YAML").remove(0);
        let mut objects = Chart::with(values).render().expect("the chart");
        objects.retain(|object| object["apiVersion"] != "monitoring.coreos.com/v1");
        let taken = cluster.looks_at(&objects);
        taken.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// The namespace's Pod Security label decides. If it is missing, the notes name the command that sets it.
fn a_namespace_that_forbids_the_agents_is_refused(cluster: &Cluster) {
    let set = |label: &str| {
        let mut command = cluster.command(Tool::Kubectl);
        command.args(["label", "--overwrite", "namespace", "pathproof"]);
        let label = format!("pod-security.kubernetes.io/enforce{label}");
        said(command.arg(label)).expect("a label");
    };
    let look = |values: &[&str]| {
        let words = ["--dry-run=server"].iter().chain(values).copied();
        cluster.try_helm(Tool::Helm, "install", &words.collect::<Vec<_>>())
    };
    let command = "kubectl label namespace pathproof pod-security.kubernetes.io/enforce=privileged";
    set("-");
    assert!(look(&[]).expect("notes").contains(command));
    set("=baseline");
    let error = look(&[]).expect_err("a refusal");
    for words in [
        "enforce=baseline",
        "kubectl label --overwrite namespace pathproof",
    ] {
        assert!(format!("{error:#}").contains(words), "{error:#}");
    }
    for value in ["namespace.check=false", "profile=rke1"] {
        look(&["--set", value]).unwrap_or_else(|error| panic!("{value}: {error:#}"));
    }
    set("=privileged");
    let notes = look(&[]).expect("notes");
    assert!(
        notes.contains("nothing to do") && !notes.contains(command),
        "{notes}"
    );
    let error = look(&["--set", "namespace.create=true"]).expect_err("a refusal");
    let words = "does not belong to this release";
    assert!(format!("{error:#}").contains(words), "{error:#}");
}

fn notes_say_what_to_do_next_with_each_profile(cluster: &Cluster) {
    for (profile, words) in [
        (
            "beside-kube-proxy",
            ["rollout status", "kube-proxy answers them again"],
        ),
        (
            "cilium",
            ["rollout status", "kubeProxyReplacementHealthzBindAddr"],
        ),
        ("standalone", ["rollout status", "no process answers there"]),
        ("rke1", ["cluster.yml", "pathproof/pathproof-sentinel"]),
    ] {
        let value = format!("profile={profile}");
        let told = cluster.helm("install", &["--dry-run=server", "--set", &value]);
        let (_, notes) = told.split_once("\nNOTES:\n").expect("notes");
        for word in words {
            assert!(notes.contains(word), "{profile}: no {word} in {notes}");
        }
        assert!(!notes.contains("<no value>"), "{notes}");
        // The installation starts in audit mode. The notes name the command that enforces.
        let enforce = "helm upgrade pathproof CHART -n pathproof --reuse-values \
                       --set agent.enforcement=enforce";
        let is_audit = notes.contains("Audit mode") && notes.contains(enforce);
        assert_eq!(is_audit, profile != "rke1", "{notes}");
        // The notes must advise no option that the chart would refuse.
        let is_rke1 = profile == "rke1";
        assert_eq!(
            notes.contains("metrics.podMonitor.enabled=true"),
            !is_rke1,
            "{notes}"
        );
        assert_eq!(notes.contains("ScrapeConfig"), is_rke1, "{notes}");
        assert!(!notes.contains("_ADDRESS="), "{notes}");
    }
    let elsewhere = "profile=rke1,sentinel.endpointIPv4=192.0.2.2,sentinel.clientIPv6=2001:db8::1";
    let told = cluster.helm("install", &["--dry-run=server", "--set", elsewhere]);
    for variable in [
        "PATHPROOF_SENTINEL_ENDPOINT_ADDRESS=192.0.2.2,2001:2::2",
        "PATHPROOF_SENTINEL_CLIENT_ADDRESS=198.18.0.1,2001:db8::1",
    ] {
        assert!(told.contains(variable), "no {variable} in {told}");
    }
    let unguarded = ["--dry-run=server", "--set", "policy.enabled=false"];
    let told = cluster.helm("install", &unguarded);
    for words in [
        "No policy restricts each agent to its own Node: policy.enabled=false.",
        "no right to publish the Node's condition and Events",
        "agent.publishWithoutPolicy='every agent may write about every Node'",
        "DenyServiceExternalIPs",
    ] {
        assert!(told.contains(words), "no {words} in {told}");
    }
    let dashboard = [
        "--dry-run=server",
        "--set",
        "metrics.dashboard.enabled=true",
    ];
    let told = cluster.helm("install", &dashboard);
    assert!(
        told.contains("stay empty without the recording rules"),
        "{told}"
    );
    let enforces = ["--dry-run=server", "--set", "agent.enforcement=enforce"];
    let told = cluster.helm("install", &enforces);
    let back = "--reuse-values --set agent.enforcement=audit";
    assert!(
        told.contains("Enforce mode") && told.contains(back),
        "{told}"
    );
}

/// Names of all pathproof objects in the API server.
fn ours(api: &Api) -> Vec<String> {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let admission = "/apis/admissionregistration.k8s.io/v1";
    let lists = [
        "/api/v1/namespaces/pathproof/services".to_owned(),
        "/api/v1/namespaces/pathproof/resourcequotas".to_owned(),
        "/api/v1/namespaces/pathproof/serviceaccounts".to_owned(),
        "/apis/apps/v1/namespaces/pathproof/daemonsets".to_owned(),
        "/apis/apps/v1/namespaces/pathproof/deployments".to_owned(),
        "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices".to_owned(),
        format!("{rbac}/clusterroles"),
        format!("{rbac}/clusterrolebindings"),
        format!("{rbac}/roles"),
        format!("{rbac}/rolebindings"),
        format!("{admission}/validatingadmissionpolicies"),
        format!("{admission}/validatingadmissionpolicybindings"),
    ];
    let names = |list: &String| -> Vec<String> {
        let found = api.get(list).expect("a list");
        let items = found["items"].as_array().expect("items").clone();
        let name = |item: &Value| item["metadata"]["name"].as_str().map(str::to_owned);
        items.iter().filter_map(name).collect()
    };
    let mut all: Vec<String> = lists.iter().flat_map(names).collect();
    all.retain(|name| name.starts_with("pathproof"));
    all
}

fn helm_takes_away_what_it_brought(cluster: &Cluster) {
    cluster.helm("install", &[]);
    let installed = ours(&cluster.api);
    // At least 18 objects: two ServiceAccounts, each with roles and bindings, two workloads, and others.
    assert!(installed.len() >= 18, "{installed:?}");
    cluster.helm("upgrade", &["--set", "agent.enforcement=enforce"]);
    let agent = "/apis/apps/v1/namespaces/pathproof/daemonsets/pathproof-agent";
    let args = |api: &Api| {
        let agent = api.get(agent).expect("the agent");
        agent["spec"]["template"]["spec"]["containers"][0]["args"].clone()
    };
    let enforce = ["run", "--enforcement=enforce", "--datapath=kube-proxy"];
    assert_eq!(args(&cluster.api), json!(enforce));
    let mut rollback = cluster.command(Tool::Helm);
    rollback.args(["rollback", "pathproof", "1", "--namespace", "pathproof"]);
    said(&mut rollback).expect("roll back");
    let audit = ["run", "--enforcement=audit", "--datapath=kube-proxy"];
    assert_eq!(args(&cluster.api), json!(audit));
    // A change of profile deletes the objects that the new profile does not have.
    cluster.helm("upgrade", &["--set", "profile=rke1"]);
    let rotator = ours(&cluster.api);
    assert!(
        !rotator.iter().any(|name| name.contains("agent")),
        "{rotator:?}"
    );
    cluster.helm("uninstall", &[]);
    let gone = until(PATIENCE, || ours(&cluster.api).is_empty().then_some(()));
    assert!(gone.is_some(), "left: {:?}", ours(&cluster.api));
}

/// A second release, of agents alone, brings and takes away one DaemonSet.
fn a_canary_leaves_the_first_release_alone(cluster: &Cluster) {
    cluster.helm("install", &[]);
    let first = ours(&cluster.api);
    let canary = |words: &[&str]| {
        let mut command = cluster.command(Tool::Helm);
        command.args(words).args(["--namespace", "pathproof"]);
        said(&mut command).expect("helm");
    };
    let chart = folder().join("chart");
    let registry = format!("image.registry={REGISTRY}");
    canary(&[
        "install",
        "pathproof-canary",
        chart.to_str().expect("UTF-8"),
        "--set=shared.create=false,agent.nodeSelector.pool=canary",
        "--set",
        &registry,
    ]);
    let mut both = ours(&cluster.api);
    both.retain(|name| !first.contains(name));
    assert_eq!(both, ["pathproof-canary-agent"]);
    canary(&["uninstall", "pathproof-canary"]);
    let gone = until(PATIENCE, || (ours(&cluster.api) == first).then_some(()));
    assert!(gone.is_some(), "{:?}", ours(&cluster.api));
    cluster.helm("uninstall", &[]);
}
