//! Arbitrary responses from an agent's address. A report is shown without characters that a terminal
//! interprets; any other response is refused with an error text. The same bytes are also parsed as the
//! untrusted query of `/drainz`.

use jiff::Timestamp;
use pathproof_cli::{fetch, status};
use pathproof_facts::text::{is_hidden, visible};
use pathproof_facts::time::Mono;
use pathproof_judge::drain::Ask;
use pathproof_report::drain::DrainReport;

pub(crate) fn check(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().next().unwrap_or_default();
    let ask = Ask::parse(line);
    match &ask {
        Ok(ask) => {
            let again = Ask::parse(&ask.query()).expect("a written query is valid");
            let differs = again.quiet.abs_diff(ask.quiet);
            assert!(
                differs.as_millis() <= 1,
                "{line:?} became {:?}",
                ask.query()
            );
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match fetch::body("127.0.0.1:19256", bytes) {
        Err(error) => assert_printable(&visible(&error.to_string())),
        Ok(body) => assert!(text.ends_with(&body)),
    }
    let Ok(report) = fetch::parse("127.0.0.1:19256", &text) else {
        return false;
    };
    assert_printable(&status::render(&report, Timestamp::UNIX_EPOCH, false));
    let ask = ask.unwrap_or_default();
    let drain = DrainReport::of(&report, &ask, Mono(u64::MAX / 2));
    serde_json::to_string(&drain).expect("a report is written");
    true
}

/// Asserts that the lines contain no characters that move a terminal's cursor, set colours or reverse text.
pub(crate) fn assert_printable(page: &str) {
    let hidden = page.chars().find(|sign| is_hidden(*sign) && *sign != '\n');
    assert_eq!(hidden, None, "{page:?}");
}
