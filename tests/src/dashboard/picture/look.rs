//! How Grafana shows a value: units, value mappings, thresholds, colours, overrides.

use serde_json::Value;

use super::super::text;

/// Colours of series that have none of their own.
pub(super) const PALETTE: [&str; 10] = [
    "#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#705da0",
    "#37872d", "#fade2a",
];

/// Grafana's names of colours.
pub(super) fn colour(name: &str) -> &str {
    match name {
        "green" => "#73bf69",
        "red" => "#f2495c",
        "dark-red" => "#c4162a",
        "orange" => "#ff9830",
        "yellow" => "#fade2a",
        "blue" => "#5794f2",
        "purple" => "#b877d9",
        "text" => "#ccccdc",
        other => other,
    }
}

/// How the values of one field are shown: the panel's defaults and the field's overrides.
#[derive(Debug, Default)]
pub(super) struct Display {
    pub(super) name: Option<String>,
    pub(super) colour: Option<String>,
    /// `color-background` or `color-text` of a table's cell.
    pub(super) cell: String,
    unit: String,
    decimals: Option<usize>,
    mappings: Value,
    thresholds: Value,
}

impl Display {
    pub(super) fn of(panel: &Value, field: &str) -> Self {
        let defaults = &panel["fieldConfig"]["defaults"];
        let decimals = |value: &Value| value.as_u64().map(|decimals| decimals as usize);
        let mut display = Self {
            unit: text(&defaults["unit"]).to_owned(),
            decimals: decimals(&defaults["decimals"]),
            mappings: defaults["mappings"].clone(),
            thresholds: defaults["thresholds"].clone(),
            ..Self::default()
        };
        let overrides = panel["fieldConfig"]["overrides"].as_array();
        let of_field = |one: &&Value| one["matcher"]["options"] == field;
        for one in overrides.into_iter().flatten().filter(of_field) {
            for property in one["properties"].as_array().into_iter().flatten() {
                let value = &property["value"];
                match text(&property["id"]) {
                    "displayName" => display.name = Some(text(value).to_owned()),
                    "color" => display.colour = value["fixedColor"].as_str().map(str::to_owned),
                    "unit" => display.unit = text(value).to_owned(),
                    "decimals" => display.decimals = decimals(value),
                    "mappings" => display.mappings = value.clone(),
                    "thresholds" => display.thresholds = value.clone(),
                    "custom.cellOptions" => display.cell = text(&value["type"]).to_owned(),
                    _ => {}
                }
            }
        }
        display
    }

    /// Text and colour of a value; `now` is for ages.
    pub(super) fn show(&self, value: f64, now: f64) -> (String, String) {
        let key = format!("{value}");
        let mut maps = self.mappings.as_array().into_iter().flatten();
        let found = maps.find_map(|map| map["options"].get(&key));
        if let Some(found) = found {
            let fill = colour(text(&found["color"])).to_owned();
            return (text(&found["text"]).to_owned(), fill);
        }
        let steps = self.thresholds["steps"].as_array().into_iter().flatten();
        let mut passed =
            steps.filter(|step| step["value"].as_f64().is_none_or(|from| value >= from));
        let fill = passed
            .next_back()
            .map_or("#ccccdc", |step| colour(text(&step["color"])));
        (self.number(value, now), fill.to_owned())
    }

    /// With its unit.
    pub(super) fn number(&self, value: f64, now: f64) -> String {
        let round = |value: f64, unit: &str| {
            let decimals = self.decimals.unwrap_or(match value.abs() {
                whole if whole.fract() < 1e-9 => 0,
                small if small < 10.0 => 2,
                some if some < 100.0 => 1,
                _ => 0,
            });
            format!("{value:.decimals$}{unit}")
        };
        match self.unit.as_str() {
            "s" => match value.abs() {
                0.0 => "0 s".to_owned(),
                tiny if tiny < 1e-3 => round(value * 1e6, " µs"),
                small if small < 1.0 => round(value * 1e3, " ms"),
                few if few < 120.0 => round(value, " s"),
                some if some < 7200.0 => round(value / 60.0, " min"),
                _ => round(value / 3600.0, " hours"),
            },
            "percentunit" => round(value * 100.0, "%"),
            "bytes" => round(value / 1_048_576.0, " MiB"),
            "ops" => round(value, " ops/s"),
            "reqps" => round(value, " req/s"),
            "dateTimeFromNow" => ago(now - value / 1e3),
            _ => round(value, ""),
        }
    }

    /// Thresholds with their colours, but for the base.
    pub(super) fn lines(&self) -> Vec<(f64, &str)> {
        let steps = self.thresholds["steps"].as_array().into_iter().flatten();
        steps
            .filter_map(|step| Some((step["value"].as_f64()?, colour(text(&step["color"])))))
            .collect()
    }
}

fn ago(seconds: f64) -> String {
    match seconds {
        few if few < 45.0 => "a few seconds ago".to_owned(),
        one if one < 90.0 => "a minute ago".to_owned(),
        some => format!("{:.0} minutes ago", some / 60.0),
    }
}

/// Hours and minutes of a Unix time, in UTC.
pub(super) fn clock(moment: f64) -> String {
    let seconds = moment as u64 % 86_400;
    format!("{:02}:{:02}", seconds / 3600, seconds / 60 % 60)
}

/// For XML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Width of a text in pixels, roughly.
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.56
}
