//! From kube-proxy's settings to the options of `pathproof run`, and what is to be said of them.
//!
//! Variables of pathproof's own still count: whatever no flag or file says of the same setting.

use std::net::{IpAddr, SocketAddr};

use clap::CommandFactory as _;

use super::file;
use super::wanted::Settings;
use crate::args::Args;
use crate::config::{Config, HEALTHZ_PORT};

/// Port of kube-proxy's metrics.
const METRICS_PORT: u16 = 10249;
/// What serves nothing.
const NONE: &str = "none";

/// What the agent does in kube-proxy's place unless it is told otherwise: nobody else holds the
/// port there, and kube-proxy's rights do not reach to what is published.
const DEFAULTS: [(&str, &str, &str); 4] = [
    ("port-takeover", "PATHPROOF_PORT_TAKEOVER", "bind"),
    ("publish-condition", "PATHPROOF_PUBLISH_CONDITION", "off"),
    ("publish-events", "PATHPROOF_PUBLISH_EVENTS", "off"),
    (
        "admin-bind-address",
        "PATHPROOF_ADMIN_BIND_ADDRESS",
        "127.0.0.1:10249",
    ),
];

/// The command line of `pathproof run` that these settings come to. `is_set` tells of a variable
/// whether it is there.
pub(super) fn of(settings: &Settings, is_set: &dyn Fn(&str) -> bool) -> Vec<String> {
    let healthz = address(
        settings.healthz.as_deref(),
        settings.healthz_port,
        HEALTHZ_PORT,
    );
    // As kube-proxy documents it: set to nothing, it serves nothing.
    let metrics = match settings.metrics.as_deref() {
        Some("") => Some(NONE.to_owned()),
        said => address(said, settings.metrics_port, METRICS_PORT),
    };
    let filter = settings.verbosity.and_then(filter).map(str::to_owned);
    let said = [
        ("kubeconfig", settings.kubeconfig.clone()),
        ("server", settings.master.clone()),
        ("node-name", settings.hostname.clone()),
        ("healthz-bind-address", healthz),
        ("admin-bind-address", metrics),
        ("log-format", settings.log_format.clone()),
        ("log-filter", filter),
    ];
    let defaults = DEFAULTS.into_iter().filter(|(option, variable, _)| {
        let is_said = said
            .iter()
            .any(|(name, value)| name == option && value.is_some());
        !is_said && !is_set(variable)
    });
    let defaults = defaults.map(|(option, _, value)| format!("--{option}={value}"));
    let head = ["pathproof".to_owned(), "run".to_owned()];
    let said_words = said
        .iter()
        .filter_map(|(option, value)| Some(format!("--{option}={}", value.as_ref()?)));
    head.into_iter().chain(said_words).chain(defaults).collect()
}

/// An address with its port, where either was said. A port of 0 serves nothing; any other counts
/// only where the address has none.
fn address(said: Option<&str>, port: Option<u16>, usual: u16) -> Option<String> {
    if port == Some(0) {
        return Some(NONE.to_owned());
    }
    let text = said?.trim();
    Some(match text.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port.unwrap_or(usual)).to_string(),
        Err(_) => text.to_owned(),
    })
}

/// What klog's levels come to. Everybody says -v=2, and means what is usual.
fn filter(verbosity: u32) -> Option<&'static str> {
    match verbosity {
        0..4 => None,
        4..6 => Some("info,kube_client=off,pathproof=debug"),
        6.. => Some("info,kube_client=off,pathproof=trace"),
    }
}

/// Names of options as kube-proxy has them.
pub(super) fn in_their_words(text: &str) -> String {
    [
        ("--server", "--master"),
        ("--node-name", "--hostname-override"),
        ("--admin-bind-address", "--metrics-bind-address"),
    ]
    .into_iter()
    .fold(text.to_owned(), |text, (ours, theirs)| {
        text.replace(ours, theirs)
    })
}

/// What is to be said once.
pub(super) fn notes(settings: &Settings, config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(of_flags(settings));
    if let Some(address) = config.healthz.address
        && address.is_loopback()
    {
        notes.push(format!(
            "no load balancer reaches {address}, and /healthz tells loopback of the agent alone: \
             give --healthz-bind-address=0.0.0.0"
        ));
    }
    notes.push(
        "kube-proxy's rights (ClusterRole system:node-proxier) reach for the verdict. They do not \
         reach for the Node's condition (patch nodes/status) nor for moving the sentinel's \
         endpoint (`pathproof rotate`, a Deployment with its own ServiceAccount); condition and \
         Events are off here unless PATHPROOF_PUBLISH_CONDITION and PATHPROOF_PUBLISH_EVENTS say on"
            .to_owned(),
    );
    notes
}

/// Flags that are not used, all in one line.
fn of_flags(settings: &Settings) -> Option<String> {
    let beside_file = settings
        .used
        .iter()
        .filter(|name| settings.config.is_some() && file::OVERRIDDEN.contains(name));
    let groups = [
        (
            "flags of kube-proxy that mean nothing here",
            dashed(settings.ignored.iter().copied()),
        ),
        (
            "flags that do not count beside --config",
            dashed(beside_file.copied()),
        ),
        (
            "flags that kube-proxy 1.36 does not know",
            unknown(&settings.unknown),
        ),
    ];
    let groups = groups.into_iter().filter(|(_, names)| !names.is_empty());
    let text: Vec<String> = groups
        .map(|(what, names)| format!("{what}: {names}"))
        .collect();
    (!text.is_empty()).then(|| format!("ignored: {}", text.join("; ")))
}

fn dashed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names
        .map(|name| format!("--{name}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Those that are pathproof's own are set otherwise.
fn unknown(names: &[String]) -> String {
    let args = Args::command();
    let run = args.find_subcommand("run");
    let own = |name: &str| {
        let mut options = run?.get_arguments();
        let option = options.find(|option| option.get_long() == Some(name))?;
        Some(option.get_env()?.to_string_lossy().into_owned())
    };
    let name = |name: &String| match own(name) {
        Some(variable) => format!("--{name} (pathproof's own: set {variable})"),
        None => format!("--{name}"),
    };
    names.iter().map(name).collect::<Vec<_>>().join(", ")
}
