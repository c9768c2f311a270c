//! Real servers of every kind, on loopback.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc as std_mpsc;
use std::thread;

use rstest::rstest;

use super::*;

/// kube-proxy 1.36, IPv6 late.
const LATE: &str = r#"{"lastUpdated":"2026-01-01T00:00:00.5Z","currentTime":"2026-01-01T00:01:12Z","healthy":false,"status":{"IPv4":{"lastUpdated":"2026-01-01T00:01:12Z","healthy":true},"IPv6":{"lastUpdated":"2026-01-01T00:00:00Z","healthy":false}}}"#;

/// A server that gives these answers to one connection each; the URL, and the paths it was asked.
fn server(
    answers: &'static [(&'static str, &'static str)],
) -> (String, std_mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (asked, asks) = std_mpsc::channel();
    thread::spawn(move || {
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            let request = String::from_utf8(request).unwrap();
            let path = request.split(' ').nth(1).unwrap().to_owned();
            assert!(request.contains(HEADER), "{request}");
            asked.send(path).unwrap();
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (url, asks)
}

#[rstest]
#[case::healthy(&[("200 OK", "")], &["/livez"])]
#[case::before_1_28(
    &[("404 Not Found", ""), ("200 OK", "ok"), ("200 OK", "ok")],
    &["/livez", "/healthz", "/healthz"]
)]
#[tokio::test]
async fn a_page_that_is_there_is_asked(
    #[case] answers: &'static [(&'static str, &'static str)],
    #[case] pages: &[&str],
) {
    let (url, asked) = server(answers);
    let mut asker = Asker::new(url);
    for _ in 0..answers.len().min(2) {
        if asker.ask().await != Heard::Healthy {
            break;
        }
    }
    assert_eq!(asked.try_iter().collect::<Vec<_>>(), pages);
    // It may be a newer one when it is back.
    assert!(matches!(asker.ask().await, Heard::Silent(_)));
    assert!(!asker.old);
}

#[tokio::test]
async fn a_503_is_told_with_its_reason() {
    let (url, _asked) = server(&[("503 Service Unavailable", LATE)]);
    let expected = Heard::Unhealthy {
        families: [false, true],
        mixed: false,
        said: "503, last brought up to date 71 s before".into(),
    };
    assert_eq!(Asker::new(url).ask().await, expected);
}

#[rstest]
#[case::not_json("sync failed\u{7}", "503, sync failed")]
#[case::empty("", "503")]
#[case::never_synced(
    r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-01-01T00:01:12Z"}"#,
    "503, {"
)]
fn other_bodies(#[case] body: &str, #[case] reason: &str) {
    let Heard::Unhealthy { families, said, .. } =
        heard(StatusCode::SERVICE_UNAVAILABLE, body.as_bytes(), true)
    else {
        panic!("not unhealthy");
    };
    assert_eq!(families, [true; FAMILIES]);
    assert!(said.starts_with(reason), "{said}");
}

#[tokio::test]
async fn silence_and_strangers() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let Heard::Silent(why) = Asker::new(url).ask().await else {
        panic!("not silent");
    };
    assert!(why.contains("refused") || why.contains("connect"), "{why}");
    // It accepts and says nothing.
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", hung.local_addr().unwrap());
    assert_eq!(
        Asker::new(url).ask().await,
        Heard::Silent("no answer within 2 s".into())
    );
    let (url, _asked) = server(&[("302 Found", "")]);
    assert!(matches!(Asker::new(url).ask().await, Heard::Unusable(why) if why.contains("302")));
    let (url, _asked) = server(&[("421 Misdirected Request", "")]);
    assert!(matches!(Asker::new(url).ask().await, Heard::Silent(why) if why.contains("pathproof")));
}
