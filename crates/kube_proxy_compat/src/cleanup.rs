//! `--cleanup`: removes what kube-proxy leaves behind, and nothing else
//! (docs/internal/design/shell.md#drop-in).
//!
//! It removes what kube-proxy 1.36 removes: its jumps, chains and tables, by their names
//! (`pkg/proxy/iptables/cleanup.go`, `pkg/proxy/nftables/cleanup.go`). It removes nftables tables
//! by netlink. For iptables chains it uses the machine's iptables of either kind, found by name in
//! PATH and distinguished by the version that they print.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use pathproof::netfilter::{self, Nft, has_legacy};
use pathproof_wire::service::Family;
use thiserror::Error;

mod rules;

use rules::{TABLES, Table};

/// Timeout of a request: deleting a table of 100,000 chains takes long.
const PATIENCE: Duration = Duration::from_secs(30);
/// Table of kube-proxy's nftables mode, in both families.
const TABLE: &str = "kube-proxy";

#[derive(Debug, Default)]
pub struct Cleaned {
    /// Sentences about removed objects.
    pub removed: Vec<String>,
    /// Objects that remain, or may remain. With any, kube-proxy's exit code is 1.
    pub problems: Vec<CleanupError>,
}

/// An object that remains, or may remain. Families are named as in nft, and iptables programs by path and
/// kind.
#[derive(Debug, Error)]
pub enum CleanupError {
    /// An nftables table, by its family.
    #[error("the nftables table {0} kube-proxy cannot be removed; run as root with CAP_NET_ADMIN")]
    Table(&'static str, #[source] io::Error),
    #[error("{0} failed on table {1}: {2}; kube-proxy's chains in it were not changed")]
    Program(String, &'static str, #[source] io::Error),
    /// iptables-save omits a table, and still succeeds.
    #[error(
        "table {2} contains rules that {0} cannot show, and kube-proxy's chains in it were not \
         changed: `nft list table {1} {2}` shows them; remove the rules that iptables did not \
         create and try again, or delete kube-proxy's chains with nft"
    )]
    NotShown(String, &'static str, &'static str),
    /// A rule of another program jumps to one of kube-proxy's chains: program, table, and the rule
    /// as iptables-save prints it.
    #[error(
        "table {1} of {0}: a rule of another program jumps to a kube-proxy chain, so the chain \
         cannot be deleted: {2}; remove that rule and try again"
    )]
    Held(String, &'static str, String),
    #[error(
        "tables of {1} ({0}) may contain kube-proxy's chains, but no iptables of that kind is in \
         PATH: run --cleanup in an image that has it (such as rancher/hyperkube)"
    )]
    NoProgram(&'static str, &'static str),
    #[error(
        "kube-proxy ran in ipvs mode (the interface kube-ipvs0 exists), whose rules pathproof does \
         not remove: run the cluster's own kube-proxy with --cleanup, or restart the machine"
    )]
    Ipvs,
}

/// Removes what exists in this network namespace, and continues after failures. `path` is the PATH
/// to search for programs.
pub fn cleanup(path: &OsStr) -> Cleaned {
    let mut cleaned = Cleaned::default();
    for family in Family::ALL {
        cleaned.note(remove_table(family));
        for is_legacy in [false, true] {
            match Program::find(path, family, is_legacy) {
                Some(program) => {
                    for table in TABLES {
                        cleaned.note(program.clean(table));
                    }
                }
                None => cleaned.note(nothing_to_clean(family, is_legacy)),
            }
        }
    }
    if if_nametoindex("kube-ipvs0").is_ok() {
        cleaned.problems.push(CleanupError::Ipvs);
    }
    cleaned
}

impl Cleaned {
    fn note(&mut self, done: Result<Option<String>, CleanupError>) {
        match done {
            Ok(removed) => self.removed.extend(removed),
            Err(problem) => self.problems.push(problem),
        }
    }
}

/// Removes the table of kube-proxy's nftables mode. Returns what was removed.
fn remove_table(family: Family) -> Result<Option<String>, CleanupError> {
    let name = netfilter::name(family);
    let delete = |nft: Nft| nft.delete_table(family, TABLE);
    let deleted = Nft::open(PATIENCE).and_then(|nft| nft.map_or(Ok(false), delete));
    let deleted = deleted.map_err(|source| CleanupError::Table(name, source))?;
    Ok(deleted.then(|| format!("table {name} {TABLE}")))
}

/// Result if there is no iptables program of this kind: an error if kube-proxy's chains may exist.
fn nothing_to_clean(family: Family, is_legacy: bool) -> Result<Option<String>, CleanupError> {
    let is_there = |table: &&Table| match is_legacy {
        true => has_legacy(family, table.name),
        false => has_sign(family, table),
    };
    match TABLES.iter().copied().find(is_there) {
        Some(_) => Err(CleanupError::NoProgram(
            netfilter::name(family),
            kind(is_legacy),
        )),
        None => Ok(None),
    }
}

