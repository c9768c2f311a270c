//! The operator's verdicts on episodes: a text file with one verdict a line.

use jiff::Timestamp;
use pathproof_facts::named;
use pathproof_report::episodes::{Episode, Journal};
use pathproof_shared::values::time;

named! {
    /// Whether the 503 was, or would have been, right.
    pub(super) enum Judged {
        Right = "right",
        Wrong = "wrong",
        Unknown = "unknown",
    }
}

#[derive(Debug, PartialEq)]
pub(super) struct OperatorVerdict {
    pub(super) node: String,
    /// Any time of the episode.
    pub(super) at: Timestamp,
    pub(super) judged: Judged,
    pub(super) note: String,
}

impl OperatorVerdict {
    /// Whether it is on this episode of the journal. The time at which an episode begins means that one alone:
    /// the one before may have ended in the same second.
    pub(super) fn is_on(&self, journal: &Journal, episode: &Episode) -> bool {
        let is_begin = |other: &Episode| other.begin == self.at;
        let is_exact = || journal.episodes.iter().any(is_begin);
        self.node == journal.node && episode.contains(self.at) && (is_begin(episode) || !is_exact())
    }
}

/// Parses lines of `NODE TIME right|wrong|unknown NOTE`. Empty lines and comments (`#`) are ignored.
///
/// # Errors
/// The number of a wrong line, and what is wrong with it.
pub(super) fn parse(text: &str) -> Result<Vec<OperatorVerdict>, (usize, String)> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, text)| !text.is_empty() && !text.starts_with('#'));
    let verdicts = lines.map(|(line, text)| verdict(text).map_err(|why| (line, why)));
    verdicts.collect()
}

fn verdict(text: &str) -> Result<OperatorVerdict, String> {
    let mut words = text.split_whitespace();
    let (Some(node), Some(at), Some(judged)) = (words.next(), words.next(), words.next()) else {
        return Err("give NODE TIME right|wrong|unknown NOTE".to_owned());
    };
    let known = Judged::ALL.into_iter().find(|one| one.name() == judged);
    Ok(OperatorVerdict {
        node: node.to_owned(),
        at: time(at)
            .map_err(|why| format!("{at:?}: {why}"))?
            .timestamp(),
        judged: known.ok_or_else(|| format!("{judged:?}: give right, wrong or unknown"))?,
        note: words.collect::<Vec<_>>().join(" "),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn lines_become_verdicts() {
        let text = "# of the last two weeks\n\n  worker-3\t2026-11-20T04:05:06Z  right  rules were flushed\n\
                    worker-1 2026-11-21T00:00:00+01:00 unknown\n";
        let of = |node: &str, at: &str, judged, note: &str| OperatorVerdict {
            node: node.to_owned(),
            at: at.parse().unwrap(),
            judged,
            note: note.to_owned(),
        };
        let expected = vec![
            of(
                "worker-3",
                "2026-11-20T04:05:06Z",
                Judged::Right,
                "rules were flushed",
            ),
            of("worker-1", "2026-11-20T23:00:00Z", Judged::Unknown, ""),
        ];
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse("\n# none\n"), Ok(Vec::new()));
    }

    #[rstest]
    #[case("worker-3", "give NODE TIME")]
    #[case("worker-3 2026-11-20T04:05:06Z", "give NODE TIME")]
    #[case("worker-3 yesterday right", "\"yesterday\": give a time with its zone")]
    #[case("worker-3 2026-11-20T04:05:06 right", "give a time with its zone")]
    #[case(
        "worker-3 2026-11-20T04:05:06Z Right",
        "\"Right\": give right, wrong or unknown"
    )]
    fn an_error_has_its_line_and_the_remedy(#[case] wrong: &str, #[case] expected: &str) {
        let text = format!("# one\nworker-1 2026-11-20T04:05:06Z wrong\n{wrong}\n");
        let (line, why) = parse(&text).unwrap_err();
        assert_eq!(line, 3);
        assert!(why.contains(expected), "{why}");
    }
}
