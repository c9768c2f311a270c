//! The machine's iptables, of both kinds: found in PATH by their names, told apart by what they say
//! of themselves.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use agent_common::service::Family;

/// Whose tables a program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Those of nf_tables.
    Nft,
    /// Those of ip_tables.
    Legacy,
}

impl Kind {
    pub(super) const ALL: [Self; 2] = [Self::Nft, Self::Legacy];

    /// Old releases know of no other kind, and say none.
    fn of(version: &str) -> Self {
        match version.contains("nf_tables") {
            true => Self::Nft,
            false => Self::Legacy,
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::Nft => "-nft",
            Self::Legacy => "-legacy",
        }
    }
}

/// iptables or ip6tables of one kind, with -save and -restore beside it.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) family: Family,
    pub(super) kind: Kind,
    path: PathBuf,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Nft => "nf_tables",
            Kind::Legacy => "legacy",
        };
        write!(f, "{} ({kind})", self.path.display())
    }
}

impl Program {
    /// The first one of that kind: by the usual name, which is what kube-proxy calls, or by that of
    /// the kind.
    pub(super) fn find(path: &OsStr, family: Family, kind: Kind) -> Option<Self> {
        let name = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        let names = [name.to_owned(), format!("{name}{}", kind.suffix())];
        let in_path = |name: &String| {
            let mut files = std::env::split_paths(path).map(|folder| folder.join(name));
            files.find(|file| file.is_file())
        };
        let found = names.iter().filter_map(in_path).find(|file| {
            let said = Command::new(file).arg("--version").output();
            said.is_ok_and(|said| {
                said.status.success() && Kind::of(&String::from_utf8_lossy(&said.stdout)) == kind
            })
        });
        found.map(|path| Self { family, kind, path })
    }

    /// A table as -save prints it.
    pub(super) fn save(&self, table: &str) -> io::Result<String> {
        let output = success(self.command("-save").args(["-t", table]).output()?)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Gives a script to -restore, which takes it whole or not at all.
    pub(super) fn restore(&self, table: &str, script: &str) -> io::Result<()> {
        let mut command = self.command("-restore");
        // Five seconds for the lock, as kube-proxy waits for it.
        command.args(["-w", "5", "-T", table, "--noflush", "--counters"]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let written = match child.stdin.take() {
            Some(mut stdin) => stdin.write_all(script.as_bytes()),
            None => Ok(()),
        };
        success(child.wait_with_output()?)?;
        written
    }

    fn command(&self, suffix: &str) -> Command {
        let mut path = self.path.clone().into_os_string();
        path.push(suffix);
        Command::new(path)
    }
}

fn success(output: Output) -> io::Result<Output> {
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(io::Error::other(match said.is_empty() {
        true => output.status.to_string(),
        false => said,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart_by_what_they_say() {
        assert_eq!(Kind::of("iptables v1.8.9 (nf_tables)"), Kind::Nft);
        assert_eq!(Kind::of("iptables v1.8.9 (legacy)"), Kind::Legacy);
        assert_eq!(Kind::of("iptables v1.6.1"), Kind::Legacy);
    }

    #[test]
    fn an_empty_path_has_none() {
        for kind in Kind::ALL {
            assert!(Program::find(OsStr::new(""), Family::V4, kind).is_none());
            assert!(Program::find(OsStr::new("/nowhere"), Family::V6, kind).is_none());
        }
    }
}
