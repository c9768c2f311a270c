//! `kubectl pathproof` with the real kubectl and a real API server: what each role of deploy/examples allows.
//!
//! There is no kubelet, so an exec gets no further than the API server's authorisation.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Output;

use node_tests::cluster::{Api, ControlPlane, Servers, base, create, install, put_file};
use node_tests::deploy::Tool;
use node_tests::manifests::Manifests;
use node_tests::prelude::*;

/// An API server with Nodes, and the agent's binary under the name of a kubectl plugin.
struct Desk {
    admin: Api,
    control: ControlPlane,
    plugin: PathBuf,
    /// Search path with the folder that contains kubectl.
    path: PathBuf,
    world: World,
}

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }
}

impl Desk {
    fn start() -> Needed<Self> {
        skip::root()?;
        let kubectl = skip::needed(Tool::Kubectl.find())?;
        let programs = Servers::needed()?;
        let world = World::builder().build().expect("build a world");
        let control = ControlPlane::start(&world, &programs).expect("a control plane");
        let admin = control.api().expect("a client");
        let manifests = Manifests::write(&world, Vec::new()).expect("write manifests");
        install(&admin, &manifests).expect("deploy/base");
        let plugin = world.dir().join("kubectl-pathproof");
        symlink(agent_binary().expect("a binary"), &plugin).expect("a link");
        let desk = Self {
            admin,
            control,
            plugin,
            path: kubectl.parent().expect("a folder").to_owned(),
            world,
        };
        desk.rights();
        Ok(desk)
    }

    /// Creates accounts with none, with one and with both of the roles of deploy/examples.
    fn rights(&self) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples/fleet-rbac.yaml");
        put_file(&self.admin, &file).expect("roles");
        for account in ["nobody", "lister", "asker"] {
            let object = json!({
                "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": { "name": account, "namespace": base::NAMESPACE },
            });
            create(&self.admin, object).expect("an account");
        }
        self.bind("ClusterRole", "pathproof-fleet", &["lister", "asker"]);
        self.bind("Role", "pathproof-fleet-agents", &["asker"]);
    }

    fn bind(&self, kind: &str, role: &str, accounts: &[&str]) {
        let subjects: Vec<Value> = accounts
            .iter()
            .map(|name| {
                json!({ "kind": "ServiceAccount", "name": name, "namespace": base::NAMESPACE })
            })
            .collect();
        let mut binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": format!("{kind}Binding"),
            "metadata": { "name": format!("test-{role}") },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role },
            "subjects": subjects,
        });
        if kind == "Role" {
            binding["metadata"]["namespace"] = json!(base::NAMESPACE);
        }
        create(&self.admin, binding).expect("a binding");
    }

    /// Creates a Node with this condition, as if its agent had just written it.
    fn node(&self, name: &str, status: &str, reason: &str, message: &str) {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": { "kubernetes.io/os": "linux" } },
        });
        create(&self.admin, node).expect("a Node");
        let now = jiff::Timestamp::now()
            .round(jiff::Unit::Second)
            .expect("a time");
        // 4.5 minutes ago. Ages are shown in whole minutes, so this one does not change soon.
        let since = now - jiff::SignedDuration::from_secs(270);
        let condition = json!({ "conditions": [{
            "type": "ServiceDatapathReady", "status": status, "reason": reason,
            "message": message, "lastHeartbeatTime": now, "lastTransitionTime": since,
        }] });
        let written = self.admin.patch_node_status(name, &condition);
        written.expect("a condition");
    }

    /// Creates the agent's pod on a node, with the status that a kubelet would report.
    fn agent_pod(&self, node: &str) {
        let labels = json!({
            "app.kubernetes.io/name": "pathproof", "app.kubernetes.io/component": "agent",
        });
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("agent-{node}"), "namespace": base::NAMESPACE, "labels": labels,
            },
            "spec": {
                "nodeName": node, "hostNetwork": true,
                "serviceAccountName": base::AGENT,
                "containers": [{ "name": "agent", "image": "pathproof" }],
            },
            "status": { "phase": "Running" },
        });
        create(&self.admin, pod).expect("a pod");
    }

    fn run(&self, account: &str, arguments: &[&str]) -> Said {
        let server = ControlPlane::address();
        let config = self
            .control
            .account_kubeconfig(&self.world, server, account);
        let mut command = self.world.worker.command(&self.plugin);
        command
            .args(arguments)
            .arg("--kubeconfig")
            .arg(config.expect("a kubeconfig"))
            .env("PATH", &self.path);
        command.output().expect("the program runs").into()
    }
}

