use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// A frame as a server sends it.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..126 => frame.push(length as u8),
        length @ 126..65_536 => {
            frame.push(126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(payload);
    frame
}

fn decoded(bytes: &[u8]) -> Result<Vec<Incoming>, WebSocketError> {
    let mut decoder = Decoder::default();
    decoder.push(bytes);
    let mut all = Vec::new();
    while let Some(incoming) = decoder.next()? {
        all.push(incoming);
    }
    Ok(all)
}

#[test]
fn the_accepting_header_is_that_of_the_rfc() {
    // RFC 6455, 1.3.
    assert_eq!(
        accept("dGhlIHNhbXBsZSBub25jZQ=="),
        "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    );
}

#[test]
fn an_answer_to_another_question_is_refused() {
    let handshake = Handshake::new("v4.channel.k8s.io").unwrap();
    let sound: HeaderMap = [
        (UPGRADE, "WebSocket".parse().unwrap()),
        (CONNECTION, "Upgrade".parse().unwrap()),
        (
            SEC_WEBSOCKET_ACCEPT,
            accept(&handshake.key).parse().unwrap(),
        ),
        (SEC_WEBSOCKET_PROTOCOL, "v4.channel.k8s.io".parse().unwrap()),
    ]
    .into_iter()
    .collect();
    assert_eq!(handshake.check(&sound), Ok(()));
    for name in [
        UPGRADE,
        CONNECTION,
        SEC_WEBSOCKET_ACCEPT,
        SEC_WEBSOCKET_PROTOCOL,
    ] {
        let mut other = sound.clone();
        other.insert(&name, "other".parse().unwrap());
        assert_eq!(
            handshake.check(&other),
            Err(WebSocketError::Handshake(name.clone()))
        );
        other.remove(&name);
        assert_eq!(
            handshake.check(&other),
            Err(WebSocketError::Handshake(name))
        );
    }
    // And no two handshakes have one key.
    assert_ne!(
        handshake.key,
        Handshake::new("v4.channel.k8s.io").unwrap().key
    );
}

#[rstest]
#[case(0, 6)]
#[case(125, 6)]
#[case(126, 8)]
#[case(65_535, 8)]
#[case(65_536, 14)]
fn what_a_client_sends_is_masked(#[case] length: usize, #[case] head: usize) {
    let payload = vec![b'x'; length];
    let sent = message(&payload).unwrap();
    assert_eq!(sent.len(), head + length);
    assert_eq!((sent[0], sent[1] & 0x80), (0x82, 0x80));
    let mask: [u8; 4] = sent[head - 4..head].try_into().unwrap();
    let read: Vec<u8> = sent[head..]
        .iter()
        .zip(mask.iter().cycle())
        .map(|(byte, mask)| byte ^ mask)
        .collect();
    assert_eq!(read, payload);
}

#[test]
fn messages_may_come_in_parts_with_pings_between() {
    let mut bytes = frame(0x02, b"ab");
    bytes.extend(frame(0x89, b"ping"));
    bytes.extend(frame(0x00, b"cd"));
    bytes.extend(frame(0x80, b"e"));
    bytes.extend(frame(0x82, b""));
    bytes.extend(frame(0x88, b""));
    let expected = [
        Incoming::Message(b"abcde".to_vec()),
        Incoming::Message(Vec::new()),
        Incoming::Close,
    ];
    assert_eq!(decoded(&bytes).unwrap(), expected);
}

#[rstest]
#[case::masked(&[0x82, 0x81, 0, 0, 0, 0, 1])]
#[case::extension(&[0xc2, 0x01, 1])]
#[case::unknown(&[0x83, 0x00])]
#[case::rest_of_nothing(&[0x80, 0x00])]
#[case::within(&[0x02, 0x00, 0x82, 0x00])]
#[case::endless(&[0x82, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])]
fn what_no_server_sends_is_refused(#[case] bytes: &[u8]) {
    assert!(matches!(decoded(bytes), Err(WebSocketError::Frame(_))));
}

proptest! {
    /// However the bytes are cut, the messages are the same.
    #[test]
    fn pieces_make_no_difference(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..6),
        size in 1_usize..50,
    ) {
        let bytes: Vec<u8> = payloads.iter().flat_map(|payload| frame(0x82, payload)).collect();
        let mut decoder = Decoder::default();
        let mut read = Vec::new();
        for piece in bytes.chunks(size) {
            decoder.push(piece);
            while let Some(incoming) = decoder.next().unwrap() {
                read.push(incoming);
            }
        }
        let expected: Vec<Incoming> = payloads.into_iter().map(Incoming::Message).collect();
        prop_assert_eq!(read, expected);
    }

    /// Nothing that comes makes it panic.
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decoded(&bytes);
    }
}
