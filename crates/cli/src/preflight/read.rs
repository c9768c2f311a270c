//! Lists a cluster's objects by kubectl, or reads files with what kubectl printed. A list that may not be
//! read is a line of the result, not an error.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Stdio;

use pathproof_shared::input;
use serde_json::Value;

use super::{Line, line};
use crate::args::{KubectlOptions, PreflightArgs};
use crate::fleet::kubectl::{KubectlError, kubectl, not_started};

/// Maximum size of a recorded file.
const LARGEST: u64 = 1 << 30;
/// Each list, and the words by which kubectl prints it. On EKS kube-proxy's configuration is in
/// kube-proxy-config. ServiceCIDRs exist from Kubernetes 1.33 on.
const LISTS: [(&str, &str); 8] = [
    ("version", "version"),
    ("nodes", "get nodes"),
    ("namespaces", "get namespaces"),
    ("services", "get services --all-namespaces"),
    ("endpointslices", "get endpointslices --all-namespaces"),
    ("daemonsets", "get daemonsets --all-namespaces"),
    ("configmaps", CONFIGMAPS),
    ("servicecidrs", "get servicecidrs"),
];
const CONFIGMAPS: &str = "get configmaps --namespace=kube-system --ignore-not-found kube-proxy \
                          kube-proxy-config cilium-config";

/// A cluster, as far as it could be read.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    /// Namespace for pathproof.
    pub target: String,
    /// Objects by the name of their list.
    pub lists: BTreeMap<&'static str, Vec<Value>>,
    /// A line for each list that could not be read.
    pub unread: Vec<Line>,
}

impl Cluster {
    pub(super) fn has(&self, list: &str) -> bool {
        self.lists.contains_key(list)
    }

    /// Objects of a list; none if it could not be read.
    pub(super) fn list(&self, list: &str) -> &[Value] {
        let list = self.lists.get(list).map(Vec::as_slice);
        list.unwrap_or_default()
    }

    pub(super) fn find(&self, list: &str, name: &str) -> Option<&Value> {
        let mut objects = self.list(list).iter();
        objects.find(|object| text(object, "/metadata/name") == name)
    }

    /// A DaemonSet that has a pod on some node. A replacement of kube-proxy may leave its DaemonSet with a
    /// selector that fits none.
    pub(super) fn runs(&self, name: &str) -> Option<&Value> {
        let set = self.find("daemonsets", name)?;
        let count = set.pointer("/status/desiredNumberScheduled");
        count.is_none_or(|count| *count != 0).then_some(set)
    }

    /// A value of a ConfigMap; empty without one.
    pub(super) fn setting(&self, map: &str, key: &str) -> &str {
        let value = self.find("configmaps", map).map(|map| &map["data"][key]);
        value.and_then(Value::as_str).unwrap_or_default()
    }
}

/// The text at a JSON pointer; empty if there is none.
pub(super) fn text<'a>(value: &'a Value, at: &str) -> &'a str {
    let found = value.pointer(at).and_then(Value::as_str);
    found.unwrap_or_default()
}

/// Value of a label, or else of an annotation; empty without one.
pub(super) fn note<'a>(object: &'a Value, key: &str) -> &'a str {
    let mut kinds = ["labels", "annotations"].into_iter();
    let found = kinds.find_map(|kind| object["metadata"][kind][key].as_str());
    found.unwrap_or_default()
}

/// `namespace/name`, or the name alone.
pub(super) fn name(object: &Value) -> String {
    let name = text(object, "/metadata/name");
    match text(object, "/metadata/namespace") {
        "" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    }
}

/// Reads everything that the checks need.
pub(super) fn cluster(args: &PreflightArgs) -> Result<Cluster, KubectlError> {
    let options = [("kubeconfig", &args.kubeconfig), ("context", &args.context)];
    let words = options.into_iter();
    let words = words.filter_map(|(name, value)| Some(format!("--{name}={}", value.as_ref()?)));
    let kubectl = KubectlOptions(words.collect());
    let mut cluster = Cluster {
        target: args.namespace.clone(),
        ..Cluster::default()
    };
    for (list, words) in LISTS {
        let printed = match &args.from_files {
            Some(folder) => recorded(folder, list, words),
            None => printed(&kubectl, list, words)?,
        };
        match printed {
            Ok(text) => {
                let objects = objects(&text);
                let objects = objects.map_err(|why| KubectlError::Unreadable(list, why))?;
                cluster.lists.insert(list, objects);
            }
            Err(unread) => cluster.unread.push(*unread),
        }
    }
    Ok(cluster)
}

/// Objects that kubectl printed: a list, one object, or nothing if no object has one of the wanted names.
fn objects(text: &[u8]) -> serde_json::Result<Vec<Value>> {
    if text.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let mut whole: BTreeMap<String, Value> = serde_json::from_slice(text)?;
    Ok(match whole.remove("items") {
        Some(Value::Array(items)) => items,
        _ => vec![whole.into_iter().collect()],
    })
}

fn recorded(folder: &Path, list: &str, words: &str) -> Result<Vec<u8>, Box<Line>> {
    let file = format!("{list}.json");
    let path = folder.join(&file);
    input::read(&path, LARGEST).map_err(|error| {
        let remedy = format!("kubectl {words} --output=json > {file}");
        let unread = line("not recorded", &format!("{}: {error}", path.display()));
        Box::new(Line { remedy, ..unread })
    })
}

/// The text of a list, or the line that reports it missing.
type Printed = Result<Result<Vec<u8>, Box<Line>>, KubectlError>;

fn printed(options: &KubectlOptions, list: &'static str, words: &str) -> Printed {
    let mut words = words.split_whitespace();
    let mut command = kubectl(words.next().unwrap_or_default(), options);
    let is_first = list == LISTS[0].0;
    if is_first {
        // Shows the prompt of a credential plugin, which usually caches the login for the other lists.
        command.stderr(Stdio::inherit());
    }
    let command = command.args(words).stdin(Stdio::inherit());
    let command = command.args(["--output=json", "--request-timeout=1m"]);
    let output = command.output().map_err(not_started)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let forbidden = errors.split_once("(Forbidden): ");
    match forbidden.and_then(|(_, why)| why.lines().next()) {
        _ if output.status.success() => Ok(Ok(output.stdout)),
        Some(why) => {
            let verb = if list == "configmaps" { "get" } else { "list" };
            let unread = line("not allowed", &format!("{verb} {list} ({why})"));
            Ok(Err(Box::new(unread)))
        }
        None if errors.contains("doesn't have a resource type") => Ok(Ok(Vec::new())),
        None if is_first => {
            let unread = line("no version read", &output.status.to_string());
            Ok(Err(Box::new(unread)))
        }
        None => {
            // The error refers to kubectl's message.
            let _ = io::stderr().write_all(&output.stderr);
            Err(KubectlError::NotListed(list, output.status))
        }
    }
}
