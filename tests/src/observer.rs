//! The observer loaded and attached to nothing, with maps of its own, and the means to run packets
//! through its programs (BPF_PROG_TEST_RUN) as if they crossed a device.
//!
//! Length: one reader a map, and one way in a kind of packet.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

use agent_common::abi::{map, program};
use agent_common::evidence::{
    Anomaly, Budget, Delays, Fault, Outcome, PROOF_SLOTS, Pending, PendingKey, ServiceCounts,
    UdpPorts, proof_slot,
};
use agent_common::gate::Marks;
use agent_common::service::{
    Address, EndpointEntry, EndpointKey, EndpointValue, Family, FrontendKey, FrontendValue, Port,
    SourceClass,
};
use anyhow::{Context, Result, anyhow, bail};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, Map, PerCpuArray, PerCpuValues, RingBuf};
use aya::programs::SchedClassifier;
use aya::{Ebpf, Pod, TestRun as _, TestRunOptions};
use pathproof::causes::chain;
use pathproof::datapath::attach::Mode;
use pathproof::datapath::load;
use pathproof::datapath::probes::{ProbeEnds, ProbeHooks, ProbeMaps};
use pathproof::datapath::sample::Sampler;

use crate::skip;

/// Bytes of `struct __sk_buff` (linux/bpf.h) that the kernel takes as context.
const CONTEXT_LEN: usize = 192;
/// Offset of its `ifindex`.
const CONTEXT_IFINDEX: usize = 40;

/// The observer, attached to nothing.
pub struct Observer {
    ebpf: Ebpf,
}

/// What came out of a program.
#[derive(Debug, PartialEq, Eq)]
pub struct Passed {
    /// Its return value.
    pub verdict: i32,
    /// The packet afterwards.
    pub bytes: Vec<u8>,
}

