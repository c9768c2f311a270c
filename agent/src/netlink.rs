//! Netlink requests, and their answers: rtnetlink encodes and parses those about interfaces, routes and
//! neighbours. `datapath::devices` subscribes to changes of interfaces and routes.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::net::if_::if_indextoname;
use pathproof_wire::service::Family;
use rtnetlink::packet_core::{Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use socket2::SockRef;

pub(crate) mod link;
pub(crate) mod routes;
pub(crate) mod ways;

/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Read timeout: the kernel answers at once or not at all.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);

/// Opens a socket of this protocol whose reads time out after `patience`.
pub(crate) fn open(protocol: isize, patience: Duration) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    SockRef::from(&socket).set_read_timeout(Some(patience))?;
    Ok(socket)
}

/// Number of the address family.
pub(crate) fn number(family: Family) -> u8 {
    match family {
        Family::V4 => libc::AF_INET as u8,
        Family::V6 => libc::AF_INET6 as u8,
    }
}

/// Number of the address's family, and length of the address in bits.
pub(crate) fn family(address: IpAddr) -> (u8, u8) {
    match address {
        IpAddr::V4(_) => (number(Family::V4), 32),
        IpAddr::V6(_) => (number(Family::V6), 128),
    }
}

/// Current name of the interface with this index.
pub(crate) fn name_of(index: u32) -> io::Result<String> {
    // nix 0.31 takes a null pointer for success, and then returns an empty name.
    match if_indextoname(index)?.to_string_lossy() {
        name if name.is_empty() => Err(io::Error::last_os_error()),
        name => Ok(name.into_owned()),
    }
}

/// Requests a dump, and passes the body of every message of the answer to `each`. `patience` is the timeout for
/// each part of the answer.
pub(crate) fn dump(
    patience: Duration,
    protocol: isize,
    kind: u16,
    body: &[u8],
    mut each: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let socket = open(protocol, patience)?;
    socket.send(&message(kind, NLM_F_REQUEST | NLM_F_DUMP, body), 0)?;
    let mut answer = Vec::with_capacity(32 * 1024);
    loop {
        answer.clear();
        socket.recv(&mut answer, 0)?;
        if !messages(&answer, &mut each)? {
            return Ok(());
        }
    }
}

/// Sends a request with these flags, except a dump, and returns the body of the last message of the answer. It
/// is empty if the kernel only acknowledges.
pub(crate) fn ask(protocol: isize, (kind, flags): (u16, u16), body: &[u8]) -> io::Result<Vec<u8>> {
    let socket = open(protocol, PATIENCE)?;
    let flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    socket.send(&message(kind, flags, body), 0)?;
    let (mut answer, mut last) = (Vec::with_capacity(32 * 1024), Vec::new());
    // The acknowledgement is the last datagram, and may be the only one.
    loop {
        answer.clear();
        socket.recv(&mut answer, 0)?;
        messages(&answer, &mut |body: &[u8]| {
            last = body.to_vec();
            Ok(())
        })?;
        if half(&answer, 4) == Some(ERROR) {
            return Ok(last);
        }
    }
}

/// Sends a request about interfaces, routes or neighbours, and returns the kernel's answers.
pub(crate) fn request(kind: u16, flags: u16, message: &impl Emitable) -> io::Result<Vec<u8>> {
    ask(NETLINK_ROUTE, (kind, flags), &encoded(message))
}

pub(crate) fn encoded(message: &impl Emitable) -> Vec<u8> {
    let mut body = vec![0; message.buffer_len()];
    message.emit(&mut body);
    body
}

/// Returns `None` for the error of the kernel with this number.
pub(crate) fn unless<T>(number: i32, done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(error) if error.raw_os_error() == Some(number) => Ok(None),
        other => other.map(Some),
    }
}

pub fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = (HEADER + body.len()) as u32;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.resize(HEADER, 0);
    message.extend(body);
    message
}

/// Parses one datagram of an answer; returns whether more datagrams follow.
pub fn messages(
    mut bytes: &[u8],
    each: &mut impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<bool> {
    while !bytes.is_empty() {
        let length = word(bytes, 0).ok_or_else(too_short)? as usize;
        let kind = half(bytes, 4).ok_or_else(too_short)?;
        let body = bytes.get(HEADER..length).ok_or_else(too_short)?;
        match kind {
            // If the kernel aborts an answer, its last message carries the error.
            DONE => match word(body, 0).map(u32::cast_signed) {
                Some(code @ ..0) => return Err(kernel_error(code)),
                _ => return Ok(false),
            },
            ERROR => match word(body, 0).ok_or_else(too_short)? as i32 {
                // An acknowledgement.
                0 => {}
                code => return Err(kernel_error(code)),
            },
            _ => each(body)?,
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

/// The error of a negative code, as the kernel sends it.
fn kernel_error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code.wrapping_neg())
}

/// Attributes in `bytes`, each with its kind, up to the first truncated one.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(half(bytes, 0)?).max(4);
        // The two highest bits are flags.
        let kind = half(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of this kind.
pub(crate) fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut all = attributes(bytes);
    all.find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// Encodes an attribute with its padding, as [`attributes`] reads it.
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub(crate) fn too_short() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let half = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*half))
}

pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_cut_short_are_errors() {
        let whole = message(7, NLM_F_REQUEST, &[1; 20]);
        let mut seen = 0;
        let mut count = |_: &[u8]| {
            seen += 1;
            Ok(())
        };
        assert!(messages(&whole, &mut count).unwrap());
        assert_eq!(seen, 1);
        for length in 1..whole.len() {
            let error = messages(&whole[..length], &mut |_| Ok(())).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{length} bytes");
        }
    }

    #[test]
    fn an_interface_that_is_gone_has_no_name() {
        assert!(name_of(i32::MAX as u32).is_err());
    }

    #[test]
    fn kernel_errors_are_returned() {
        let answer = |code: i32| {
            let body = [&code.to_ne_bytes()[..], &[0; 16]].concat();
            messages(&message(ERROR, 0, &body), &mut |_| Ok(()))
        };
        let error = answer(-libc::ENOENT).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        answer(i32::MIN).expect_err("no positive number has this size");
        answer(0).expect("an acknowledgement is not an error");
        let end = |code: i32| messages(&message(DONE, 0, &code.to_ne_bytes()), &mut |_| Ok(()));
        let error = end(-libc::ENOBUFS).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS), "aborted");
        end(i32::MIN).expect_err("aborted");
        assert!(!end(0).expect("a complete answer"));
        let end = messages(&message(DONE, 0, &[]), &mut |_| Ok(()));
        assert!(!end.expect("without a code"));
    }

    #[test]
    fn attributes_are_told_apart_and_flags_are_no_part_of_their_kind() {
        let bytes = [attribute(0x8002, &[1, 2]), attribute(11, &[3, 4, 5, 6])].concat();
        let found: Vec<_> = attributes(&bytes).collect();
        assert_eq!(found, [(2, &[1, 2][..]), (11, &[3, 4, 5, 6])]);
        assert_eq!(attributes(&bytes[..7]).count(), 1, "padding may be missing");
        assert_eq!(attributes(&bytes[..5]).count(), 0);
    }
}
