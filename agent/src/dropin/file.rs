//! A KubeProxyConfiguration, as far as it means something here.

use std::net::IpAddr;

use serde::Deserialize;

use super::DropInError;
use super::wanted::{Settings, hostname};

const VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

/// Everything else in the file is left alone.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    api_version: String,
    kind: String,
    bind_address: Option<String>,
    healthz_bind_address: Option<String>,
    metrics_bind_address: Option<String>,
    hostname_override: Option<String>,
    client_connection: Option<ClientConnection>,
    logging: Option<Logging>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClientConnection {
    kubeconfig: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Logging {
    format: Option<String>,
    verbosity: Option<u32>,
}

/// What counts where a file is given, as with kube-proxy: the file, but for the URL of the API
/// server, the node's name and the log, where flags win. `path` is for the error alone.
///
/// # Errors
/// The text is none of kube-proxy's configuration.
pub(super) fn over(settings: Settings, path: &str, text: &str) -> Result<Settings, DropInError> {
    let fail = |problem: String| DropInError::File {
        path: path.to_owned(),
        problem,
    };
    let file: File = serde_saphyr::from_str(text).map_err(|error| fail(error.to_string()))?;
    if (file.api_version.as_str(), file.kind.as_str()) != (VERSION, KIND) {
        return Err(fail(format!(
            "it says apiVersion {:?} and kind {:?}, not {VERSION:?} and {KIND:?}",
            file.api_version, file.kind
        )));
    }
    let said = |text: Option<String>| text.filter(|text| !text.is_empty());
    let logging = file.logging.unwrap_or_default();
    // What is said of nothing else follows the family of the node's address.
    let is_v6 = said(file.bind_address)
        .and_then(|text| text.parse::<IpAddr>().ok())
        .is_some_and(|ip| ip.is_ipv6());
    let metrics = || is_v6.then(|| "[::1]:10249".to_owned());
    let name = match settings.hostname {
        Some(name) => Some(name),
        None => hostname(&file.hostname_override.unwrap_or_default())?,
    };
    Ok(Settings {
        kubeconfig: said(file.client_connection.unwrap_or_default().kubeconfig),
        hostname: name,
        healthz: said(file.healthz_bind_address),
        healthz_port: None,
        metrics: said(file.metrics_bind_address).or_else(metrics),
        metrics_port: None,
        verbosity: settings.verbosity.or(logging.verbosity),
        log_format: settings.log_format.or(said(logging.format)),
        ..settings
    })
}

/// Flags that do not count where a file is given.
pub(super) const OVERRIDDEN: [&str; 5] = [
    "kubeconfig",
    "healthz-bind-address",
    "healthz-port",
    "metrics-bind-address",
    "metrics-port",
];
