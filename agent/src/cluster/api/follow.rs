//! Lists and watches one resource until the receiver is dropped.
//!
//! The first request is a streaming list: a watch that begins with the existing objects (KEP-3157), one at a
//! time, so that no page of objects is in memory. If the server does not support streaming lists, the agent
//! lists in pages. A watch that ends is continued from its last version. If the server has forgotten that
//! version (410 Gone), the agent lists again, at least as new as before.
//!
//! `kube::runtime::watcher` (5.0) cannot replace this module. It does not report the end of a watch, and if a
//! server ends every watch immediately, it requests the next one without a pause. It cannot detect that a
//! server was restored from a backup. Its streaming lists may be older than the known objects, and it reads a
//! page of any size into memory.

use std::pin::pin;
use std::time::Duration;

use futures_util::{AsyncBufReadExt, AsyncReadExt};
use kube::Client;
use kube::core::Status;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::client::{is_dead, root_cause};
use super::problems::{IDENTITY, away, no_answer, one_line, unserved};
use super::wire::{Line, Page, object};
use super::{Kind, Requests, jitter};
use crate::cluster::Problem;
use crate::cluster::facts::metadata;
use crate::cluster::store::Event;

/// Annotation of the bookmark that ends a streaming list's initial objects.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// Number of consecutive short-lived watches that are reported as a problem. After as many lists that broke
/// off, the agent lists in pages.
pub(super) const OFTEN: u32 = 3;

#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Maximum time until an answer begins. If it passes, the server counts as unreachable.
    pub(super) reply: Duration,
    /// Minimum duration that a watch requests. The requested duration is random, below twice this value.
    pub(super) watch: Duration,
    /// Minimum duration of the watch of this node's Node. It is shorter: behind a proxy only the end of a watch
    /// shows that the server is gone, and until then a node that is being removed would stay in service.
    pub(super) watch_node: Duration,
    /// Refusals by a reachable server are reported only after they lasted this long.
    pub(super) refusals: Duration,
    /// First pause after a failure. Each further failure doubles the pause, and half of each pause is random.
    pub(super) pause: Duration,
    /// Maximum pause after a failure.
    pub(super) longest: Duration,
    /// Maximum random delay before a streaming list. Every agent may need a list at the same moment, such as
    /// after an API server's start.
    pub(super) relist: Duration,
    /// Maximum random delay before a list in pages. It is longer, because such a list costs the server more.
    pub(super) relist_pages: Duration,
    /// Maximum size in bytes of a page, or of a line of a watch. A larger page is requested again in parts. A
    /// single object is always smaller.
    pub(super) page: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            reply: Duration::from_secs(15),
            watch: Duration::from_secs(300),
            watch_node: Duration::from_secs(60),
            refusals: Duration::from_secs(5),
            pause: Duration::from_millis(500),
            longest: Duration::from_secs(15),
            relist: Duration::from_secs(1),
            relist_pages: Duration::from_secs(5),
            page: 16 << 20,
        }
    }
}

/// How a list or a watch ended.
#[derive(Debug)]
enum End {
    /// Normal end of a watch: it timed out, or the connection broke.
    Over,
    /// The server no longer knows the version.
    Forgotten,
    /// The server does not serve streaming lists.
    NotStreamed,
    /// The server answers, but refuses to continue a watch now.
    Refused(Problem),
    Failed(Problem),
}

pub(super) struct Follower {
    client: Client,
    requests: Requests,
    pace: Pace,
    events: mpsc::Sender<Event>,
    /// The newest version seen: a watch continues from it, and a list must not be older.
    newest: Option<String>,
    /// A list was completed, and a watch may continue from its version.
    is_listed: bool,
    /// Whether streaming lists are tried: the server may support them.
    streams: bool,
    listing: bool,
    failures: u32,
    /// Request time of the first of several consecutive refused watches.
    refused_since: Option<Instant>,
    /// A watch broke off, and no event has arrived since. The server may have been restored from a backup.
    /// Then its versions may stay below the watched version for days, and the watch gets no events.
    doubtful: bool,
    /// A problem was reported and not withdrawn.
    troubled: bool,
}

