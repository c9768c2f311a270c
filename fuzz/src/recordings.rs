//! Recordings from bug reports or from the state folder. Arbitrary bytes are refused with an error text, or
//! replayed and explained without characters that a terminal interprets.
//!
//! The bytes are read as a file, and as the lines inside one, because gzip's checksum keeps a fuzzer from
//! reaching the events. Memory needs no limit: the fuzzer's longest input of 16 KiB decompresses to at most
//! 16 MiB.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use pathproof_cli::{recording, why};
use pathproof_node::replay::{Pseudonyms, redact, replay};
use pathproof_report::Report;

use crate::reports::assert_printable;

pub(crate) fn check(bytes: &[u8]) -> bool {
    let file = play(bytes);
    let lines = play(&compressed(bytes));
    file || lines
}

fn compressed(lines: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(lines).expect("a vector takes any bytes");
    encoder.finish().expect("a vector takes any bytes")
}

fn play(file: &[u8]) -> bool {
    match redact(file, &mut Pseudonyms::default()) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(redacted) => {
            if let Err(error) = replay(&redacted, None) {
                assert!(!error.to_string().is_empty());
            }
        }
    }
    let replayed = match replay(file, None) {
        Ok(replayed) => replayed,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let again = replay(file, None).expect("the same bytes");
    assert_eq!(again.events, replayed.events);
    assert_eq!(again.differs, replayed.differs);
    let page = recording::timeline(&replayed);
    assert_printable(&page);
    assert_eq!(recording::timeline(&again), page, "two replays differ");
    for moment in replayed.moments.iter().chain(&replayed.latest) {
        let report = Report::replayed(&replayed, moment);
        assert_printable(&why::render(&report, false));
    }
    true
}
