//! A change of the layouts requires a new version.

use pathproof_wire::abi::ABI_VERSION;

/// An agent reuses the pinned maps of an older one if both have the same version. With another layout it
/// would misread them, or the kernel would refuse the programs.
#[test]
fn a_layout_that_changes_has_a_new_version() {
    let source = include_str!("../src/layout.rs");
    let (_, layouts) = source
        .split_once("\n}\n\nno_padding!")
        .expect("the layouts follow their macro");
    let letters = layouts.bytes().filter(|byte| !byte.is_ascii_whitespace());
    // FNV-1a.
    let hash = letters.fold(0xcbf2_9ce4_8422_2325_u64, |hash, letter| {
        (hash ^ u64::from(letter)).wrapping_mul(0x0100_0000_01b3)
    });
    assert_eq!(
        (ABI_VERSION, format!("{hash:016x}").as_str()),
        (9, "9a6efcf57f4489df"),
        "a layout changed: raise ABI_VERSION, and write both here"
    );
}
