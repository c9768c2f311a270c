//! Tests over loopback. tests/node covers routers that refuse, and machines behind a default route.

use std::net::TcpListener;

use super::*;

#[tokio::test]
async fn who_accepts_or_refuses_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    assert!(answers(to, "lo").await.unwrap());
    drop(listener);
    assert!(answers(to, "lo").await.unwrap(), "a RST is an answer too");
}

/// Covers an address without a route by this interface, and an interface that does not exist.
#[tokio::test]
async fn who_cannot_be_reached_does_not_answer() {
    let unreachable = "203.0.113.1:9".parse().unwrap();
    assert!(!answers(unreachable, "lo").await.unwrap());
    assert!(answers(unreachable, "no-such-device").await.is_err());
}
