//! Thousands of API watches, each on a separate connection, like those of the agents and proxies of a large
//! cluster. They count events and ignore their content.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use futures_util::{AsyncBufReadExt as _, TryStreamExt as _};
use http::Request;
use kube::client::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::traffic::runtime;
use crate::worker::Worker;
use crate::world::Namespace;

/// Number of watches that are opened at the same time.
const AT_ONCE: usize = 32;
/// Interval between checks whether the worker must end.
const TURN: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct Watches {
    counts: Arc<Counts>,
    _worker: Worker,
}

#[derive(Debug, Default)]
struct Counts {
    open: AtomicUsize,
    ended: AtomicUsize,
    events: AtomicUsize,
}

impl Watches {
    /// Opens `count` watches of `path` (a list without a query) in the background, with the rights of a
    /// kubeconfig.
    pub fn start(ns: &Namespace, kubeconfig: &str, path: &str, count: usize) -> Result<Self> {
        let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
        let path = format!("{path}?watch=true&resourceVersion=0&timeoutSeconds=3600");
        let counts = Arc::new(Counts::default());
        let shared = Arc::clone(&counts);
        let runtime = ns.run(runtime)?;
        let worker = Worker::within(ns, "watches", move |stop| {
            runtime.block_on(async {
                let options = KubeConfigOptions::default();
                let config = Config::from_custom_kubeconfig(kubeconfig, &options);
                let client = config.await.map(Client::try_from);
                let Ok(Ok(client)) = client else {
                    return shared.ended.store(count, Ordering::Relaxed);
                };
                let turns = Arc::new(Semaphore::new(AT_ONCE));
                for _ in 0..count {
                    let (client, path) = (client.clone(), path.clone());
                    let (counts, turns) = (Arc::clone(&shared), Arc::clone(&turns));
                    tokio::spawn(async move {
                        let _ = watch(&client, &path, &counts, &turns).await;
                        counts.ended.fetch_add(1, Ordering::Relaxed);
                    });
                }
                while !stop.load(Ordering::Relaxed) {
                    sleep(TURN).await;
                }
            });
        })?;
        Ok(Self {
            counts,
            _worker: worker,
        })
    }

    /// Watches that the server has accepted and that have not ended.
    pub fn open(&self) -> usize {
        let open = self.counts.open.load(Ordering::Relaxed);
        open.saturating_sub(self.ended())
    }

    /// Watches that failed or ended.
    pub fn ended(&self) -> usize {
        self.counts.ended.load(Ordering::Relaxed)
    }

    /// Events that all watches received together.
    pub fn events(&self) -> usize {
        self.counts.events.load(Ordering::Relaxed)
    }
}

async fn watch(client: &Client, path: &str, counts: &Counts, turns: &Semaphore) -> Result<()> {
    let turn = turns.acquire().await?;
    let stream = client.request_stream(Request::get(path).body(Vec::new())?);
    let mut lines = stream.await?.lines();
    drop(turn);
    counts.open.fetch_add(1, Ordering::Relaxed);
    while lines.try_next().await?.is_some() {
        counts.events.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