impl Observer {
    /// Loads it, with other capacities for the maps that are named; nothing, loudly, without the
    /// privileges.
    pub fn load(capacities: &[(&'static str, u32)]) -> Result<Option<Self>> {
        let mut ebpf = match load::load_with(None, capacities) {
            Ok(ebpf) => ebpf,
            // To root a refusal is the verifier's, and no reason to skip.
            Err(error) if error.is_permission() && !skip::is_root() => {
                eprintln!("SKIPPED: needs root: {error}");
                return Ok(None);
            }
            Err(error) => bail!("{}", chain(&error)),
        };
        for name in [program::EMPTY, program::GLANCE] {
            load::classifier(&mut ebpf, name)?.load()?;
        }
        Ok(Some(Self { ebpf }))
    }

    /// Loads the sentinel's programs too.
    pub fn load_sentinel(&mut self) -> Result<()> {
        load::load_sentinel(&mut self.ebpf).map_err(|error| anyhow!(chain(&error)))
    }

    /// The maps of the sentinel's probes.
    pub fn probes(&self) -> Result<ProbeMaps> {
        let Map::HashMap(pending) = self.map(map::PENDING)? else {
            bail!("{} is no hash map", map::PENDING);
        };
        Ok(ProbeMaps::open(&self.ebpf, pending.fd().as_fd())?)
    }

    /// The sentinel's programs attached to their devices; they stand as long as the value lives.
    pub fn attach_sentinel(&mut self, ends: &ProbeEnds, mode: Mode) -> Result<ProbeHooks> {
        Ok(ProbeHooks::attach(&mut self.ebpf, ends, mode)?)
    }

    /// The loaded object.
    pub fn ebpf(&self) -> &Ebpf {
        &self.ebpf
    }

    /// The reader of its evidence; takes the maps that it reads.
    pub fn sampler(&mut self) -> Result<Sampler> {
        Ok(Sampler::open(&mut self.ebpf)?)
    }

    /// As above, to take maps out of it.
    pub fn ebpf_mut(&mut self) -> &mut Ebpf {
        &mut self.ebpf
    }

    pub fn program(&self, name: &str) -> Result<&SchedClassifier> {
        let program = self.ebpf.program(name);
        Ok(program
            .with_context(|| format!("no program {name}"))?
            .try_into()?)
    }

    /// Runs one packet through a program, as if it crossed the device with this index.
    pub fn run(&self, name: &str, packet: &[u8], device: u32) -> Result<Passed> {
        let mut bytes = vec![0; packet.len() + 64];
        let context = context(device);
        let result = self.program(name)?.test_run(TestRunOptions {
            data_in: Some(packet),
            data_out: Some(&mut bytes),
            ctx_in: Some(&context),
            ..TestRunOptions::default()
        })?;
        bytes.truncate(result.data_size_out as usize);
        Ok(Passed {
            verdict: result.return_value as i32,
            bytes,
        })
    }

    /// Runs a packet through a program many times; the kernel's own mean of one run.
    pub fn time(&self, name: &str, packet: &[u8], device: u32, repeat: u32) -> Result<Duration> {
        time(self.program(name)?, packet, device, repeat)
    }

    fn map(&self, name: &str) -> Result<&Map> {
        self.ebpf
            .map(name)
            .with_context(|| format!("no map {name}"))
    }

    fn map_mut(&mut self, name: &str) -> Result<&mut Map> {
        let map = self.ebpf.map_mut(name);
        map.with_context(|| format!("no map {name}"))
    }

    fn put<K: Pod, V: Pod>(&mut self, name: &str, key: &K, value: &V) -> Result<()> {
        let mut map: HashMap<_, K, V> = HashMap::try_from(self.map_mut(name)?)?;
        Ok(map.insert(key, value, 0)?)
    }

    pub fn put_frontend(
        &mut self,
        address: Address,
        port: u16,
        value: FrontendValue,
    ) -> Result<()> {
        let key = FrontendKey {
            address,
            port: port.to_be_bytes(),
            protocol: agent_common::service::TCP,
            padding: 0,
        };
        self.put(map::FRONTENDS, &key, &value)
    }

    /// Puts a UDP frontend in, and marks its port.
    pub fn put_udp_frontend(
        &mut self,
        address: Address,
        port: u16,
        value: FrontendValue,
    ) -> Result<()> {
        let port = port.to_be_bytes();
        let key = FrontendKey {
            address,
            port,
            protocol: agent_common::service::UDP,
            padding: 0,
        };
        self.put(map::FRONTENDS, &key, &value)?;
        let mut ports: Array<_, UdpPorts> = Array::try_from(self.map_mut(map::UDP_PORTS)?)?;
        let mut marked = ports.get(&0, 0)?;
        marked.mark(port);
        Ok(ports.set(0, marked, 0)?)
    }

    /// Takes every mark away, as time does.
    pub fn forget_marks(&mut self) -> Result<()> {
        let mut marks: Array<_, Marks> = Array::try_from(self.map_mut(map::MARKS)?)?;
        Ok(marks.set(0, Marks::default(), 0)?)
    }

    /// How many datagrams and flows are followed.
    pub fn datagrams(&self) -> Result<usize> {
        let pending: HashMap<_, PendingKey, Pending> =
            HashMap::try_from(self.map(map::UDP_PENDING)?)?;
        Ok(pending.keys().flatten().count())
    }

    /// Makes every datagram older by so many nanoseconds. A test need not sleep.
    pub fn age_datagrams(&mut self, age: u64) -> Result<()> {
        let mut pending: HashMap<_, PendingKey, Pending> =
            HashMap::try_from(self.map_mut(map::UDP_PENDING)?)?;
        let standing: Vec<(PendingKey, Pending)> = pending.iter().flatten().collect();
        for (key, mut value) in standing {
            value.arrived_ns = value.arrived_ns.saturating_sub(age);
            pending.insert(key, value, 0)?;
        }
        Ok(())
    }

    pub fn put_endpoint(
        &mut self,
        service: u32,
        address: Address,
        port: u16,
        flags: u32,
    ) -> Result<()> {
        let key = EndpointKey {
            service,
            address,
            port: Port::from(port.to_be_bytes()),
            padding: [0; 2],
        };
        self.put(
            map::ENDPOINTS,
            &key,
            &EndpointEntry::from(EndpointValue { flags }),
        )
    }

    /// Puts a prefix of sources in; `bits` of 128.
    pub fn put_source(&mut self, address: Address, bits: u32, class: SourceClass) -> Result<()> {
        let mut sources: LpmTrie<_, Address, u32> = LpmTrie::try_from(self.map_mut(map::SOURCES)?)?;
        Ok(sources.insert(&Key::new(bits, address), class as u32, 0)?)
    }

    /// Sets a device's flags.
    pub fn put_device(&mut self, device: u32, flags: u32) -> Result<()> {
        self.put(map::DEVICES, &device, &flags)
    }

    /// The connection of an initial sequence number.
    pub fn connection(&self, isn: u32, family: Family) -> Result<Option<Pending>> {
        let pending: HashMap<_, PendingKey, Pending> = HashMap::try_from(self.map(map::PENDING)?)?;
        let key = PendingKey {
            isn,
            family: family as u32,
        };
        Ok(pending.get(&key, 0).ok())
    }

    /// Forgets connections that may be there.
    pub fn forget(&mut self, keys: impl Iterator<Item = PendingKey>) -> Result<()> {
        let mut pending: HashMap<_, PendingKey, Pending> =
            HashMap::try_from(self.map_mut(map::PENDING)?)?;
        for key in keys {
            let _ = pending.remove(&key);
        }
        Ok(())
    }

    /// Makes every connection as old as `age` says for its initial sequence number. A test need
    /// not sleep. Age zero stands for "just now", however slow the machine: it lies in the future.
    pub fn set_ages(&mut self, age: impl Fn(u32) -> u64) -> Result<()> {
        let now = monotonic();
        let mut pending: HashMap<_, PendingKey, Pending> =
            HashMap::try_from(self.map_mut(map::PENDING)?)?;
        let standing: Vec<(PendingKey, Pending)> = pending.iter().flatten().collect();
        for (key, mut value) in standing {
            value.arrived_ns = match age(key.isn) {
                0 => now + 60_000_000_000,
                age => now.saturating_sub(age),
            };
            pending.insert(key, value, 0)?;
        }
        Ok(())
    }

    /// Forgets all evidence of the Services below `services`; expectations stay.
    pub fn reset(&mut self, services: u32) -> Result<()> {
        for name in [map::PENDING, map::UDP_PENDING] {
            let mut pending: HashMap<_, PendingKey, Pending> =
                HashMap::try_from(self.map_mut(name)?)?;
            let standing: Vec<PendingKey> = pending.keys().flatten().collect();
            for key in standing {
                pending.remove(&key)?;
            }
        }
        self.forget_marks()?;
        let mut counts: Array<_, ServiceCounts> = Array::try_from(self.map_mut(map::COUNTS)?)?;
        for service in 0..services {
            counts.set(service, ServiceCounts::default(), 0)?;
        }
        let mut proofs: Array<_, u64> = Array::try_from(self.map_mut(map::PROOFS)?)?;
        for slot in 0..PROOF_SLOTS {
            proofs.set(slot, 0, 0)?;
        }
        let mut budgets: Array<_, Budget> = Array::try_from(self.map_mut(map::BUDGETS)?)?;
        for slot in 0..budgets.len() {
            budgets.set(slot, Budget::default(), 0)?;
        }
        let mut faults: PerCpuArray<_, u64> = PerCpuArray::try_from(self.map_mut(map::FAULTS)?)?;
        let processors = aya::util::nr_cpus().map_err(|(_, error)| error)?;
        for fault in Fault::ALL {
            faults.set(
                fault as u32,
                PerCpuValues::try_from(vec![0; processors])?,
                0,
            )?;
        }
        self.anomalies()?;
        Ok(())
    }

    /// How many budgets of sources were drawn on.
    pub fn budgets_in_use(&self) -> Result<usize> {
        let budgets: Array<_, Budget> = Array::try_from(self.map(map::BUDGETS)?)?;
        Ok(budgets
            .iter()
            .flatten()
            .filter(|budget| budget.used != 0)
            .count())
    }

    /// How many connections are followed.
    pub fn connections(&self) -> Result<usize> {
        Ok(self.followed()?.len())
    }

    /// Initial sequence numbers of the connections that are followed.
    pub fn followed(&self) -> Result<Vec<u32>> {
        let pending: HashMap<_, PendingKey, Pending> = HashMap::try_from(self.map(map::PENDING)?)?;
        Ok(pending.keys().flatten().map(|key| key.isn).collect())
    }

    /// The same with all that is known of them.
    pub fn followed_whole(&self) -> Result<Vec<Pending>> {
        self.whole(map::PENDING)
    }

    /// The same of datagrams.
    pub fn followed_datagrams(&self) -> Result<Vec<Pending>> {
        self.whole(map::UDP_PENDING)
    }

    fn whole(&self, name: &str) -> Result<Vec<Pending>> {
        let pending: HashMap<_, PendingKey, Pending> = HashMap::try_from(self.map(name)?)?;
        let entries = pending.iter().flatten();
        Ok(entries.map(|(_, pending)| pending).collect())
    }

    /// Everything counted of a Service.
    pub fn counts(&self, service: u32) -> Result<ServiceCounts> {
        let counts: Array<_, ServiceCounts> = Array::try_from(self.map(map::COUNTS)?)?;
        Ok(counts.get(&service, 0)?)
    }

    /// Outcomes of a Service and class that are not zero, in the order of their indexes.
    pub fn outcomes(&self, service: u32, class: SourceClass) -> Result<Vec<(Outcome, u32)>> {
        let counts = self.counts(service)?.counts[class as usize];
        let all = Outcome::ALL.into_iter().zip(counts);
        Ok(all.filter(|(_, count)| *count != 0).collect())
    }

    /// Faults that are not zero, in the order of their indexes.
    pub fn faults(&self) -> Result<Vec<(Fault, u64)>> {
        let faults: PerCpuArray<_, u64> = PerCpuArray::try_from(self.map(map::FAULTS)?)?;
        let mut found = Vec::new();
        for fault in Fault::ALL {
            let count: u64 = faults.get(&(fault as u32), 0)?.iter().sum();
            if count != 0 {
                found.push((fault, count));
            }
        }
        Ok(found)
    }

    /// When the last proof of a family and class was seen; zero for never.
    pub fn last_proof(&self, family: Family, class: SourceClass) -> Result<u64> {
        let proofs: Array<_, u64> = Array::try_from(self.map(map::PROOFS)?)?;
        Ok(proofs.get(&proof_slot(family as u32, class as u8), 0)?)
    }

    /// How many delays from arrival to departure were noted of a family.
    pub fn delays(&self, family: Family) -> Result<u64> {
        let delays: Array<_, Delays> = Array::try_from(self.map(map::DELAYS)?)?;
        Ok(delays.get(&(family as u32), 0)?.buckets.iter().sum())
    }

    /// Takes the records out of the ring buffer.
    pub fn anomalies(&mut self) -> Result<Vec<Anomaly>> {
        let mut ring = RingBuf::try_from(self.map_mut(map::ANOMALIES)?)?;
        let mut records = Vec::new();
        while let Some(record) = ring.next() {
            assert_eq!(record.len(), size_of::<Anomaly>(), "size of a record");
            // SAFETY: long enough, read unaligned, and `Anomaly` takes any bytes.
            records.push(unsafe { record.as_ptr().cast::<Anomaly>().read_unaligned() });
        }
        Ok(records)
    }
}

/// Runs a packet through a program many times; the kernel's own mean of one run.
pub fn time(
    program: &SchedClassifier,
    packet: &[u8],
    device: u32,
    repeat: u32,
) -> Result<Duration> {
    let context = context(device);
    let result = program.test_run(TestRunOptions {
        data_in: Some(packet),
        ctx_in: Some(&context),
        repeat,
        ..TestRunOptions::default()
    })?;
    Ok(result.duration)
}

fn context(device: u32) -> [u8; CONTEXT_LEN] {
    let mut context = [0; CONTEXT_LEN];
    context[CONTEXT_IFINDEX..CONTEXT_IFINDEX + 4].copy_from_slice(&device.to_ne_bytes());
    context
}

/// `CLOCK_MONOTONIC` in nanoseconds, as the programs read it.
pub fn monotonic() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a timespec that lives for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Index of the loopback device of every network namespace.
pub const LO: u32 = 1;

/// Devices of a sandbox, all up and forwarding, by their indexes.
#[derive(Clone, Copy, Debug)]
pub struct Sandbox {
    /// No route names it.
    pub client: u32,
    /// No route names it.
    pub bridge: u32,
    /// No route names it.
    pub redirecting: u32,
    /// The routes to 10.244.0.0/16 and fd00:10:244::/48 name it.
    pub pods: u32,
    /// The routes to 10.245.0.0/16 and fd00:10:245::/48 name it.
    pub overlay: u32,
    /// The default routes name it.
    pub uplink: u32,
}

/// Runs `work` on a thread in a network namespace of its own, which ends with it.
pub fn in_sandbox<T: Send>(work: impl FnOnce(Sandbox) -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let inside = scope.spawn(|| -> Result<T> {
            // SAFETY: no memory is involved; it changes this thread alone, which ends here.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(std::io::Error::last_os_error()).context("make a network namespace");
            }
            let sandbox = build()?;
            Ok(work(sandbox))
        });
        inside
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// In the namespace of the calling thread, which its children inherit.
fn build() -> Result<Sandbox> {
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        std::fs::write(format!("/proc/sys/{key}"), "1").with_context(|| format!("set {key}"))?;
    }
    for words in [
        "link set lo up",
        "link add client type veth peer name bridge",
        "link add pods type veth peer name overlay",
        "link add redirecting type veth peer name redirect-far",
        "link add uplink type veth peer name uplink-far",
        "link set redirecting up",
        "link set redirect-far up",
        "link set client up",
        "link set bridge up",
        "link set pods up",
        "link set overlay up",
        "link set uplink up",
        "link set uplink-far up",
        "addr add 192.0.2.2/24 dev uplink",
        "addr add 2001:db8::2/64 dev uplink nodad",
        "route add 10.244.0.0/16 dev pods",
        "route add 10.245.0.0/16 dev overlay",
        "route add default via 192.0.2.1",
        "-6 route add fd00:10:244::/48 dev pods",
        "-6 route add fd00:10:245::/48 dev overlay",
        "-6 route add default via 2001:db8::1",
    ] {
        let mut ip = Command::new("ip");
        let output = ip.args(words.split(' ')).output().context("run ip")?;
        if !output.status.success() {
            bail!("ip {words}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    Ok(Sandbox {
        client: index_of("client")?,
        bridge: index_of("bridge")?,
        redirecting: index_of("redirecting")?,
        overlay: index_of("overlay")?,
        pods: index_of("pods")?,
        uplink: index_of("uplink")?,
    })
}

/// Index of a device of the calling thread's namespace.
pub fn index_of(name: &str) -> Result<u32> {
    let text = CString::new(name)?;
    // SAFETY: a string that ends in NUL and lives for the call.
    match unsafe { libc::if_nametoindex(text.as_ptr()) } {
        0 => bail!("no device {name}"),
        index => Ok(index),
    }
}
