//! pathproof: proves on real packets that this node routes Service traffic.
//!
//! docs/internal/architecture.md has the map of the modules.

/// Commit that this program was built from, with a mark if files differed from it; `unknown` if no commit
/// is known.
pub const REVISION: &str = env!("PATHPROOF_REVISION");

pub mod app;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod confine;
pub mod datapath;
pub mod echo;
mod files;
pub mod hardening;
pub mod http;
pub mod lifecycle;
pub mod metrics;
pub mod netfilter;
pub mod netlink;
pub mod port;
pub mod probe;
pub mod publish;
pub mod rotate;
pub mod sentinel;
pub mod state;
