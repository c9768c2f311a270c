//! Actions in a small fleet: the lines of a history.

use std::fmt;
use std::time::Duration;

use super::super::explore::letter;

#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// A node's evidence begins to show a failure, of a certain cause (`true`) or not.
    Fail(usize, bool),
    Repair(usize),
    /// The API server takes a condition with status False (`true`) or True.
    Report(usize, bool),
    Receive(usize, u32),
    Rejoin(usize),
    Restart(usize),
    /// The rotator writes this number of failing nodes, although something is late (`true`).
    Count(u32, bool),
    Die,
    Lead,
    GoAway,
    ComeBack,
    /// This time passes, although something is late (`true`).
    Pass(Duration, bool),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let late = |is_late| match is_late {
            true => " although something is late",
            false => "",
        };
        match *self {
            Self::Fail(node, certain) => {
                let cause = if certain { "a certain" } else { "an uncertain" };
                write!(f, "{} fails for {cause} cause", letter(node))
            }
            Self::Repair(node) => write!(f, "{} is repaired", letter(node)),
            Self::Report(node, fails) => {
                let status = if fails { "False" } else { "True" };
                write!(f, "{}'s condition becomes {status}", letter(node))
            }
            Self::Receive(node, count) => {
                write!(f, "{} receives the count of {count}", letter(node))
            }
            Self::Rejoin(node) => write!(f, "{} is connected again", letter(node)),
            Self::Restart(node) => write!(f, "{} restarts without its memory", letter(node)),
            Self::Count(count, is_late) => write!(f, "the rotator counts {count}{}", late(is_late)),
            Self::Die => f.write_str("the rotator dies"),
            Self::Lead => f.write_str("another rotator leads"),
            Self::GoAway => f.write_str("the API server goes away"),
            Self::ComeBack => f.write_str("the API server is back"),
            Self::Pass(span, is_late) => write!(f, "{} s pass{}", span.as_secs(), late(is_late)),
        }
    }
}
