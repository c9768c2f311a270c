//! kubectl as a child process: `fleet` and `preflight` send no other requests to the API server or to an
//! agent. For `fleet`, kubectl writes its messages to standard error itself.

use std::io::{self, Read as _};
use std::process::{Child, Command, ExitStatus, Stdio};

use pathproof_report::episodes::Journal;
use pathproof_rotator::NodeSeen;
use pathproof_shared::causes::chain;
use pathproof_shared::listed::{self, PodSeen};
use thiserror::Error;

use crate::args::{FleetArgs, KubectlOptions, Output};
use crate::report;

/// Labels of the agents' pods, as deploy/base and the chart set them.
const AGENTS: &str = "app.kubernetes.io/name=pathproof,app.kubernetes.io/component=agent";
pub(super) const CONTAINER: &str = "agent";
/// The binary in the image, which has no PATH.
const BINARY: &str = "/pathproof";
/// Number of pods that are read at the same time.
pub(super) const AT_ONCE: usize = 8;

#[derive(Debug, Error)]
pub(crate) enum KubectlError {
    #[error("kubectl is not in PATH: install it, or add its folder to PATH")]
    Missing,
    #[error("kubectl cannot be started")]
    Start(#[source] io::Error),
    #[error(
        "kubectl get {0} failed ({1}), see its message above; deploy/examples/fleet-rbac.yaml \
         grants the rights it needs"
    )]
    Failed(&'static str, ExitStatus),
    /// For `preflight`, whose rights are others.
    #[error("kubectl get {0} failed ({1}), see its message above")]
    NotListed(&'static str, ExitStatus),
    #[error("kubectl get {0} did not print a list in JSON")]
    Unreadable(&'static str, #[source] serde_json::Error),
    #[error(
        "there is no agent pod on node {0} in namespace {1}: check the name with kubectl get \
         nodes, or give pathproof's namespace with --namespace"
    )]
    NoAgent(String, String),
    #[error(
        "the agent's pod {0} is not running ({1}): kubectl describe pod --namespace {2} {0} shows why"
    )]
    NotRunning(String, String, String),
}

/// Lists the Nodes that the selector matches.
pub(super) fn nodes(args: &FleetArgs) -> Result<Vec<NodeSeen>, KubectlError> {
    let selector = args.selector.iter();
    let words: Vec<String> = selector.map(|text| format!("--selector={text}")).collect();
    get(args, "nodes", &words, listed::nodes)
}

/// Lists the agents' pods, or those on one node.
pub(super) fn agent_pods(
    args: &FleetArgs,
    node: Option<&str>,
) -> Result<Vec<PodSeen>, KubectlError> {
    let mut words = vec![
        format!("--namespace={}", args.namespace),
        format!("--selector={AGENTS}"),
    ];
    words.extend(node.map(|node| format!("--field-selector=spec.nodeName={node}")));
    let pods = get(args, "pods", &words, listed::pods)?;
    match node.filter(|_| pods.is_empty()) {
        Some(node) => Err(KubectlError::NoAgent(
            node.to_owned(),
            args.namespace.clone(),
        )),
        None => Ok(pods),
    }
}

/// Name of the agent's pod on `node`.
pub(super) fn agent_pod(args: &FleetArgs, node: &str) -> Result<String, KubectlError> {
    let namespace = args.namespace.clone();
    let pods = agent_pods(args, Some(node))?.into_iter();
    // During an update a node may have two pods. Prefer one that runs and is not being deleted.
    match pods.max_by_key(|pod| (pod.waits.is_none(), !pod.deleting)) {
        None => Err(KubectlError::NoAgent(node.to_owned(), namespace)),
        Some(PodSeen { name, waits, .. }) => match waits {
            None => Ok(name),
            Some(phase) => Err(KubectlError::NotRunning(name, phase, namespace)),
        },
    }
}

