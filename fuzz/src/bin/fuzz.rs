//! libFuzzer on the target that `PATHPROOF_FUZZ` names, or the name of this file: OSS-Fuzz starts one program
//! for each target. One program for all targets saves link time.

#![no_main]

use std::env;
use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use pathproof_fuzz::{Target, target};

static TARGET: OnceLock<Target> = OnceLock::new();

fn named() -> Target {
    let program = env::args().next().unwrap_or_default();
    let own = || Path::new(&program).file_name()?.to_str().map(str::to_owned);
    let name = env::var("PATHPROOF_FUZZ").ok().or_else(own);
    let name = name.unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("PATHPROOF_FUZZ names no target: {name:?}"))
}

fuzz_target!(|bytes: &[u8]| {
    TARGET.get_or_init(named)(bytes);
});
