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
    // The limit applies to each second of the clock, so ignore attempts that cross into the next second.
    for _ in 0..10 {
        let second = clock::mono().0 / 1_000_000_000;
        let (seen, closed) = burst(sent, answered).await;
        if clock::mono().0 / 1_000_000_000 == second {
            let announced = seen.matches("Connection: close").count();
            assert_eq!((announced, closed), (usize::from(closes), closes), "{seen}");
            return;
        }
    }
    panic!("every attempt crossed into the next second");
}

/// Sends this number of requests at once, and reads this number of answers. Returns them, and whether the
/// server then closed the connection.
async fn burst(sent: usize, answered: usize) -> (String, bool) {
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
    let next = timeout(Duration::from_millis(200), client.read(&mut [0; 64])).await;
    let closed = matches!(next, Ok(Ok(0) | Err(_)));
    drop(client);
    server.finish().await;
    (seen, closed)
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
