//! Rules for the English of comments.

use std::collections::BTreeMap;

use super::Violation;
use super::tree::Tree;

/// Words and phrases that an engineer would not use for a program. A comment with one of them can be good, so
/// only their share is limited.
const ODD: [&str; 19] = [
    "told",
    "tells",
    "heard",
    "hears",
    "believes",
    "stands",
    "stood",
    "bears",
    "owed",
    "anew",
    "afresh",
    "whence",
    "thereof",
    "of ours",
    "of theirs",
    "of its own",
    "of their own",
    "nothing where",
    "in words",
];

/// Maximum share of a folder's comment lines, in percent.
const SHARE: usize = 1;

/// At most one comment line in a hundred has an odd word.
pub(super) fn plain(tree: &Tree, violations: &mut Vec<Violation>) {
    let mut folders: BTreeMap<String, (usize, Vec<String>)> = BTreeMap::new();
    for (path, text) in tree.ending(".rs") {
        let (all, odd) = folders.entry(folder(path)).or_default();
        for (number, line) in text.lines().enumerate() {
            if let Some(comment) = line.trim_start().strip_prefix("//") {
                *all += 1;
                if is_odd(comment) {
                    odd.push(format!("{path}:{}", number + 1));
                }
            }
        }
    }
    for (folder, (all, odd)) in folders {
        if odd.len() * 100 > all * SHARE {
            let message = format!(
                "{} of {all} comment lines have an odd word, {SHARE} in 100 is the limit; write what you would say \
                 to a colleague: {}",
                odd.len(),
                odd.join(", ")
            );
            violations.push(Violation::new(&folder, 0, message));
        }
    }
}

/// The crate's folder.
fn folder(path: &str) -> String {
    let parts = if path.starts_with("crates/") { 2 } else { 1 };
    path.split('/').take(parts).collect::<Vec<_>>().join("/")
}

fn is_odd(comment: &str) -> bool {
    let letters = |c: char| if c.is_alphanumeric() { c } else { ' ' };
    let plain: String = comment.to_lowercase().chars().map(letters).collect();
    let words: Vec<&str> = plain.split_whitespace().collect();
    let padded = format!(" {} ", words.join(" "));
    ODD.iter().any(|odd| padded.contains(&format!(" {odd} ")))
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;
    use super::*;

    #[test]
    fn odd_words_are_limited_by_folder() {
        let good = "// The kernel drops it.\n".repeat(100);
        let odd = "// It is told so.\n";
        let with = |number| [&*good, &odd.repeat(number)].concat();
        let check = |text: &str| check(plain, &[("crates/wire/src/a.rs", text)]);
        assert_eq!(check(&with(1)), Vec::<String>::new());
        let found = check(&with(3));
        assert_eq!(found.len(), 1, "once for a folder: {found:?}");
        assert!(found[0].starts_with("crates/wire:0: 3 of 103"), "{found:?}");
    }

    #[test]
    fn parts_of_words_are_not_odd() {
        assert!(!is_odd(" The owner understands standstills."));
        assert!(is_odd("! Owed to no one."));
    }
}
