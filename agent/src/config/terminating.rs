//! The options that select which marks of a Node announce its removal.

use clap::Args as ClapArgs;
use pathproof_judge::eligibility::{Mark, PRESETS, TerminatingMarks, key_problem};

#[derive(Debug, Clone, Default, PartialEq, Eq, ClapArgs)]
#[command(next_help_heading = "Cluster view")]
pub struct TerminatingArgs {
    /// Taint that marks a node as being removed: a key, or a preset (repeatable)
    ///
    /// Presets: cluster-autoscaler (always on, as in kube-proxy), karpenter, spot, shutdown, cordon. The
    /// taint's effect is ignored.
    #[arg(long, value_name = "KEY|PRESET", value_parser = taint)]
    pub terminating_taint: Vec<Option<String>>,

    /// Condition that marks a node as being removed: its type and status, by default True (repeatable)
    ///
    /// kubelet-shutdown selects kubelet's graceful node shutdown.
    #[arg(
        long,
        value_name = "TYPE[=STATUS]",
        value_parser = mark("condition", Some("True"))
    )]
    pub terminating_condition: Vec<Option<Mark>>,

    /// Label that marks a node as being removed, with this value or with any (repeatable)
    #[arg(long, value_name = "KEY[=VALUE]", value_parser = mark("label", None))]
    pub terminating_label: Vec<Option<Mark>>,
}

impl TerminatingArgs {
    /// All marks, with the taints of presets.
    pub(super) fn marks(&self) -> TerminatingMarks {
        let taints = self.terminating_taint.iter().flatten().map(String::as_str);
        let marks = self.terminating_condition.iter();
        let marks = marks.chain(&self.terminating_label).flatten();
        TerminatingMarks::of(taints).with(marks.cloned())
    }
}

/// Parses a taint's key, or the name of a preset.
fn taint(text: &str) -> Result<Option<String>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    if let Some((key, _)) = text.split_once(['=', ':']) {
        return Err(format!(
            "it has a value or an effect: give only the key, {key:?}"
        ));
    }
    // A misspelt preset would be a key that matches no taint.
    let names = PRESETS.map(|preset| preset.name);
    let is_nearly = |name: &&str| (1..=2).contains(&strsim::levenshtein(name, text));
    match (names.iter().copied().find(is_nearly), key_problem(text)) {
        (Some(preset), _) => Err(format!("it is not a preset: did you mean {preset:?}?")),
        (_, Some(problem)) => Err(format!(
            "{problem}: give a key or one of {}",
            names.join(", ")
        )),
        (None, None) => Ok(Some(text.to_owned())),
    }
}

/// Parses `KEY` or `KEY=VALUE`. Without a value the default counts; `None` is any value.
fn mark(
    kind: &'static str,
    default: Option<&'static str>,
) -> impl Fn(&str) -> Result<Option<Mark>, &'static str> + Clone + Send + Sync + 'static {
    move |text| {
        let text = text.trim();
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (text, default),
        };
        let is_status = value.is_some_and(|value| ["True", "False", "Unknown"].contains(&value));
        match key_problem(key) {
            _ if text.is_empty() => Ok(None),
            Some(problem) => Err(problem),
            None if kind == "condition" && !is_status => {
                Err("give the status True, False or Unknown")
            }
            None => Ok(Some((format!("{kind} {key}"), value.map(str::to_owned)))),
        }
    }
}
