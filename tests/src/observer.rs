//! The observer, loaded with separate maps but not attached. BPF_PROG_TEST_RUN runs packets through its
//! programs as if they crossed a device.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, Map, PerCpuArray, PerCpuValues, RingBuf};
use aya::programs::SchedClassifier;
use aya::util::nr_cpus;
use aya::{Ebpf, Pod, TestRun as _, TestRunOptions};
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, unshare};
use pathproof::clock;
use pathproof::datapath::load;
use pathproof_shared::causes::chain;
use pathproof_wire::abi::{map, program};
use pathproof_wire::evidence::{
    Anomaly, Budget, Fault, Outcome, PROOF_SLOTS, Pending, PendingKey, ServiceCounts, UdpPorts,
    proof_slot,
};
use pathproof_wire::gate::Marks;
use pathproof_wire::service::{
    Address, EndpointEntry, EndpointKey, EndpointValue, Family, FrontendKey, FrontendValue,
    SourceClass, TCP, UDP,
};

use crate::packet::mapped;
use crate::world::feed;

/// Size of `struct __sk_buff` (linux/bpf.h), which BPF_PROG_TEST_RUN takes as context.
const CONTEXT_LEN: usize = 192;
/// Offset of `ifindex` in `struct __sk_buff`.
const CONTEXT_IFINDEX: usize = 40;

pub struct Observer {
    /// The loaded object, for its maps and programs.
    pub ebpf: Ebpf,
}

/// Result of running a program on a packet.
#[derive(Debug, PartialEq, Eq)]
pub struct Passed {
    pub verdict: i32,
    /// The packet after the program ran.
    pub bytes: Vec<u8>,
}

