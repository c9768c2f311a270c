//! libFuzzer on the target that `PATHPROOF_FUZZ` names. One program for all targets saves link time.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use pathproof_fuzz::{Target, target};

static TARGET: OnceLock<Target> = OnceLock::new();

fn named() -> Target {
    let name = std::env::var("PATHPROOF_FUZZ").unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("PATHPROOF_FUZZ names no target: {name:?}"))
}

fuzz_target!(|bytes: &[u8]| {
    TARGET.get_or_init(named)(bytes);
});
