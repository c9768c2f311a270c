//! Whether the node may get new connections: KEP-3836, from the Node object alone. The datapath's
//! health is separate; only `answer` combines the two.

use std::collections::BTreeSet;
use std::fmt;

use pathproof_facts::cluster::NodeFacts;
use pathproof_facts::switches::NodeSelector;
use serde::{Deserialize, Serialize};

/// Whether the node is being removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Eligibility {
    /// The Node exists, is not deleted, and has no terminating taint.
    Eligible,
    /// `metadata.deletionTimestamp` is set.
    Deleting,
    Tainted {
        taint: String,
    },
    /// A configured condition or label announces the removal.
    Marked {
        mark: String,
    },
    /// No Node object was seen in this boot.
    NeverSeen,
}

impl Eligibility {
    /// Whether the Node object shows that the node is being removed.
    pub fn is_leaving(&self) -> bool {
        !matches!(self, Eligibility::Eligible | Eligibility::NeverSeen)
    }

    /// Whether a mark makes the node leave that a program may put on every node by mistake, so that the fleet
    /// brake limits it. The machine of a node with any other mark goes in any case.
    pub fn is_limited(&self) -> bool {
        match self {
            Eligibility::Marked { mark } => mark.split('=').next() != Some(KUBELET_SHUTDOWN),
            Eligibility::Tainted { taint } => !is_final(taint),
            Eligibility::Eligible | Eligibility::Deleting | Eligibility::NeverSeen => false,
        }
    }

    /// Name as metrics and `/verdict` show it.
    pub fn name(&self) -> &'static str {
        match self {
            Eligibility::Eligible => "eligible",
            Eligibility::Deleting => "deleting",
            Eligibility::Tainted { .. } => "tainted",
            Eligibility::Marked { .. } => "marked",
            Eligibility::NeverSeen => "never_seen",
        }
    }
}

impl fmt::Display for Eligibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Eligibility::Eligible => f.write_str("the node is not being removed"),
            Eligibility::Deleting => f.write_str("the Node object is being deleted"),
            Eligibility::Tainted { taint } => {
                write!(f, "the node is about to be removed: taint {taint}")
            }
            Eligibility::Marked { mark } => write!(f, "the node is about to be removed: {mark}"),
            Eligibility::NeverSeen => {
                f.write_str("the node's eligibility is unknown: no Node object was received")
            }
        }
    }
}

/// Judges the last known Node object; `None` if there was none in this boot.
pub fn eligibility(node: Option<&NodeFacts>, terminating: &TerminatingMarks) -> Eligibility {
    let Some(node) = node else {
        return Eligibility::NeverSeen;
    };
    if node.deleting {
        return Eligibility::Deleting;
    }
    let taints = node.taints.iter();
    let taints = taints.filter(|taint| terminating.contains(taint));
    let taints = taints.map(|taint| Eligibility::Tainted {
        taint: taint.to_string(),
    });
    let is_set = |(key, value): &&Mark| {
        let found = node.marks.get(key.as_str()).map(|found| &**found);
        found.is_some() && (value.is_none() || value.as_deref() == found)
    };
    let marks = terminating.marks.iter().filter(is_set);
    let marks = marks.map(|(key, value)| Eligibility::Marked {
        mark: match value {
            Some(value) => format!("{key}={value}"),
            None => key.clone(),
        },
    });
    // The fleet brake may hold a node with any other mark, so a mark that it must not hold is preferred.
    let all = taints.chain(marks);
    all.min_by_key(Eligibility::is_limited)
        .unwrap_or(Eligibility::Eligible)
}

/// Whether the taint with this key always makes a node leave, as in kube-proxy.
pub fn always_counts(taint: &str) -> bool {
    PRESETS[0].keys.contains(&taint)
}

/// Whether the machine goes in any case if it has the taint with this key.
pub fn is_final(taint: &str) -> bool {
    let mut presets = PRESETS.iter();
    presets.any(|preset| FINAL.contains(&preset.name) && preset.keys.contains(&taint))
}

