//! Netlink as far as the datapath asks it something between two events: one request, and every
//! message of the answer. What goes on by itself (interfaces, routes) is followed elsewhere.

use std::io;
use std::time::Duration;

use netlink_sys::{Socket, SocketAddr};
use socket2::SockRef;

/// Length of `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// The kernel answers at once or not at all.
const PATIENCE: Duration = Duration::from_millis(200);

/// Asks for a dump, and hands over the body of every message of the kind `wanted`.
///
/// # Errors
/// The kernel refuses, or its answer is cut short.
pub(super) fn dump(
    protocol: isize,
    request: &[u8],
    wanted: u16,
    each: &mut impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    SockRef::from(&socket).set_read_timeout(Some(PATIENCE))?;
    socket.send(request, 0)?;
    let mut answer = Vec::with_capacity(32 * 1024);
    loop {
        answer.clear();
        socket.recv(&mut answer, 0)?;
        if !messages(&answer, wanted, each)? {
            return Ok(());
        }
    }
}

/// A request for a dump.
pub(super) fn request(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut message = vec![0; HEADER];
    message.extend(body);
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    message
}

/// Takes one datagram of an answer; tells whether more follow.
pub(super) fn messages(
    mut bytes: &[u8],
    wanted: u16,
    each: &mut impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<bool> {
    while !bytes.is_empty() {
        let length = word(bytes, 0).ok_or_else(too_short)? as usize;
        let kind = half(bytes, 4).ok_or_else(too_short)?;
        let body = bytes.get(HEADER..length).ok_or_else(too_short)?;
        match kind {
            DONE => return Ok(false),
            ERROR => {
                let code = word(body, 0).ok_or_else(too_short)? as i32;
                return Err(io::Error::from_raw_os_error(-code));
            }
            kind if kind == wanted => each(body)?,
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

/// The attributes in `bytes`, each with its kind. What is cut short is left out.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(half(bytes, 0)?).max(4);
        // The two highest bits are flags.
        let kind = half(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(super) fn too_short() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

pub(super) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..at + 2)?
        .first_chunk()
        .map(|half| u16::from_ne_bytes(*half))
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..at + 4)?
        .first_chunk()
        .map(|word| u32::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_cut_short_are_errors() {
        let whole = request(7, &[1; 20]);
        let mut seen = 0;
        let mut count = |_: &[u8]| {
            seen += 1;
            Ok(())
        };
        assert!(messages(&whole, 7, &mut count).unwrap());
        assert!(messages(&whole, 8, &mut count).unwrap());
        assert_eq!(seen, 1, "only of the kind that was asked for");
        for length in 1..whole.len() {
            let error = messages(&whole[..length], 7, &mut |_| Ok(())).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{length} bytes");
        }
    }

    #[test]
    fn errors_of_the_kernel_are_told() {
        let bytes = request(
            ERROR,
            &[&(-libc::ENOENT).to_ne_bytes()[..], &[0; 16]].concat(),
        );
        let error = messages(&bytes, 7, &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn attributes_are_told_apart_and_flags_are_no_part_of_their_kind() {
        let mut bytes = Vec::new();
        for (kind, value) in [(0x8002u16, &[1u8, 2][..]), (11, &[3, 4, 5, 6])] {
            bytes.extend((value.len() as u16 + 4).to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        let found: Vec<_> = attributes(&bytes).collect();
        assert_eq!(found, [(2, &[1, 2][..]), (11, &[3, 4, 5, 6])]);
        assert_eq!(attributes(&bytes[..7]).count(), 1, "padding may be missing");
        assert_eq!(attributes(&bytes[..5]).count(), 0);
    }
}
