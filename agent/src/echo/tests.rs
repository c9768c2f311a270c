use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::net::{TcpListener, TcpStream};

use super::dial::{End, dial, host_variable};
use super::frame::{Frame, HEAD, MOST};
use super::serve;

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[tokio::test]
async fn small_and_large_are_answered_whole() {
    let (listener, port) = listener().await;
    tokio::spawn(async move { serve::answer(&listener).await });
    for is_large in [false, true] {
        assert_eq!(
            dial(Ipv4Addr::LOCALHOST.into(), port, is_large).await,
            End::Whole
        );
    }
}

/// As if large packets vanish: the small frame comes back, the large one does not.
#[tokio::test]
async fn a_cut_transfer_differs_from_silence() {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let frame = Frame::read(&mut stream).await.unwrap();
        frame.write(&mut stream).await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
    });
    assert_eq!(
        dial(Ipv4Addr::LOCALHOST.into(), port, true).await,
        End::SmallOnly
    );
    // The listener accepts no further connection, so this one stays in its queue, unanswered.
    assert_eq!(
        dial(Ipv4Addr::LOCALHOST.into(), port, true).await,
        End::Silent
    );
}

/// A client that does not begin as the pod probe does receives no byte.
#[tokio::test]
async fn an_unknown_client_gets_no_answer() {
    let (listener, port) = listener().await;
    tokio::spawn(async move { serve::answer(&listener).await });
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .await
        .unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: echo\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    // The connection is closed, with or without a reset for unread bytes.
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.is_empty(), "{answer:?}");
}

#[tokio::test]
async fn a_frame_is_read_as_it_was_written() {
    let frame = Frame {
        token: 7,
        length: 3_000,
    };
    let (mut one, mut other) = duplex(8_192);
    frame.write(&mut one).await.unwrap();
    assert_eq!(Frame::read(&mut other).await.unwrap(), frame);
}

#[test]
fn the_variable_is_named_as_kubelet_names_it() {
    let name = host_variable("pathproof-echo");
    assert_eq!(name, "PATHPROOF_ECHO_SERVICE_HOST");
}

#[test]
fn an_overlong_frame_is_refused() {
    let head = |length| Frame { token: 1, length }.head();
    assert!(Frame::parse(&head(MOST)).is_some());
    assert_eq!(Frame::parse(&head(MOST + 1)), None);
    assert_eq!(Frame::parse(&[0; HEAD]), None);
}
