//! A datapath in the shape of Cilium's: classifiers at the tail of TCX that translate Services,
//! end the chain, and deliver to local pods by `bpf_redirect_peer`, past every egress hook. What a
//! real one attaches where is measured in docs/cilium.md; these programs do as much of it as
//! decides what the observer sees. IPv4 and TCP, one endpoint for each client and frontend.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use anyhow::{Context, Result};

use crate::bpf::{Attached, Code, Hook, Kind, Program};
use crate::world::layout::UPLINK;
use crate::world::{Namespace, Place, Pod, World};

/// What a packet must be; what is not said does not matter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Match {
    /// Its source address.
    pub source: Option<Ipv4Addr>,
    /// Its source port.
    pub source_port: Option<u16>,
    /// Its destination address.
    pub destination: Option<Ipv4Addr>,
    /// Its destination port.
    pub destination_port: Option<u16>,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// On to the stack; whatever stands behind in the chain does not run.
    End,
    /// Into the namespace at the other end of this interface; no egress hook runs.
    Peer(u32),
    /// Out of this interface, by its neighbours.
    Neighbour(u32),
    /// Dropped.
    Drop,
}

/// One rule; the first that fits decides.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Which packets.
    pub when: Match,
    /// Their new source.
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
const SOURCE: i16 = 26;
const DESTINATION: i16 = 30;
const SOURCE_PORT: i16 = 34;
const DESTINATION_PORT: i16 = 36;
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
pub fn classifier(rules: &[Rule]) -> Code {
    let mut code = Code::default();
    code.copy(CONTEXT, 1).set(2, 12).copy(3, STACK);
    code.add(3, i32::from(FRAME))
        .set(4, LENGTH)
        .call(LOAD_BYTES);
    for rule in rules {
        code.load(2, 1, STACK, at(ETHERTYPE))
            .only_if(1, raw_port(0x0800));
        code.load(1, 1, STACK, at(PROTOCOL)).only_if(1, 6);
        let when = &rule.when;
        for (field, address) in [(SOURCE, when.source), (DESTINATION, when.destination)] {
            if let Some(address) = address {
                code.load(4, 1, STACK, at(field)).only_if(1, raw(address));
            }
        }
        let ports = [
            (SOURCE_PORT, when.source_port),
            (DESTINATION_PORT, when.destination_port),
        ];
        for (field, port) in ports {
            if let Some(port) = port {
                code.load(2, 1, STACK, at(field)).only_if(1, raw_port(port));
            }
        }
        if let Some(new) = rule.source {
            rewrite(&mut code, (SOURCE, SOURCE_PORT), new);
        }
        if let Some(new) = rule.destination {
            rewrite(&mut code, (DESTINATION, DESTINATION_PORT), new);
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
        Then::Drop => code.answer(2),
        Then::Peer(index) => code
            .set(1, index as i32)
            .set(2, 0)
            .call(REDIRECT_PEER)
            .exit(),
        Then::Neighbour(index) => code
            .set(1, index as i32)
            .set(2, 0)
            .set(3, 0)
            .set(4, 0)
            .call(REDIRECT_NEIGH)
            .exit(),
    };
}

/// Checksums first, by difference, then the fields themselves. Port 0 keeps the port.
fn rewrite(code: &mut Code, (field, port_field): (i16, i16), new: SocketAddrV4) {
    let address = raw(*new.ip());
    checksum(
        code,
        L4_CHECKSUM,
        TCP_CHECKSUM,
        (4, field),
        address,
        ADDRESS,
    );
    checksum(code, L3_CHECKSUM, IP_CHECKSUM, (4, field), address, 4);
    store(code, field, address, 4);
    if new.port() != 0 {
        let port = raw_port(new.port());
        checksum(code, L4_CHECKSUM, TCP_CHECKSUM, (2, port_field), port, 2);
        store(code, port_field, port, 2);
    }
}

fn checksum(
    code: &mut Code,
    helper: i32,
    place: i32,
    (size, field): (usize, i16),
    new: i32,
    flags: i32,
) {
    code.copy(1, CONTEXT).set(2, place);
    code.load(size, 3, STACK, at(field));
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
        let mut fields = vec![(USER_PORT, raw_port(address.port()))];
        match address.ip() {
            IpAddr::V4(address) => fields.push((USER_IP4, raw(address))),
            IpAddr::V6(address) => {
                let places = (USER_IP6..).step_by(4);
                let words = address.octets();
                let words = words.chunks_exact(4).map(<[u8; 4]>::try_from);
                let words = words.map(|word| i32::from_ne_bytes(word.unwrap_or_default()));
                fields.extend(places.zip(words));
            }
        }
        fields
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

/// A program at bound sockets that lets everything be.
pub fn bind_pass() -> Code {
    let mut code = Code::default();
    code.answer(1);
    code
}

/// An XDP program that lets everything pass.
pub fn xdp_pass() -> Code {
    let mut code = Code::default();
    code.answer(2);
    code
}

/// Which way packets cross an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Into the node.
    In,
    /// Out of it.
    Out,
}

/// The rules of all interfaces, before they are attached.
#[derive(Clone, Debug, Default)]
pub struct Datapath {
    rules: BTreeMap<(String, Way), Vec<Rule>>,
    /// The programs have names that are not Cilium's.
    is_foreign: bool,
}

/// The programs of all interfaces. Dropped, they are gone.
#[derive(Debug)]
pub struct Programs {
    attached: BTreeMap<(String, Way), Attached>,
}

/// Index of an interface of a namespace.
pub fn index(namespace: &Namespace, device: &str) -> Result<u32> {
    let text = namespace.ip(&format!("-o link show dev {device}"))?;
    let number = text.split(':').next().unwrap_or_default().trim();
    number.parse().with_context(|| format!("index of {device}"))
}

fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => unreachable!("this datapath is IPv4 alone"),
    }
}

