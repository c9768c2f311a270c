//! Many requests at once, and requests that are refused before a path is looked up.

use rstest::rstest;

use super::*;

/// A client that sends many requests at once would delay everybody else's answers.
#[rstest]
#[case::as_many_as_allowed(BURST as usize, BURST as usize, false)]
#[case::more(100, BURST as usize + 1, true)]
#[tokio::test]
async fn a_burst_of_requests_closes_the_connection(
    #[case] sent: usize,
    #[case] answered: usize,
    #[case] closes: bool,
) {
    // The count begins again with each second, so do not start at the end of one.
    let into = clock::mono().0 % 1_000_000_000;
    sleep(Duration::from_nanos(1_000_000_000 - into)).await;
    let server = Server::start(Limits::default(), &[]).await;
    let mut client = server.connect().await;
    client.write_all(GET.repeat(sent).as_bytes()).await.unwrap();
    let mut seen = String::new();
    while seen.matches("sound").count() < answered {
        let mut some = [0; 4096];
        let read = client.read(&mut some).await.unwrap();
        assert_ne!(read, 0, "closed early: {seen}");
        seen.push_str(std::str::from_utf8(&some[..read]).unwrap());
    }
    assert_eq!(
        seen.matches("Connection: close").count(),
        usize::from(closes),
        "{seen}"
    );
    match closes {
        true => assert_eq!(client.rest().await, ""),
        false => assert!(client.ask(GET).await.contains("Connection: close")),
    }
    server.finish().await;
}

#[tokio::test]
async fn requests_that_are_refused_at_once_are_counted() {
    let server = Server::start(Limits::default(), &[]).await;
    server
        .say(b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await;
    server
        .say(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
        .await;
    let page = server.metrics.encode();
    for code in [200, 400] {
        let line = format!("pathproof_healthz_requests_total{{check=\"other\",code=\"{code}\"}} 1");
        assert!(page.contains(&line), "{page}");
    }
    server.finish().await;
}
