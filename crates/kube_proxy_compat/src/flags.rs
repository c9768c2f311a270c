//! The flags of kube-proxy 1.36, and their parser, which follows kube-proxy's (pflag 1.0.9). A test
//! on a real kube-proxy compares the table with its `--help`.
//!
//! One thing differs: an unknown long flag is not an error. Nothing shows whether it takes a value. So the
//! next word counts as its value unless that word begins with a dash: it cannot be an argument, since
//! kube-proxy takes none.

use std::iter::Peekable;
use std::slice::Iter;

use super::DropInError;

#[derive(Debug, PartialEq, Eq)]
pub struct Flag {
    /// Name without dashes.
    pub name: &'static str,
    /// Kind of its value, as `--help` prints it; empty for flags that need no value.
    value: &'static str,
}

/// A flag as it was given.
#[derive(Debug, PartialEq, Eq)]
pub enum Given<'a> {
    /// A flag of kube-proxy, and its value.
    Known(&'static Flag, &'a str),
    /// Name of any other flag.
    Unknown(&'a str),
}

/// The requested action. If there are several, the first of this list counts, as in kube-proxy.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    Help,
    Version,
    /// kube-proxy would write its configuration to this file.
    WriteConfig(String),
    /// kube-proxy would remove its rules.
    Cleanup,
    /// Do nothing: there is nothing to prepare.
    InitOnly,
    Run(Settings),
}

/// Flags given for a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Flags in the order of their first mention, with the last value of each.
    pub(super) flags: Vec<(&'static Flag, String)>,
    /// Flags that kube-proxy does not know, each once.
    pub(super) unknown: Vec<String>,
}

impl Settings {
    /// A flag's value; an empty value counts as absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        let said = self.flags.iter().find(|(flag, _)| flag.name == name);
        let value = said.map(|(_, value)| value.as_str());
        value.filter(|value| !value.is_empty())
    }

    pub(super) fn set(&mut self, flag: &'static Flag, value: &str) -> Result<(), DropInError> {
        flag.check(value)?;
        let value = match (flag.name, value) {
            // kube-proxy documents that an empty address disables the listener.
            ("metrics-bind-address", "") => super::options::NONE,
            _ => value,
        };
        match self.flags.iter_mut().find(|(said, _)| *said == flag) {
            Some((_, said)) => *said = value.to_owned(),
            None => self.flags.push((flag, value.to_owned())),
        }
        Ok(())
    }
}

/// Value of a flag that was given without one.
const ALONE: &str = "true";

impl Flag {
    /// The flag with this name. As in kube-proxy, underscores may replace dashes.
    pub fn named(name: &str) -> Option<&'static Self> {
        let dashed = |byte: u8| if byte == b'_' { b'-' } else { byte };
        let is = |flag: &&Self| flag.name.bytes().eq(name.bytes().map(dashed));
        FLAGS.iter().find(is)
    }

    /// Whether the flag is deprecated: accepted, and not in `--help`.
    pub fn is_hidden(&self) -> bool {
        matches!(self.name, "healthz-port" | "metrics-port")
    }

    /// The flag's line in `--help`.
    pub fn usage(&self) -> String {
        let letter = match self.name {
            "help" => "-h, ",
            "v" => "-v, ",
            _ => "    ",
        };
        let usage = format!("  {letter}--{} {}", self.name, self.value);
        usage.trim_end().to_owned()
    }

    /// Meaning of the flag here; `None` if it has no effect.
    pub(super) fn meaning(&self) -> Option<&'static str> {
        Some(match self.name {
            "cleanup" => "refused: run the cluster's own kube-proxy to remove its rules",
            "config" => {
                "KubeProxyConfiguration; only addresses, kubeconfig, node name and logging are used"
            }
            "healthz-bind-address" => "address of /healthz and /livez (default 0.0.0.0:10256)",
            "healthz-port" => "port of /healthz, if the address has none; 0 serves nothing",
            "help" => "show this help",
            "hostname-override" => "name of this node's Node object",
            "init-only" => "exit at once: there is nothing to prepare",
            "kubeconfig" => "kubeconfig of the API server",
            "logging-format" => "format of the log: text or json",
            "master" => "URL of the API server; overrides the one in --kubeconfig",
            "metrics-bind-address" => "address of /metrics (default 127.0.0.1:10249); empty: none",
            "metrics-port" => "port of /metrics, if the address has none; 0 serves nothing",
            "v" => "log verbosity: 4 is debug, 6 and more is trace",
            "version" => "show the version and exit",
            "write-config-to" => "refused: pathproof cannot write a kube-proxy configuration",
            _ => return None,
        })
    }

    /// Checks a value. Booleans are checked even if they have no effect here, as in kube-proxy.
    fn check(&self, value: &str) -> Result<(), DropInError> {
        let (is_sound, wanted) = match self.name {
            // With a version as value, kube-proxy prints that version as its own.
            "version" if value == "raw" || value.starts_with('v') => return Ok(()),
            _ if self.value.is_empty() => (truth(value).is_some(), "true or false"),
            "healthz-port" | "metrics-port" => (value.trim().parse::<u16>().is_ok(), "a port"),
            "v" => (value.parse::<u32>().is_ok(), "a number from 0"),
            "logging-format" => (matches!(value, "text" | "json"), "text or json"),
            "hostname-override" if !value.is_empty() => {
                (!value.trim().is_empty(), "the name of a Node")
            }
            _ => return Ok(()),
        };
        match is_sound {
            true => Ok(()),
            false => Err(DropInError::Value(self.name, value.to_owned(), wanted)),
        }
    }
}

