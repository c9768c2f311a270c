//! A table of several instant queries, merged by node and organized as the panel says.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::super::{place, text};
use super::look::Display;
use super::{Area, Data, points, write_text};

const LINE: f64 = 36.0;
const HEAD: f64 = 28.0;

/// Cells of one node, by field as Prometheus names it: a label, or `Value #A`.
type Row = BTreeMap<String, Cell>;

enum Cell {
    Text(String),
    Number(f64),
}

pub(super) fn draw(out: &mut String, panel: &Value, area: Area, data: &Data) {
    let columns = columns(panel);
    let rows = rows(panel, data);
    let shown = |row: &Row, field: &str, display: &Display| match row.get(field) {
        Some(Cell::Number(value)) => display.show(*value, data.span.end).0,
        Some(Cell::Text(text)) => text.clone(),
        None => String::new(),
    };
    let need = |(field, title): &(String, String)| {
        let display = Display::of(panel, title);
        let longest = rows
            .iter()
            .map(|row| shown(row, field, &display).chars().count())
            .max();
        longest.unwrap_or_default().max(title.len()) as f64 + 3.0
    };
    let needs: Vec<f64> = columns.iter().map(need).collect();
    let unit = area.w / needs.iter().sum::<f64>().max(1.0);
    let mut x = area.x;
    for ((field, title), need) in columns.iter().zip(&needs) {
        write_text(out, (x + 8.0, area.y + 18.0), "start", "#6e9fff", 12, title);
        let display = Display::of(panel, title);
        for (line, row) in rows.iter().enumerate() {
            let y = area.y + HEAD + line as f64 * LINE;
            if let Some(cell) = row.get(field) {
                let (w, h) = (need * unit, LINE);
                draw_cell(out, cell, &display, Area { x, y, w, h }, data.span.end);
            }
        }
        x += need * unit;
    }
    for line in 0..=rows.len() {
        let y = area.y + HEAD + line as f64 * LINE;
        let (x, end) = (area.x, area.x + area.w);
        let _ = writeln!(
            out,
            "<path d=\"M{x:.1} {y:.1}H{end:.1}\" stroke=\"#2c3235\"/>"
        );
    }
}

fn draw_cell(out: &mut String, cell: &Cell, display: &Display, place: Area, now: f64) {
    let Area { x, y, w, h } = place;
    let at = (x + 8.0, y + 23.0);
    match cell {
        // A link.
        Cell::Text(text) => write_text(out, at, "start", "#6e9fff", 13, text),
        Cell::Number(value) => {
            let (shown, mut fill) = display.show(*value, now);
            if display.cell == "color-background" {
                let _ = writeln!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{w:.1}\" height=\"{:.1}\" fill=\"{fill}\"/>",
                    y + 2.0,
                    h - 3.0
                );
                fill = "#111217".to_owned();
            } else if display.cell.is_empty() {
                fill = "#ccccdc".to_owned();
            }
            write_text(out, at, "start", &fill, 13, &shown);
        }
    }
}

/// Fields that are shown, in their order, with their titles.
fn columns(panel: &Value) -> Vec<(String, String)> {
    let mut transformations = panel["transformations"].as_array().into_iter().flatten();
    let organize = transformations.find(|one| one["id"] == "organize");
    let options = organize.map_or(&Value::Null, |one| &one["options"]);
    let order = options["indexByName"].as_object().into_iter().flatten();
    let mut fields: Vec<_> = order.map(|(field, at)| (at.as_u64(), field)).collect();
    fields.sort();
    let title = |field: &str| match text(&options["renameByName"][field]) {
        "" => field.to_owned(),
        title => title.to_owned(),
    };
    fields
        .into_iter()
        .map(|(_, field)| (field.clone(), title(field)))
        .collect()
}

/// By node, the highest first value first.
fn rows(panel: &Value, data: &Data) -> Vec<Row> {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for target in panel["targets"].as_array().into_iter().flatten() {
        let result = data
            .results
            .get(&place(panel, target))
            .and_then(Value::as_array);
        for one in result.into_iter().flatten() {
            let row = rows
                .entry(text(&one["metric"]["node"]).to_owned())
                .or_default();
            for (label, value) in one["metric"].as_object().into_iter().flatten() {
                row.insert(label.clone(), Cell::Text(text(value).to_owned()));
            }
            if let Some((_, value)) = points(one).first() {
                row.insert(
                    format!("Value #{}", text(&target["refId"])),
                    Cell::Number(*value),
                );
            }
        }
    }
    let mut rows: Vec<Row> = rows.into_values().collect();
    let value = |row: &Row| match row.get("Value #A") {
        Some(Cell::Number(value)) => *value,
        _ => f64::NEG_INFINITY,
    };
    rows.sort_by(|one, other| value(other).total_cmp(&value(one)));
    rows
}
