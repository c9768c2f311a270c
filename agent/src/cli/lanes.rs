//! How far a probe came, on a page.

use std::time::Duration;

use super::paper::{Ink, Paper};
use agent_core::explain::Step;
use agent_core::time::Spoken;

/// `sent ✔ arrived ✔ translated ✘ `.
pub(super) fn chain(paper: &mut Paper, steps: &[Step]) {
    for step in steps {
        let (mark, ink) = match step.reached {
            true => ("✔", Ink::Good),
            false => ("✘", Ink::Bad),
        };
        paper
            .put(Ink::Faint, step.stage.name())
            .put(Ink::Plain, " ")
            .put(ink, mark)
            .put(Ink::Plain, " ");
    }
}

/// Times of a probe are often less than a millisecond.
pub(super) fn fine(time: Duration) -> String {
    match time.as_micros() {
        us @ 0..1_000 => format!("{us} µs"),
        us @ 1_000..10_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        _ => Spoken(time).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(fine(Duration::from_nanos(118_400)), "118 µs");
        assert_eq!(fine(Duration::from_micros(1_250)), "1.2 ms");
        assert_eq!(fine(Duration::from_millis(42)), "42 ms");
    }
}
