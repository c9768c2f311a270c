//! Promises that a benchmark measures: each is judged where its row is made, and what was missed is
//! named once, behind all tables.

use std::process::ExitCode;

/// Rows whose promise was not met.
#[derive(Clone, Debug, Default)]
pub struct Missed(Vec<String>);

impl Missed {
    /// Judges a row. Gives the word for its table.
    pub fn judge(&mut self, row: impl Into<String>, is_met: bool) -> &'static str {
        if is_met {
            return "yes";
        }
        self.0.push(row.into());
        "NO"
    }

    /// The cells of a promise and whether it is met, where the row has one: at most so much, by this
    /// statistic.
    pub fn at_most(
        &mut self,
        row: &str,
        statistic: &str,
        promise: Option<f64>,
        value: f64,
    ) -> (String, &'static str) {
        match promise {
            Some(most) => (
                format!("{statistic} at most {most}"),
                self.judge(row, value <= most),
            ),
            None => (String::new(), ""),
        }
    }

    /// Names what was missed, and gives the exit code of the benchmark.
    pub fn close(self) -> ExitCode {
        if self.0.is_empty() {
            return ExitCode::SUCCESS;
        }
        println!("\nNot met: {}.", self.0.join("; "));
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missed_is_kept_and_nothing_else() {
        let mut missed = Missed::default();
        assert_eq!(
            missed.at_most("memory", "median", None, 99.0),
            (String::new(), "")
        );
        assert_eq!(
            missed.at_most("memory", "median", Some(16.0), 16.0),
            ("median at most 16".to_owned(), "yes")
        );
        assert_eq!(missed.0, [""; 0]);
        assert_eq!(missed.judge("time", false), "NO");
        assert_eq!(
            missed.at_most("memory", "median", Some(16.0), f64::NAN).1,
            "NO"
        );
        assert_eq!(missed.0, ["time", "memory"]);
    }
}
