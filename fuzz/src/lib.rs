//! One target for each reader of untrusted bytes. A target takes arbitrary bytes and panics if the result
//! is wrong. Most also compare the result with another parser's or a recount, or check invariants.
//!
//! `cargo xtask fuzz` runs the targets under libFuzzer; `cargo test` replays all kept inputs
//! (`tests/kept.rs`). docs/internal/testing.md describes how to add a target.

mod api_objects;
mod api_watch;
mod btf;
mod connections;
mod fleet_report;
mod http;
mod kube_proxy_flags;
mod manifests;
mod netlink;
mod packets;
mod pod_probe;
mod recordings;
mod remembered;
mod reports;
mod sock_diag;
mod text;
mod zero_values;

#[path = "../../crates/wire/tests/parts/by_etherparse.rs"]
pub mod by_etherparse;
#[path = "../../crates/wire/tests/parts/collections.rs"]
pub mod collections;
#[path = "../../crates/wire/tests/parts/frame.rs"]
pub mod frame;
#[path = "../../tests/src/packet.rs"]
pub mod packet;
#[path = "../../crates/wire/tests/parts/scenario.rs"]
pub mod scenario;

/// Reads bytes and returns whether they were understood, which detects useless seeds.
///
/// # Panics
/// The result for these bytes is wrong.
pub type Target = fn(&[u8]) -> bool;

/// All targets with the names of their folders in `fuzz/corpus`.
pub const TARGETS: [(&str, Target); 17] = [
    ("api_objects", api_objects::check),
    ("api_watch", api_watch::check),
    ("btf", btf::check),
    ("connections", connections::check),
    ("fleet_report", fleet_report::check),
    ("http", http::check),
    ("kube_proxy_flags", kube_proxy_flags::check),
    ("manifests", manifests::check),
    ("netlink", netlink::check),
    ("packets", packets::check),
    ("pod_probe", pod_probe::check),
    ("recordings", recordings::check),
    ("remembered", remembered::check),
    ("reports", reports::check),
    ("sock_diag", sock_diag::check),
    ("text", text::check),
    ("zero_values", zero_values::check),
];

pub fn target(name: &str) -> Option<Target> {
    let named = |(known, _): &&(&str, Target)| *known == name;
    TARGETS.iter().find(named).map(|(_, target)| *target)
}