/// Parses a boolean as Go does.
fn truth(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// The action that a command line requests; the last occurrence of each flag counts.
pub fn read(words: &[String]) -> Result<Action, DropInError> {
    let mut settings = Settings::default();
    for given in parse(words)? {
        match given {
            Given::Known(flag, value) => settings.set(flag, value)?,
            Given::Unknown(name) => {
                if !settings.unknown.iter().any(|known| known == name) {
                    settings.unknown.push(name.to_owned());
                }
            }
        }
    }
    let is = |value: &str| value == "raw" || truth(value) == Some(true);
    let is_true = |name| settings.get(name).is_some_and(is);
    Ok(match settings.get("write-config-to") {
        _ if is_true("help") => Action::Help,
        _ if is_true("version") => Action::Version,
        Some(path) => Action::WriteConfig(path.to_owned()),
        None if is_true("cleanup") => Action::Cleanup,
        None if is_true("init-only") => Action::InitOnly,
        None => Action::Run(settings),
    })
}

type Words<'a> = Peekable<Iter<'a, String>>;

/// Splits the words into flags, in their order.
fn parse(words: &[String]) -> Result<Vec<Given<'_>>, DropInError> {
    let mut given = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        match word
            .strip_prefix('-')
            .map(|rest| (rest, rest.strip_prefix('-')))
        {
            // An empty word is ignored, as in kube-proxy.
            None if word.is_empty() => {}
            None | Some(("", _)) => return Err(DropInError::Argument(word.clone())),
            // Words after `--` are not flags.
            Some((_, Some(""))) => {
                if let Some(word) = words.find(|word| !word.is_empty()) {
                    return Err(DropInError::Argument(word.clone()));
                }
            }
            Some((_, Some(long))) => given.push(take_long(long, &mut words)?),
            Some((letters, None)) => take_letters(letters, &mut words, &mut given)?,
        }
    }
    Ok(given)
}

/// `--name`, `--name=value`, `--name value`.
fn take_long<'a>(long: &'a str, words: &mut Words<'a>) -> Result<Given<'a>, DropInError> {
    if long.starts_with(['-', '=']) {
        return Err(DropInError::Syntax(format!("--{long}")));
    }
    let (name, value) = match long.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (long, None),
    };
    let Some(flag) = Flag::named(name) else {
        if value.is_none() {
            words.next_if(|next| !next.starts_with('-'));
        }
        return Ok(Given::Unknown(name));
    };
    let value = match value {
        Some(value) => value,
        None if flag.value.is_empty() => ALONE,
        None => next_word(flag, words)?,
    };
    Ok(Given::Known(flag, value))
}

