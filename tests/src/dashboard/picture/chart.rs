//! Panels with one value, lines over time, and states over time.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::super::text;
use super::look::{Display, clock, colour, width};
use super::{Area, Series, write_text};
use crate::prometheus::Span;

const DIM: &str = "#8e8e99";

pub(super) fn stat(out: &mut String, panel: &Value, area: Area, series: &[Series]) {
    let Area { x, y, w, h } = area;
    let defaults = &panel["fieldConfig"]["defaults"];
    let display = Display::of(panel, "");
    let last = series
        .first()
        .and_then(|one| Some((one, one.points.last()?.1)));
    let (shown, fill) = match last {
        Some((one, value)) if panel["options"]["textMode"] == "name" => {
            (one.name.clone(), display.show(value, 0.0).1)
        }
        Some((_, value)) => display.show(value, 0.0),
        None => {
            let said = defaults["noValue"].as_str().unwrap_or("No data");
            let base = text(&defaults["thresholds"]["steps"][0]["color"]);
            (said.to_owned(), colour(base).to_owned())
        }
    };
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"2\" fill=\"{fill}\" \
         fill-opacity=\"0.75\"/>"
    );
    let size = ((w - 24.0) / width(&shown, 1.0).max(0.6)).min(44.0);
    let place = (x + w / 2.0, y + h / 2.0 + 10.0 + size / 3.0);
    write_text(out, place, "middle", "#ffffff", size as u32, &shown);
}

/// The part of a panel for values, between axis and legend, over its time.
struct Plot {
    area: Area,
    span: Span,
}

impl Plot {
    fn new(area: Area, span: Span, left: f64, below: f64) -> Self {
        let area = Area {
            x: area.x + left,
            y: area.y + 6.0,
            w: area.w - left - 4.0,
            h: area.h - below - 6.0,
        };
        Self { area, span }
    }

    fn across(&self, moment: f64) -> f64 {
        let Span { start, end, .. } = self.span;
        self.area.x + self.area.w * (moment - start) / (end - start).max(1.0)
    }

    fn line_at(&self, out: &mut String, y: f64, stroke: &str, dashes: &str) {
        let (x, end) = (self.area.x, self.area.x + self.area.w);
        let _ = writeln!(
            out,
            "<path d=\"M{x:.1} {y:.1}H{end:.1}\" stroke=\"{stroke}\" stroke-dasharray=\"{dashes}\"/>"
        );
    }

    /// Minutes below.
    fn time_axis(&self, out: &mut String) {
        let Span { start, end, .. } = self.span;
        let minutes = ((end - start) / 60.0 / (self.area.w / 70.0))
            .ceil()
            .max(1.0)
            * 60.0;
        let mut moment = (start / minutes).ceil() * minutes;
        while moment <= end {
            let (x, top) = (self.across(moment), self.area.y);
            let bottom = top + self.area.h;
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} {top:.1}V{bottom:.1}\" stroke=\"#24262b\"/>"
            );
            write_text(out, (x, bottom + 14.0), "middle", DIM, 11, &clock(moment));
            moment += minutes;
        }
    }
}

pub(super) fn time_series(out: &mut String, panel: &Value, area: Area, all: &[Series], span: Span) {
    if all.iter().all(|one| one.points.is_empty()) {
        let place = (area.x + area.w / 2.0, area.y + area.h / 2.0);
        return write_text(out, place, "middle", DIM, 14, "No data");
    }
    let defaults = &panel["fieldConfig"]["defaults"];
    let display = Display::of(panel, "");
    let rows = legend_rows(all, area.w);
    let plot = Plot::new(area, span, 66.0, 22.0 + 17.0 * rows.len() as f64);
    let layers = layers(all, defaults["custom"]["stacking"]["mode"] == "normal");
    let highest = layers
        .iter()
        .flatten()
        .map(|layer| layer.2)
        .fold(0.0, f64::max);
    let limit = defaults["max"].as_f64();
    let step = nice(limit.unwrap_or(highest) / 4.0, text(&defaults["unit"]));
    let top = limit.unwrap_or((highest / step).ceil().max(1.0) * step);
    let up = |value: f64| plot.area.y + plot.area.h * (1.0 - value.min(top) / top);
    plot.time_axis(out);
    for tick in 0..=(top / step).round() as u32 {
        let value = f64::from(tick) * step;
        plot.line_at(out, up(value), "#2c2f34", "none");
        let place = (plot.area.x - 6.0, up(value) + 4.0);
        write_text(out, place, "end", DIM, 11, &display.number(value, 0.0));
    }
    let opacity = defaults["custom"]["fillOpacity"]
        .as_f64()
        .unwrap_or_default()
        / 100.0;
    for (series, layer) in all.iter().zip(&layers) {
        for run in layer.chunk_by(|a, b| b.0 - a.0 < 2.5 * span.step) {
            draw_run(out, &plot, run, up, &series.colour, opacity);
        }
    }
    for (value, fill) in display
        .lines()
        .into_iter()
        .filter(|(value, _)| *value <= top)
    {
        plot.line_at(out, up(value), fill, "6 4");
    }
    draw_legend(out, area, &rows);
}

