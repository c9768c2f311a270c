//! Whether the node may get new connections: KEP-3836, from the Node object alone. The datapath's
//! health is separate; only `answer` combines the two.

use std::collections::BTreeSet;
use std::fmt;

use pathproof_facts::cluster::NodeFacts;
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
    /// No Node object was seen in this boot.
    NeverSeen,
}

impl Eligibility {
    /// Whether the Node object shows that the node is being removed.
    pub fn is_leaving(&self) -> bool {
        matches!(self, Eligibility::Deleting | Eligibility::Tainted { .. })
    }

    /// Name as metrics and `/verdict` show it.
    pub fn name(&self) -> &'static str {
        match self {
            Eligibility::Eligible => "eligible",
            Eligibility::Deleting => "deleting",
            Eligibility::Tainted { .. } => "tainted",
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
            Eligibility::NeverSeen => {
                f.write_str("the node's eligibility is unknown: no Node object was received")
            }
        }
    }
}

/// Judges the last known Node object; `None` if there was none in this boot.
pub fn eligibility(node: Option<&NodeFacts>, terminating: &TerminatingTaints) -> Eligibility {
    let Some(node) = node else {
        return Eligibility::NeverSeen;
    };
    if node.deleting {
        return Eligibility::Deleting;
    }
    match node.taints.iter().find(|taint| terminating.contains(taint)) {
        Some(taint) => Eligibility::Tainted {
            taint: taint.to_string(),
        },
        None => Eligibility::Eligible,
    }
}

/// A named set of taint keys that announce the removal of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name in `--terminating-taint`.
    pub name: &'static str,
    pub keys: &'static [&'static str],
}

/// All presets. The first one always counts, as in kube-proxy.
pub const PRESETS: [Preset; 4] = [
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
];

/// Keys of the taints that announce the removal of a node. Effects do not matter, as in kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminatingTaints {
    keys: BTreeSet<String>,
}

impl Default for TerminatingTaints {
    /// The cluster autoscaler's preset.
    fn default() -> Self {
        Self {
            keys: PRESETS[0].keys.iter().map(ToString::to_string).collect(),
        }
    }
}

impl TerminatingTaints {
    /// The default and `texts`: names of [presets](PRESETS) or taint keys.
    ///
    /// # Errors
    /// The first text that is neither.
    pub fn parse<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<Self, TaintError> {
        let mut taints = Self::default();
        for text in texts {
            taints.add(text.as_ref())?;
        }
        Ok(taints)
    }

    fn add(&mut self, text: &str) -> Result<(), TaintError> {
        let text = text.trim();
        if let Some(preset) = PRESETS.iter().find(|preset| preset.name == text) {
            self.keys
                .extend(preset.keys.iter().map(ToString::to_string));
            return Ok(());
        }
        check_key(text)?;
        self.keys.insert(text.to_owned());
        Ok(())
    }

    /// Whether a taint with this key announces the removal of a node.
    pub fn contains(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaintError {
    #[error(
        "terminating taint is empty: give a taint key or one of {}",
        preset_names()
    )]
    Empty,
    /// The text has a value or an effect.
    #[error("terminating taint {text:?} has a value or an effect: give only the key, {key:?}")]
    NotKeyAlone { text: String, key: String },
    #[error(
        "terminating taint {text:?} is not a valid taint key, {problem}: give a key such as \
         \"karpenter.sh/disrupted\" or one of {}",
        preset_names()
    )]
    Invalid { text: String, problem: &'static str },
}

fn preset_names() -> String {
    PRESETS.map(|preset| preset.name).join(", ")
}

/// The rules of Kubernetes' `IsQualifiedName`.
fn check_key(text: &str) -> Result<(), TaintError> {
    if text.is_empty() {
        return Err(TaintError::Empty);
    }
    if let Some((key, _)) = text.split_once(['=', ':']) {
        return Err(TaintError::NotKeyAlone {
            text: text.to_owned(),
            key: key.to_owned(),
        });
    }
    let invalid = |problem| {
        Err(TaintError::Invalid {
            text: text.to_owned(),
            problem,
        })
    };
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if name.contains('/') {
        return invalid("it has more than one slash");
    }
    if prefix.is_some_and(|prefix| !is_dns_name(prefix)) {
        return invalid("the part before the slash is not a DNS name in lower case");
    }
    if name.is_empty() || name.len() > 63 {
        return invalid("its name must have 1 to 63 characters");
    }
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let outer = |c: char| c.is_ascii_alphanumeric();
    if !name.chars().all(inner) || !name.starts_with(outer) || !name.ends_with(outer) {
        return invalid(
            "its name must be letters, digits, '-', '_' and '.', and begin and end with a letter or digit",
        );
    }
    Ok(())
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
