//! Recordings from bug reports, or from the state folder. Any bytes are refused in a sentence, or
//! played and explained without a sign that a terminal would act on.
//!
//! The bytes are read twice: as a file, and as the lines inside one. The checksum of gzip would
//! otherwise keep a search from ever reaching an event. Memory needs no limit here: 16 KiB, the
//! longest input of the fuzzer, decompress to 16 MiB at most.

use std::io::Write as _;

use agent_core::replay::{redact, replay};
use agent_core::report::Report;
use flate2::Compression;
use flate2::write::GzEncoder;
use pathproof::cli::{recording, why};

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
    match redact(file) {
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
