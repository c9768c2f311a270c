//! The chart's Grafana dashboard as data. Variables in its expressions are resolved as Grafana does, so that
//! tests can evaluate the expressions.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::deploy;
use crate::prometheus::{Expression, Prometheus, Span};

/// Values of `$name`, by name.
type Variables = BTreeMap<String, String>;

#[derive(Clone, Debug)]
pub struct Dashboard(pub Value);

impl Dashboard {
    /// Reads the file that the chart ships.
    pub fn read() -> Result<Self> {
        let file = deploy::folder().join("chart/files/dashboard.json");
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Ok(Self(serde_json::from_str(&text)?))
    }

    /// Panels in their order, including rows.
    pub fn panels(&self) -> impl Iterator<Item = &Value> {
        self.0["panels"].as_array().into_iter().flatten()
    }

    /// Every expression of every panel, with its place, such as "Title, A". Values of variables come from
    /// Prometheus, as when Grafana opens the page. `node` is the selected node, `scrape` the scrape interval
    /// in seconds.
    pub fn expressions(
        &self,
        prometheus: &Prometheus,
        node: &str,
        span: Span,
        scrape: f64,
    ) -> Result<Vec<Expression>> {
        let seconds = |number: f64| format!("{}s", number.max(1.0) as u64);
        let rate = (span.step + scrape).max(4.0 * scrape);
        // Grafana's built-in variables.
        let mut known = Variables::from([
            ("__range".to_owned(), seconds(span.end - span.start)),
            ("__rate_interval".to_owned(), seconds(rate)),
        ]);
        let list = self.0["templating"]["list"].as_array();
        for variable in list.context("the dashboard has no variables")? {
            let name = text(&variable["name"]);
            let value = match text(&variable["type"]) {
                "query" if name == "node" => node.to_owned(),
                "query" => chosen(variable, prometheus, &known)?,
                _ => text(&variable["query"]).to_owned(),
            };
            known.insert(name.to_owned(), value);
        }
        let targets = self.panels().flat_map(|panel| {
            let targets = panel["targets"].as_array().into_iter().flatten();
            targets.map(move |target| (text(&panel["title"]), target))
        });
        let expression = |(title, target): (&str, &Value)| Expression {
            place: format!("{title}, {}", text(&target["refId"])),
            text: resolved(text(&target["expr"]), &known),
            instant: target["instant"] == true,
        };
        Ok(targets.map(expression).collect())
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The value of a query variable with the choice "All".
fn chosen(variable: &Value, prometheus: &Prometheus, known: &Variables) -> Result<String> {
    if let Some(all) = variable["allValue"].as_str() {
        return Ok(all.to_owned());
    }
    let query = resolved(text(&variable["query"]["query"]), known);
    let inside = query.strip_prefix("label_values(");
    let inside = inside.and_then(|rest| rest.strip_suffix(')')?.rsplit_once(", "));
    let (selector, label) =
        inside.with_context(|| format!("{query} is no label_values(SELECTOR, LABEL)"))?;
    let values = Vec::from_iter(prometheus.label_values(label, selector)?);
    Ok(format!("({})", values.join("|")))
}

/// Replaces `$name` and `${name}`. In reverse order, a name is replaced before the names that are its
/// prefixes.
fn resolved(text: &str, variables: &Variables) -> String {
    let names = variables.iter().rev();
    names.fold(text.to_owned(), |text, (name, value)| {
        text.replace(&format!("${{{name}}}"), value)
            .replace(&format!("${name}"), value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_whole() {
        let known = [("node", "n1"), ("node_name", "n2"), ("__range", "5m")];
        let known: Variables = known
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let text = "a{node=\"$node\", x=\"${node_name}\", y=\"$node_name\"}[$__range]";
        let expected = "a{node=\"n1\", x=\"n2\", y=\"n2\"}[5m]";
        assert_eq!(resolved(text, &known), expected);
    }
}
