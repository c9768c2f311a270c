//! Arbitrary answers of the kernel to netlink requests about tables of nf_tables. The messages fit into the
//! datagram, and are the same after they are encoded again.

use std::fmt::Debug;

use pathproof::netfilter::is_there;
use pathproof::netlink::{attribute, attributes, message, messages};

/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// `RTM_NEWLINK`, as an example of a kind that carries data.
const DATA: u16 = 16;

pub(crate) fn check(datagram: &[u8]) -> bool {
    let (_, is_whole) = bodies(datagram);
    let is_there = is_there(datagram);
    assert_eq!(matches!(is_there, Ok(true)), is_whole);
    is_there.is_ok() && !datagram.is_empty()
}

/// Bodies of the messages in a datagram, and whether it was read to its end without an error.
pub(crate) fn bodies(datagram: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    let end = messages(datagram, &mut |body: &[u8]| {
        bodies.push(body.to_vec());
        Ok(())
    });
    let sum: usize = bodies.iter().map(|body| HEADER + body.len()).sum();
    assert!(sum <= datagram.len(), "{sum} of {} bytes", datagram.len());
    let mut again = Vec::new();
    for body in &bodies {
        again.extend(message(DATA, 0, body));
        again.resize(again.len().next_multiple_of(4), 0);
    }
    let mut left = bodies.iter();
    let follows = messages(&again, &mut |body: &[u8]| {
        assert_eq!(left.next().map(Vec::as_slice), Some(body));
        Ok(())
    });
    assert!(matches!(follows, Ok(true)), "{follows:?}");
    assert_eq!(left.next(), None);
    (bodies, end.is_ok())
}

/// Asserts that `read` returns the same after the attributes behind a header are encoded again.
pub(crate) fn same<T: Debug + PartialEq>(body: &[u8], header: usize, read: impl Fn(&[u8]) -> T) {
    let (head, rest) = body.split_at(header.min(body.len()));
    let mut again = head.to_vec();
    for (kind, value) in attributes(rest) {
        again.extend(attribute(kind, value));
    }
    assert_eq!(read(&again), read(body), "{body:?}");
}
