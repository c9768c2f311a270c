//! A datapath in the shape of Cilium's: classifiers at the tail of TCX that translate Services,
//! end the chain, and deliver to local pods by `bpf_redirect_peer`, past every egress hook. What a
//! real one attaches where is measured in docs/cilium.md; these programs do as much of it as
//! decides what the observer sees. IPv4 and TCP, one endpoint for each client and frontend.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use anyhow::Result;

use crate::bpf::{Attached, Code, Hook, Program};
use crate::world::layout::UPLINK;
use crate::world::{Family, Place, Pod, World};

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Then {
    /// On to the stack; whatever stands behind in the chain does not run.
    #[default]
    End,
    /// Into the namespace at the other end of this interface; no egress hook runs.
    Peer(u32),
    /// Out of this interface, by its neighbours.
    Neighbour(u32),
}

/// One rule; the first that fits decides. A field that is not set does not matter, and port 0 is any port.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rule {
    /// Source of the packets that fit.
    pub from: Option<SocketAddrV4>,
    /// Their destination.
    pub to: Option<SocketAddrV4>,
    /// Their new source; port 0 keeps the port.
    pub source: Option<SocketAddrV4>,
    /// Their new destination.
    pub destination: Option<SocketAddrV4>,
    /// What becomes of them.
    pub then: Then,
}

/// Where the packet's fields lie on the program's stack: addresses at multiples of four.
const FRAME: i16 = -38;
const fn at(offset: i16) -> i16 {
    FRAME + offset - 12
}
const ETHERTYPE: i16 = 12;
const PROTOCOL: i16 = 23;
/// An address and its port.
const SOURCE: (i16, i16) = (26, 34);
const DESTINATION: (i16, i16) = (30, 36);
const LENGTH: i32 = 26;
const IP_CHECKSUM: i32 = 24;
const TCP_CHECKSUM: i32 = 50;
/// The program's context, kept over calls.
const CONTEXT: u8 = 6;
const STACK: u8 = 10;

const LOAD_BYTES: i32 = 26;
const STORE_BYTES: i32 = 9;
const L3_CHECKSUM: i32 = 10;
const L4_CHECKSUM: i32 = 11;
const REDIRECT_NEIGH: i32 = 152;
const REDIRECT_PEER: i32 = 155;
/// `BPF_F_PSEUDO_HDR`, and four bytes.
const ADDRESS: i32 = 0x10 | 4;

fn raw(address: Ipv4Addr) -> i32 {
    i32::from_ne_bytes(address.octets())
}

fn raw_port(port: u16) -> i32 {
    i32::from(u16::from_ne_bytes(port.to_be_bytes()))
}

/// A classifier of these rules; what fits none goes on to the stack, and ends the chain.
fn classifier(rules: &[Rule]) -> Code {
    let mut code = Code::default();
    code.copy(CONTEXT, 1).set(2, 12).copy(3, STACK);
    code.add(3, i32::from(FRAME))
        .set(4, LENGTH)
        .call(LOAD_BYTES);
    for rule in rules {
        code.load(2, 1, STACK, at(ETHERTYPE))
            .only_if(1, raw_port(0x0800));
        code.load(1, 1, STACK, at(PROTOCOL)).only_if(1, 6);
        for ((field, port_field), wanted) in [(SOURCE, rule.from), (DESTINATION, rule.to)] {
            let Some(wanted) = wanted else { continue };
            code.load(4, 1, STACK, at(field))
                .only_if(1, raw(*wanted.ip()));
            if wanted.port() != 0 {
                code.load(2, 1, STACK, at(port_field))
                    .only_if(1, raw_port(wanted.port()));
            }
        }
        for (fields, new) in [(SOURCE, rule.source), (DESTINATION, rule.destination)] {
            if let Some(new) = new {
                rewrite(&mut code, fields, new);
            }
        }
        end(&mut code, rule.then);
        code.end();
    }
    end(&mut code, Then::End);
    code
}

fn end(code: &mut Code, then: Then) {
    match then {
        Then::End => code.answer(0),
        Then::Peer(index) => redirect(code, index, REDIRECT_PEER),
        Then::Neighbour(index) => redirect(code, index, REDIRECT_NEIGH),
    };
}

fn redirect(code: &mut Code, index: u32, helper: i32) -> &mut Code {
    code.set(1, index as i32).set(2, 0).set(3, 0).set(4, 0);
    code.call(helper).exit()
}

