//! Translates kube-proxy's settings, from its flags or its file, to options of `pathproof run`, and
//! collects notes about them.
//!
//! pathproof's environment variables still apply to settings that no flag or file sets.

use std::net::{IpAddr, SocketAddr};

use pathproof::config::Config;
use pathproof_shared::bind_address::HEALTHZ_PORT;
use serde_json::Value;

use super::DropInError;
use super::flags::{Flag, Settings};

/// Port of kube-proxy's metrics.
const METRICS_PORT: u16 = 10249;
/// Address that disables a listener.
pub(super) const NONE: &str = "none";

const VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

/// Flags that a file overrides.
fn is_overridden(flag: &Flag) -> bool {
    let ends = ["kubeconfig", "-bind-address", "-port"];
    ends.iter().any(|end| flag.name.ends_with(end))
}

/// Defaults in kube-proxy's place. The agent binds the port, because nothing else holds it. It publishes
/// nothing, because kube-proxy's rights do not cover that.
const DEFAULTS: [(&str, &str); 4] = [
    ("port-takeover", "bind"),
    ("publish-condition", "off"),
    ("publish-events", "off"),
    ("admin-bind-address", "127.0.0.1:10249"),
];

/// Flags that the file may set, each with its field. Other fields are ignored.
const FIELDS: [(&str, &str); 6] = [
    ("kubeconfig", "/clientConnection/kubeconfig"),
    ("healthz-bind-address", "/healthzBindAddress"),
    ("metrics-bind-address", "/metricsBindAddress"),
    ("hostname-override", "/hostnameOverride"),
    ("v", "/logging/verbosity"),
    ("logging-format", "/logging/format"),
];

/// Settings in force with a file, as in kube-proxy: those of the file, except that flags win for
/// the URL of the API server, the node's name and the log. `path` is only for errors.
pub(super) fn over(
    mut settings: Settings,
    path: &str,
    text: &str,
) -> Result<Settings, DropInError> {
    let fail = |problem: String| DropInError::File(path.to_owned(), problem);
    let file: Value = serde_saphyr::from_str(text).map_err(|error| fail(error.to_string()))?;
    let field = |name| file.get(name).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (field("apiVersion"), field("kind"));
    if (version, kind) != (VERSION, KIND) {
        return Err(fail(format!(
            "it has apiVersion {version:?} and kind {kind:?}, not {VERSION:?} and {KIND:?}"
        )));
    }
    settings.flags.retain(|(flag, _)| !is_overridden(flag));
    for (name, field) in FIELDS {
        let value = match file.pointer(field) {
            None | Some(Value::Null) => continue,
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            Some(other) => return Err(fail(format!("{field} is {other}"))),
        };
        if let (None, Some(flag)) = (settings.get(name), Flag::named(name))
            && !value.is_empty()
        {
            settings.set(flag, &value)?;
        }
    }
    Ok(settings)
}

/// The resulting command line of `pathproof run`. `is_set` reports whether an environment variable exists.
pub(super) fn of(settings: &Settings, is_set: &dyn Fn(&str) -> bool) -> Vec<String> {
    let get = |name| settings.get(name).map(str::to_owned);
    let name = settings.get("hostname-override");
    let name = name.map(|name| name.trim().to_lowercase());
    let healthz = address(settings, "healthz", HEALTHZ_PORT);
    let metrics = address(settings, "metrics", METRICS_PORT);
    let said = [
        ("kubeconfig", get("kubeconfig")),
        ("server", get("master")),
        ("node-name", name),
        ("healthz-bind-address", healthz),
        ("admin-bind-address", metrics),
        ("log-format", get("logging-format")),
        ("log-filter", filter(settings)),
    ];
    let said = said
        .into_iter()
        .filter_map(|(option, value)| Some((option, value?)));
    let mut options: Vec<(&str, String)> = said.collect();
    for (option, value) in DEFAULTS {
        let variable = format!("PATHPROOF_{}", option.replace('-', "_").to_uppercase());
        if !is_set(&variable) && options.iter().all(|(said, _)| *said != option) {
            options.push((option, value.to_owned()));
        }
    }
    let words = options
        .iter()
        .map(|(option, value)| format!("--{option}={value}"));
    let head = ["pathproof".to_owned(), "run".to_owned()];
    head.into_iter().chain(words).collect()
}

/// An address with its port, if either was given. Port 0 disables the listener; any other port
/// counts only if the address has none.
fn address(settings: &Settings, listener: &str, usual: u16) -> Option<String> {
    let port = settings.get(&format!("{listener}-port"));
    let port: Option<u16> = port.and_then(|port| port.trim().parse().ok());
    if port == Some(0) {
        return Some(NONE.to_owned());
    }
    let text = settings.get(&format!("{listener}-bind-address"))?.trim();
    Some(match text.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port.unwrap_or(usual)).to_string(),
        Err(_) => text.to_owned(),
    })
}

/// Log filter for a level of klog. Levels below 4, such as the common -v=2, change nothing.
fn filter(settings: &Settings) -> Option<String> {
    let level = match settings.get("v")?.parse() {
        Ok(0..4) => return None,
        Ok(4..6) => "debug",
        _ => "trace",
    };
    Some(format!("info,kube_client=off,pathproof={level}"))
}

/// Replaces option names by kube-proxy's.
pub(super) fn in_their_words(text: &str) -> String {
    text.replace("--server", "--master")
        .replace("--node-name", "--hostname-override")
        .replace("--admin-bind-address", "--metrics-bind-address")
}

/// Notes to log once.
pub(super) fn notes(settings: &Settings, config: &Config) -> Vec<String> {
    let has_file = settings.get("config").is_some();
    let (mut idle, mut overridden) = (Vec::new(), Vec::new());
    for (flag, _) in &settings.flags {
        if flag.meaning().is_none() {
            idle.push(flag.name);
        }
        if has_file && is_overridden(flag) {
            overridden.push(flag.name);
        }
    }
    let unknown = settings.unknown.iter().map(String::as_str).collect();
    let groups: [(&str, Vec<&str>); 3] = [
        ("that have no effect in pathproof", idle),
        ("that --config overrides", overridden),
        (
            "that kube-proxy 1.36 does not have (set pathproof's own options by environment \
             variables)",
            unknown,
        ),
    ];
    let groups = groups.iter().filter(|(_, names)| !names.is_empty());
    let ignored =
        groups.map(|(what, names)| format!("ignored flags {what}: --{}", names.join(", --")));
    let mut notes: Vec<String> = ignored.collect();
    if let Some(address) = config.healthz.address
        && address.is_loopback()
    {
        notes.push(format!(
            "no load balancer reaches {address}: give --healthz-bind-address=0.0.0.0"
        ));
    }
    notes
}
