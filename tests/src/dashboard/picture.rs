//! Draws the dashboard with what Prometheus gave for each panel, in Grafana's grid, as one SVG
//! without scripts and foreign fonts.
//!
//! Grafana itself cannot be run everywhere; this shows what the page looks like, no more: of
//! Grafana's options it knows those that the dashboard uses.

mod chart;
mod look;
mod table;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Dashboard, Variables, place, resolved, text};
use crate::prometheus::Span;
use crate::prometheus::check::Evaluated;
use look::{Display, colour, escape};

/// What every expression gave.
#[derive(Clone, Debug)]
pub struct Data {
    /// The time range.
    pub span: Span,
    /// The node that is looked at.
    pub node: String,
    /// The API's `result` by place.
    pub results: BTreeMap<String, Value>,
}

impl Data {
    /// Of a whole dashboard.
    pub fn new(span: Span, node: &str, gave: &[Evaluated]) -> Self {
        let one = |one: &Evaluated| (one.expression.place.clone(), one.result.clone());
        Self {
            span,
            node: node.to_owned(),
            results: gave.iter().map(one).collect(),
        }
    }

    /// As a file.
    pub fn to_json(&self) -> String {
        let Span { start, end, step } = self.span;
        let (node, results) = (&self.node, &self.results);
        json!({"start": start, "end": end, "step": step, "node": node, "results": results})
            .to_string()
    }

    /// From a file.
    pub fn from_json(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |name: &str| value[name].as_f64();
        Some(Self {
            span: Span {
                start: number("start")?,
                end: number("end")?,
                step: number("step")?,
            },
            node: value["node"].as_str()?.to_owned(),
            results: serde_json::from_value(value["results"].clone()).ok()?,
        })
    }
}

/// A rectangle, in pixels.
#[derive(Clone, Copy, Debug)]
struct Area {
    x: f64,
    y: f64,
    w: f64,
    h: f64,
}

/// One series of a panel.
#[derive(Clone, Debug)]
struct Series {
    name: String,
    colour: String,
    /// Time and value.
    points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 1560.0;
const MARGIN: f64 = 12.0;
const UNIT: f64 = 38.0;
const GAP: f64 = 8.0;
const HEADER: f64 = 46.0;
const FOOTER: f64 = 26.0;

/// Draws the sections of these titles (those that contain one of them), or all.
pub fn draw(dashboard: &Dashboard, data: &Data, sections: &[String]) -> String {
    let known = Variables::from([("node".to_owned(), data.node.clone())]);
    let mut body = String::new();
    let (mut shown, mut skipped, mut bottom, mut section) = (true, 0.0, 0.0_f64, 0.0);
    for panel in dashboard.panels() {
        let grid = |name: &str| panel["gridPos"][name].as_f64().unwrap_or_default();
        let title = resolved(text(&panel["title"]), &known);
        if panel["type"] == "row" {
            if !shown {
                skipped += grid("y") - section;
            }
            section = grid("y");
            shown = sections.is_empty() || sections.iter().any(|wanted| title.contains(wanted));
        }
        if !shown {
            continue;
        }
        let column = (WIDTH - 2.0 * MARGIN) / 24.0;
        let area = Area {
            x: MARGIN + grid("x") * column,
            y: HEADER + (grid("y") - skipped) * UNIT,
            w: grid("w") * column - GAP,
            h: grid("h") * UNIT - GAP,
        };
        bottom = bottom.max(area.y + area.h);
        draw_panel(&mut body, panel, &title, area, data);
    }
    let height = bottom + FOOTER;
    let head = header(dashboard, data, height);
    format!("{head}{body}</g>\n</svg>\n")
}

fn draw_panel(out: &mut String, panel: &Value, title: &str, area: Area, data: &Data) {
    let Area { x, y, w, h } = area;
    if panel["type"] == "row" {
        return write_text(
            out,
            (x, y + 22.0),
            "start",
            "#d8d9da",
            15,
            &format!("⌄  {title}"),
        );
    }
    let fill = "fill=\"#181b1f\" stroke=\"#25282d\"";
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"2\" {fill}/>"
    );
    let inside = Area {
        x: x + 10.0,
        y: y + 30.0,
        w: w - 20.0,
        h: h - 38.0,
    };
    match text(&panel["type"]) {
        "stat" => chart::stat(out, panel, area, &series(panel, data)),
        "timeseries" => chart::time_series(out, panel, inside, &series(panel, data), data.span),
        "state-timeline" => chart::timeline(out, panel, inside, &series(panel, data), data.span),
        "table" => table::draw(out, panel, inside, data),
        other => write_text(out, (x + 10.0, y + 50.0), "start", "#f2495c", 12, other),
    }
    write_text(out, (x + 10.0, y + 20.0), "start", "#ccccdc", 13, title);
}

