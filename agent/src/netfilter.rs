//! Tables of the kernel's netfilter, requested by name and never listed: a large cluster has
//! 100,000 chains. Callers decide what a table means.
//!
//! Requests to nf_tables use netlink: one request, one answer, no dump.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::sync::OnceLock;
use std::time::Duration;

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;
use pathproof_wire::service::Family;
use rtnetlink::packet_core::NLM_F_REQUEST;

use crate::netlink::{self, number};

/// Messages of linux/netfilter/nfnetlink.h and nf_tables.h: the subsystem is the upper byte.
const SUBSYSTEM: u16 = 10;
const GET_TABLE: u16 = SUBSYSTEM << 8 | 1;
const GET_CHAIN: u16 = SUBSYSTEM << 8 | 4;
const NAME_OF_TABLE: u16 = 1;
const NAME_OF_CHAIN: u16 = 3;

pub struct Nft(Socket);

impl Nft {
    /// Connects with this read timeout. Returns `None` if the kernel has no nf_tables.
    pub fn open(patience: Duration) -> io::Result<Option<Self>> {
        let modules = fs::read_to_string("/proc/modules").unwrap_or_default();
        let there = has_nf_tables(&modules, is_built_in);
        let socket = there.then(|| netlink::open(NETLINK_NETFILTER, patience));
        Ok(socket.transpose()?.map(Self))
    }

    /// Whether this table of the family exists and, if a chain is given, has that chain.
    pub fn has(&self, family: Family, table: &str, chain: Option<&str>) -> io::Result<bool> {
        let kind = chain.map_or(GET_TABLE, |_| GET_CHAIN);
        let mut names = vec![(NAME_OF_TABLE, table)];
        names.extend(chain.map(|chain| (NAME_OF_CHAIN, chain)));
        self.ask(&message(kind, number(family), &names))
    }

    fn ask(&self, request: &[u8]) -> io::Result<bool> {
        self.0.send(request, 0)?;
        let mut answer = Vec::with_capacity(8192);
        self.0.recv(&mut answer, 0)?;
        is_there(&answer)
    }
}

/// Encodes a request with `struct nfgenmsg` and string attributes.
fn message(kind: u16, family: u8, names: &[(u16, &str)]) -> Vec<u8> {
    // The version and the number of a resource, which no request here has, are zero.
    let mut body = vec![family, 0, 0, 0];
    for (attribute, name) in names {
        body.extend(netlink::attribute(
            *attribute,
            format!("{name}\0").as_bytes(),
        ));
    }
    netlink::message(kind, NLM_F_REQUEST, &body)
}

/// Whether the answer shows that the object exists. If it does not, the kernel answers with `ENOENT`.
pub fn is_there(answer: &[u8]) -> io::Result<bool> {
    match netlink::messages(answer, &mut |_| Ok(())) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        other => other.map(|_| true),
    }
}

/// Whether the kernel has nf_tables already: a request to it would load the module. A kernel without modules
/// has nothing to load. A kernel with modules may have nf_tables built in, as Talos does.
fn has_nf_tables(modules: &str, is_built_in: impl FnOnce() -> bool) -> bool {
    let mut lines = modules.lines();
    modules.is_empty() || lines.any(|line| line.starts_with("nf_tables ")) || is_built_in()
}

/// Whether nf_tables is built in. The symbols are 10 MB, so they are read once. If they cannot be read,
/// it counts as built in: loading an unnecessary module is the smaller harm.
fn is_built_in() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    let read =
        || File::open("/proc/kallsyms").and_then(|file| names_nf_tables(BufReader::new(file)));
    *KNOWN.get_or_init(|| read().unwrap_or(true))
}

/// Whether symbols in the format of /proc/kallsyms contain a symbol of nf_tables that belongs to no module.
fn names_nf_tables(mut symbols: impl BufRead) -> io::Result<bool> {
    let mut line = String::new();
    while symbols.read_line(&mut line)? > 0 {
        if line.trim_end().ends_with(" nft_register_chain_type") {
            return Ok(true);
        }
        line.clear();
    }
    Ok(false)
}

/// Whether this legacy table exists. Any other request would create the table.
pub fn has_legacy(family: Family, table: &str) -> bool {
    let file = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(file).is_ok_and(|names| names.lines().any(|name| name == table))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const TALOS: &str = "ffffffff81f63e50 T __pfx_nft_register_chain_type\n\
                         ffffffff81f63e60 T nft_register_chain_type\n";
    const MODULE: &str = "ffffffffc0a63e60 t nft_register_chain_type\t[nf_tables]\n";

    #[rstest]
    #[case::no_modules("", None, true)]
    #[case::loaded("ip_tables 1 0 - Live 0x0\nnf_tables 1 0 - Live 0x0\n", None, true)]
    #[case::built_in("virtio_net 1 0 - Live 0x0\n", Some(TALOS), true)]
    #[case::neither("virtio_net 1 0 - Live 0x0\n", Some("0 T nft_other\n"), false)]
    // The module was unloaded between the two readings.
    #[case::a_module("virtio_net 1 0 - Live 0x0\n", Some(MODULE), false)]
    fn nf_tables_is_a_module_or_built_in(
        #[case] modules: &str,
        #[case] symbols: Option<&str>,
        #[case] expected: bool,
    ) {
        let built_in = || names_nf_tables(symbols.expect("not asked").as_bytes()).unwrap();
        assert_eq!(has_nf_tables(modules, built_in), expected);
    }

    #[test]
    fn a_message_is_padded_and_counted() {
        let chain = [(NAME_OF_TABLE, "nat"), (NAME_OF_CHAIN, "KUBE-SERVICES")];
        let get = message(GET_CHAIN, 2, &chain);
        assert_eq!(get[..4], (get.len() as u32).to_ne_bytes());
        assert_eq!(&get[24..28], b"nat\0");
        let get = message(GET_TABLE, 2, &[(NAME_OF_TABLE, "kube-proxy")]);
        assert_eq!(get.len(), 16 + 4 + 4 + 12);
        assert_eq!(get[..4], 36u32.to_ne_bytes());
        assert_eq!(&get[24..], b"kube-proxy\0\0");
    }

    #[test]
    fn answers_of_every_length_are_safe() {
        const ERROR: u16 = 2;
        let answer = |code: i32| netlink::message(ERROR, 0, &code.to_ne_bytes());
        assert!(is_there(&answer(0)).unwrap());
        assert!(is_there(&netlink::message(GET_TABLE, 0, &[])).unwrap());
        let none = answer(-libc::ENOENT);
        assert!(!is_there(&none).unwrap());
        for length in 1..none.len() {
            assert!(is_there(&none[..length]).is_err(), "{length}");
        }
        let refused = is_there(&answer(-libc::EPERM)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    }
}
