//! Before the first 503 that rests on the sentinel alone its Service and slices are read once more:
//! a watch that lags behind must not turn an administrator's edit into a broken node. Where the API
//! server does not answer, what the watch told counts.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::{Probing, fixed};
use crate::app::agent::Agent;
use crate::clock;
use crate::cluster::api::Afresh;
use agent_core::cluster::Change;
use agent_core::expect::sentinel::sentinel;
use agent_core::time::Mono;
use agent_core::view::ClusterView;

/// One reading serves for so long: paths come and go, and the API server hears of a fault from
/// every node at once.
const SERVES: Duration = Duration::from_secs(10);

/// What the API server said.
pub(super) struct Reading {
    /// When it was asked.
    began: Mono,
    /// Nothing where it did not say.
    found: Option<Vec<Change>>,
}

/// Asks the API server, from a task of its own.
pub(super) struct Reader {
    asks: watch::Sender<()>,
    task: JoinHandle<()>,
    asked: Option<Mono>,
    /// When the question was asked that was answered last.
    answered: Option<Mono>,
    /// In what way the sentinel is not as the watches tell it.
    differs: Option<String>,
}

impl Reader {
    pub(super) fn start(afresh: Afresh, told: mpsc::UnboundedSender<Reading>) -> Self {
        let (asks, mut asked) = watch::channel(());
        let task = tokio::spawn(async move {
            while asked.changed().await.is_ok() {
                let began = clock::mono();
                let found = afresh.read().await;
                if told.send(Reading { began, found }).is_err() {
                    return;
                }
            }
        });
        Self {
            asks,
            task,
            asked: None,
            answered: None,
            differs: None,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Probing {
    /// In what way the API server has another sentinel than its watches told, in words.
    pub(super) fn differs(&self) -> Option<&str> {
        self.reader.as_ref()?.differs.as_deref()
    }

    /// The watches told something: it counts again.
    pub(super) fn follow_again(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.differs = None;
        }
    }
}

impl Agent {
    /// Probes fail: is the sentinel still what they take it for? A verdict that stands needs no
    /// proof.
    pub(super) fn ask_afresh(&mut self, now: Mono) {
        let stands = self.is_accused();
        let reader = self.probing.as_mut().and_then(|of| of.reader.as_mut());
        if let Some(reader) = reader
            && !stands
            && reader.asked.is_none_or(|at| now.since(at) >= SERVES)
        {
            reader.asked = Some(now);
            reader.asks.send_replace(());
        }
    }

    /// The API server answered, or did not.
    pub(super) fn read_afresh(&mut self, reading: Reading, now: Mono) {
        let Some(probing) = &mut self.probing else {
            return;
        };
        let differs = reading.found.is_some_and(|changes| {
            let mut view = ClusterView::new();
            view.apply(changes);
            let state = view.state(&probing.rule.service);
            let found = sentinel(&probing.rule, state, self.view.node());
            (found.exists, fixed(&found)) != (probing.found.exists, fixed(&probing.found))
        });
        let differs = differs.then(|| {
            let service = &probing.rule.service;
            format!("Service {service} or its slices are not as the watches told: they lag behind")
        });
        if let Some(reader) = &mut probing.reader {
            reader.answered = Some(reading.began);
            let before = std::mem::replace(&mut reader.differs, differs);
            if before != reader.differs {
                tracing::warn!(differs = ?reader.differs, "the sentinel was read afresh");
                let view = probing.view(now);
                self.ledger.sentinel_mut().view_changed(now, view);
            }
        }
        self.conclude_look();
        self.publish(now);
    }

    /// Failures that follow both a look at our own parts and a reading count.
    pub(super) fn conclude_look(&mut self) {
        let stands = self.is_accused();
        let Some(probing) = &self.probing else {
            return;
        };
        let read = match &probing.reader {
            Some(reader) if !stands => reader.answered.map(|at| at.plus(SERVES)),
            _ => probing.sound,
        };
        if let (Some(sound), Some(read)) = (probing.sound, read) {
            self.ledger.sentinel_mut().looked(sound.min(read));
        }
    }
}