/// The series of a panel, named and coloured.
fn series(panel: &Value, data: &Data) -> Vec<Series> {
    let targets = panel["targets"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let mut all = Vec::new();
    for target in targets {
        let result = data
            .results
            .get(&place(panel, target))
            .and_then(Value::as_array);
        for one in result.map(Vec::as_slice).unwrap_or_default() {
            let field = legend(text(&target["legendFormat"]), &one["metric"]);
            let display = Display::of(panel, &field);
            let palette = look::PALETTE[all.len() % look::PALETTE.len()];
            all.push(Series {
                name: display.name.clone().unwrap_or(field),
                colour: display.colour.as_deref().map_or(palette, colour).to_owned(),
                points: points(one),
            });
        }
    }
    all
}

fn points(series: &Value) -> Vec<(f64, f64)> {
    let one = std::slice::from_ref(&series["value"]);
    let all = series["values"].as_array().map_or(one, Vec::as_slice);
    let point = |point: &Value| Some((point[0].as_f64()?, text(&point[1]).parse().ok()?));
    all.iter()
        .filter_map(point)
        .filter(|(_, value): &(f64, f64)| value.is_finite())
        .collect()
}

/// `{{label}}` replaced.
fn legend(format: &str, labels: &Value) -> String {
    let labels = labels.as_object().into_iter().flatten();
    labels.fold(format.to_owned(), |name, (label, value)| {
        name.replace(&format!("{{{{{label}}}}}"), text(value))
    })
}

fn write_text(
    out: &mut String,
    (x, y): (f64, f64),
    anchor: &str,
    fill: &str,
    size: u32,
    text: &str,
) {
    let text = escape(text);
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{fill}\" font-size=\"{size}\">{text}</text>"
    );
}

fn header(dashboard: &Dashboard, data: &Data, height: f64) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 \
         {WIDTH} {height}\" role=\"img\" aria-label=\"the dashboard\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"#111217\"/>\n<g font-family=\"Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif\">\n"
    );
    write_text(
        &mut out,
        (MARGIN, 29.0),
        "start",
        "#d8d9da",
        18,
        text(&dashboard.0["title"]),
    );
    let choices = format!("Prometheus: default    Cluster: All    Node: {}", data.node);
    write_text(
        &mut out,
        (MARGIN + 120.0, 29.0),
        "start",
        "#8e8e99",
        13,
        &choices,
    );
    let (from, to) = (look::clock(data.span.start), look::clock(data.span.end));
    let range = format!(
        "{from} to {to} UTC    refresh {}",
        text(&dashboard.0["refresh"])
    );
    write_text(
        &mut out,
        (WIDTH - MARGIN, 29.0),
        "end",
        "#8e8e99",
        13,
        &range,
    );
    let note = "Drawn from the dashboard's JSON and what a real Prometheus gave for each panel, not by Grafana";
    write_text(
        &mut out,
        (MARGIN, height - 9.0),
        "start",
        "#6e7681",
        11,
        note,
    );
    out
}