fn kind(is_legacy: bool) -> &'static str {
    if is_legacy { "legacy" } else { "nf_tables" }
}

/// Whether a table of nf_tables has a chain that kube-proxy always makes there.
fn has_sign(family: Family, table: &Table) -> bool {
    let has = |nft: Nft| nft.has(family, table.name, Some(table.sign));
    let found = Nft::open(PATIENCE).and_then(|nft| nft.map_or(Ok(false), has));
    found.unwrap_or(false)
}

/// iptables or ip6tables of one kind, with its -save and -restore commands.
#[derive(Debug)]
struct Program {
    family: Family,
    /// Whether it writes the tables of ip_tables, not those of nf_tables.
    is_legacy: bool,
    path: PathBuf,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.path.display(), kind(self.is_legacy))
    }
}

/// Old releases support only the legacy kind, and do not print it.
fn is_legacy(version: &str) -> bool {
    !version.contains("nf_tables")
}

impl Program {
    /// The first program of that kind: by the usual name, which kube-proxy calls, or by the name of
    /// the kind.
    fn find(path: &OsStr, family: Family, legacy: bool) -> Option<Self> {
        let name = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        let suffix = if legacy { "-legacy" } else { "-nft" };
        let names = [name.to_owned(), format!("{name}{suffix}")];
        let in_path = |name: &String| {
            let mut files = std::env::split_paths(path).map(|folder| folder.join(name));
            files.find(|file| file.is_file())
        };
        let found = names.iter().filter_map(in_path).find(|file| {
            let said = Command::new(file)
                .arg("--version")
                .output()
                .and_then(success);
            said.is_ok_and(|version| is_legacy(&version) == legacy)
        });
        found.map(|path| Self {
            family,
            is_legacy: legacy,
            path,
        })
    }

    /// Removes chains of kube-proxy's iptables mode. Returns what was removed.
    fn clean(&self, table: &Table) -> Result<Option<String>, CleanupError> {
        // A command that names a legacy table creates it.
        if self.is_legacy && !has_legacy(self.family, table.name) {
            return Ok(None);
        }
        let fail = |source| CleanupError::Program(self.to_string(), table.name, source);
        let saved = self.command("-save").args(["-t", table.name]).output();
        let saved = saved.and_then(success).map_err(fail)?;
        // A single rule that only nft can create makes iptables-save omit the table.
        if !self.is_legacy && !rules::shows(table, &saved) && has_sign(self.family, table) {
            let family = netfilter::name(self.family);
            return Err(CleanupError::NotShown(self.to_string(), family, table.name));
        }
        let plan = rules::plan(table, &saved);
        if let Some(rule) = plan.held {
            return Err(CleanupError::Held(self.to_string(), table.name, rule));
        }
        let Some(script) = plan.script else {
            return Ok(None);
        };
        self.restore(table.name, &script).map_err(fail)?;
        let (chains, jumps, table) = (plan.chains, plan.jumps, table.name);
        Ok(Some(format!(
            "{chains} of its chains and {jumps} of its jumps in table {table} of {self}"
        )))
    }

    /// Passes a script to -restore, which applies it as a whole or not at all.
    fn restore(&self, table: &str, script: &str) -> io::Result<()> {
        let mut command = self.command("-restore");
        // Waits five seconds for the lock, as kube-proxy does.
        command.args(["-w", "5", "-T", table, "--noflush", "--counters"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let written = stdin.map_or(Ok(()), |mut stdin| stdin.write_all(script.as_bytes()));
        success(child.wait_with_output()?)?;
        written
    }

    fn command(&self, suffix: &str) -> Command {
        let mut path = self.path.clone().into_os_string();
        path.push(suffix);
        Command::new(path)
    }
}

/// Output of a program that succeeded.
fn success(output: Output) -> io::Result<String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = said.split_whitespace().collect();
    let (said, status) = (said.join(" "), output.status);
    Err(io::Error::other(format!("{said} ({status})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_distinguished_by_their_version() {
        assert!(!is_legacy("iptables v1.8.9 (nf_tables)"));
        assert!(is_legacy("iptables v1.8.9 (legacy)"));
        assert!(is_legacy("iptables v1.6.1"));
    }

    #[test]
    fn an_empty_path_has_none() {
        for legacy in [false, true] {
            assert!(Program::find(OsStr::new(""), Family::V4, legacy).is_none());
            assert!(Program::find(OsStr::new("/nowhere"), Family::V6, legacy).is_none());
        }
    }
}