fn next_word<'a>(flag: &Flag, words: &mut Words<'a>) -> Result<&'a str, DropInError> {
    let word = words.next().ok_or(DropInError::NoValue(flag.name))?;
    Ok(word.as_str())
}

/// `-v2`, `-v=2`, `-v 2`, and letters without a value before it.
fn take_letters<'a>(
    letters: &'a str,
    words: &mut Words<'a>,
    given: &mut Vec<Given<'a>>,
) -> Result<(), DropInError> {
    let mut rest = letters;
    while let Some(letter) = rest.chars().next() {
        let flag = match letter {
            'h' => Flag::named("help"),
            'v' => Flag::named("v"),
            _ => None,
        };
        let flag = flag.ok_or_else(|| DropInError::Letter(format!("-{letters}"), letter))?;
        rest = &rest[letter.len_utf8()..];
        let value = match rest.strip_prefix('=').filter(|value| !value.is_empty()) {
            Some(value) => {
                rest = "";
                value
            }
            None if flag.value.is_empty() => ALONE,
            None if !rest.is_empty() => std::mem::take(&mut rest),
            None => next_word(flag, words)?,
        };
        given.push(Given::Known(flag, value));
    }
    Ok(())
}

const fn flag(name: &'static str, value: &'static str) -> Flag {
    Flag { name, value }
}

/// All flags, by name.
pub const FLAGS: &[Flag] = &[
    flag("bind-address", "ip"),
    flag("bind-address-hard-fail", ""),
    flag("boot-id-file", "string"),
    flag("cleanup", ""),
    flag("cluster-cidr", "string"),
    flag("config", "string"),
    flag("config-sync-period", "duration"),
    flag("conntrack-max-per-core", "int32"),
    flag("conntrack-min", "int32"),
    flag("conntrack-tcp-be-liberal", ""),
    flag("conntrack-tcp-timeout-close-wait", "duration"),
    flag("conntrack-tcp-timeout-established", "duration"),
    flag("conntrack-udp-timeout", "duration"),
    flag("conntrack-udp-timeout-stream", "duration"),
    flag("detect-local-mode", "LocalMode"),
    flag("feature-gates", "mapStringBool"),
    flag("healthz-bind-address", "ipport"),
    flag("healthz-port", "int32"),
    flag("help", ""),
    flag("hostname-override", "string"),
    flag("init-only", ""),
    flag("iptables-localhost-nodeports", ""),
    flag("iptables-masquerade-bit", "int32"),
    flag("iptables-min-sync-period", "duration"),
    flag("iptables-sync-period", "duration"),
    flag("ipvs-exclude-cidrs", "strings"),
    flag("ipvs-min-sync-period", "duration"),
    flag("ipvs-scheduler", "string"),
    flag("ipvs-strict-arp", ""),
    flag("ipvs-sync-period", "duration"),
    flag("ipvs-tcp-timeout", "duration"),
    flag("ipvs-tcpfin-timeout", "duration"),
    flag("ipvs-udp-timeout", "duration"),
    flag("kube-api-burst", "int32"),
    flag("kube-api-content-type", "string"),
    flag("kube-api-qps", "float32"),
    flag("kubeconfig", "string"),
    flag("log-flush-frequency", "duration"),
    flag("log-json-info-buffer-size", "quantity"),
    flag("log-json-split-stream", ""),
    flag("log-text-info-buffer-size", "quantity"),
    flag("log-text-split-stream", ""),
    flag("logging-format", "string"),
    flag("machine-id-file", "string"),
    flag("masquerade-all", ""),
    flag("master", "string"),
    flag("metrics-bind-address", "ipport"),
    flag("metrics-port", "int32"),
    flag("nodeport-addresses", "strings"),
    flag("oom-score-adj", "int32"),
    flag("pod-bridge-interface", "string"),
    flag("pod-interface-name-prefix", "string"),
    flag("profiling", ""),
    flag("proxy-mode", "ProxyMode"),
    flag("show-hidden-metrics-for-version", "string"),
    flag("v", "Level"),
    flag("version", ""),
    flag("vmodule", "pattern=N,..."),
    flag("write-config-to", "string"),
];

#[cfg(test)]
mod tests;
