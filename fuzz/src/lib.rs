//! Targets for everything that reads foreign bytes, one function each. A target takes any bytes and
//! panics if the result is wrong. Most check more than the absence of panics: against another
//! parser of the same bytes, a recount, or values that must not change.
//!
//! `cargo xtask fuzz` runs them under libFuzzer; `cargo test` replays all that was kept
//! (`tests/kept.rs`). docs/internal/testing.md says how to add one.

mod api_objects;
mod connections;
mod http;
mod kube_proxy_flags;
mod manifests;
mod packets;
mod recordings;
mod remembered;
mod reports;
mod text;

#[path = "../../agent-common/tests/parts/by_etherparse.rs"]
pub mod by_etherparse;
#[path = "../../agent-common/tests/parts/collections.rs"]
pub mod collections;
#[path = "../../agent-common/tests/parts/frame.rs"]
pub mod frame;
#[path = "../../tests/src/packet.rs"]
pub mod packet;
#[path = "../../agent-common/tests/parts/scenario.rs"]
pub mod scenario;

/// Reads bytes; says whether they were understood, so that seeds which are not are found out.
///
/// # Panics
/// What was made of the bytes is wrong.
pub type Target = fn(&[u8]) -> bool;

/// All, by the names of their folders in `fuzz/corpus`.
pub const TARGETS: [(&str, Target); 10] = [
    ("api_objects", api_objects::check),
    ("connections", connections::check),
    ("http", http::check),
    ("kube_proxy_flags", kube_proxy_flags::check),
    ("manifests", manifests::check),
    ("packets", packets::check),
    ("recordings", recordings::check),
    ("remembered", remembered::check),
    ("reports", reports::check),
    ("text", text::check),
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    let named = |(known, _): &&(&str, Target)| *known == name;
    TARGETS.iter().find(named).map(|(_, target)| *target)
}
