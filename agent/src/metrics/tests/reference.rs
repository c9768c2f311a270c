//! docs/metrics.md, generated from the definitions and `reference.md.in`.

use std::fmt::Write as _;

use prometheus_client::metrics::MetricType;

use crate::metrics::definitions::{ALL, Definition};

/// The page, with `@TABLES@` where the tables belong. Every combination of labels costs storage, so
/// every label needs a bound. A test compares the bounds with the exposed series.
const PAGE: &str = include_str!("../reference.md.in");

impl Definition {
    /// Name in queries.
    pub(super) fn full_name(&self) -> String {
        let unit = self.unit.map(|unit| format!("_{}", unit.as_str()));
        let total = matches!(self.kind, MetricType::Counter).then_some("_total");
        let (unit, total) = (unit.unwrap_or_default(), total.unwrap_or_default());
        format!("{}{unit}{total}", self.name)
    }
}

pub(super) fn reference() -> String {
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

/// PATHPROOF_BLESS rewrites the page, as `cargo xtask gen-docs` does.
#[test]
fn the_page_in_docs_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    if std::env::var_os("PATHPROOF_BLESS").is_some() {
        std::fs::write(path, reference()).unwrap();
    }
    let checked_in = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        checked_in == reference(),
        "docs/metrics.md is not what the definitions say: run `cargo xtask gen-docs`"
    );
}
