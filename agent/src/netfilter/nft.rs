//! nf_tables by netlink: one question, one answer, nothing dumped; one batch deletes a table, as nft
//! has it done.

use std::io;
use std::time::Duration;

use agent_common::service::Family;
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use socket2::SockRef;

/// Messages of linux/netfilter/nfnetlink.h and nf_tables.h: the subsystem is the upper byte.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const GET_TABLE: u16 = SUBSYSTEM << 8 | 1;
const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
const GET_CHAIN: u16 = SUBSYSTEM << 8 | 4;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const ERROR: u16 = 2;
const HEADER_LEN: usize = 16;
const NAME_OF_TABLE: u16 = 1;
const NAME_OF_CHAIN: u16 = 3;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Name<'a> {
    /// A table.
    Table(&'a str),
    /// A chain of a table.
    Chain {
        /// Its table.
        table: &'a str,
        /// The chain.
        chain: &'a str,
    },
}

/// A family as nft names it.
pub fn name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// A connection to nf_tables.
pub struct Nft(Socket);

impl Nft {
    /// Nothing where the kernel has no nf_tables. An answer is waited for so long.
    ///
    /// # Errors
    /// The kernel gives no socket.
    pub fn open(patience: Duration) -> io::Result<Option<Self>> {
        if !super::has_nf_tables() {
            return Ok(None);
        }
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        SockRef::from(&socket).set_read_timeout(Some(patience))?;
        Ok(Some(Self(socket)))
    }

    /// Whether it is there, in a family's tables.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn has(&self, family: Family, name: Name<'_>) -> io::Result<bool> {
        let request = |kind, names: &[_]| message(kind, REQUEST, number(family), 0, names);
        self.ask(&match name {
            Name::Table(table) => request(GET_TABLE, &[(NAME_OF_TABLE, table)]),
            Name::Chain { table, chain } => {
                request(GET_CHAIN, &[(NAME_OF_TABLE, table), (NAME_OF_CHAIN, chain)])
            }
        })
    }

    /// Deletes a table with all that is in it; says whether there was one.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn delete_table(&self, family: Family, table: &str) -> io::Result<bool> {
        let mut batch = message(BATCH_BEGIN, REQUEST, 0, SUBSYSTEM, &[]);
        batch.extend(message(
            DELETE_TABLE,
            REQUEST | ACKNOWLEDGE,
            number(family),
            0,
            &[(NAME_OF_TABLE, table)],
        ));
        batch.extend(message(BATCH_END, REQUEST, 0, SUBSYSTEM, &[]));
        self.ask(&batch)
    }

    fn ask(&self, request: &[u8]) -> io::Result<bool> {
        self.0.send(request, 0)?;
        let mut answer = Vec::with_capacity(8192);
        self.0.recv(&mut answer, 0)?;
        answer_of(&answer)
    }
}

fn number(family: Family) -> u8 {
    match family {
        Family::V4 => libc::AF_INET as u8,
        Family::V6 => libc::AF_INET6 as u8,
    }
}

/// A message with its header, nfgenmsg, and strings.
fn message(kind: u16, flags: u16, family: u8, resource: u16, names: &[(u16, &str)]) -> Vec<u8> {
    let mut message = vec![0; HEADER_LEN];
    message.extend([family, 0]);
    message.extend(resource.to_be_bytes());
    for (attribute, name) in names {
        let length = 4 + name.len() + 1;
        message.extend((length as u16).to_ne_bytes());
        message.extend(attribute.to_ne_bytes());
        message.extend(name.as_bytes());
        // Its end, and up to the next word.
        message.resize(message.len() + 1 + length.next_multiple_of(4) - length, 0);
    }
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    message
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
    fn a_message_is_padded_and_counted() {
        let chain = [(NAME_OF_TABLE, "nat"), (NAME_OF_CHAIN, "KUBE-SERVICES")];
        let get = message(GET_CHAIN, REQUEST, 2, 0, &chain);
        assert_eq!(get.len() % 4, 0);
        assert_eq!(get[..4], (get.len() as u32).to_ne_bytes());
        assert_eq!(&get[24..28], b"nat\0");
        let delete = message(
            DELETE_TABLE,
            REQUEST,
            2,
            0,
            &[(NAME_OF_TABLE, "kube-proxy")],
        );
        assert_eq!(delete.len(), 16 + 4 + 4 + 12);
        assert_eq!(delete[..4], 36u32.to_ne_bytes());
        assert_eq!(&delete[24..], b"kube-proxy\0\0");
        let begin = message(BATCH_BEGIN, REQUEST, 0, SUBSYSTEM, &[]);
        assert_eq!(&begin[18..], [0, 10]);
    }

    #[test]
    fn answers_of_every_length_are_safe() {
        let mut answer = vec![0; 36];
        answer[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        assert!(answer_of(&answer).unwrap());
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