impl Follower {
    pub(super) fn new(
        client: Client,
        requests: Requests,
        pace: Pace,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self {
            client,
            requests,
            pace,
            events,
            newest: None,
            is_listed: false,
            streams: true,
            listing: false,
            failures: 0,
            refused_since: None,
            doubtful: false,
            troubled: false,
        }
    }

    /// Lists once; returns whether the list was complete.
    pub(super) async fn list_once(mut self) -> bool {
        self.list().await.is_ok()
    }

    /// Runs until the receiver is dropped.
    pub(super) async fn run(mut self) {
        let events = self.events.clone();
        tokio::select! {
            () = self.follow() => {}
            () = events.closed() => {}
        }
    }

    async fn follow(&mut self) {
        loop {
            let began = Instant::now();
            let end = match self.is_listed || self.streams {
                true => self.watch().await,
                false => self.list().await,
            };
            self.listing = false;
            let lasted = began.elapsed() >= self.pace.pause;
            if !matches!(end, Err(End::Refused(_))) {
                self.refused_since = None;
            }
            match end {
                Ok(()) => {}
                Err(End::Over) if lasted => self.failures = 0,
                // A watch that ended immediately is requested again after a growing pause.
                Err(End::Over) => {
                    if self.failures >= OFTEN {
                        self.report(away("it ends every watch immediately")).await;
                    }
                    self.back_off().await;
                }
                Err(End::Forgotten) => {
                    tracing::info!(
                        resource = self.resource(),
                        "the watched resource version is too old for the API server; listing again"
                    );
                    self.is_listed = false;
                    if !lasted {
                        self.back_off().await;
                    }
                    self.wait_to_list().await;
                }
                Err(End::NotStreamed) => self.streams = false,
                // A brief refusal loses no event: the next watch continues from the same version.
                Err(End::Refused(_))
                    if self.refused_since.get_or_insert(began).elapsed() < self.pace.refusals =>
                {
                    self.back_off().await;
                }
                Err(End::Failed(problem) | End::Refused(problem)) => {
                    // A list in pages that failed does not rule out streaming.
                    self.streams = true;
                    self.report(problem).await;
                    self.back_off().await;
                }
            }
        }
    }

    /// Handles the end of a watch. If one ended early, and a later one lasts its full time without an event,
    /// the follower lists again, since the server may have been restored. Otherwise a watch without events is
    /// normal: without changes a server sends nothing at all.
    async fn end(&mut self, lasted: Duration, asked: Duration) {
        if lasted < asked.mul_f32(0.9) {
            self.doubtful = true;
        } else if std::mem::take(&mut self.doubtful) {
            tracing::info!(
                resource = self.resource(),
                "a watch was interrupted and has received nothing since; listing again"
            );
            // Keep the newest version: the list must not be older, unless the server is behind that version.
            self.is_listed = false;
            self.wait_to_list().await;
        }
    }

