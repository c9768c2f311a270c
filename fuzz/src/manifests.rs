//! Arbitrary text in a folder of manifests becomes objects or is reported as broken.

use pathproof::cluster::yaml::{self, Item};

pub(crate) fn check(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let mut objects = 0;
    yaml::read(text, &mut |item| {
        if let Item::Broken(why) = item {
            // A lone carriage return also ends a line (YAML 1.2, section 5.4).
            let lines = text.matches(['\n', '\r']).count() + 1;
            let line = why.split(':').next().and_then(|line| line.parse().ok());
            assert!(
                line.is_some_and(|line: usize| line <= lines),
                "{why} of {lines} lines"
            );
        }
        objects += 1;
    });
    objects > 0
}
