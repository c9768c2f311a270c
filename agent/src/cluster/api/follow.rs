//! Lists and watches one resource, for as long as somebody listens.
//!
//! The first answer is a streaming list: a watch that tells first what is there (KEP-3157), one
//! object at a time, so that no page of objects is ever in memory. A server that does not serve
//! those is asked for pages instead. A watch that ends goes on from the version it had come to; one
//! whose version the server has forgotten (410 Gone) begins anew, at least as new as before.
//!
//! Why not `kube::runtime::watcher`: it cannot fall back to pages, asks a server that was restored
//! from a backup for a version it never reaches, and one object that cannot be read ends a page.

use std::borrow::Cow;
use std::pin::pin;
use std::time::Duration;

use futures_util::AsyncBufReadExt;
use hyper::Request;
use kube::Client;
use kube::core::Status;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::objects::{self, Stub};
use super::requests::{From, Requests};
use super::store::Event;
use super::{Kind, jitter};
use crate::cluster::manifests::Reason;

mod reasons;

/// A line's memory is kept for the next up to this size.
const LINE: usize = 64 * 1024;

/// Watches that end at once are told of after so many.
const OFTEN: u32 = 3;

/// So many watches in a row that say nothing are of a version that the server may never reach, as
/// after its store was restored from a backup. More, after a list, are told of.
const SILENT: u32 = 2;

/// Too Many Requests: whatever is asked.
const BUSY: u16 = 429;

/// How long is waited for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// A server that does not begin to answer within this is away.
    pub(super) reply: Duration,
    /// A watch on which nothing came for so long is begun anew. Bookmarks come each minute.
    pub(super) silence: Duration,
    /// A watch is asked for at least so long, and up to twice as long.
    pub(super) watch: Duration,
    /// The first pause after a failure; doubled with each more...
    pub(super) pause: Duration,
    /// ...up to this. Half of each pause is chance.
    pub(super) longest: Duration,
    /// A list that every agent may have to ask for in the same moment, as after an API server's
    /// start, is asked for within this, by chance, where lists are streamed...
    pub(super) relist: Duration,
    /// ...and where they are not, and cost the server more.
    pub(super) relist_pages: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            reply: Duration::from_secs(15),
            silence: Duration::from_secs(90),
            watch: Duration::from_secs(300),
            pause: Duration::from_millis(500),
            longest: Duration::from_secs(15),
            relist: Duration::from_secs(1),
            relist_pages: Duration::from_secs(5),
        }
    }
}

/// How a list or a watch ended.
enum End {
    /// Nobody listens.
    Unheard,
    /// As watches end: the time was up, the connection broke.
    Over,
    /// Nothing came for too long.
    Silent,
    /// The server does not know the version any more.
    Forgotten,
    /// Streaming lists are not served.
    NotStreamed,
    /// Something stands in the way.
    Failed(Reason),
}

/// One event of a watch.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// One page of a list.
#[derive(Deserialize)]
struct Page<'a> {
    metadata: PageMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    #[serde(default)]
    resource_version: Option<String>,
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

/// Follows one resource.
pub(super) struct Follower {
    client: Client,
    requests: Requests,
    pace: Pace,
    events: mpsc::Sender<Event>,
    /// Where the watch goes on; `None` before a list came to its end.
    version: Option<String>,
    /// The newest version that was heard of: a list must not be older.
    newest: Option<String>,
    /// Whether streaming lists are tried.
    streams: bool,
    /// A list is being told.
    listing: bool,
    /// Failures in a row.
    failures: u32,
    /// Watches in a row that ended in silence, but for what a list had told before.
    silent: u32,
    /// Something in the way was told of, and not that it is gone.
    troubled: bool,
}

