//! Keeps the journal of episodes: shows it at `/episodes`, and writes it and the recordings that it names.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pathproof_facts::time::Mono;
use pathproof_report::Report;
use pathproof_report::episodes::Journal;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::clock;
use crate::config::KeptArgs;
use crate::state::{Recordings, boot_id, read_journal, write_journal};

/// Interval between tries to write the journal while its folder cannot be written.
const RETRY: Duration = Duration::from_secs(1);

pub(super) struct Episodes {
    pub(super) journal: Journal,
    /// The journal as it was last shown.
    pub(super) shown: watch::Sender<Arc<str>>,
    /// Folder of the journal.
    folder: Option<PathBuf>,
    recordings: Option<Recordings>,
    is_written: bool,
    /// When the last write began.
    tried: Mono,
    /// Writes outside of the main loop: unlike /run, the folder may be on a disk that blocks.
    writer: Option<JoinHandle<()>>,
    /// Whether the last write failed: of consecutive failures, only the first is logged.
    broken: Arc<AtomicBool>,
}

impl Episodes {
    /// Continues the journal that an earlier agent wrote.
    pub(super) fn new(kept: &KeptArgs, node: &str, now: Mono) -> Self {
        let folder = kept.journal_folder();
        let before = folder.and_then(read_journal);
        let recordings = kept.state_dir.as_deref().map(Recordings::below);
        let mut journal = Journal::resume(before, node, &boot_id(), now);
        journal.forget_recordings(|file| recordings.as_ref().is_some_and(|all| all.has(file)));
        Self {
            journal,
            shown: watch::Sender::new("".into()),
            folder: folder.map(Into::into),
            recordings,
            is_written: true,
            tried: now,
            writer: None,
            broken: Arc::default(),
        }
    }

    /// Records a published report. If there is a successor, that agent writes the journal instead.
    pub(super) fn judged(&mut self, report: &Report, has_successor: impl FnOnce() -> bool) {
        if self.journal.judged(report) {
            self.shown.send_replace(self.journal.document().into());
            self.is_written = false;
        }
        let now = report.verdict.at;
        // A disk may be full for a few seconds, and the agent may end in the next ones.
        if self.broken.load(Ordering::Relaxed) && now.since(self.tried) >= RETRY {
            self.is_written = false;
        }
        let is_busy = |writer: &JoinHandle<()>| !writer.is_finished();
        if self.is_written || self.writer.as_ref().is_some_and(is_busy) {
            return;
        }
        self.is_written = true;
        self.tried = now;
        let Some(folder) = self.folder.clone().filter(|_| !has_successor()) else {
            return;
        };
        let document = Arc::clone(&self.shown.borrow());
        let broken = Arc::clone(&self.broken);
        self.writer = Some(tokio::task::spawn_blocking(move || {
            let written = write_journal(&folder, &document);
            let was_broken = broken.swap(written.is_err(), Ordering::Relaxed);
            if let Some(error) = written.err().filter(|_| !was_broken) {
                tracing::warn!(folder = %folder.display(), %error, "the journal of episodes cannot \
                                                                    be written");
            }
        }));
    }

    pub(super) fn save_recording(&mut self, recording: impl FnOnce() -> Vec<u8>) {
        let Some(recordings) = &self.recordings else {
            return;
        };
        match recordings.write(clock::wall(), &recording()) {
            Ok(path) => {
                tracing::info!(path = %path.display(), "wrote a recording of the last minutes");
                let file = path.file_name().unwrap_or_default();
                self.journal.recorded(&file.to_string_lossy());
                self.journal.forget_recordings(|file| recordings.has(file));
            }
            Err(error) => tracing::warn!(%error, "the recording cannot be written"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pathproof_samples as sample;

    use super::*;

    fn broken() -> Report {
        let mut report = sample::broken();
        report.answers.livez.would_fail = true;
        report
    }

    /// The next agent, in the middle of an episode, keeps its recording.
    #[tokio::test]
    async fn the_journal_and_its_recordings_outlive_the_agent() {
        let [state, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let kept = KeptArgs {
            state_dir: Some(state.path().to_owned()),
            journal_dir: Some(Some(other.path().to_owned())),
            ..KeptArgs::default()
        };
        let report = broken();
        let begin = || Episodes::new(&kept, "worker-1", report.verdict.at);
        let mut first = begin();
        assert_eq!(&**first.shown.borrow(), "", "nothing is judged yet");
        first.judged(&report, || true);
        assert!(first.shown.borrow().contains("\"leaked\""));
        assert!(first.writer.is_none(), "its successor writes");
        first.save_recording(|| vec![1]);
        first.judged(&report, || false);
        first.writer.take().unwrap().await.unwrap();
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);

        let mut second = begin();
        let episode = second.journal.episodes[0].clone();
        let recording = episode.recording.unwrap();
        assert!(state.path().join("recordings").join(recording).is_file());
        second.judged(&report, || true);
        assert_eq!(second.journal.episodes.len(), 1);
        fs::remove_dir_all(state.path().join("recordings")).unwrap();
        assert_eq!(begin().journal.episodes[0].recording, None);
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_written_is_noted_until_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("journal");
        fs::write(&folder, "").unwrap();
        let kept = KeptArgs {
            journal_dir: Some(Some(folder.clone())),
            ..KeptArgs::default()
        };
        let mut episodes = Episodes::new(&kept, "worker-1", Mono(0));
        for is_broken in [true, false] {
            episodes.is_written = false;
            episodes.judged(&broken(), || false);
            episodes.writer.take().unwrap().await.unwrap();
            assert_eq!(episodes.broken.load(Ordering::Relaxed), is_broken);
            // The next write makes a folder in its place.
            let _ = fs::remove_file(&folder);
        }
    }

    #[tokio::test]
    async fn a_write_that_failed_is_tried_again_a_second_later() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("journal");
        fs::write(&folder, "").unwrap();
        let kept = KeptArgs {
            journal_dir: Some(Some(folder.clone())),
            ..KeptArgs::default()
        };
        let mut report = broken();
        let mut episodes = Episodes::new(&kept, "worker-1", report.verdict.at);
        episodes.judged(&report, || false);
        episodes.writer.take().unwrap().await.unwrap();
        fs::remove_file(&folder).unwrap();
        for is_tried in [false, true] {
            report.verdict.at = report.verdict.at.plus(RETRY / 2);
            episodes.judged(&report, || false);
            assert_eq!(episodes.writer.is_some(), is_tried);
        }
        episodes.writer.take().unwrap().await.unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn without_a_folder_the_journal_is_only_shown() {
        let mut episodes = Episodes::new(&KeptArgs::default(), "worker-1", Mono(0));
        episodes.save_recording(|| panic!("nobody keeps it"));
        episodes.judged(&broken(), || false);
        assert!(episodes.shown.borrow().contains("\"leaked\""));
        assert!(episodes.writer.is_none());
    }
}
