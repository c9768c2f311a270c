//! Arbitrary bytes at the port of a pod probe. The answer to a message is the same message, so nobody gets
//! more bytes than they sent.

use futures_util::FutureExt as _;
use pathproof::echo::frame::{Frame, HEAD};

pub(crate) fn check(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    let read = Frame::read(&mut rest).now_or_never();
    let Ok(frame) = read.expect("a slice never waits") else {
        return false;
    };
    let mut answer = Vec::new();
    let written = frame.write(&mut answer).now_or_never();
    let written = written.expect("a vector never waits");
    written.expect("a vector takes any bytes");
    assert_eq!(answer.len(), bytes.len() - rest.len());
    assert_eq!(answer[..HEAD], bytes[..HEAD]);
    assert!(answer[HEAD..].iter().all(|byte| *byte == 0), "{frame:?}");
    true
}
