//! `--cleanup`: what kube-proxy leaves behind goes, and nothing else does
//! (docs/adr/0014-drop-in.md).
//!
//! What is removed is what kube-proxy 1.36 removes of its own: its jumps, chains and tables, by
//! their names (`pkg/proxy/iptables/cleanup.go`, `pkg/proxy/nftables/cleanup.go`). Its tables of
//! nftables go by netlink; chains of iptables by the machine's own iptables, of either kind.

use std::ffi::OsStr;
use std::time::Duration;

use agent_common::service::Family;
use thiserror::Error;

mod programs;
mod rules;

use crate::netfilter::{self, Name, Nft, has_legacy};
use programs::{Kind, Program};
use rules::{Plan, TABLES};

/// A table of 100,000 chains takes a while.
const PATIENCE: Duration = Duration::from_secs(30);
/// Of kube-proxy's nftables mode, in both families.
const TABLE: &str = "kube-proxy";

/// What was done, and what could not be.
#[derive(Debug, Default)]
pub struct Cleaned {
    /// What is gone, in words.
    pub removed: Vec<String>,
    /// What is still there, or may be. kube-proxy's exit code is 1 where there is any.
    pub problems: Vec<CleanupError>,
}

/// What is still there, or may be.
#[derive(Debug, Error)]
pub enum CleanupError {
    /// A table of nftables.
    #[error(
        "the nftables table {family} kube-proxy cannot be removed; run as root with CAP_NET_ADMIN"
    )]
    Table {
        /// As nft names it.
        family: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A program of iptables failed.
    #[error(
        "{program} failed on table {table}: {source}; kube-proxy's chains in it are as they were"
    )]
    Program {
        /// Which.
        program: String,
        /// On which table.
        table: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// iptables-save leaves a table out, and calls that a success.
    #[error(
        "table {table} holds rules that {program} cannot show, and kube-proxy's chains in it are as they were: `nft list table {family} {table}` shows them; remove those that are not of iptables and try again, or delete kube-proxy's chains with nft"
    )]
    NotShown {
        /// By whom.
        program: String,
        /// As nft names it.
        family: &'static str,
        /// Which table.
        table: &'static str,
    },
    /// A rule that is not kube-proxy's holds one of its chains.
    #[error(
        "table {table} of {program}: a rule that is not kube-proxy's leads to a chain of its own, and holds it: {rule}; remove that rule and try again"
    )]
    Held {
        /// By whom it was found.
        program: String,
        /// In which table.
        table: &'static str,
        /// The rule, as iptables-save prints it.
        rule: String,
    },
    /// Chains and nothing to remove them with.
    #[error(
        "there are chains of kube-proxy's ({family}, iptables for nf_tables), and no iptables of that kind in PATH: call --cleanup where there is one (rancher/hyperkube has it), or delete them with nft"
    )]
    NoNftProgram {
        /// Of addresses.
        family: &'static str,
    },
    /// Tables that cannot be read.
    #[error(
        "there are legacy tables ({family}), and no legacy iptables in PATH: what they hold cannot be told; call --cleanup where there is one (rancher/hyperkube has it)"
    )]
    NoLegacyProgram {
        /// Of addresses.
        family: &'static str,
    },
    /// What kube-proxy's ipvs mode left.
    #[error(
        "kube-proxy's ipvs mode was here ({sign}), and pathproof does not remove what that leaves: run the cluster's own kube-proxy with --cleanup, or restart the machine"
    )]
    Ipvs {
        /// How that shows.
        sign: &'static str,
    },
}

/// Removes what there is, in this network namespace. `path` is where programs are looked for.
/// Goes on where something fails.
pub fn cleanup(path: &OsStr) -> Cleaned {
    let mut cleaned = Cleaned::default();
    cleaned.remove_tables();
    for family in Family::ALL {
        for kind in Kind::ALL {
            match Program::find(path, family, kind) {
                Some(program) => cleaned.remove_chains(&program),
                None => cleaned.look_for_chains(family, kind),
            }
        }
    }
    cleaned.problems.extend(ipvs());
    cleaned
}

impl Cleaned {
    /// Tables of kube-proxy's nftables mode.
    fn remove_tables(&mut self) {
        for family in Family::ALL {
            let name = netfilter::name(family);
            let deleted = Nft::open(PATIENCE).and_then(|nft| {
                let delete = |nft: Nft| nft.delete_table(family, TABLE);
                nft.map_or(Ok(false), delete)
            });
            match deleted {
                Ok(true) => self.removed.push(format!("table {name} kube-proxy")),
                Ok(false) => {}
                Err(source) => {
                    let family = name;
                    self.problems.push(CleanupError::Table { family, source });
                }
            }
        }
    }

    /// Chains of its iptables mode.
    fn remove_chains(&mut self, program: &Program) {
        for table in TABLES {
            // Naming a legacy table makes it.
            if program.kind == Kind::Legacy && !has_legacy(program.family, table.name) {
                continue;
            }
            if let Err(problem) = self.remove_chains_of(program, table) {
                self.problems.push(problem);
            }
        }
    }

    fn remove_chains_of(
        &mut self,
        program: &Program,
        table: &'static rules::Table,
    ) -> Result<(), CleanupError> {
        let fail = |source| CleanupError::Program {
            program: program.to_string(),
            table: table.name,
            source,
        };
        let saved = program.save(table.name).map_err(fail)?;
        let family = program.family;
        // One rule that only nft can make is enough for that.
        if program.kind == Kind::Nft && !rules::shows(table, &saved) && has_sign(family, table.name)
        {
            return Err(CleanupError::NotShown {
                program: program.to_string(),
                family: netfilter::name(family),
                table: table.name,
            });
        }
        let Plan {
            script,
            jumps,
            chains,
            held,
        } = rules::plan(table, &saved);
        if let Some(rule) = held {
            return Err(CleanupError::Held {
                program: program.to_string(),
                table: table.name,
                rule,
            });
        }
        let Some(script) = script else {
            return Ok(());
        };
        program.restore(table.name, &script).map_err(fail)?;
        self.removed.push(format!(
            "{chains} of its chains and {jumps} of its jumps in table {} of {program}",
            table.name
        ));
        Ok(())
    }

    /// Where there is nothing to remove them with.
    fn look_for_chains(&mut self, family: Family, kind: Kind) {
        let name = netfilter::name(family);
        let has_chains = || TABLES.iter().any(|table| has_sign(family, table.name));
        let has_tables = || TABLES.iter().any(|table| has_legacy(family, table.name));
        let problem = match kind {
            Kind::Nft if has_chains() => CleanupError::NoNftProgram { family: name },
            Kind::Legacy if has_tables() => CleanupError::NoLegacyProgram { family: name },
            _ => return,
        };
        self.problems.push(problem);
    }
}

/// Whether a table of nf_tables has a chain that kube-proxy always makes there.
fn has_sign(family: Family, table: &str) -> bool {
    let nft = Nft::open(PATIENCE).ok().flatten();
    let has = |(table, chain)| nft.as_ref()?.has(family, Name::Chain { table, chain }).ok();
    let mut signs = rules::SIGNS.into_iter().filter(|(of, _)| *of == table);
    signs.any(|sign| has(sign) == Some(true))
}

/// What its ipvs mode leaves, if it is there.
fn ipvs() -> Option<CleanupError> {
    // SAFETY: a string with its end.
    let device = unsafe { libc::if_nametoindex(c"kube-ipvs0".as_ptr()) };
    (device != 0).then_some(CleanupError::Ipvs {
        sign: "the interface kube-ipvs0",
    })
}
