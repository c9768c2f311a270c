//! The rule for the project's address: Cargo.toml has it, and all other places name the same one.

use super::Violation;
use super::tree::Tree;

/// Text in front of an owner, and the number of parts to compare: 2 with the repository.
const MARKS: [(&str, usize); 5] = [
    ("github.com/", 2),
    ("raw.githubusercontent.com/", 2),
    ("--repo ", 2),
    ("ghcr.io/", 1),
    // CODEOWNERS.
    ("* @", 1),
];
/// A part of the addresses that the rule is about; those of other projects lack it.
const OURS: &str = "pathproof";

/// Links, images and commands with pathproof in their address name Cargo.toml's repository.
pub(super) fn one(tree: &Tree, violations: &mut Vec<Violation>) {
    let Some(own) = tree.text("Cargo.toml").and_then(repository) else {
        return;
    };
    // Fuzz inputs are arbitrary bytes.
    let texts = tree.ending("");
    for (path, text) in texts.filter(|(path, _)| !path.starts_with("fuzz/corpus/")) {
        for (number, line) in text.lines().enumerate() {
            for said in MARKS.iter().flat_map(|mark| others(line, *mark, own)) {
                let message = format!("says {said}, and the repository in Cargo.toml is {own}");
                violations.push(Violation::new(path, number + 1, message));
            }
        }
    }
}

/// OWNER/NAME of `repository = "https://github.com/OWNER/NAME"`.
fn repository(manifest: &str) -> Option<&str> {
    let mut lines = manifest.lines();
    let value = lines.find_map(|line| line.strip_prefix("repository = "))?;
    value.trim_matches('"').strip_prefix("https://github.com/")
}

/// Owners and repositories after the mark that belong to pathproof and differ from `own`.
fn others<'a>(line: &'a str, (mark, parts): (&str, usize), own: &str) -> Vec<&'a str> {
    let other = |rest: &'a str| {
        let inside = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        let end = rest.find(|c| !inside(c)).unwrap_or(rest.len());
        let path = rest[..end].trim_end_matches(['.', '/']);
        let slash = path.match_indices('/').nth(parts - 1);
        let said = &path[..slash.map_or(path.len(), |(at, _)| at)];
        // An image's name is the part after the owner.
        let ours = if parts == 1 { path } else { said };
        let after = own.strip_prefix(said);
        let is_own = after.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        (ours.contains(OURS) && !is_own).then_some(said)
    };
    line.split(mark).skip(1).filter_map(other).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;
    use super::*;

    /// Each with the project's address, with two others, and with the name of another project.
    #[test]
    fn the_address_is_in_one_place() {
        let root = format!(
            "[package]\nrepository = \"https://github.com/{}/{OURS}\"\n",
            "acme"
        );
        let root = root.as_str();
        for text in [
            "see https://github.com/@/blob/main/README.md).",
            "home: https://github.com/@",
            "icon: https://raw.githubusercontent.com/@/main/icon.svg",
            "gh attestation verify FILE --repo @",
            "cosign verify ghcr.io/@:VERSION",
        ] {
            for (address, violations) in [
                ("acme/pathproof", 0),
                ("other/pathproof", 1),
                ("acme2/pathproof", 1),
                ("kubernetes/kubernetes", 0),
            ] {
                let text = text.replace('@', address);
                let found = check(one, &[("Cargo.toml", root), ("a/b.md", &text)]);
                assert_eq!(found.len(), violations, "{text}: {found:?}");
            }
        }
        for (text, violations) in [
            ("https://github.com/acme\n", 0),
            ("https://github.com/@\n", 1),
            ("ghcr.io/acme/charts/@:1", 0),
            ("ghcr.io/other/charts/@:1", 1),
            ("https://github.com/some/index/@.yaml", 0),
        ] {
            let text = text.replace('@', OURS);
            let found = check(one, &[("Cargo.toml", root), ("a/b.md", &text)]);
            assert_eq!(found.len(), violations, "{text}: {found:?}");
        }
        for (owner, violations) in [("acme", 0), (OURS, 1)] {
            let text = format!("* @{owner}/{OURS}-maintainers");
            let found = check(one, &[("Cargo.toml", root), (".github/CODEOWNERS", &text)]);
            assert_eq!(found.len(), violations, "{text}: {found:?}");
        }
        assert_eq!(check(one, &[("Cargo.toml", "[package]\n")]), [""; 0]);
    }
}
