//! Connections in the kernel's connection table (ctnetlink), read on demand and not stored. The table is read
//! only while the node is being removed: it has up to a million entries, and a request may load a module.

use std::time::Duration;
use std::{fs, io};

use netlink_sys::protocols::NETLINK_NETFILTER;
use pathproof_judge::drain::{Flow, OpenConnections, Outsiders};
use pathproof_wire::service::{Address, Port, mapped};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::netlink::{PATIENCE, attributes, dump, find};

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET`.
const GET: u16 = 1 << 8 | 1;
/// Length of `struct nfgenmsg`: family, version, resource id.
const HEADER: usize = 4;

// Attributes: enum ctattr_type, ctattr_tuple, ctattr_ip, ctattr_l4proto, ctattr_protoinfo,
// ctattr_protoinfo_tcp.
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const PROTOCOL_INFO: u16 = 4;
const TIMEOUT: u16 = 7;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const IP_V4: [u16; 2] = [1, 2];
const IP_V6: [u16; 2] = [3, 4];
const NUMBER: u16 = 1;
const PORTS: [u16; 2] = [2, 3];
const INFO_TCP: u16 = 1;
const TCP_STATE: u16 = 1;

/// Conntrack states in which data may be sent (`enum tcp_conntrack`), and the sysctls with the
/// timeout of an idle entry.
const OPEN: [(u8, &str); 3] = [(3, "established"), (4, "fin_wait"), (5, "close_wait")];
/// Sysctl with the maximum timeout of an entry while data is not acknowledged.
const UNACKNOWLEDGED: &str = "unacknowledged";

/// A count that is under way. An error is a sentence.
pub type Count = JoinHandle<Result<OpenConnections, String>>;

/// Counts the connections of outside clients to Services on another thread: a large table takes longer to
/// read than the main loop may block.
pub fn start(outsiders: Outsiders) -> Count {
    spawn_blocking(move || count(&outsiders))
}

fn count(outsiders: &Outsiders) -> Result<OpenConnections, String> {
    let failed = |error: io::Error| format!("the kernel's conntrack table cannot be read: {error}");
    let lasts = Lasts::read().map_err(failed)?;
    let mut counted = OpenConnections::default();
    let all = [libc::AF_UNSPEC as u8, 0, 0, 0];
    dump(PATIENCE, NETLINK_NETFILTER, GET, &all, |entry| {
        if let Some(flow) = flow(entry, &lasts) {
            outsiders.count(&flow, &mut counted);
        }
        Ok(())
    })
    .map_err(failed)?;
    Ok(counted)
}

/// Timeout of an entry in seconds after its last packet, by state.
pub struct Lasts {
    pub open: [(u8, u32); OPEN.len()],
    pub unacknowledged: u32,
}

impl Lasts {
    fn read() -> io::Result<Self> {
        let seconds = |name: &str| {
            let file = format!("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_{name}");
            let text = fs::read_to_string(&file)?;
            text.trim().parse::<u32>().map_err(io::Error::other)
        };
        let mut open = OPEN.map(|(state, _)| (state, 0));
        for ((_, lasts), (_, name)) in open.iter_mut().zip(OPEN) {
            *lasts = seconds(name)?;
        }
        Ok(Self {
            open,
            unacknowledged: seconds(UNACKNOWLEDGED)?,
        })
    }

    /// Time since the last packet of an entry that expires in `left` seconds.
    fn idle(&self, state: u8, left: u32) -> Option<Duration> {
        let (_, lasts) = self.open.iter().find(|(other, _)| *other == state)?;
        // The kernel takes the shorter timeout while data is not acknowledged.
        let lasts = match left <= self.unacknowledged && self.unacknowledged < *lasts {
            true => self.unacknowledged,
            false => *lasts,
        };
        Some(Duration::from_secs(lasts.saturating_sub(left).into()))
    }
}

/// One direction of an entry: source and destination.
type Tuple = [(Address, Port); 2];

/// An open TCP connection that was translated; `None` for all other entries and for malformed bytes.
pub fn flow(entry: &[u8], lasts: &Lasts) -> Option<Flow> {
    let (mut original, mut reply, mut state, mut left) = (None, None, None, None);
    for (kind, value) in attributes(entry.get(HEADER..)?) {
        match kind {
            TUPLE_ORIGINAL => original = tuple(value),
            TUPLE_REPLY => reply = tuple(value),
            PROTOCOL_INFO => state = find(find(value, INFO_TCP)?, TCP_STATE)?.first().copied(),
            TIMEOUT => left = Some(u32::from_be_bytes(*value.first_chunk()?)),
            _ => {}
        }
    }
    let [client, dialled] = original?;
    let [server, _] = reply?;
    let idle = lasts.idle(state?, left?)?;
    (server != dialled).then_some(Flow {
        client: client.0,
        dialled: dialled.0,
        idle,
    })
}

fn tuple(value: &[u8]) -> Option<Tuple> {
    let (ip, protocol) = (find(value, TUPLE_IP)?, find(value, TUPLE_PROTOCOL)?);
    if *find(protocol, NUMBER)?.first()? != libc::IPPROTO_TCP as u8 {
        return None;
    }
    let end = |at: usize| {
        let v4 = || Some(mapped(*find(ip, IP_V4[at])?.first_chunk()?));
        let v6 = || find(ip, IP_V6[at])?.first_chunk().copied();
        let port = *find(protocol, PORTS[at])?.first_chunk()?;
        Some((v4().or_else(v6)?, port))
    };
    Some([end(0)?, end(1)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    const LASTS: Lasts = Lasts {
        open: [(3, 86_400), (4, 120), (5, 60)],
        unacknowledged: 300,
    };

    fn side(source: [u8; 4], destination: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
        let ip = [attribute(1, &source), attribute(2, &destination)].concat();
        let protocol = [
            attribute(NUMBER, &[6]),
            attribute(2, &ports[0].to_be_bytes()),
            attribute(3, &ports[1].to_be_bytes()),
        ];
        [
            attribute(TUPLE_IP, &ip),
            attribute(TUPLE_PROTOCOL, &protocol.concat()),
        ]
        .concat()
    }

    const CLIENT: [u8; 4] = [203, 0, 113, 7];
    const NODE: [u8; 4] = [192, 0, 2, 10];
    const POD: [u8; 4] = [10, 244, 0, 11];

    fn entry(server: [u8; 4], state: u8, left: u32) -> Vec<u8> {
        let port = if server == NODE { 30_080 } else { 8_080 };
        let tcp = attribute(INFO_TCP, &attribute(TCP_STATE, &[state]));
        [
            vec![2, 0, 0, 0],
            attribute(TUPLE_ORIGINAL, &side(CLIENT, NODE, [40_000, 30_080])),
            attribute(TUPLE_REPLY, &side(server, CLIENT, [port, 40_000])),
            attribute(PROTOCOL_INFO, &tcp),
            attribute(TIMEOUT, &left.to_be_bytes()),
        ]
        .concat()
    }

    #[test]
    fn the_remaining_timeout_gives_the_idle_time() {
        for (state, left, idle) in [
            (3, 86_395, 5),
            // Data that is not acknowledged yet.
            (3, 298, 2),
            (4, 100, 20),
            (5, 60, 0),
        ] {
            let flow = flow(&entry(POD, state, left), &LASTS).expect("a flow");
            assert_eq!(flow.idle, Duration::from_secs(idle), "{state} {left}");
            assert_eq!((flow.client, flow.dialled), (mapped(CLIENT), mapped(NODE)));
        }
    }

    #[test]
    fn untranslated_and_closed_connections_are_skipped() {
        assert_eq!(
            flow(&entry(NODE, 3, 9), &LASTS),
            None,
            "the node's own server"
        );
        for state in [1, 2, 6, 7, 8] {
            assert_eq!(flow(&entry(POD, state, 9), &LASTS), None, "{state}");
        }
    }

    #[test]
    fn an_entry_that_is_cut_short_is_none() {
        let whole = entry(POD, 3, 86_400);
        for length in 0..whole.len() {
            let _ = flow(&whole[..length], &LASTS);
        }
        assert!(flow(&whole[..whole.len() - 8], &LASTS).is_none());
    }
}
