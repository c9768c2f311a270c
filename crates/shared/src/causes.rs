//! An error and its causes in one sentence, for people and the log. This module must not depend on the type
//! of any error.

use std::error::Error;
use std::iter::successors;

/// Number of lines that are kept from the end of a long cause: the last lines of a verifier's log give the
/// reason.
const LAST_LINES: usize = 4;

/// An error, then its causes.
pub fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| error.source())
}

/// An error and its causes, joined by colons. If an error's text already quotes its cause, the cause is not
/// repeated. A cause of many lines, such as a verifier's log of megabytes, is cut to its first and last
/// lines.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = shortened(&error.to_string());
    for cause in causes(error).skip(1) {
        let said = shortened(&cause.to_string());
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
    }
    text
}

fn shortened(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    if lines.len() <= LAST_LINES + 1 {
        return text.to_owned();
    }
    format!(
        "{} ... {}",
        lines[0],
        lines[lines.len() - LAST_LINES..].join(" | ")
    )
}

#[cfg(test)]
mod tests {
    use thiserror::Error;

    use super::chain;

    #[derive(Debug, Error)]
    #[error("{said}")]
    struct Said {
        said: String,
        source: Option<Box<Said>>,
    }

    fn said(words: &[&str]) -> Said {
        let (first, causes) = words.split_first().expect("words");
        Said {
            said: (*first).to_owned(),
            source: (!causes.is_empty()).then(|| Box::new(said(causes))),
        }
    }

    #[test]
    fn each_cause_is_said_once() {
        assert_eq!(chain(&said(&["a", "b", "c"])), "a: b: c");
        assert_eq!(
            chain(&said(&["no x (refused): help", "refused"])),
            "no x (refused): help"
        );
    }

    #[test]
    fn of_a_log_the_ends_are_kept_and_not_repeated() {
        let log = (0..5_000)
            .map(|line| format!("line {line}\n"))
            .collect::<String>();
        let log = format!("refused by:\n{log}not allowed");
        let quoted = format!("no rights ({}): be root", chain(&said(&[&log])));
        let text = chain(&said(&[&quoted, &log]));
        assert_eq!(text, quoted);
        assert!(
            text.contains("refused by: ...") && text.contains("| not allowed"),
            "{text}"
        );
        assert!(text.len() < 200, "{text}");
    }
}
