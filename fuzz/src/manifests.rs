//! Arbitrary text in a folder of manifests becomes objects or is reported as broken.

use pathproof::cluster::yaml;

pub(crate) fn check(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    // A lone carriage return also ends a line (YAML 1.2, section 5.4).
    let lines = text.matches(['\n', '\r']).count() as u64 + 1;
    let mut documents = 0;
    yaml::read(text, &mut |position, _| {
        assert!(position.line <= lines, "{position:?} of {lines} lines");
        documents += 1;
    });
    documents > 0
}
