//! `pathproof drain`: asks a running agent whether new connections still come from outside, once
//! or until none do. Made for termination hooks: what it exits with is what counts.

use std::io::{self, Write as _};
use std::thread;
use std::time::Duration;

use super::paper::sentence;
use super::{Exit, FetchError, fetch};
use crate::args::{DrainArgs, Output};
use agent_core::drain::{Ask, Reason};
use agent_core::report::drain::DrainReport;
use agent_core::time::{Mono, Spoken};

/// The agent looks as often when nothing happens.
const AGAIN: Duration = Duration::from_millis(500);
/// An agent that does not answer is waited for as long as a restart may take.
const RESTART: Duration = Duration::from_secs(10);
/// Progress is said this often, and whenever it changes in kind.
const TELL: Duration = Duration::from_secs(5);

/// An answer, and its body.
type Answer = Result<(DrainReport, String), FetchError>;

/// Runs the command. `now` reads the monotonic clock.
pub fn run(said: &DrainArgs, now: fn() -> Mono) -> Exit {
    if said.wait {
        return wait(said, now);
    }
    let ask = Ask {
        quiet: said.quiet,
        waited: None,
    };
    match fetch::drain(&said.admin.address, &ask) {
        Ok((report, body)) => show(said, &report, &body),
        Err(error) => fail(&error),
    }
}

fn wait(said: &DrainArgs, now: fn() -> Mono) -> Exit {
    let begun = now();
    let mut wait = Wait::new(said.timeout);
    loop {
        let waited = now().since(begun);
        let ask = Ask {
            quiet: said.quiet,
            waited: Some(waited),
        };
        let answer = fetch::drain(&said.admin.address, &ask);
        let elapsed = now().since(begun);
        match wait.step(answer, elapsed) {
            Step::Again { tell } => {
                if let Some(line) = tell {
                    // Where nobody reads it, the hook waits all the same.
                    let _ = writeln!(io::stderr(), "pathproof: {line}");
                }
                thread::sleep(AGAIN.min(said.timeout.saturating_sub(elapsed)));
            }
            Step::End(Ok((report, body))) => return show(said, &report, &body),
            Step::End(Err(error)) => return fail(&error),
        }
    }
}

/// Says the last answer.
fn show(said: &DrainArgs, report: &DrainReport, body: &str) -> Exit {
    let printed = match said.output {
        Output::Json => super::print(body),
        Output::Text => super::print(&text(report)),
    };
    match printed {
        Exit::Success => exit(report.reason),
        exit => exit,
    }
}

fn text(report: &DrainReport) -> String {
    let head = match report.reason {
        Reason::Quiet => "QUIET",
        Reason::Blind => "UNKNOWN",
        Reason::Connections | Reason::Waiting | Reason::NotLeaving => "NOT QUIET",
    };
    let mut text = format!("{head}  {}\n", sentence(&report.message));
    if let Some(connections) = report.connections {
        let what = if connections == 1 {
            "new connection"
        } else {
            "new connections"
        };
        text.push_str(&format!(
            "{connections} {what} since the node is {}.\n",
            report.node
        ));
    }
    text
}

fn exit(reason: Reason) -> Exit {
    match reason {
        Reason::Quiet => Exit::Success,
        Reason::Connections | Reason::Waiting | Reason::NotLeaving => Exit::Failure,
        Reason::Blind => Exit::Unknown,
    }
}

/// Without an answer nothing is known of connections.
fn fail(error: &FetchError) -> Exit {
    super::fail(error);
    Exit::Unknown
}

/// What to do after an answer.
#[derive(Debug)]
enum Step {
    /// Ask again in a moment.
    Again {
        /// What to say meanwhile.
        tell: Option<String>,
    },
    /// This is the end, with this last answer.
    End(Answer),
}

/// A wait under way: pure but for the answers it is given.
#[derive(Debug)]
struct Wait {
    timeout: Duration,
    /// Connections while it waited, and the agent's count at the last answer.
    came: u64,
    total: Option<u64>,
    /// Since when nobody answers.
    silent: Option<Duration>,
    /// What was said last, and when.
    told: Option<(Option<Reason>, Duration)>,
}

impl Wait {
    fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            came: 0,
            total: None,
            silent: None,
            told: None,
        }
    }

    /// After an answer that came `elapsed` after the start.
    fn step(&mut self, answer: Answer, elapsed: Duration) -> Step {
        let over = elapsed >= self.timeout;
        match &answer {
            Ok((report, _)) => {
                self.silent = None;
                self.count(report.total);
                if report.is_quiet() || over {
                    return Step::End(answer);
                }
                let so_far = format!("{}; {} so far", report.message, self.came);
                self.again(Some(report.reason), &so_far, elapsed)
            }
            Err(error) => {
                let since = *self.silent.get_or_insert(elapsed);
                if over || !may_pass(error) || elapsed.saturating_sub(since) >= RESTART {
                    return Step::End(answer);
                }
                self.again(None, &error.to_string(), elapsed)
            }
        }
    }

    /// A total that is smaller is a restarted agent's.
    fn count(&mut self, total: u64) {
        let before = self.total.replace(total).unwrap_or(total);
        self.came += total.checked_sub(before).unwrap_or(total);
    }

    fn again(&mut self, kind: Option<Reason>, what: &str, elapsed: Duration) -> Step {
        let due = self
            .told
            .is_none_or(|(told, at)| told != kind || elapsed.saturating_sub(at) >= TELL);
        let tell = due.then(|| {
            self.told = Some((kind, elapsed));
            format!("{} of {}: {what}", Spoken(elapsed), Spoken(self.timeout))
        });
        Step::Again { tell }
    }
}

/// Whether an agent that restarts may be what is in the way.
fn may_pass(error: &FetchError) -> bool {
    matches!(
        error,
        FetchError::Unreachable { .. } | FetchError::Broken { .. } | FetchError::TooEarly { .. }
    )
}

#[cfg(test)]
mod tests;
