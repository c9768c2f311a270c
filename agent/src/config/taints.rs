//! Taints that say a node is being removed: presets and keys.

use std::sync::Arc;

use super::{ConfigError, parse};

/// Presets and their keys. The first is always on: kube-proxy knows it and no other.
pub(super) const PRESETS: &[(&str, &[&str])] = &[
    ("cluster-autoscaler", &["ToBeDeletedByClusterAutoscaler"]),
    (
        "karpenter",
        &["karpenter.sh/disrupted", "karpenter.sh/disruption"],
    ),
    (
        "spot",
        &[
            "aws-node-termination-handler/spot-itn",
            "cloud.google.com/impending-node-termination",
        ],
    ),
    (
        "shutdown",
        &[
            "node.cloudprovider.kubernetes.io/shutdown",
            "node.kubernetes.io/out-of-service",
            "aws-node-termination-handler/asg-lifecycle-termination",
        ],
    ),
];

/// The keys that the default set and what was said stand for, each once.
pub(super) fn resolve(said: &[String]) -> Result<Vec<Arc<str>>, ConfigError> {
    let mut keys: Vec<Arc<str>> = PRESETS[0].1.iter().map(|key| Arc::from(*key)).collect();
    for value in parse::entries(said) {
        match PRESETS.iter().find(|(name, _)| *name == value) {
            Some((_, preset)) => preset.iter().for_each(|key| add(&mut keys, key)),
            None if is_key(value) => add(&mut keys, value),
            None => return Err(unknown(value)),
        }
    }
    Ok(keys)
}

fn add(keys: &mut Vec<Arc<str>>, key: &str) {
    if !keys.iter().any(|known| **known == *key) {
        keys.push(key.into());
    }
}

fn unknown(value: &str) -> ConfigError {
    let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
    ConfigError::Taint {
        value: value.to_owned(),
        presets: names.join(", "),
    }
}

/// A qualified name: an optional DNS prefix, a slash, and up to 63 characters. A word that is
/// nearly a preset is taken for a misspelt one: as a key it would match nothing, silently.
fn is_key(value: &str) -> bool {
    let part = |text: &str, max: usize| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
        text.len() <= max
            && text.bytes().all(inner)
            && edge(text.bytes().next())
            && edge(text.bytes().last())
    };
    match value.split_once('/') {
        Some((prefix, name)) => part(prefix, 253) && part(name, 63),
        None => part(value, 63) && PRESETS.iter().all(|(name, _)| distance(name, value) > 2),
    }
}

/// Levenshtein distance: insertions, deletions and replacements from one to the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, to) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn said(values: &[&str]) -> Result<Vec<Arc<str>>, ConfigError> {
        resolve(
            &values
                .iter()
                .map(|value| (*value).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn the_autoscalers_taint_is_always_there() {
        assert_eq!(
            said(&[]).unwrap(),
            ["ToBeDeletedByClusterAutoscaler".into()]
        );
    }

    #[test]
    fn presets_and_keys_add_up_without_repetition() {
        let keys = said(&[
            "karpenter",
            "leaving",
            "karpenter.sh/disrupted",
            "",
            "a.io/b",
        ]);
        assert_eq!(
            keys.unwrap().iter().map(|key| &**key).collect::<Vec<_>>(),
            [
                "ToBeDeletedByClusterAutoscaler",
                "karpenter.sh/disrupted",
                "karpenter.sh/disruption",
                "leaving",
                "a.io/b",
            ]
        );
    }

    #[rstest]
    #[case("karpentre")]
    #[case("a=b:NoSchedule")]
    #[case("two words")]
    #[case("/name")]
    #[case("prefix/")]
    fn neither_preset_nor_key(#[case] value: &str) {
        let error = said(&[value]).unwrap_err().to_string();
        assert!(
            error.contains(value) && error.contains("karpenter"),
            "{error}"
        );
    }
}
