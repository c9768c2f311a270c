//! Arbitrary text for a terminal or a log.

use pathproof_facts::text::{is_hidden, json, styled, visible};
use serde_json::Value;

use crate::reports::assert_printable;

pub(crate) fn check(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let line = visible(&text);
    assert!(!line.contains(is_hidden), "{line:?}");
    assert_eq!(visible(&line), line, "once is enough");
    if !text.contains(is_hidden) {
        assert_eq!(line, text, "what is seen stays");
    }
    let plain = styled(&text, false);
    assert_printable(&plain);
    let page = styled(&text, true);
    assert_eq!(styled(&page, true), page, "once is enough");
    // The only additions to the plain text are colours.
    for piece in page.split('\x1b').skip(1) {
        let end = piece.find('m').expect("a colour ends");
        let (colour, rest) = piece.split_at(end);
        let numbers = colour.strip_prefix('[').expect("a colour begins");
        assert!(
            numbers
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b';')
        );
        assert_printable(rest);
    }
    assert_eq!(page.split('\n').count(), text.split('\n').count());
    let document = json(&text);
    assert_printable(&document);
    if let Ok(value) = serde_json::from_str::<Value>(&text) {
        let read: Value = serde_json::from_str(&document).expect("it is JSON still");
        assert_eq!(read, value, "it means the same");
    }
    true
}
