//! docs/metrics.md, generated from the definitions and `reference.md.in`.

use std::fmt::Write as _;

use super::definitions::ALL;

/// The page, with `@TABLES@` where the tables belong. Every combination of labels costs storage, so
/// every label needs a bound. A test compares the bounds with the exposed series.
const PAGE: &str = include_str!("reference.md.in");

pub fn reference() -> String {
    let mut tables = String::new();
    for (group, definition) in ALL {
        // Writing to a String cannot fail, here and below.
        if let Some(group) = group {
            let _ = write!(
                tables,
                "\n## {}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n",
                group.trim()
            );
        }
        let labels: Vec<String> = definition
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        let _ = writeln!(
            tables,
            "| `{}` | {} | {} | {} |",
            definition.full_name(),
            definition.kind.as_str(),
            labels.join(", "),
            definition.help
        );
    }
    PAGE.replace("@TABLES@", &tables)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_in_docs_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            checked_in == super::reference(),
            "docs/metrics.md is not what the definitions say: run `cargo xtask gen-docs`"
        );
    }
}
