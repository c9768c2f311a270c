//! Arbitrary bytes from an API server, as the response to a watch, or to a list in pages after a refused
//! watch. The view is the same however the bytes are cut in transit.
//!
//! The first byte selects the kind of request. All resources get the same response, and no further one.
//! libFuzzer detects a panic in any task, a replay only one in the task that delivers the view.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use futures_util::stream;
use kube::Client;
use pathproof::cluster::api::{ApiServer, Scope};
use pathproof_facts::cluster::ObjectName;
use pathproof_facts::view::{ClusterView, ServiceState};
use tokio::runtime::Builder;
use tokio::time::timeout;

/// Length of the pieces, shorter than any line.
const PIECE: usize = 5;
/// Time after which the view no longer changes, less than the agent waits for a response. The clock is
/// simulated.
const QUIET: Duration = Duration::from_secs(10);

pub(crate) fn check(bytes: &[u8]) -> bool {
    let Some((first, response)) = bytes.split_first() else {
        return false;
    };
    let is_page = first & 1 == 1;
    let whole = view(response, is_page, usize::MAX);
    let cut = view(response, is_page, PIECE);
    assert_eq!(cut.is_synced(), whole.is_synced());
    assert_eq!(cut.node(), whole.node());
    assert_eq!(states(&cut), states(&whole));
    whole.is_synced()
}

fn states(view: &ClusterView) -> BTreeMap<&ObjectName, &ServiceState> {
    view.states().collect()
}

/// The view after a response that arrives in pieces of this length.
fn view(response: &[u8], is_page: bool, piece: usize) -> ClusterView {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let client = server(response, is_page, piece);
        let mut updates = ApiServer::new(client, "worker-1", Scope::Full).follow();
        let mut view = ClusterView::new();
        let follow = async {
            while let Some(update) = updates.recv().await {
                view.apply(update.changes);
            }
        };
        let end = timeout(QUIET, follow).await;
        assert!(end.is_err(), "the source ended");
        view
    })
}

/// A client of a server with one response for each resource. With `is_page` it refuses the watch before it.
fn server(response: &[u8], is_page: bool, piece: usize) -> Client {
    let pieces: Vec<Vec<u8>> = response.chunks(piece).map(<[u8]>::to_vec).collect();
    let mut asked: HashMap<String, usize> = HashMap::new();
    let answer = move |request: Request<kube::client::Body>| {
        let number = asked.entry(request.uri().path().to_owned()).or_default();
        *number += 1;
        let answer = match (is_page, *number) {
            (false, 1) | (true, 2) => {
                let pieces = pieces.clone().into_iter().map(Ok::<_, Infallible>);
                Some(Response::new(Body::from_stream(stream::iter(pieces))))
            }
            (true, 1) => {
                let mut refusal = Response::new(Body::empty());
                *refusal.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
                Some(refusal)
            }
            _ => None,
        };
        async move {
            match answer {
                Some(answer) => Ok::<_, Infallible>(answer),
                None => pending().await,
            }
        }
    };
    Client::new(tower::service_fn(answer), "default")
}
