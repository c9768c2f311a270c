//! What `--help` and `--version` print.

use std::fmt::Write as _;

use super::flags::{FLAGS, Flag, Part};

const HEAD: &str = "\
pathproof in kube-proxy's place: proves on real packets that something else routes Service traffic, \
and answers /healthz and /livez from what it saw. It writes no rules.

Every flag of kube-proxy 1.36 is accepted. Those that mean nothing here are named once in the log. \
What kube-proxy has no flag for is set by pathproof's own variables, such as PATHPROOF_ENFORCEMENT.

Usage:
  kube-proxy [flags]

Flags:
";

/// The page of `--help`: every flag, as kube-proxy's own page lists them.
pub fn help() -> String {
    let shown = || FLAGS.iter().filter(|flag| !flag.hidden);
    let width = shown().map(|flag| flag.usage().len()).max().unwrap_or(0);
    let mut page = HEAD.to_owned();
    for flag in shown() {
        // Writing to a String cannot fail.
        let _ = writeln!(page, "{:width$}   {}", flag.usage(), meaning(flag));
    }
    page
}

/// What `--version` prints.
pub fn version() -> String {
    format!(
        "pathproof {} in place of kube-proxy\n",
        env!("CARGO_PKG_VERSION")
    )
}

fn meaning(flag: &Flag) -> &'static str {
    match flag.part {
        None => "accepted, and ignored",
        Some(Part::Cleanup) => "remove kube-proxy's rules and end",
        Some(Part::Config) => {
            "a KubeProxyConfiguration: its addresses, kubeconfig, node's name and log count"
        }
        Some(Part::Healthz) => "where /healthz and /livez are served (default 0.0.0.0:10256)",
        Some(Part::HealthzPort) => "their port, where the address has none; 0 serves nothing",
        Some(Part::Help) => "this page",
        Some(Part::Hostname) => "name of this node's Node object",
        Some(Part::InitOnly) => "end at once: there is nothing to prepare",
        Some(Part::Kubeconfig) => "kubeconfig of the API server",
        Some(Part::LogFormat) => "format of the log: text or json",
        Some(Part::Master) => "URL of the API server; wins over that of --kubeconfig",
        Some(Part::Metrics) => {
            "where /metrics and all of the admin port are served (default 127.0.0.1:10249); empty \
             serves nothing"
        }
        Some(Part::MetricsPort) => "their port, where the address has none; 0 serves nothing",
        Some(Part::Verbosity) => "how much is logged: 4 is debug, 6 and more is trace",
        Some(Part::Version) => "show the version and end",
        Some(Part::WriteConfig) => "refused: pathproof has no configuration of kube-proxy's",
    }
}