    fn resource(&self) -> &'static str {
        self.requests.kind.resource()
    }

    async fn back_off(&mut self) {
        let pause = self.pace.pause * 2_u32.saturating_pow(self.failures.min(16));
        let pause = pause.min(self.pace.longest);
        self.failures = self.failures.saturating_add(1);
        let half = pause / 2;
        sleep(half + chance(half)).await;
    }

    /// Waits a random time, because all agents may have to list: a server that has forgotten one agent's
    /// version has forgotten every agent's.
    async fn wait_to_list(&self) {
        let longest = match self.streams {
            true => self.pace.relist,
            false => self.pace.relist_pages,
        };
        sleep(chance(longest)).await;
    }

    async fn send(&self, event: Event) {
        // A closed channel is no error: this task ends when the receiver is dropped.
        let _ = self.events.send(event).await;
    }

    async fn report(&mut self, problem: Problem) {
        self.troubled = true;
        let trouble = Event::Trouble(self.requests.kind, Some(problem));
        self.send(trouble).await;
    }

    /// Withdraws the reported problem, if any.
    async fn withdraw_problem(&mut self) {
        if std::mem::take(&mut self.troubled) {
            self.send(Event::Trouble(self.requests.kind, None)).await;
        }
    }

    /// Watches from the newest version, or lists the existing objects first.
    async fn watch(&mut self) -> Result<(), End> {
        let least = match self.requests.kind {
            Kind::Node => self.pace.watch_node.as_secs(),
            _ => self.pace.watch.as_secs(),
        };
        let seconds = least + jitter(least);
        let (began, whole) = (Instant::now(), Duration::from_secs(seconds));
        let is_list = !self.is_listed;
        let from = self.newest.as_deref().unwrap_or("0");
        let request = self.requests.watch(from, is_list, seconds);
        let stream = self.client.request_stream(request.map_err(unasked)?);
        let stream = match timeout(self.pace.reply, stream).await {
            Err(_) => return Err(End::Failed(no_answer(self.pace.reply))),
            Ok(stream) => stream.map_err(|error| self.refused(error, is_list))?,
        };
        if is_list {
            self.begin_list().await;
        }
        let mut stream = pin!(stream);
        // The start of a watch does not clear a problem, because the server may end the watch immediately. An
        // event clears it, or a watch that lasts, or the end of a list.
        let lasts = timeout(self.pace.pause, stream.fill_buf()).await.is_err();
        if lasts && !is_list {
            self.withdraw_problem().await;
        }
        loop {
            // Not kept between lines: a watch lasts minutes, and one large object would keep megabytes.
            let mut line = Vec::new();
            // The objects of a streaming list come without a pause: a pause before its end means that
            // the server does not stream lists.
            let patience = match self.listing {
                true => self.pace.reply,
                false => (whole + self.pace.reply).saturating_sub(began.elapsed()),
            };
            let mut limited = stream.as_mut().take(self.pace.page as u64 + 1);
            match timeout(patience, limited.read_until(b'\n', &mut line)).await {
                Ok(Ok(length)) if length > self.pace.page => {
                    return Err(End::Failed(away("it sends a line without an end")));
                }
                Ok(Ok(1..)) => self.take_line(&line).await?,
                Ok(Err(error)) if is_dead(&error) => {
                    self.doubtful = true;
                    return Err(End::Failed(away("its connection is dead")));
                }
                Ok(_) if self.listing => return Err(self.broken_off()),
                Ok(_) => {
                    self.end(began.elapsed(), whole).await;
                    return Err(End::Over);
                }
                Err(_) if self.listing => return Err(End::NotStreamed),
                Err(_) => {
                    let why = "it does not end watches at their timeout";
                    return Err(End::Failed(away(why)));
                }
            }
        }
    }

    /// How to continue after a streaming list that broke off. After several failures the agent lists in
    /// pages: a proxy may limit the length of a response, and pages are shorter.
    fn broken_off(&self) -> End {
        match self.failures >= OFTEN {
            true => End::NotStreamed,
            false => End::Failed(away("it breaks off its lists")),
        }
    }

    async fn begin_list(&mut self) {
        self.listing = true;
        self.send(Event::ListBegins(self.requests.kind)).await;
    }

    async fn end_list(&mut self, version: Option<String>) {
        self.listing = false;
        self.reach(version);
        self.failures = 0;
        self.send(Event::ListEnds(self.requests.kind)).await;
        self.withdraw_problem().await;
    }

    fn reach(&mut self, version: Option<String>) {
        let version = version.filter(|version| !version.is_empty());
        if version.is_some() && !self.listing {
            self.newest = version;
            self.is_listed = true;
        }
    }

    async fn take_line(&mut self, line: &[u8]) -> Result<(), End> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let Ok(event) = serde_json::from_slice::<Line>(line) else {
            // The line is truncated, or the response is not that of a watch.
            if self.listing {
                return Err(self.broken_off());
            }
            self.doubtful = true;
            return Err(End::Over);
        };
        // During a list, only its end clears a problem.
        if event.kind != "ERROR" && !self.listing {
            self.doubtful = false;
            self.withdraw_problem().await;
        }
        match &*event.kind {
            "ADDED" | "MODIFIED" => self.take_object(event.object).await,
            "DELETED" => {
                let metadata = metadata(event.object);
                self.reach(metadata.resource_version.clone());
                let gone = Event::Gone(self.requests.kind, Box::new(metadata));
                self.send(gone).await;
            }
            "BOOKMARK" => {
                let metadata = metadata(event.object);
                let annotations = metadata.annotations.unwrap_or_default();
                if self.listing && annotations.contains_key(INITIAL_END) {
                    self.end_list(metadata.resource_version).await;
                } else {
                    self.reach(metadata.resource_version);
                }
            }
            "ERROR" => {
                let status: Status = serde_json::from_str(event.object.get()).unwrap_or_default();
                return Err(self.refused(kube::Error::Api(Box::new(status)), self.listing));
            }
            // Ignore event types that later servers may add.
            _ => {}
        }
        Ok(())
    }

    async fn take_object(&mut self, text: &RawValue) {
        let (event, version) = object(self.requests.kind, text);
        self.reach(version);
        self.send(event).await;
    }

    async fn list(&mut self) -> Result<(), End> {
        let mut after: Option<String> = None;
        let mut part = 1;
        loop {
            let is_first = after.is_none();
            let request = self.requests.list(after.clone(), part).map_err(unasked)?;
            let patience = self.pace.reply * 2;
            let text = match timeout(patience, self.page(request)).await {
                Err(_) => return Err(End::Failed(no_answer(patience))),
                Ok(text) => text?,
            };
            if text.len() > self.pace.page && part < 256 {
                part *= 4;
                continue;
            }
            let page: Page = serde_json::from_slice(&text)
                .map_err(|error| End::Failed(unserved(self.resource(), &error.to_string())))?;
            if is_first {
                self.begin_list().await;
            }
            for item in page.items.unwrap_or_default() {
                self.take_object(item).await;
            }
            after = page.metadata.continue_.filter(|token| !token.is_empty());
            if after.is_none() {
                self.end_list(page.metadata.resource_version).await;
                return Ok(());
            }
        }
    }

    /// Reads a page, or the beginning of one that is too large.
    async fn page(&mut self, request: hyper::Request<Vec<u8>>) -> Result<Vec<u8>, End> {
        let stream = self.client.request_stream(request).await;
        let stream = stream.map_err(|error| self.refused(error, false))?;
        let mut text = Vec::new();
        let most = self.pace.page as u64 + 1;
        let read = pin!(stream).take(most).read_to_end(&mut text).await;
        read.map_err(|error| End::Failed(away(&error.to_string())))?;
        Ok(text)
    }

    /// Decides by the server's error how to continue: list again, request pages, or report a problem.
    fn refused(&mut self, error: kube::Error, is_list: bool) -> End {
        let resource = self.resource();
        let status = match error {
            kube::Error::Api(status) => status,
            error => return End::Failed(away(&root_cause(&error))),
        };
        let why = Some(one_line(&status.message)).filter(|why| !why.is_empty());
        let why = why.unwrap_or_else(|| format!("status {}", status.code));
        match status.code {
            410 => End::Forgotten,
            401 => End::Failed(Problem::silence(format!(
                "API server: the agent is not authenticated ({why}); the last known objects stay in use; {IDENTITY}"
            ))),
            403 => End::Failed(Problem::silence(format!(
                "API server: the agent may not watch {resource} ({why}); the last known objects \
                 stay in use; grant get, list and watch on {resource}"
            ))),
            // The server is behind the known version, as after a restore: accept any version.
            _ if status.message.contains("Too large resource version") => {
                self.newest = None;
                self.is_listed = false;
                End::Failed(unserved(resource, &why))
            }
            // List in pages (KEP-3157). A server without streaming lists answers 400 or 422, or 500 if its
            // etcd is too old for them (before 3.4.25). Status 429 is excluded: a busy server stays busy.
            code if is_list && code != 429 => End::NotStreamed,
            _ if self.is_listed => End::Refused(unserved(resource, &why)),
            _ => End::Failed(unserved(resource, &why)),
        }
    }
}

/// A random duration below `most`.
fn chance(most: Duration) -> Duration {
    Duration::from_micros(jitter(u64::try_from(most.as_micros()).unwrap_or(u64::MAX)))
}

fn unasked(error: kube::core::request::Error) -> End {
    End::Failed(away(&error.to_string()))
}
