//! Plays simulated fleets with the fleet brake: prints the tables that docs/fleet-brake.md sums up, and
//! writes that page's picture to the file in the argument. Started by `cargo xtask bench fleet`.

use std::time::Duration;
use std::{env, fs, io};

use pathproof_sim::fleet::{BALANCERS, Outcome, SCENARIOS, Scenario, play};

const SEED: u64 = 1;
const FLEETS: [u32; 3] = [3, 200, 5_000];

fn main() -> io::Result<()> {
    for nodes in FLEETS {
        table(nodes);
    }
    match env::args().nth(1) {
        Some(file) => fs::write(file, picture()),
        None => Ok(()),
    }
}

fn table(nodes: u32) {
    let balancers = BALANCERS.map(|balancer| balancer.name).join(" | ");
    println!("\n### {nodes} nodes\n");
    println!(
        "| scenario | 503: peak | at 10 s | at 60 s | over the limit | first 503 after | {balancers} | counts written |"
    );
    println!("|---|{}", "---:|".repeat(6 + BALANCERS.len()));
    for scenario in &SCENARIOS {
        row(scenario, &play(scenario, nodes, SEED));
    }
}

fn row(scenario: &Scenario, outcome: &Outcome) {
    let percent = |number: u32| match (number, 100.0 * f64::from(number) / f64::from(outcome.nodes))
    {
        (0, _) => "0".to_owned(),
        (_, share) if share < 0.95 => format!("{share:.2} %"),
        (_, share) => format!("{share:.0} %"),
    };
    let s = |seconds| Duration::from_secs(seconds);
    let limit = (outcome.nodes / 5).max(1);
    let out = BALANCERS.map(|balancer| percent(outcome.out(&balancer)));
    let answered = outcome
        .answered
        .map(|by| format!("{:.1} s", by.as_secs_f64()));
    println!(
        "| {} | {} | {} | {} | {:.0} s | {} | {} | {} |",
        scenario.name,
        percent(outcome.peak_after(s(0))),
        percent(outcome.at(s(10))),
        percent(outcome.at(s(60))),
        outcome.above(limit).as_secs_f64(),
        answered.unwrap_or_default(),
        out.join(" | "),
        outcome.writes.1
    );
}

/// Scenarios of the picture, with their labels and colours.
const LINES: [(&str, &str, &str); 5] = [
    (
        "all nodes, certain, brake off",
        "certain cause, brake off",
        "#cf222e",
    ),
    (
        "all nodes, rotator killed",
        "certain cause, rotator killed",
        "#8250df",
    ),
    ("all nodes, certain", "certain cause, brake on", "#0969da"),
    (
        "pool of 6, certain",
        "certain cause, a pool of 6 alone",
        "#bf8700",
    ),
    (
        "all nodes, uncertain",
        "uncertain cause, brake on",
        "#1a7f37",
    ),
];
const SECONDS: u32 = 70;
/// The plot's corners in the picture.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 560.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 330.0;

fn x(seconds: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * seconds / f64::from(SECONDS)
}

fn y(percent: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * percent / 100.0
}

/// Share of nodes that answer 503 over time: of 200 nodes, or of a pool of them.
fn picture() -> String {
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"870\" height=\"390\" viewBox=\"0 0 870 390\" \
         role=\"img\" aria-label=\"share of nodes that answer 503 over time\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"870\" height=\"390\" fill=\"#ffffff\"/>\n",
    );
    svg += &text(
        (LEFT, 28.0),
        "start",
        "#1f2328",
        "Bad evidence at one moment on all of 200 nodes, or on one pool of them",
    );
    axes(&mut svg);
    for (place, (name, label, colour)) in LINES.into_iter().enumerate() {
        let found = SCENARIOS.iter().find(|scenario| scenario.name == name);
        let Some(scenario) = found else { continue };
        // Lines overlap, so the first one is drawn wider.
        let width = if place == 0 { 5.0 } else { 2.5 };
        let points = points(&play(scenario, 200, SEED));
        svg += &format!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>\n"
        );
        let at = TOP + 20.0 + 24.0 * place as f64;
        svg += &format!("<path d=\"M580 {at}h22\" stroke=\"{colour}\" stroke-width=\"4\"/>\n");
        svg += &text((610.0, at + 4.0), "start", "#1f2328", label);
    }
    svg + "</svg>\n"
}

fn axes(svg: &mut String) {
    for percent in [0, 20, 40, 60, 80, 100] {
        let at = y(f64::from(percent));
        let (colour, dashes) = match percent {
            20 => ("#57606a", " stroke-dasharray=\"6 4\""),
            _ => ("#d0d7de", ""),
        };
        *svg += &format!("<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"{colour}\"{dashes}/>\n");
        *svg += &text(
            (LEFT - 8.0, at + 4.0),
            "end",
            "#57606a",
            &format!("{percent} %"),
        );
    }
    for seconds in (0..=SECONDS).step_by(10) {
        let at = (x(f64::from(seconds)), BOTTOM + 20.0);
        *svg += &text(at, "middle", "#57606a", &seconds.to_string());
    }
    let middle = (LEFT + RIGHT) / 2.0;
    let axis = "seconds since the evidence went bad";
    *svg += &text((middle, BOTTOM + 44.0), "middle", "#57606a", axis);
    let label = "nodes that answer 503; dashed: the limit";
    *svg += &text((580.0, BOTTOM), "start", "#57606a", label);
}

fn text((x, y): (f64, f64), anchor: &str, colour: &str, text: &str) -> String {
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>\n"
    )
}

fn points(outcome: &Outcome) -> String {
    let at = |tenth: u32| {
        let refusing = outcome.at(Duration::from_millis(100) * tenth);
        let share = 100.0 * f64::from(refusing) / f64::from(outcome.nodes);
        format!("{:.1},{:.1}", x(f64::from(tenth) / 10.0), y(share))
    };
    (0..=SECONDS * 10).map(at).collect::<Vec<_>>().join(" ")
}
