//! Which tables the kernel's netfilter holds, asked for by name and never listed: a large cluster has
//! 100,000 chains. What they mean, and whether one goes, others decide.

use std::fs;

use agent_common::service::Family;

mod nft;

pub use nft::{Name, Nft, name};

/// Whether the kernel has nf_tables already: a question to it would load the module. A kernel
/// without modules has what it has.
fn has_nf_tables() -> bool {
    match fs::read_to_string("/proc/modules") {
        Ok(modules) if !modules.is_empty() => {
            modules.lines().any(|line| line.starts_with("nf_tables "))
        }
        _ => true,
    }
}

/// Whether there is such a legacy table. Asking for it otherwise would make it.
pub fn has_legacy(family: Family, table: &str) -> bool {
    let file = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(file).is_ok_and(|names| names.lines().any(|name| name == table))
}
