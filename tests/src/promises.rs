//! Tables of a benchmark. Each row is judged when it is printed. Rows that missed their promise are listed
//! once more after all tables.

use std::process::ExitCode;

/// Rows whose promise was missed.
#[derive(Clone, Debug, Default)]
pub struct Missed(Vec<String>);

impl Missed {
    /// Columns of [`Missed::figure`].
    pub const FIGURE: &str = "figure | value | unit | promise | met | peer | ratio";

    /// Records whether a row met its promise. Returns the word for its table.
    pub fn record(&mut self, row: impl Into<String>, is_met: bool) -> &'static str {
        if is_met {
            return "yes";
        }
        self.0.push(row.into());
        "NO"
    }

    /// Prints a row of a table with the columns [`Missed::FIGURE`]. If there are several rounds, the median
    /// is judged, and minimum and maximum are printed too. The peer has a name and a value.
    pub fn figure(
        &mut self,
        name: &str,
        unit: &str,
        rounds: &[f64],
        promise: Option<f64>,
        peer: Option<(&str, f64)>,
    ) {
        let value = median(rounds.iter().copied());
        let (mut range, mut statistic) = (String::new(), "of one run");
        if rounds.len() > 1 {
            let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
            let most = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            (range, statistic) = (format!(" ({least:.2} to {most:.2})"), "median");
        }
        let (promise, met) = promise.map_or_else(Default::default, |most| {
            let promise = format!("{statistic} at most {most:.2}");
            (promise, self.record(name, value <= most))
        });
        let (peer, ratio) = peer.map_or_else(Default::default, |(name, peer)| {
            (format!("{name}: {peer:.2}"), format!("{:.2}", value / peer))
        });
        println!("| {name} | {value:.2}{range} | {unit} | {promise} | {met} | {peer} | {ratio} |");
    }

    /// Lists the missed rows and returns the benchmark's exit code.
    pub fn close(self) -> ExitCode {
        if self.0.is_empty() {
            return ExitCode::SUCCESS;
        }
        println!("\nNot met: {}.", self.0.join("; "));
        ExitCode::FAILURE
    }
}

/// Prints the head of a table. ` | ` separates its columns.
pub fn head(columns: &str) {
    let line = "---|".repeat(columns.split(" | ").count());
    println!("\n| {columns} |\n|{line}");
}

/// The median, or the upper one of two middle values; NaN if there are no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missed_promises_are_kept() {
        let mut missed = Missed::default();
        missed.figure("no promise", "MiB", &[99.0], None, None);
        missed.figure("met", "MiB", &[16.0], Some(16.0), None);
        assert_eq!(missed.record("met too", true), "yes");
        assert_eq!(missed.0, [""; 0]);
        assert_eq!(missed.record("time", false), "NO");
        missed.figure("no number", "MiB", &[f64::NAN], Some(16.0), None);
        assert_eq!(missed.0, ["time", "no number"]);
    }

    #[test]
    fn the_median_of_several_rounds_is_judged() {
        let mut missed = Missed::default();
        missed.figure("low", "MiB", &[9.0, 1.0, 2.0], Some(2.0), None);
        missed.figure(
            "high",
            "MiB",
            &[1.0, 9.0, 3.0],
            Some(2.0),
            Some(("peer", 1.0)),
        );
        missed.figure("nothing", "MiB", &[], Some(2.0), None);
        assert_eq!(missed.0, ["high", "nothing"]);
        assert_eq!(median([4.0, 1.0, 3.0, 2.0]), 3.0);
    }
}
