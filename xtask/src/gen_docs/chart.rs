//! The chart's table of values, from the comments of values.yaml. `# --` begins a description, as
//! in helm-docs. It parses only that file's layout, not all of YAML.

use anyhow::{Result, bail, ensure};

/// Lines of the README around the table.
const MARKS: [&str; 2] = [
    "<!-- values: written by `cargo xtask gen-docs` from values.yaml -->\n",
    "<!-- values: end -->\n",
];

/// The README with the table of these values.
pub(super) fn with_table(readme: &str, values: &str) -> Result<String> {
    let [begin, end] = MARKS;
    let (Some((before, rest)), true) = (readme.split_once(begin), readme.matches(end).count() == 1)
    else {
        bail!("the chart's README needs the lines {MARKS:?}, once");
    };
    let (_, after) = rest.split_once(end).unwrap_or_default();
    let table = table(values)?;
    Ok(format!("{before}{begin}{table}{end}{after}"))
}

/// One row for each value with a description.
fn table(values: &str) -> Result<String> {
    let mut rows = "| value | default | meaning |\n|---|---|---|\n".to_owned();
    let mut path: Vec<(usize, &str)> = Vec::new();
    let mut description = String::new();
    // Everything below a value with a row belongs to its default.
    let mut inside: Option<usize> = None;
    for line in values.lines() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if inside.is_some_and(|inside| indent > inside) || text.is_empty() {
            continue;
        }
        inside = None;
        if let Some(comment) = text.strip_prefix('#') {
            match comment.trim().strip_prefix("-- ") {
                Some(first) => first.clone_into(&mut description),
                None if description.is_empty() => {}
                None => description = format!("{description} {}", comment.trim()),
            }
            continue;
        }
        let Some((key, default)) = text.split_once(':') else {
            bail!("values.yaml: {text:?} is no key");
        };
        path.retain(|(other, _)| *other < indent);
        path.push((indent, key));
        let names: Vec<&str> = path.iter().map(|(_, key)| *key).collect();
        let (name, default) = (names.join("."), default.trim());
        if description.is_empty() {
            ensure!(default.is_empty(), "values.yaml: {name} has no description");
            continue;
        }
        let default = match default {
            "" => "see [values.yaml](values.yaml)".to_owned(),
            inline => format!("`{inline}`"),
        };
        let meaning = std::mem::take(&mut description).replace('|', "\\|");
        rows += &format!("| `{name}` | {default} | {meaning} |\n");
        inside = Some(indent);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: &str = "# The file.\n\n# -- One\n# or two.\na: \"\"\nb:\n  # -- A | B.\n  c: [x]\n  \
        # -- Labels.\n  d:\n    e: f\n# -- Last.\ng: 1\n";

    #[test]
    fn a_description_becomes_a_row() {
        let rows: Vec<String> = table(VALUES).unwrap().lines().map(str::to_owned).collect();
        let expected = [
            "| value | default | meaning |",
            "|---|---|---|",
            "| `a` | `\"\"` | One or two. |",
            "| `b.c` | `[x]` | A \\| B. |",
            "| `b.d` | see [values.yaml](values.yaml) | Labels. |",
            "| `g` | `1` | Last. |",
        ];
        assert_eq!(rows, expected);
        let error = table("a: 1\n").unwrap_err().to_string();
        assert!(error.contains("a has no description"), "{error}");
    }

    #[test]
    fn the_table_stands_between_its_marks() {
        let [begin, end] = MARKS;
        let readme = format!("before\n{begin}old\n{end}after\n");
        let written = with_table(&readme, VALUES).unwrap();
        assert!(written.starts_with(&format!("before\n{begin}| value")));
        assert!(written.ends_with(&format!("| Last. |\n{end}after\n")));
        assert!(!written.contains("old"));
        assert_eq!(with_table(&written, VALUES).unwrap(), written);
        assert!(with_table("no marks", VALUES).is_err());
    }
}
