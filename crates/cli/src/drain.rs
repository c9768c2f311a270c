//! `pathproof drain`: queries a running agent, once or until no new connections arrive from
//! outside. It is made for termination hooks, so its exit code is the result.

use std::thread;
use std::time::Duration;

use pathproof_facts::time::Mono;
use pathproof_judge::drain::{Ask, DrainReason};
use pathproof_report::drain::DrainReport;

use super::page::sentence;
use super::{Exit, FetchError, fetch};
use crate::args::DrainArgs;

/// Polling interval, equal to the agent's sampling interval when nothing happens.
const AGAIN: Duration = Duration::from_millis(500);
/// Maximum wait for an agent that does not answer: a restart takes this long.
const RESTART: Duration = Duration::from_secs(10);

type Answer = Result<DrainReport, FetchError>;

/// Runs the command. `now` reads the monotonic clock.
pub fn run(args: &DrainArgs, now: fn() -> Mono) -> Exit {
    let begun = now();
    let mut wait = Wait {
        timeout: args.timeout,
        silent: None,
    };
    loop {
        let ask = Ask {
            quiet: args.quiet,
            waited: args.wait.then(|| now().since(begun)),
        };
        let answer = fetch::drain(&args.admin.address, &ask);
        let elapsed = now().since(begun);
        if !args.wait || wait.is_over(&answer, elapsed) {
            return show(answer);
        }
        thread::sleep(AGAIN.min(args.timeout.saturating_sub(elapsed)));
    }
}

fn show(answer: Answer) -> Exit {
    match answer {
        Ok(report) => super::print(&text(&report)).then(ending(report.reason).0),
        // Without an answer, it is unknown whether connections still arrive.
        Err(error) => {
            super::fail(&error);
            Exit::Unknown
        }
    }
}

fn text(report: &DrainReport) -> String {
    let (_, word) = ending(report.reason);
    format!("{word}  {}\n", sentence(&report.message))
}

fn ending(reason: DrainReason) -> (Exit, &'static str) {
    match reason {
        DrainReason::Quiet => (Exit::Success, "QUIET"),
        DrainReason::Connections | DrainReason::Waiting | DrainReason::NotLeaving => {
            (Exit::Failure, "NOT QUIET")
        }
        DrainReason::Blind => (Exit::Unknown, "UNKNOWN"),
    }
}

/// State of a wait. It has no clock and no I/O: times and answers are arguments.
#[derive(Debug)]
struct Wait {
    timeout: Duration,
    /// Time of the first failed request in a row; `None` after an answer.
    silent: Option<Duration>,
}

impl Wait {
    /// Whether the wait ends with this answer, which came `elapsed` after the start.
    fn is_over(&mut self, answer: &Answer, elapsed: Duration) -> bool {
        let done = match answer {
            Ok(report) => {
                self.silent = None;
                report.is_quiet()
            }
            Err(error) => {
                let since = *self.silent.get_or_insert(elapsed);
                // Errors that a restart of the agent may explain.
                let may_pass = matches!(
                    error,
                    FetchError::Unreachable(..) | FetchError::Broken(..) | FetchError::TooEarly(..)
                );
                !may_pass || elapsed.saturating_sub(since) >= RESTART
            }
        };
        done || elapsed >= self.timeout
    }
}

#[cfg(test)]
mod tests;