impl Follower {
    /// Of a resource.
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
            version: None,
            newest: None,
            streams: true,
            listing: false,
            failures: 0,
            silent: 0,
            troubled: false,
        }
    }

    /// One list and no more; whether it came to its end.
    pub(super) async fn list_once(mut self) -> bool {
        self.list().await.is_ok()
    }

    /// Until nobody listens.
    pub(super) async fn run(mut self) {
        loop {
            let began = Instant::now();
            let end = match (self.version.clone(), self.streams) {
                (None, false) => self.list().await,
                (version, _) => self.watch(version).await,
            };
            self.listing = false;
            let lasted = began.elapsed() >= self.pace.pause;
            match end {
                Err(End::Unheard) => return,
                // A watch that ends as soon as it began is asked for ever more slowly.
                Ok(()) | Err(End::Over) if lasted => self.failures = 0,
                Ok(()) => {}
                Err(End::Over) => {
                    if self.failures >= OFTEN && self.trouble(reasons::short_lived()).await.is_err()
                    {
                        return;
                    }
                    self.rest().await;
                }
                Err(End::Silent) => {
                    self.failures = 0;
                    if self.note_silence().await.is_err() {
                        return;
                    }
                }
                Err(End::Forgotten) => {
                    tracing::info!(
                        resource = self.resource(),
                        "the API server has forgotten the version that was watched; listing again"
                    );
                    self.version = None;
                    if !lasted {
                        self.rest().await;
                    }
                    self.wait_to_list().await;
                }
                Err(End::NotStreamed) => self.streams = false,
                Err(End::Failed(reason)) => {
                    // Pages that fail tell nothing of streaming lists.
                    self.streams = true;
                    self.silent = 0;
                    if self.trouble(reason).await.is_err() {
                        return;
                    }
                    self.rest().await;
                }
            }
        }
    }

    /// A watch was silent. Lists are asked for ever more seldom: where bookmarks are not served, a
    /// quiet cluster is silent as well.
    async fn note_silence(&mut self) -> Result<(), End> {
        self.silent = self.silent.saturating_add(1);
        if self.silent > SILENT {
            self.trouble(reasons::mute(self.resource())).await?;
        }
        if self.silent >= SILENT && self.silent.is_power_of_two() {
            tracing::info!(
                resource = self.resource(),
                "the API server's watches say nothing; listing again"
            );
            // The newest version stays: what the server has may not be older, unless it says so.
            self.version = None;
            self.wait_to_list().await;
        }
        Ok(())
    }

    fn resource(&self) -> &'static str {
        self.requests.kind.resource()
    }

    async fn rest(&mut self) {
        let pause = self.pace.pause * 2_u32.saturating_pow(self.failures.min(16));
        let pause = pause.min(self.pace.longest);
        self.failures = self.failures.saturating_add(1);
        let half = pause / 2;
        self.sleep(half + chance(half)).await;
    }

    /// The API server has forgotten one agent's version, and so that of all others.
    async fn wait_to_list(&self) {
        let longest = match self.streams {
            true => self.pace.relist,
            false => self.pace.relist_pages,
        };
        self.sleep(chance(longest)).await;
    }

    async fn sleep(&self, time: Duration) {
        tokio::select! {
            () = sleep(time) => {}
            () = self.events.closed() => {}
        }
    }

    async fn tell(&self, event: Event) -> Result<(), End> {
        self.events.send(event).await.map_err(|_| End::Unheard)
    }

    async fn trouble(&mut self, reason: Reason) -> Result<(), End> {
        self.troubled = true;
        let trouble = Event::Trouble(self.requests.kind, Some(reason));
        self.tell(trouble).await
    }

    /// What stood in the way does not any more.
    async fn well(&mut self) -> Result<(), End> {
        // A list says nothing against watches that are silent, nor does another one of those.
        if self.silent > SILENT || !std::mem::take(&mut self.troubled) {
            return Ok(());
        }
        self.tell(Event::Trouble(self.requests.kind, None)).await
    }

    /// Watches from a version, or from what is there.
    async fn watch(&mut self, version: Option<String>) -> Result<(), End> {
        let seconds = self.pace.watch.as_secs();
        let seconds = seconds + jitter(seconds);
        let newest = self.newest.clone().unwrap_or_else(|| "0".to_owned());
        let from = match &version {
            Some(version) => From::Version(version),
            None => From::Beginning(&newest),
        };
        let url = self.requests.watch(from, seconds);
        let asked = timeout(self.pace.reply, self.client.request_stream(get(&url)?)).await;
        let stream = match asked {
            Err(_) => return Err(End::Failed(reasons::silent(self.pace.reply))),
            Ok(Err(error)) => return Err(self.refused(error, version.is_none())),
            Ok(Ok(stream)) => stream,
        };
        if version.is_none() {
            self.begin_list().await?;
        }
        let mut stream = pin!(stream);
        // One that the server ends as soon as it was begun is no way to hear of anything: that it
        // was begun ends no trouble. What it says does, or that it lasts.
        let first = tokio::select! {
            first = timeout(self.pace.pause, stream.fill_buf()) => first.map(drop),
            () = self.events.closed() => return Err(End::Unheard),
        };
        if first.is_err() {
            self.well().await?;
        }
        let mut line = Vec::new();
        loop {
            line.clear();
            if line.capacity() > LINE {
                line = Vec::new();
            }
            // What is there comes without a pause: where it does not end, it is no such list.
            let patience = if self.listing {
                self.pace.reply
            } else {
                self.pace.silence
            };
            let read = tokio::select! {
                read = timeout(patience, stream.read_until(b'\n', &mut line)) => read,
                () = self.events.closed() => return Err(End::Unheard),
            };
            match read {
                Err(_) if self.listing => return Err(End::NotStreamed),
                Err(_) => {
                    tracing::debug!(resource = self.resource(), "nothing came; watching anew");
                    return Err(End::Silent);
                }
                Ok(Err(_) | Ok(0)) => return Err(End::Over),
                Ok(Ok(_)) => self.hear(&line).await?,
            }
        }
    }

    async fn begin_list(&mut self) -> Result<(), End> {
        self.listing = true;
        self.tell(Event::ListBegins(self.requests.kind)).await
    }

    async fn end_list(&mut self, version: Option<String>) -> Result<(), End> {
        self.listing = false;
        self.reach(version);
        self.failures = 0;
        self.tell(Event::ListEnds(self.requests.kind)).await
    }

    /// Goes on from that version.
    fn reach(&mut self, version: Option<String>) {
        let version = version.filter(|version| !version.is_empty());
        if let Some(version) = version
            && !self.listing
        {
            self.newest = Some(version.clone());
            self.version = Some(version);
        }
    }

    /// One line of a watch.
    async fn hear(&mut self, line: &[u8]) -> Result<(), End> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let Ok(event) = serde_json::from_slice::<Line>(line) else {
            // Cut off, or no watch at all.
            return Err(End::Over);
        };
        if event.kind != "ERROR" {
            if !self.listing {
                self.silent = 0;
            }
            self.well().await?;
        }
        match &*event.kind {
            "ADDED" | "MODIFIED" => self.hear_object(event.object).await,
            "DELETED" => {
                let Stub { metadata } = stub(event.object);
                self.reach(metadata.resource_version.clone());
                self.tell(Event::Gone(self.requests.kind, Box::new(metadata)))
                    .await
            }
            "BOOKMARK" => {
                let stub = stub(event.object);
                if self.listing && stub.ends_list() {
                    return self.end_list(stub.metadata.resource_version).await;
                }
                self.reach(stub.metadata.resource_version);
                Ok(())
            }
            "ERROR" => {
                let status: Status = serde_json::from_str(event.object.get()).unwrap_or_default();
                Err(self.refused(kube::Error::Api(Box::new(status)), self.listing))
            }
            // What later servers may send.
            _ => Ok(()),
        }
    }

    async fn hear_object(&mut self, text: &RawValue) -> Result<(), End> {
        let (event, version) = object(self.requests.kind, text);
        self.reach(version);
        self.tell(event).await
    }

    /// Lists page by page.
    async fn list(&mut self) -> Result<(), End> {
        let mut after: Option<String> = None;
        loop {
            let url = self.requests.list(after.as_deref());
            let asked = timeout(self.pace.reply * 2, self.client.request_text(get(&url)?)).await;
            let text = match asked {
                Err(_) => return Err(End::Failed(reasons::silent(self.pace.reply * 2))),
                Ok(Err(error)) => return Err(self.refused(error, false)),
                Ok(Ok(text)) => text,
            };
            let page: Page = serde_json::from_str(&text).map_err(|error| {
                End::Failed(Reason::Unserved {
                    resource: self.requests.kind.resource(),
                    error: error.to_string(),
                })
            })?;
            if after.is_none() {
                self.well().await?;
                self.begin_list().await?;
            }
            for item in page.items.unwrap_or_default() {
                self.hear_object(item).await?;
            }
            after = page.metadata.next.filter(|token| !token.is_empty());
            if after.is_none() {
                return self.end_list(page.metadata.resource_version).await;
            }
        }
    }

    /// What an error of the server means.
    fn refused(&mut self, error: kube::Error, is_streaming_list: bool) -> End {
        let resource = self.requests.kind.resource();
        let status = match error {
            kube::Error::Api(status) => status,
            error => return End::Failed(reasons::away(&error)),
        };
        let error = reasons::one_line(&status.message, status.code);
        match status.code {
            410 => End::Forgotten,
            401 | 403 => End::Failed(Reason::Forbidden { resource, error }),
            // The server is behind what was seen, as after a restore: then anything it has.
            _ if status.message.contains("Too large resource version") => {
                self.newest = None;
                self.version = None;
                End::Failed(Reason::Unserved { resource, error })
            }
            // KEP-3157: a server that knows nothing of it (400, 422), or whose etcd is too old for it
            // (500, before 3.4.25). One that is in trouble says so again when it is asked for pages.
            _ if is_streaming_list && status.code != BUSY => End::NotStreamed,
            _ => End::Failed(Reason::Unserved { resource, error }),
        }
    }
}

/// Any time below this.
fn chance(most: Duration) -> Duration {
    Duration::from_micros(jitter(u64::try_from(most.as_micros()).unwrap_or(u64::MAX)))
}

fn get(url: &str) -> Result<Request<Vec<u8>>, End> {
    Request::get(url).body(Vec::new()).map_err(|error| {
        End::Failed(Reason::Away {
            error: error.to_string(),
        })
    })
}

/// What an object says, and the version at which a watch goes on after it.
pub(super) fn object(kind: Kind, text: &RawValue) -> (Event, Option<String>) {
    match objects::read(kind, text) {
        Ok(read) => (Event::There(read.object), read.version),
        Err(error) => {
            let Stub { metadata } = stub(text);
            let version = metadata.resource_version.clone();
            let error = error.to_string();
            (Event::Unreadable(kind, Box::new(metadata), error), version)
        }
    }
}

fn stub(text: &RawValue) -> Stub {
    serde_json::from_str(text.get()).unwrap_or_default()
}
