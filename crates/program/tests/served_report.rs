//! The command line reads what the agent's admin port serves.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;

use pathproof::http::limits::Limits;
use pathproof::http::{AllowList, admin, bind, serve};
use pathproof::lifecycle::{Heartbeat, Readiness};
use pathproof::metrics::Metrics;
use pathproof_cli::fetch::{self, FetchError};
use pathproof_facts::time::Mono;
use pathproof_samples as sample;

#[tokio::test]
async fn the_served_report_is_shown() {
    let metrics = Metrics::new();
    let (publish, report) = tokio::sync::watch::channel(None);
    let router = admin::router(admin::AdminState {
        report,
        episodes: tokio::sync::watch::channel("".into()).1,
        metrics: Arc::clone(&metrics),
        readiness: Readiness::default(),
        heartbeat: Heartbeat::new(0),
        recordings: tokio::sync::mpsc::channel(1).0,
        state_dir: None,
        now: || Mono(0),
    });
    let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let listener = bind::listen("--admin-bind-address", loopback.into()).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let rules = serve::Rules {
        listener: serve::Listener::Admin,
        allow: AllowList::default(),
        proxied: false,
        limits: Limits::default(),
        metrics,
    };
    tokio::spawn(serve::serve(listener, router, rules, pending()));
    let ask = || {
        let address = address.clone();
        tokio::task::spawn_blocking(move || fetch::report(&address).map(|(report, _)| report))
    };
    let early = ask().await.unwrap().unwrap_err();
    assert!(matches!(early, FetchError::TooEarly(..)), "{early}");
    publish.send_replace(Some(Arc::new(sample::degraded())));
    assert_eq!(ask().await.unwrap().unwrap(), sample::degraded());
}