/// Time, lower and upper end.
type Layer = Vec<(f64, f64, f64)>;

fn draw_run(
    out: &mut String,
    plot: &Plot,
    run: &[(f64, f64, f64)],
    up: impl Fn(f64) -> f64,
    colour: &str,
    opacity: f64,
) {
    let mut line = String::new();
    for (moment, _, high) in run {
        let word = if line.is_empty() { "M" } else { "L" };
        let _ = write!(line, "{word}{:.1} {:.1}", plot.across(*moment), up(*high));
    }
    if opacity > 0.0 {
        let mut fill = line.clone();
        for (moment, low, _) in run.iter().rev() {
            let _ = write!(fill, "L{:.1} {:.1}", plot.across(*moment), up(*low));
        }
        let _ = writeln!(
            out,
            "<path d=\"{fill}Z\" fill=\"{colour}\" fill-opacity=\"{opacity}\"/>"
        );
    } else {
        let _ = writeln!(
            out,
            "<path d=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        );
    }
}

/// Each series; stacked upon each other where the panel says so.
fn layers(all: &[Series], stacked: bool) -> Vec<Layer> {
    let mut below: BTreeMap<u64, f64> = BTreeMap::new();
    let mut layer = |series: &Series| {
        let mut one = |(moment, value): &(f64, f64)| {
            let sum = below.entry(*moment as u64).or_default();
            let low = if stacked { *sum } else { 0.0 };
            *sum = low + value;
            (*moment, low, low + value)
        };
        series.points.iter().map(&mut one).collect()
    };
    all.iter().map(&mut layer).collect()
}

/// A step of an axis: 1, 2 or 5 times a power of ten, a power of two for bytes.
fn nice(rough: f64, unit: &str) -> f64 {
    let rough = rough.max(1e-9);
    if unit == "bytes" {
        return rough.log2().ceil().exp2();
    }
    let power = 10_f64.powf(rough.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let step = factors
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    if unit == "none" { step.max(1.0) } else { step }
}

/// Entries of the legend with their place from the left, at most three rows.
fn legend_rows(all: &[Series], room: f64) -> Vec<Vec<(f64, &Series)>> {
    let mut rows: Vec<Vec<(f64, &Series)>> = vec![Vec::new()];
    let mut x = 0.0;
    for series in all {
        let wide = 34.0 + width(&series.name, 11.0);
        if x + wide > room && x > 0.0 {
            rows.push(Vec::new());
            x = 0.0;
        }
        if let Some(row) = rows.last_mut() {
            row.push((x, series));
        }
        x += wide;
    }
    rows.truncate(3);
    rows
}

fn draw_legend(out: &mut String, area: Area, rows: &[Vec<(f64, &Series)>]) {
    for (row, entries) in rows.iter().enumerate() {
        let y = area.y + area.h - 17.0 * (rows.len() - row) as f64 + 14.0;
        for (x, series) in entries {
            let (x, fill) = (area.x + x, &series.colour);
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"13\" height=\"4\" rx=\"2\" fill=\"{fill}\"/>",
                y - 6.0
            );
            write_text(out, (x + 18.0, y), "start", "#ccccdc", 11, &series.name);
        }
    }
}

pub(super) fn timeline(out: &mut String, panel: &Value, area: Area, all: &[Series], span: Span) {
    let display = Display::of(panel, "");
    let names = all
        .iter()
        .map(|one| width(&one.name, 12.0))
        .fold(40.0, f64::max);
    let plot = Plot::new(area, span, names + 10.0, 20.0);
    plot.time_axis(out);
    let pitch = (plot.area.h / all.len().max(1) as f64).min(40.0);
    for (row, series) in all.iter().enumerate() {
        let y = plot.area.y + row as f64 * pitch;
        let middle = y + pitch * 0.43 + 4.0;
        write_text(
            out,
            (plot.area.x - 8.0, middle),
            "end",
            "#ccccdc",
            12,
            &series.name,
        );
        let same = |a: &(f64, f64), b: &(f64, f64)| a.1 == b.1 && b.0 - a.0 < 2.5 * span.step;
        for run in series.points.chunk_by(same) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else {
                continue;
            };
            let (said, fill) = display.show(first.1, 0.0);
            let x = plot.across(first.0);
            let wide = (plot.across((last.0 + span.step).min(span.end)) - x).max(1.5);
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{:.1}\" fill=\"{fill}\" \
                 fill-opacity=\"0.85\"/>",
                pitch * 0.85
            );
            if wide > width(&said, 12.0) + 8.0 {
                write_text(out, (x + 5.0, middle), "start", "#111217", 12, &said);
            }
        }
    }
}
