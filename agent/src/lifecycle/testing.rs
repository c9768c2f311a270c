//! Captures the log of a test's thread, as the agent would write it.

use std::io::{PipeReader, Read as _};
use std::sync::Arc;

use tracing::subscriber::DefaultGuard;

use super::DEFAULT_FILTER;

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