fn line<'a>(page: &'a str, node: &str) -> &'a str {
    let of = |line: &&str| line.split_whitespace().nth(1) == Some(node);
    let found = page.lines().find(of);
    found.unwrap_or_else(|| panic!("no {node} in:\n{page}"))
}

#[test]
fn each_role_allows_its_commands() {
    let desk = needs!(Desk::start());
    rights_on_nodes_are_enough_for_the_list(&desk);
    an_exec_takes_the_second_role(&desk);
    a_bundle_is_written_although_the_node_does_not_answer(&desk);
}

fn rights_on_nodes_are_enough_for_the_list(desk: &Desk) {
    let (proven, broken) = ("new connections get through", "no new connection does");
    desk.node("worker-1", "True", "DatapathProven", proven);
    desk.node("worker-2", "False", "DatapathBrokenLeaked", broken);
    let leaving = "the node is about to be removed: taint x/y. Its datapath: sound";
    desk.node("worker-3", "True", "NodeLeaving", leaving);

    let said = desk.run("lister", &[]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let page = &said.out;
    let head = "NOT READY  4 nodes: 1 not ready, 1 uncertain, 1 leaving, 1 healthy\n";
    assert!(page.starts_with(head), "{page}");
    let order: Vec<Option<usize>> = ["worker-2", "node-1", "worker-3", "worker-1"]
        .iter()
        .map(|node| page.find(&format!(" {node} ")))
        .collect();
    assert!(
        order.iter().all(Option::is_some) && order.is_sorted(),
        "{page}"
    );
    let sick = line(page, "worker-2");
    for word in ["broken", "leaked", "4 min"] {
        assert!(sick.contains(word), "{page}");
    }
    assert!(line(page, "worker-3").ends_with("no, leaving"), "{page}");
    // No agent has written node-1's condition.
    assert!(line(page, "node-1").contains("unknown"), "{page}");

    let selector = ["-l", "kubernetes.io/os=linux", "-o", "json"];
    let said = desk.run("lister", &selector);
    let document: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(document["summary"]["not_ready"], 1, "{document:#}");
    assert_eq!(document["nodes"][0]["node"], "worker-2");
    assert_eq!(document["nodes"][0]["reason"], "leaked");

    let said = desk.run("nobody", &[]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    // kubectl names the missing right. The plugin names the file with the roles that grant it.
    for words in ["cannot list resource \"nodes\"", "fleet-rbac.yaml"] {
        assert!(said.err.contains(words), "{}", said.err);
    }
}

fn an_exec_takes_the_second_role(desk: &Desk) {
    desk.agent_pod("node-1");
    let said = desk.run("lister", &["why", "node-1"]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    let missing = "cannot list resource \"pods\"";
    assert!(said.err.contains(missing), "{}", said.err);

    // The API server allows the exec, which then fails because there is no kubelet.
    let said = desk.run("asker", &["why", "node-1"]);
    assert_ne!(said.code, Some(0), "{}", said.err);
    assert!(!said.err.contains("forbidden"), "{}", said.err);
    assert!(!said.err.contains("pathproof: "), "{}", said.err);

    let said = desk.run("asker", &["status", "node-9"]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    let missing = "there is no agent pod on node node-9";
    assert!(said.err.contains(missing), "{}", said.err);
}

fn a_bundle_is_written_although_the_node_does_not_answer(desk: &Desk) {
    let path = desk.world.dir().join("bundle.tar.gz");
    let words = ["bundle", "node-1", "--file", path.to_str().expect("UTF-8")];
    let said = desk.run("asker", &words);
    assert_eq!(said.code, Some(1), "{}", said.err);
    for part in ["agent.log", "verdict.json", "last.pathproof"] {
        let missing = format!("missing: node-1/agent-node-1/{part}: ");
        assert!(said.err.contains(&missing), "{}", said.err);
    }
    assert!(!said.err.contains("node.json"), "{}", said.err);
    assert!(path.is_file());

    let said = desk.run("asker", &words);
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(
        said.err.contains("exists: give another name"),
        "{}",
        said.err
    );
}
