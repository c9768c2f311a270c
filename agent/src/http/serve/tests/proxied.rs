//! Headers of the PROXY protocol before a request.

use rstest::rstest;

use super::*;

/// The header is sent at once, and byte by byte.
#[rstest]
#[case::v1(b"PROXY TCP4 192.0.2.1 192.0.2.10 40000 10256\r\n")]
#[case::v2(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc0\0\x02\x0a\x9c\x40\x28\x10")]
#[tokio::test]
async fn a_proxy_header_may_come_first(#[case] header: &[u8]) {
    let server = Server::start(Limits::default(), &[]).await;
    let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let whole = [header, request].concat();
    let answer = server.say(&whole).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let mut slow = server.connect().await;
    for byte in &whole {
        slow.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let answer = slow.rest().await;
    assert!(answer.ends_with("sound"), "{answer}");
    // A second header is not part of a valid request.
    let answer = server.say(&[header, &whole].concat()).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    server.finish().await;
}
