//! Asks nf_tables whether a table or chain is there: one request, one answer, nothing dumped (a
//! large cluster has 100,000 chains).

use std::io;
use std::time::Duration;

use agent_common::service::Family;
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use socket2::SockRef;

/// `NFNL_SUBSYS_NFTABLES` in the upper byte of a message's type.
const SUBSYSTEM: u16 = 10 << 8;
const GET_TABLE: u16 = SUBSYSTEM | 1;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
const HEADER_LEN: usize = 16;
const NAME_OF_TABLE: u16 = 1;
const NAME_OF_CHAIN: u16 = 3;
/// The kernel answers at once or not at all; the main loop must not hang on it.
const PATIENCE: Duration = Duration::from_millis(200);

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name<'a> {
    Table(&'a str),
    Chain { table: &'a str, chain: &'a str },
}

/// A connection to nf_tables.
pub(super) struct Nft(Socket);

impl Nft {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        SockRef::from(&socket).set_read_timeout(Some(PATIENCE))?;
        Ok(Self(socket))
    }

    /// Whether it is there, in a family's tables.
    pub(super) fn has(&self, family: Family, name: Name<'_>) -> io::Result<bool> {
        let family = match family {
            Family::V4 => libc::AF_INET as u8,
            Family::V6 => libc::AF_INET6 as u8,
        };
        self.0.send(&request(family, name), 0)?;
        let mut answer = Vec::with_capacity(8192);
        self.0.recv(&mut answer, 0)?;
        answer_of(&answer)
    }
}

fn request(family: u8, name: Name<'_>) -> Vec<u8> {
    let kind = match name {
        Name::Table(_) => GET_TABLE,
        Name::Chain { .. } => GET_CHAIN,
    };
    let mut message = vec![0; HEADER_LEN];
    // nfgenmsg: family, version, resource id.
    message.extend([family, 0, 0, 0]);
    match name {
        Name::Table(table) => attribute(&mut message, NAME_OF_TABLE, table),
        Name::Chain { table, chain } => {
            attribute(&mut message, NAME_OF_TABLE, table);
            attribute(&mut message, NAME_OF_CHAIN, chain);
        }
    }
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    message
}

/// A string, with its end, padded to words.
fn attribute(message: &mut Vec<u8>, kind: u16, text: &str) {
    let length = 4 + text.len() + 1;
    message.extend((length as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(text.as_bytes());
    message.resize(message.len() + 1 + length.next_multiple_of(4) - length, 0);
}

/// An object answers for itself; `ENOENT` says that there is none.
fn answer_of(answer: &[u8]) -> io::Result<bool> {
    let too_short = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let half = |at: usize| answer.get(at..at + 2)?.first_chunk().copied();
    let word = |at: usize| answer.get(at..at + 4)?.first_chunk().copied();
    let kind = u16::from_ne_bytes(half(4).ok_or_else(too_short)?);
    if kind != ERROR {
        return Ok(true);
    }
    let code = i32::from_ne_bytes(word(HEADER_LEN).ok_or_else(too_short)?);
    match -code {
        0 => Ok(true),
        libc::ENOENT => Ok(false),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_padded_and_counted() {
        let message = request(
            2,
            Name::Chain {
                table: "nat",
                chain: "KUBE-SERVICES",
            },
        );
        assert_eq!(message.len() % 4, 0);
        assert_eq!(message[..4], (message.len() as u32).to_ne_bytes());
        assert_eq!(&message[24..28], b"nat\0");
    }

    #[test]
    fn answers_of_every_length_are_safe() {
        let mut answer = vec![0; 36];
        answer[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        answer[16..20].copy_from_slice(&(-libc::ENOENT).to_ne_bytes());
        assert!(!answer_of(&answer).unwrap());
        for length in 0..20 {
            assert!(answer_of(&answer[..length]).is_err(), "{length}");
        }
        answer[16..20].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        assert_eq!(
            answer_of(&answer).unwrap_err().raw_os_error(),
            Some(libc::EPERM)
        );
    }
}