/// Names of presets whose taints are [final](is_final).
const FINAL: [&str; 3] = ["cluster-autoscaler", "spot", "shutdown"];
/// The mark of kubelet's graceful shutdown, in [`NodeFacts::marks`].
pub const KUBELET_SHUTDOWN: &str = "condition kubelet-shutdown";

/// A named set of taint keys that announce the removal of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name in `--terminating-taint`.
    pub name: &'static str,
    pub keys: &'static [&'static str],
}

/// All presets. The first one always counts, as in kube-proxy.
pub const PRESETS: [Preset; 5] = [
    Preset {
        name: "cluster-autoscaler",
        keys: &["ToBeDeletedByClusterAutoscaler"],
    },
    // karpenter.sh/disruption is the key of Karpenter's v1beta1.
    Preset {
        name: "karpenter",
        keys: &["karpenter.sh/disrupted", "karpenter.sh/disruption"],
    },
    Preset {
        name: "spot",
        keys: &[
            "aws-node-termination-handler/spot-itn",
            "aws-node-termination-handler/asg-lifecycle-termination",
            "cloud.google.com/impending-node-termination",
        ],
    },
    Preset {
        name: "shutdown",
        keys: &["node.cloudprovider.kubernetes.io/shutdown"],
    },
    Preset {
        name: "cordon",
        keys: &["node.kubernetes.io/unschedulable"],
    },
];

/// A key of [`NodeFacts::marks`], and the value that counts; `None` is any value.
pub type Mark = (String, Option<String>);

/// Taints, conditions and labels that announce the removal of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminatingMarks {
    /// Keys of taints. Effects do not matter, as in kube-proxy.
    keys: BTreeSet<String>,
    #[serde(default)]
    marks: BTreeSet<Mark>,
}

impl Default for TerminatingMarks {
    /// The cluster autoscaler's preset.
    fn default() -> Self {
        Self {
            keys: PRESETS[0].keys.iter().map(ToString::to_string).collect(),
            marks: BTreeSet::new(),
        }
    }
}

impl TerminatingMarks {
    /// The default and these taints: names of [presets](PRESETS), or keys.
    pub fn of<'a>(taints: impl IntoIterator<Item = &'a str>) -> Self {
        let mut terminating = Self::default();
        for taint in taints {
            let preset = PRESETS.iter().find(|preset| preset.name == taint);
            let own = [taint];
            let keys = preset.map_or(own.as_slice(), |preset| preset.keys);
            let keys = keys.iter().map(ToString::to_string);
            terminating.keys.extend(keys);
        }
        terminating
    }

    /// Whether a taint with this key announces the removal of a node.
    pub fn contains(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// These marks count too.
    #[must_use]
    pub fn with(mut self, marks: impl IntoIterator<Item = Mark>) -> Self {
        self.marks.extend(marks);
        self
    }

    /// The Node without marks that neither this nor the selector names, and that would only fill recordings.
    pub fn relevant(&self, mut node: NodeFacts, selector: Option<&NodeSelector>) -> NodeFacts {
        let counts = |key: &str| self.marks.iter().any(|(counts, _)| counts == key);
        let selects = |key: &str| selector.is_some_and(|selector| selector.names(key));
        node.marks.retain(|key, _| counts(key) || selects(key));
        node
    }
}

/// Why this is no key of a taint or label, or type of a condition, by the rules of Kubernetes'
/// `IsQualifiedName`.
pub fn key_problem(text: &str) -> Option<&'static str> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let outer = |c: char| c.is_ascii_alphanumeric();
    let is_key = prefix.is_none_or(is_dns_name)
        && (1..=63).contains(&name.len())
        && name.chars().all(inner)
        && name.starts_with(outer)
        && name.ends_with(outer);
    (!is_key).then_some(
        "it must be 1 to 63 letters, digits, '-', '_' and '.', begin and end with a letter or digit, and may \
         have a DNS name in lower case and one slash before it",
    )
}

/// Whether this is a valid name of an object (RFC 1123 subdomain).
pub fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty()
            && label.chars().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests;
