//! The commands that README, quickstart and install show, and the list of what runs each of them.
//! `cargo xtask tidy` refuses a command that is not on the list, `cargo xtask newcomer` runs README's.

/// Pages whose commands have to be on the list.
pub(crate) const PAGES: [&str; 3] = ["README.md", "docs/quickstart.md", "docs/install.md"];

/// The runner of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// By `cargo xtask newcomer`, as it stands in README.
    Newcomer,
    /// By this function, in other words perhaps: `path/of/file.rs::name`.
    By(&'static str),
    /// Nowhere, for this reason.
    Nowhere(&'static str),
}

const ROLLOUT: Run =
    Run::By("tests/install/rollout.rs::the_way_from_shadow_to_enforce_is_as_the_page_says");
const FIRST: Run = Run::By(
    "tests/install/first.rs::the_shipped_manifests_bring_a_node_to_200_with_the_rights_they_name",
);
const STATUS: Run = Run::By("tests/node/agent_http.rs::status_and_version_tell");
const SYSTEMD: Run = Run::Nowhere("it would install a unit on the machine that runs the tests");

/// Beginnings of commands. The first entry that fits counts.
pub(crate) const LIST: [(&str, Run); 24] = [
    ("cargo xtask demo", Run::Newcomer),
    ("cargo xtask test", Run::Newcomer),
    ("cargo build --profile dist", Run::Newcomer),
    ("cargo xtask image", Run::By("xtask/src/image.rs::run")),
    (
        "mkdir manifests && kubectl get node,",
        Run::Nowhere("it reads the reader's cluster"),
    ),
    (
        "sudo target/dist/pathproof run --manifests",
        Run::Nowhere("it needs the reader's cluster and runs until it is ended"),
    ),
    ("target/dist/pathproof status --watch", STATUS),
    ("kubectl create namespace pathproof", ROLLOUT),
    (
        "kubectl label namespace pathproof",
        Run::By("tests/cluster/shipped.rs::a_namespace_that_forbids_the_agents_is_refused"),
    ),
    ("helm install pathproof deploy/chart", ROLLOUT),
    ("kubectl -n pathproof rollout status", ROLLOUT),
    (
        "kubectl pathproof",
        Run::By("tests/install/fleet.rs::kubectl_pathproof_runs_commands_of_the_nodes_agent"),
    ),
    ("curl -i http://NODE:10256/healthz", FIRST),
    (
        "helm uninstall pathproof",
        Run::By(
            "tests/install/remove.rs::an_uninstall_leaves_10256_answered_and_a_cleanup_leaves_nothing",
        ),
    ),
    ("oc adm policy", Run::Nowhere("there is no OpenShift here")),
    ("kubectl apply -k .", FIRST),
    (
        "kubectl get nodes -o custom-columns",
        Run::By("tests/cluster/publish.rs::the_nodes_condition_follows_the_datapath"),
    ),
    (
        "kubectl -n pathproof exec",
        Run::By("tests/cluster/fleet.rs::an_exec_takes_the_second_role"),
    ),
    (
        "kubectl -n pathproof get pods -o wide",
        Run::Nowhere("kubectl's own"),
    ),
    (
        "helm upgrade pathproof deploy/chart --namespace pathproof --reuse-values --set agent.enf",
        ROLLOUT,
    ),
    (
        "helm upgrade pathproof deploy/chart --namespace pathproof --reuse-values --set 'agent.ad",
        Run::By("tests/deploy/args.rs::a_value_becomes_the_option"),
    ),
    ("sudo ", SYSTEMD),
    ("echo PATHPROOF_ENFORCEMENT=audit", SYSTEMD),
    ("pathproof status", STATUS),
];

/// The list's entry for a command.
pub(crate) fn known(command: &str) -> Option<&'static (&'static str, Run)> {
    LIST.iter().find(|(begin, _)| command.starts_with(begin))
}

/// Commands of a page's fenced shell blocks, with their lines: continued lines joined, comments cut
/// off. A block with prompts shows output too.
pub(crate) fn of_page(text: &str) -> Vec<(usize, String)> {
    let mut commands: Vec<(usize, String)> = Vec::new();
    let (mut shell, mut fenced, mut continued) = (false, false, false);
    let mut prompts = false;
    for (number, line) in text.lines().enumerate() {
        if let Some(language) = line.strip_prefix("```") {
            fenced = !fenced;
            shell = fenced && matches!(language, "" | "console" | "sh");
            prompts = false;
            continue;
        }
        if !shell {
            continue;
        }
        let typed = line.strip_prefix("$ ");
        prompts |= typed.is_some();
        if prompts && typed.is_none() && !continued {
            continue;
        }
        let line = typed.unwrap_or(line);
        let line = line.split(" # ").next().unwrap_or_default().trim();
        let (line, more) = match line.strip_suffix('\\') {
            Some(line) => (line.trim_end(), true),
            None => (line, false),
        };
        match commands.last_mut().filter(|_| continued) {
            Some((_, command)) => *command = format!("{command} {line}"),
            None if line.is_empty() || line.starts_with('#') => {}
            None => commands.push((number + 1, line.to_owned())),
        }
        continued = more;
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_as_they_are_typed() {
        let page = "cargo none\n```console\n$ one two\noutput\n$ three \\\n  four\n```\n```yaml\na: b\n```\n\
                    ```\n# note\nfive      # why\nsix\n```\n";
        let found = of_page(page);
        let found: Vec<(usize, &str)> = found.iter().map(|(at, c)| (*at, &**c)).collect();
        let wanted = [(3, "one two"), (5, "three four"), (13, "five"), (14, "six")];
        assert_eq!(found, wanted);
    }
}