/// Checksums first, by difference, then the fields themselves. Port 0 keeps the port.
fn rewrite(code: &mut Code, (field, port_field): (i16, i16), new: SocketAddrV4) {
    let address = raw(*new.ip());
    checksum(code, (L4_CHECKSUM, TCP_CHECKSUM), field, address, ADDRESS);
    checksum(code, (L3_CHECKSUM, IP_CHECKSUM), field, address, 4);
    store(code, field, address, 4);
    if new.port() != 0 {
        let port = raw_port(new.port());
        checksum(code, (L4_CHECKSUM, TCP_CHECKSUM), port_field, port, 2);
        store(code, port_field, port, 2);
    }
}

/// `flags` hold the number of bytes.
fn checksum(code: &mut Code, (helper, place): (i32, i32), field: i16, new: i32, flags: i32) {
    code.copy(1, CONTEXT).set(2, place);
    code.load((flags & 0xf) as usize, 3, STACK, at(field));
    code.set(4, new).set(5, flags).call(helper);
}

fn store(code: &mut Code, field: i16, value: i32, size: i32) {
    code.store(STACK, -8, value)
        .copy(1, CONTEXT)
        .set(2, i32::from(field));
    code.copy(3, STACK).add(3, -8).set(4, size).set(5, 0);
    code.call(STORE_BYTES);
}

/// Where `struct bpf_sock_addr` has its fields.
const USER_IP4: i16 = 4;
const USER_IP6: i16 = 8;
const USER_PORT: i16 = 24;

/// Translates sockets of one frontend's family as they connect: the wire never carries it.
pub fn connector(frontend: SocketAddr, backend: SocketAddr) -> Code {
    let mut code = Code::default();
    code.copy(CONTEXT, 1);
    let fields = |address: SocketAddr| {
        let (first, octets) = match address.ip() {
            IpAddr::V4(address) => (USER_IP4, address.octets().to_vec()),
            IpAddr::V6(address) => (USER_IP6, address.octets().to_vec()),
        };
        let words = octets.chunks_exact(4).map(<[u8; 4]>::try_from);
        let words = words.map(|word| i32::from_ne_bytes(word.unwrap_or_default()));
        let port = (USER_PORT, raw_port(address.port()));
        (first..)
            .step_by(4)
            .zip(words)
            .chain([port])
            .collect::<Vec<_>>()
    };
    for (place, value) in fields(frontend) {
        code.load(4, 1, CONTEXT, place).only_if(1, value);
    }
    for (place, value) in fields(backend) {
        code.set(1, value).put(CONTEXT, place, 1);
    }
    code.answer(1).end();
    code.answer(1);
    code
}

/// The rules of all interfaces, before they are attached.
#[derive(Clone, Debug, Default)]
pub struct Datapath {
    rules: BTreeMap<(String, Hook), Vec<Rule>>,
    /// The programs have names that are not Cilium's.
    is_foreign: bool,
}

/// The programs of all interfaces. Dropped, they are gone.
#[derive(Debug)]
pub struct Programs(BTreeMap<(String, Hook), Attached>);

/// An IPv4 address and port; panics for IPv6, which this datapath does not know.
pub fn socket(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(_) => unreachable!("this datapath is IPv4 alone"),
    }
}

/// A host, at any port.
fn host(address: impl Into<IpAddr>) -> SocketAddrV4 {
    socket(SocketAddr::new(address.into(), 0))
}

impl Datapath {
    /// Cilium's devices and the places of its programs: nothing is translated yet. `replacing`: with
    /// a program at what leaves by the uplink, as where it replaces kube-proxy.
    pub fn new(world: &World, replacing: bool) -> Result<Self> {
        if world.node.ip("link show cilium_host").is_err() {
            world.node.ip_batch(
                "link add cilium_host type veth peer name cilium_net\n\
                 link set cilium_host up\nlink set cilium_net up\n",
            )?;
        }
        let mut datapath = Self::default();
        datapath.at(UPLINK, Hook::Ingress);
        if replacing {
            datapath.at(UPLINK, Hook::Egress);
        }
        datapath.at("cilium_host", Hook::Egress);
        for pod in world.pods().filter(|pod| pod.place != Place::Remote) {
            datapath.at(&pod.device, Hook::Ingress);
        }
        Ok(datapath)
    }

    /// Of a program that pathproof does not know: classifiers at the uplink, and where rules are added.
    pub fn foreign() -> Self {
        let mut datapath = Self {
            is_foreign: true,
            ..Self::default()
        };
        datapath.at(UPLINK, Hook::Ingress);
        datapath.at(UPLINK, Hook::Egress);
        datapath
    }

