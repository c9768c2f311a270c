use std::io::{PipeReader, Read as _};

use tracing::subscriber::DefaultGuard;

use super::*;

/// Captures the log of a test's thread, as the agent would write it.
pub(crate) struct CapturedLog {
    lines: PipeReader,
    capturing: DefaultGuard,
}

impl CapturedLog {
    /// The log must fit into a pipe, 64 KiB, until [`CapturedLog::end`] reads it.
    pub(crate) fn begin() -> Self {
        let (lines, write) = std::io::pipe().unwrap();
        let format = tracing_subscriber::fmt()
            .with_env_filter(DEFAULT_FILTER)
            .with_ansi(false)
            .with_writer(Arc::new(write));
        let capturing = tracing::subscriber::set_default(format.finish());
        Self { lines, capturing }
    }

    pub(crate) fn end(mut self) -> String {
        drop(self.capturing);
        let mut text = String::new();
        self.lines.read_to_string(&mut text).unwrap();
        text
    }
}

#[test]
fn alive_until_stalled() {
    let second = |n: u64| n * 1_000_000_000;
    let heartbeat = Heartbeat::new(second(1));
    assert!(heartbeat.is_alive(second(11)));
    assert!(!heartbeat.is_alive(second(12)));
    heartbeat.clone().beat(second(12));
    assert!(heartbeat.is_alive(second(13)));
    assert_eq!(heartbeat.age(second(15)), Duration::from_secs(3));
}

#[test]
fn ready_when_every_part_is() {
    let readiness = Readiness::default();
    readiness.set("interfaces", false);
    readiness.set("cluster view", false);
    assert_eq!(readiness.clone().pending(), ["cluster view", "interfaces"]);
    readiness.set("interfaces", true);
    readiness.set("never missing", true);
    assert_eq!(readiness.pending(), ["cluster view"]);
    readiness.set("cluster view", true);
    assert!(readiness.pending().is_empty());
}

fn written(format: LogFormat, line: &str) -> String {
    let mut lines = Lines {
        to: Vec::new(),
        format,
        colours: true,
    };
    lines.write_all(line.as_bytes()).unwrap();
    String::from_utf8(lines.to).unwrap()
}

#[test]
fn a_line_of_the_log_is_one_line_whatever_is_in_it() {
    let text = "\x1b[33mWARN\x1b[0m a name: x\u{202e}\nINFO all is well\n";
    let clean = "\x1b[33mWARN\x1b[0m a name: x\\u{202e}\\nINFO all is well\n";
    assert_eq!(written(LogFormat::Text, text), clean);
    let json = "{\"name\":\"x\u{202e}\\n\"}\n";
    let clean = "{\"name\":\"x\\u202e\\n\"}\n";
    assert_eq!(written(LogFormat::Json, json), clean);
    for format in [LogFormat::Text, LogFormat::Json] {
        let plain = "{\"node\":\"узел-1\"}\n";
        assert_eq!(written(format, plain), plain);
    }
}

#[test]
fn the_limit_can_be_raised_again_and_again() {
    let first = raise_open_files();
    assert_eq!(raise_open_files(), first);
}