impl Observer {
    /// Loads the observer. The named maps get other capacities.
    pub fn load(capacities: &[(&'static str, u32)]) -> Self {
        let loaded = load::load_with(None, capacities);
        let mut ebpf = loaded.unwrap_or_else(|error| panic!("{}", chain(&error)));
        for name in [program::EMPTY, program::GLANCE] {
            let classifier = load::classifier(&mut ebpf, name).expect(name);
            classifier.load().expect(name);
        }
        Self { ebpf }
    }

    pub fn program(&self, name: &str) -> &SchedClassifier {
        let program = self.ebpf.program(name).expect(name);
        program.try_into().expect(name)
    }

    /// Runs one packet through a program, as if it crossed the device with this index.
    pub fn run(&self, name: &str, packet: &[u8], device: u32) -> Passed {
        self.repeat(name, packet, device, 1)
    }

    /// Runs a packet many times in one system call.
    pub fn repeat(&self, name: &str, packet: &[u8], device: u32, repeat: u32) -> Passed {
        let mut bytes = vec![0; packet.len() + 64];
        let result = self.program(name).test_run(TestRunOptions {
            data_in: Some(packet),
            data_out: Some(&mut bytes),
            ctx_in: Some(&context(device)),
            repeat,
            ..TestRunOptions::default()
        });
        let result = result.expect(name);
        bytes.truncate(result.data_size_out as usize);
        Passed {
            verdict: result.return_value as i32,
            bytes,
        }
    }

    pub fn map<'a, M: TryFrom<&'a Map, Error: Debug>>(&'a self, name: &str) -> M {
        let map = self.ebpf.map(name).expect(name);
        map.try_into().expect(name)
    }

    fn map_mut<'a, M: TryFrom<&'a mut Map, Error: Debug>>(&'a mut self, name: &str) -> M {
        let map = self.ebpf.map_mut(name).expect(name);
        map.try_into().expect(name)
    }

    fn put<K: Pod, V: Pod>(&mut self, name: &str, key: &K, value: &V) {
        let mut map: HashMap<_, K, V> = self.map_mut(name);
        map.insert(key, value, 0).expect(name);
    }

    fn of_array<V: Pod>(&self, name: &str, index: u32) -> V {
        let array: Array<_, V> = self.map(name);
        array.get(&index, 0).expect(name)
    }

    /// Clears the first `most` values of an array.
    pub fn clear<V: Pod + Default>(&mut self, name: &str, most: u32) {
        let mut array: Array<_, V> = self.map_mut(name);
        for index in 0..array.len().min(most) {
            array.set(index, V::default(), 0).expect(name);
        }
    }

    pub fn put_frontend(&mut self, at: SocketAddr, value: FrontendValue) {
        self.put(map::FRONTENDS, &frontend(at, TCP), &value);
    }

    /// Adds a UDP frontend and marks its port.
    pub fn put_udp_frontend(&mut self, at: SocketAddr, value: FrontendValue) {
        let key = frontend(at, UDP);
        self.put(map::FRONTENDS, &key, &value);
        let mut ports: Array<_, UdpPorts> = self.map_mut(map::UDP_PORTS);
        let mut marked = ports.get(&0, 0).expect("marked ports");
        marked.mark(key.port);
        ports.set(0, marked, 0).expect("marked ports");
    }

    pub fn put_endpoint(&mut self, service: u32, at: SocketAddr, flags: u32) {
        let key = EndpointKey {
            service,
            address: mapped(at.ip()),
            port: at.port().to_be_bytes(),
            padding: [0; 2],
        };
        let entry = EndpointEntry::from(EndpointValue { flags });
        self.put(map::ENDPOINTS, &key, &entry);
    }

    /// Adds a source prefix; `bits` counts within the 128 bits of the address.
    pub fn put_source(&mut self, address: IpAddr, bits: u32, class: SourceClass) {
        let mut sources: LpmTrie<_, Address, u32> = self.map_mut(map::SOURCES);
        let put = sources.insert(&Key::new(bits, mapped(address)), class as u32, 0);
        put.expect("room for a source");
    }

    pub fn put_device(&mut self, device: u32, flags: u32) {
        self.put(map::DEVICES, &device, &flags);
    }

    /// Followed connections (`map::PENDING`) or datagrams (`map::UDP_PENDING`).
    pub fn pending(&self, name: &str) -> Vec<(PendingKey, Pending)> {
        let pending: HashMap<_, PendingKey, Pending> = self.map(name);
        pending.iter().flatten().collect()
    }

    /// Changes followed entries. A test makes them older instead of sleeping.
    pub fn change_pending(&mut self, name: &str, change: impl Fn(&PendingKey, &mut Pending)) {
        for (key, mut value) in self.pending(name) {
            change(&key, &mut value);
            self.put(name, &key, &value);
        }
    }

    /// Removes all followed entries.
    pub fn forget_pending(&mut self, name: &str) {
        let followed = self.pending(name);
        let mut pending: HashMap<_, PendingKey, Pending> = self.map_mut(name);
        for (key, _) in followed {
            let _ = pending.remove(&key);
        }
    }

    /// Removes all evidence, with the counts of the first `services` Services; expectations stay.
    pub fn reset(&mut self, services: u32) {
        self.forget_pending(map::PENDING);
        self.forget_pending(map::UDP_PENDING);
        self.clear::<Marks>(map::MARKS, 1);
        self.clear::<ServiceCounts>(map::COUNTS, services);
        self.clear::<u64>(map::PROOFS, PROOF_SLOTS);
        self.clear::<Budget>(map::BUDGETS, u32::MAX);
        let processors = nr_cpus().expect("processors");
        let mut faults: PerCpuArray<_, u64> = self.map_mut(map::FAULTS);
        for fault in Fault::ALL {
            let none = PerCpuValues::try_from(vec![0; processors]).expect("one for each");
            faults.set(fault as u32, none, 0).expect("faults");
        }
        self.anomalies();
    }

    /// Nonzero outcomes of a Service and class, in the order of their indexes.
    pub fn outcomes(&self, service: u32, class: SourceClass) -> Vec<(Outcome, u32)> {
        let counts: ServiceCounts = self.of_array(map::COUNTS, service);
        let all = Outcome::ALL.into_iter().zip(counts.counts[class as usize]);
        all.filter(|(_, count)| *count != 0).collect()
    }

    /// Nonzero faults, in the order of their indexes.
    pub fn faults(&self) -> Vec<(Fault, u64)> {
        let faults: PerCpuArray<_, u64> = self.map(map::FAULTS);
        let count = |fault| faults.get(&(fault as u32), 0).expect("faults").iter().sum();
        let all = Fault::ALL.into_iter().map(|fault| (fault, count(fault)));
        all.filter(|(_, count)| *count != 0).collect()
    }

    /// Time of the last proof of a family and class; zero for never.
    pub fn last_proof(&self, family: Family, class: SourceClass) -> u64 {
        self.of_array(map::PROOFS, proof_slot(family as u32, class as u8))
    }

    /// Reads and removes the records of the ring buffer.
    pub fn anomalies(&mut self) -> Vec<Anomaly> {
        let mut ring: RingBuf<_> = self.map_mut(map::ANOMALIES);
        let mut records = Vec::new();
        while let Some(record) = ring.next() {
            assert_eq!(record.len(), size_of::<Anomaly>(), "size of a record");
            // SAFETY: long enough, read unaligned, and `Anomaly` takes any bytes.
            records.push(unsafe { record.as_ptr().cast::<Anomaly>().read_unaligned() });
        }
        records
    }
}

fn frontend(at: SocketAddr, protocol: u8) -> FrontendKey {
    FrontendKey {
        address: mapped(at.ip()),
        port: at.port().to_be_bytes(),
        protocol,
        padding: 0,
    }
}

pub fn context(device: u32) -> [u8; CONTEXT_LEN] {
    let mut context = [0; CONTEXT_LEN];
    context[CONTEXT_IFINDEX..CONTEXT_IFINDEX + 4].copy_from_slice(&device.to_ne_bytes());
    context
}

/// `CLOCK_MONOTONIC` in nanoseconds, as the programs read it.
pub fn monotonic() -> u64 {
    clock::mono().0
}

/// Index of the loopback device in every network namespace.
pub const LO: u32 = 1;

/// Indexes of a sandbox's devices, all up and with forwarding enabled.
#[derive(Clone, Copy, Debug)]
pub struct Sandbox {
    /// No route uses this device.
    pub client: u32,
    /// No route uses this device.
    pub bridge: u32,
    /// No route uses this device.
    pub redirecting: u32,
    /// Device of the routes to 10.244.0.0/16 and fd00:10:244::/48.
    pub pods: u32,
    /// Device of the routes to 10.245.0.0/16 and fd00:10:245::/48.
    pub overlay: u32,
    /// Device of the default routes.
    pub uplink: u32,
}

/// Runs `work` on a thread in a new network namespace, which ends with the thread.
pub fn in_sandbox<T: Send>(work: impl FnOnce(Sandbox) -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let inside = scope.spawn(|| -> Result<T> {
            unshare(CloneFlags::CLONE_NEWNET).context("make a network namespace")?;
            let sandbox = build()?;
            Ok(work(sandbox))
        });
        inside
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

const DEVICES: &str = "\
link set lo up
link add client type veth peer name bridge
link add pods type veth peer name overlay
link add redirecting type veth peer name redirect-far
link add uplink address 02:00:00:00:00:02 type veth peer name uplink-far
link set redirecting up
link set redirect-far up
link set client up
link set bridge up
link set pods up
link set overlay up
link set uplink up
link set uplink-far up
addr add 192.0.2.2/24 dev uplink
addr add 2001:db8::2/64 dev uplink nodad
route add 10.244.0.0/16 dev pods
route add 10.245.0.0/16 dev overlay
route add default via 192.0.2.1
route add fd00:10:244::/48 dev pods
route add fd00:10:245::/48 dev overlay
route add default via 2001:db8::1
";

/// Builds the devices in the calling thread's namespace, which child processes inherit.
fn build() -> Result<Sandbox> {
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        std::fs::write(format!("/proc/sys/{key}"), "1").with_context(|| format!("set {key}"))?;
    }
    run("ip", "-batch -", DEVICES)?;
    Ok(Sandbox {
        client: index_of("client")?,
        bridge: index_of("bridge")?,
        redirecting: index_of("redirecting")?,
        overlay: index_of("overlay")?,
        pods: index_of("pods")?,
        uplink: index_of("uplink")?,
    })
}

/// Runs a program in the calling thread's namespace with `input` on its standard input; returns its
/// standard output.
pub fn run(program: &str, words: &str, input: &str) -> Result<String> {
    let mut command = Command::new(program);
    command.args(words.split_whitespace());
    feed(command, input)
}

pub fn index_of(name: &str) -> Result<u32> {
    if_nametoindex(name).with_context(|| format!("no device {name}"))
}
