//! What a command line of kube-proxy's asks for: the last of each flag counts, as there.

use super::DropInError;
use super::flags::{Flag, Part};
use super::parse::{Said, What};

/// What is to be done. Where several are asked for the first of these counts, as with kube-proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// Show the flags.
    Help,
    /// Show the version.
    Version,
    /// kube-proxy would write its configuration to this file.
    WriteConfig(String),
    /// Remove kube-proxy's rules.
    Cleanup,
    /// Nothing: there is nothing to prepare.
    InitOnly,
    /// Run.
    Run(Box<Settings>),
}

/// What was said of how to run; empty texts are as if they had not been said, but for addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Path of a KubeProxyConfiguration.
    pub config: Option<String>,
    /// --kubeconfig.
    pub kubeconfig: Option<String>,
    /// --master.
    pub master: Option<String>,
    /// --hostname-override, trimmed and in lower case.
    pub hostname: Option<String>,
    /// --healthz-bind-address.
    pub healthz: Option<String>,
    /// --healthz-port.
    pub healthz_port: Option<u16>,
    /// --metrics-bind-address; empty serves nothing.
    pub metrics: Option<String>,
    /// --metrics-port.
    pub metrics_port: Option<u16>,
    /// -v.
    pub verbosity: Option<u32>,
    /// --logging-format.
    pub log_format: Option<String>,
    /// Flags that mean something here, as they were said; each once.
    pub used: Vec<&'static str>,
    /// Flags that mean nothing here; each once.
    pub ignored: Vec<&'static str>,
    /// Flags that kube-proxy does not know; each once.
    pub unknown: Vec<String>,
}

/// Finds out.
///
/// # Errors
/// Words that belong to no flag, and values that cannot be meant.
pub fn wanted(said: &[Said<'_>]) -> Result<Wanted, DropInError> {
    let mut settings = Settings::default();
    let mut once = Once::default();
    for said in said {
        match &said.what {
            What::Terminator => {}
            // As there: an empty word is none.
            What::Argument("") => {}
            What::Argument(word) => {
                return Err(DropInError::Argument {
                    word: (*word).to_owned(),
                });
            }
            What::Unknown(name, _) => remember(&mut settings.unknown, (*name).to_owned()),
            What::Flag(flag, value) => {
                let list = match flag.part {
                    Some(_) => &mut settings.used,
                    None => &mut settings.ignored,
                };
                remember(list, flag.name);
                take(flag, value, &mut settings, &mut once)?;
            }
        }
    }
    Ok(match once {
        Once { help: true, .. } => Wanted::Help,
        Once { version: true, .. } => Wanted::Version,
        Once {
            write: Some(path), ..
        } => Wanted::WriteConfig(path),
        Once { cleanup: true, .. } => Wanted::Cleanup,
        Once { init: true, .. } => Wanted::InitOnly,
        _ => Wanted::Run(Box::new(settings)),
    })
}

/// What is done once, and then it ends.
#[derive(Default)]
struct Once {
    help: bool,
    version: bool,
    write: Option<String>,
    cleanup: bool,
    init: bool,
}

fn remember<T: PartialEq>(list: &mut Vec<T>, name: T) {
    if !list.contains(&name) {
        list.push(name);
    }
}

fn take(
    flag: &'static Flag,
    value: &str,
    settings: &mut Settings,
    once: &mut Once,
) -> Result<(), DropInError> {
    let fail = |wanted| DropInError::Value {
        name: flag.name,
        value: value.to_owned(),
        wanted,
    };
    let truth = || truth(value).ok_or_else(|| fail("true or false"));
    let port = || {
        let port = value.trim().parse().map_err(|_| fail("a port"))?;
        Ok::<u16, DropInError>(port)
    };
    let text = || Some(value.to_owned()).filter(|text| !text.is_empty());
    match flag.part {
        None => {
            // Those that stand alone are refused a value there too.
            if flag.value.is_none() {
                truth()?;
            }
        }
        Some(Part::Cleanup) => once.cleanup = truth()?,
        Some(Part::Config) => settings.config = text(),
        Some(Part::Healthz) => settings.healthz = text(),
        Some(Part::HealthzPort) => settings.healthz_port = Some(port()?),
        Some(Part::Help) => once.help = truth()?,
        Some(Part::Hostname) => settings.hostname = hostname(value)?,
        Some(Part::InitOnly) => once.init = truth()?,
        Some(Part::Kubeconfig) => settings.kubeconfig = text(),
        Some(Part::LogFormat) => match value {
            "text" | "json" => settings.log_format = text(),
            _ => return Err(fail("text or json")),
        },
        Some(Part::Master) => settings.master = text(),
        Some(Part::Metrics) => settings.metrics = Some(value.to_owned()),
        Some(Part::MetricsPort) => settings.metrics_port = Some(port()?),
        Some(Part::Verbosity) => {
            let level = value.parse().map_err(|_| fail("a number from 0"))?;
            settings.verbosity = Some(level);
        }
        Some(Part::Version) => {
            once.version = match value {
                "raw" => true,
                // Sets what kube-proxy says of itself.
                text if text.starts_with('v') => false,
                _ => truth()?,
            }
        }
        Some(Part::WriteConfig) => once.write = text(),
    }
    Ok(())
}

/// As kube-proxy takes it.
pub(super) fn hostname(value: &str) -> Result<Option<String>, DropInError> {
    if value.is_empty() {
        return Ok(None);
    }
    let name = value.trim().to_lowercase();
    if name.is_empty() {
        return Err(DropInError::Value {
            name: "hostname-override",
            value: value.to_owned(),
            wanted: "the name of a Node",
        });
    }
    Ok(Some(name))
}

/// As Go reads a truth.
fn truth(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}