/// Reads the journals of all agents. Also returns the nodes whose journal could not be read, with the reason.
pub(super) fn journals(args: &FleetArgs) -> Result<(Vec<Journal>, Vec<String>), KubectlError> {
    let pods = agent_pods(args, None)?;
    let (mut journals, mut unread) = (Vec::<Journal>::new(), Vec::new());
    for pods in pods.chunks(AT_ONCE) {
        let start = |pod: &PodSeen| {
            let mut command = in_pod(args, &pod.name, "report");
            command.arg("--output=json").stdin(Stdio::null());
            command.stdout(Stdio::piped()).spawn()
        };
        let started: Vec<_> = pods.iter().map(start).collect();
        for (PodSeen { node, name, .. }, child) in pods.iter().zip(started) {
            let printed = child.and_then(printed).map_err(not_started)?;
            let read = match printed {
                (status, document) if status.success() => journals_of(node, name, &document),
                (status, _) => Err(status.to_string()),
            };
            match read {
                Ok(read) => journals.extend(read),
                Err(why) => unread.push((node, why)),
            }
        }
    }
    // During an update a node may have two pods.
    unread.retain(|(node, _)| !journals.iter().any(|journal| journal.node == **node));
    let unread = unread.iter().map(|(node, why)| format!("{node}: {why}"));
    Ok((journals, unread.collect()))
}

/// Reads what kubectl prints. It ends if it prints more than is read.
fn printed(mut child: Child) -> io::Result<(ExitStatus, Vec<u8>)> {
    let mut document = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(report::MAX_FILE).read_to_end(&mut document)?;
    }
    Ok((child.wait()?, document))
}

/// An agent may speak of its own node only.
fn journals_of(node: &str, pod: &str, document: &[u8]) -> Result<Vec<Journal>, String> {
    let journals = report::parse(pod, document).map_err(|error| chain(&error))?;
    match journals.iter().all(|journal| journal.node == node) {
        true => Ok(journals),
        false => Err("its journal names another node".to_owned()),
    }
}

/// Replaces this process by kubectl, which runs the agent's binary in `pod`. Standard streams, signals and
/// exit code are then kubectl's. Returns only if kubectl cannot be started.
pub(super) fn exec(args: &FleetArgs, pod: &str, run: &str, options: &[String]) -> KubectlError {
    let mut command = in_pod(args, pod, run);
    if args.output == Output::Json {
        command.arg("--output=json");
    }
    not_started(replaced_by(command.args(options)))
}

#[cfg(unix)]
fn replaced_by(command: &mut Command) -> io::Error {
    std::os::unix::process::CommandExt::exec(command)
}

/// Windows cannot replace a process: this one waits, and ends with the exit code of the other.
#[cfg(not(unix))]
fn replaced_by(command: &mut Command) -> io::Error {
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}

pub(super) fn in_pod(args: &FleetArgs, pod: &str, run: &str) -> Command {
    let mut command = kubectl("exec", &args.kubectl);
    command
        .arg(format!("--namespace={}", args.namespace))
        .args([pod, "--container", CONTAINER, "--", BINARY, run]);
    command
}

fn get<T>(
    args: &FleetArgs,
    what: &'static str,
    words: &[String],
    read: fn(&[u8]) -> serde_json::Result<T>,
) -> Result<T, KubectlError> {
    let mut command = kubectl("get", &args.kubectl);
    command.args([what, "--output=json"]).args(words);
    // A credential plugin may prompt for a password.
    command.stdin(Stdio::inherit()).stderr(Stdio::inherit());
    let output = command.output().map_err(not_started)?;
    let status = output.status;
    if !status.success() {
        return Err(KubectlError::Failed(what, status));
    }
    read(&output.stdout).map_err(|source| KubectlError::Unreadable(what, source))
}

pub(crate) fn kubectl(verb: &str, options: &KubectlOptions) -> Command {
    let mut command = Command::new("kubectl");
    command.arg(verb).args(&options.0);
    command
}

pub(crate) fn not_started(source: io::Error) -> KubectlError {
    match source.kind() {
        io::ErrorKind::NotFound => KubectlError::Missing,
        _ => KubectlError::Start(source),
    }
}

#[cfg(test)]
mod tests {
    use pathproof_facts::time::Mono;

    use super::*;

    #[test]
    fn an_agent_speaks_of_its_own_node_only() {
        let mut journal = Journal::resume(None, "worker-1", "boot-1", Mono(0));
        let document = journal.document();
        let read = |node: &str| journals_of(node, "pathproof-agent-a", document.as_bytes());
        assert_eq!(read("worker-1").map(|journals| journals.len()), Ok(1));
        assert_eq!(
            read("worker-2"),
            Err("its journal names another node".to_owned())
        );
    }
}