/// An IPv4 address and port; panics for IPv6, which this datapath does not know.
pub fn socket(address: SocketAddr) -> SocketAddrV4 {
    SocketAddrV4::new(v4(address.ip()), address.port())
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
        datapath.at(UPLINK, Way::In);
        if replacing {
            datapath.at(UPLINK, Way::Out);
        }
        datapath.at("cilium_host", Way::Out);
        for pod in world.pods().filter(|pod| pod.place != Place::Remote) {
            datapath.at(&pod.device, Way::In);
        }
        Ok(datapath)
    }

    /// Of a program that pathproof does not know: classifiers at the uplink, and where rules are added.
    pub fn foreign() -> Self {
        let mut datapath = Self {
            is_foreign: true,
            ..Self::default()
        };
        datapath.at(UPLINK, Way::In);
        datapath.at(UPLINK, Way::Out);
        datapath
    }

    /// Rules of an interface, to which more may be added.
    pub fn at(&mut self, device: &str, way: Way) -> &mut Vec<Rule> {
        self.rules.entry((device.to_owned(), way)).or_default()
    }

    /// What a pod sends to a frontend goes to an endpoint: to a local one past every egress hook, its
    /// answer too.
    pub fn pod(
        &mut self,
        world: &World,
        client: &Pod,
        frontend: SocketAddr,
        (backend, port): (&Pod, u16),
    ) -> Result<&mut Self> {
        let frontend = socket(frontend);
        let endpoint = SocketAddrV4::new(backend.v4, port);
        let local = backend.place != Place::Remote;
        let peer = |device: &str| index(&world.node, device).map(Then::Peer);
        let to = Match {
            destination: Some(*frontend.ip()),
            destination_port: Some(frontend.port()),
            ..Match::default()
        };
        let then = match local {
            true => peer(&backend.device)?,
            false => Then::End,
        };
        self.at(&client.device, Way::In).push(Rule {
            when: to,
            source: None,
            destination: Some(endpoint),
            then,
        });
        let back = Match {
            source: Some(*endpoint.ip()),
            source_port: Some(port),
            destination: Some(client.v4),
            ..Match::default()
        };
        let (device, then) = match local {
            true => (backend.device.as_str(), peer(&client.device)?),
            false => (UPLINK, Then::End),
        };
        self.at(device, Way::In).push(Rule {
            when: back,
            source: Some(frontend),
            destination: None,
            then,
        });
        Ok(self)
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
    ) -> Result<&mut Self> {
        let (client, frontend) = (v4(client), socket(frontend));
        let endpoint = SocketAddrV4::new(backend.v4, port);
        let there = Match {
            source: Some(client),
            destination: Some(*frontend.ip()),
            destination_port: Some(frontend.port()),
            ..Match::default()
        };
        let back = Match {
            source: Some(*endpoint.ip()),
            source_port: Some(port),
            ..Match::default()
        };
        if backend.place != Place::Remote {
            let then = Then::Peer(index(&world.node, &backend.device)?);
            self.at(UPLINK, Way::In).push(Rule {
                when: there,
                source: None,
                destination: Some(endpoint),
                then,
            });
            self.at(UPLINK, Way::Out).push(Rule {
                when: Match {
                    destination: Some(client),
                    ..back
                },
                source: Some(frontend),
                destination: None,
                then: Then::End,
            });
            return Ok(self);
        }
        let node = v4(world.node_address(crate::world::Family::V4));
        let then = Then::Neighbour(index(&world.node, UPLINK)?);
        let uplink = self.at(UPLINK, Way::In);
        uplink.push(Rule {
            when: there,
            source: Some(SocketAddrV4::new(node, 0)),
            destination: Some(endpoint),
            then,
        });
        uplink.push(Rule {
            when: Match {
                destination: Some(node),
                ..back
            },
            source: Some(frontend),
            destination: Some(SocketAddrV4::new(client, 0)),
            then,
        });
        Ok(self)
    }

    /// Loads and attaches a program for every interface, behind what is there.
    pub fn attach(&self, world: &World) -> Result<Programs> {
        let attached = self.rules.iter().map(|((device, way), rules)| {
            let name = match self.is_foreign {
                true => "foreign_tc",
                false => name(device, *way),
            };
            let program = program(world, name, (device, *way), rules)?;
            Ok(((device.clone(), *way), program))
        });
        Ok(Programs {
            attached: attached.collect::<Result<_>>()?,
        })
    }
}