    /// Rules of an interface, to which more may be added.
    pub fn at(&mut self, device: &str, hook: Hook) -> &mut Vec<Rule> {
        self.rules.entry((device.to_owned(), hook)).or_default()
    }

    /// What a pod sends to a frontend goes to an endpoint: to a local one past every egress hook, its
    /// answer too.
    pub fn pod(
        &mut self,
        world: &World,
        client: &Pod,
        frontend: SocketAddr,
        (backend, port): (&Pod, u16),
    ) -> Result<()> {
        let frontend = socket(frontend);
        let endpoint = SocketAddrV4::new(backend.v4, port);
        let peer = |pod: &Pod| world.node.ifindex(&pod.device).map(Then::Peer);
        let (device, there, back) = match backend.place {
            Place::Remote => (UPLINK, Then::End, Then::End),
            _ => (backend.device.as_str(), peer(backend)?, peer(client)?),
        };
        let request = Rule {
            to: Some(frontend),
            destination: Some(endpoint),
            then: there,
            ..Rule::default()
        };
        let answer = Rule {
            from: Some(endpoint),
            to: Some(host(client.v4)),
            source: Some(frontend),
            then: back,
            ..Rule::default()
        };
        self.at(&client.device, Hook::Ingress).push(request);
        self.at(device, Hook::Ingress).push(answer);
        Ok(())
    }

    /// What an outside client sends to a frontend goes to a local endpoint past every egress hook;
    /// its answer is translated back as it leaves by the uplink. To one of the other node it leaves
    /// with this node's address.
    pub fn outside(
        &mut self,
        world: &World,
        client: IpAddr,
        frontend: SocketAddr,
        (backend, port): (&Pod, u16),
    ) -> Result<()> {
        let (client, frontend) = (host(client), socket(frontend));
        let endpoint = SocketAddrV4::new(backend.v4, port);
        let mut request = Rule {
            from: Some(client),
            to: Some(frontend),
            destination: Some(endpoint),
            ..Rule::default()
        };
        let mut answer = Rule {
            from: Some(endpoint),
            to: Some(client),
            source: Some(frontend),
            ..Rule::default()
        };
        let leaves = if backend.place == Place::Remote {
            let node = host(world.node_address(Family::V4));
            let uplink = Then::Neighbour(world.node.ifindex(UPLINK)?);
            (request.source, request.then) = (Some(node), uplink);
            (answer.to, answer.destination, answer.then) = (Some(node), Some(client), uplink);
            Hook::Ingress
        } else {
            request.then = Then::Peer(world.node.ifindex(&backend.device)?);
            Hook::Egress
        };
        self.at(UPLINK, Hook::Ingress).push(request);
        self.at(UPLINK, leaves).push(answer);
        Ok(())
    }

    /// Loads and attaches a program for every interface, behind what is there.
    pub fn attach(&self, world: &World) -> Result<Programs> {
        let attached = self.rules.iter().map(|((device, hook), rules)| {
            let name = match (device.as_str(), hook) {
                _ if self.is_foreign => "foreign_tc",
                (UPLINK, Hook::Egress) => "cil_to_netdev",
                ("cilium_host", _) => "cil_from_host",
                (device, _) => name(device),
            };
            let program = program(world, name, (device, *hook), rules)?;
            Ok(((device.clone(), *hook), program))
        });
        attached.collect::<Result<_>>().map(Programs)
    }
}

/// Cilium's name of a program at what comes in.
fn name(device: &str) -> &'static str {
    match device {
        UPLINK => "cil_from_netdev",
        _ => "cil_from_contai",
    }
}

fn program(
    world: &World,
    name: &str,
    (device, hook): (&str, Hook),
    rules: &[Rule],
) -> Result<Attached> {
    let index = world.node.ifindex(device)?;
    let load = || Program::load(hook, name, &classifier(rules))?.attach(index);
    world.node.run(load)
}

impl Programs {
    /// Detaches the program at what comes in by an interface.
    pub fn detach(&mut self, device: &str) {
        self.0.remove(&(device.to_owned(), Hook::Ingress));
    }

    /// Attaches a program without rules in its place.
    pub fn empty(&mut self, world: &World, device: &str) -> Result<()> {
        let place = (device, Hook::Ingress);
        let new = program(world, name(device), place, &[])?;
        self.0.insert((device.to_owned(), Hook::Ingress), new);
        Ok(())
    }
}
