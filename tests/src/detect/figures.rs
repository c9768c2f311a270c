//! Times of many injections, and their statistics.

use std::time::Duration;

use crate::promises::Missed;

/// The samples of one time, from many injections.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    samples: Vec<Duration>,
    /// Number of injections after which the event never came.
    pub never: usize,
}

impl Figure {
    /// Columns of [`Figure::row`]; times are in milliseconds.
    pub const COLUMNS: &str =
        "times | median | p99 | maximum | never | unit | promise | met | p99 / promise";

    /// Adds a time, or `None` if the event never came.
    pub fn note(&mut self, time: Option<Duration>) {
        match time {
            Some(time) => self.samples.push(time),
            None => self.never += 1,
        }
    }

    pub fn count(&self) -> usize {
        self.samples.len() + self.never
    }

    /// The shortest time that this percentage of all times does not exceed.
    pub fn rank(&self, percent: usize) -> Option<Duration> {
        let mut sorted = self.samples.clone();
        sorted.sort();
        let rank = (sorted.len() * percent).div_ceil(100);
        sorted.get(rank.saturating_sub(1)).copied()
    }

    /// Whether the event came each time, and p99 is within the promise.
    pub fn keeps(&self, promise: Duration) -> bool {
        let p99 = self.rank(99);
        self.never == 0 && p99.is_some_and(|p99| p99 <= promise)
    }

    /// The cells of [`Figure::COLUMNS`].
    pub fn row(&self, promise: Duration) -> String {
        let [median, p99, longest] = [50, 99, 100].map(|percent| ms(self.rank(percent)));
        let (count, never) = (self.count(), self.never);
        let met = if self.keeps(promise) { "yes" } else { "NO" };
        let ratio = self.rank(99).unwrap_or_default().as_secs_f64() / promise.as_secs_f64();
        let promise = promise.as_millis();
        format!(
            "{count} | {median} | {p99} | {longest} | {never} | ms | p99 at most {promise} | {met} | {ratio:.2}"
        )
    }

    /// Prints a table row of [`Figure::COLUMNS`] after its name, and judges it.
    pub fn print(&self, name: &str, promise: Duration, missed: &mut Missed) {
        println!("| {name} | {} |", self.row(promise));
        missed.record(name, self.keeps(promise));
    }
}

/// Milliseconds as text.
pub fn ms(time: Option<Duration>) -> String {
    let ms = |time: Duration| format!("{:.2}", time.as_secs_f64() * 1e3);
    time.map_or("never".to_owned(), ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        let mut figure = Figure::default();
        assert_eq!(figure.rank(50), None);
        let time = |ms| Some(Duration::from_millis(ms));
        figure.note(time(1));
        assert_eq!(figure.rank(99), time(1));
        (2..=100).rev().for_each(|ms| figure.note(time(ms)));
        for percent in [1, 50, 99, 100] {
            assert_eq!(figure.rank(percent as usize), time(percent));
        }
    }

    #[test]
    fn a_missing_event_misses_the_promise() {
        let mut figure = Figure::default();
        figure.note(Some(Duration::from_millis(500)));
        let second = Duration::from_secs(1);
        assert_eq!(
            figure.row(second),
            "1 | 500.00 | 500.00 | 500.00 | 0 | ms | p99 at most 1000 | yes | 0.50"
        );
        figure.note(None);
        assert_eq!(
            figure.row(second),
            "2 | 500.00 | 500.00 | 500.00 | 1 | ms | p99 at most 1000 | NO | 0.50"
        );
    }
}