/// Cilium's name of a program.
fn name(device: &str, way: Way) -> &'static str {
    match (device, way) {
        (UPLINK, Way::In) => "cil_from_netdev",
        (UPLINK, Way::Out) => "cil_to_netdev",
        ("cilium_host", _) => "cil_from_host",
        _ => "cil_from_contai",
    }
}

fn program(
    world: &World,
    name: &str,
    (device, way): (&str, Way),
    rules: &[Rule],
) -> Result<Attached> {
    let index = index(&world.node, device)?;
    let hook = match way {
        Way::In => Hook::Ingress(index),
        Way::Out => Hook::Egress(index),
    };
    let code = classifier(rules);
    world
        .node
        .run(|| Program::load(Kind::Classifier, name, &code)?.attach(hook))
}

impl Programs {
    /// Detaches the program of one interface.
    pub fn detach(&mut self, device: &str, way: Way) {
        self.attached.remove(&(device.to_owned(), way));
    }

    /// Attaches other rules in place of one interface's, under Cilium's name.
    pub fn replace(&mut self, world: &World, device: &str, way: Way, rules: &[Rule]) -> Result<()> {
        let new = program(world, name(device, way), (device, way), rules)?;
        self.attached.insert((device.to_owned(), way), new);
        Ok(())
    }
}
