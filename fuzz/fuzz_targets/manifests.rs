//! Whatever lies in a folder of manifests: text becomes objects, or is named as broken.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pathproof::cluster::yaml;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let lines = text.lines().count() as u64 + 1;
    yaml::read(text, &mut |place, _| {
        assert!(place.line <= lines, "{place:?} of {lines} lines");
    });
});
