//! How connections end: those that a limit closes are reset, so that nothing of them stays in the kernel.

use super::*;

#[tokio::test]
async fn connections_beyond_a_limit_are_reset() {
    let limits = Limits {
        waiting: 1,
        talking: 1,
        ..Limits::default()
    };
    let server = Server::start(limits, &[]).await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    assert!(first.ends_by_reset().await, "it had no request");
    second.ask(GET).await;
    server.connect().await.ask(GET).await;
    assert!(second.ends_by_reset().await, "it had one");
    assert_eq!(server.counted("evicted"), 2);
    server.finish().await;
}

#[tokio::test]
async fn a_client_without_a_request_in_time_is_reset() {
    let server = Server::start(brief(), &[]).await;
    assert!(server.connect().await.ends_by_reset().await);
    server.finish().await;
}

#[tokio::test]
async fn a_denied_client_is_reset() {
    let server = Server::start(Limits::default(), &["10.0.0.0/8"]).await;
    assert!(server.connect().await.ends_by_reset().await);
    server.finish().await;
}
