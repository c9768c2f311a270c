//! The kernel's reasons for dropping packets: attaches the program that counts them, and reads its
//! counts. The program is loaded at start, while loading is allowed. It attaches to a raw tracepoint,
//! which needs no tracefs, no perf_event_open(2) and, since Linux 5.19, no capability.

use std::collections::{BTreeMap, HashMap as Seen};
use std::fs::File;
use std::io::{self, Read as _};

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData};
use aya::programs::raw_trace_point::RawTracePointLink;
use aya::programs::{ProgramError, RawTracePoint};
use pathproof_shared::causes::chain;
use pathproof_wire::abi::{map, program};
use pathproof_wire::dropped::{DropKey, SkbLayout};
use pathproof_witness::drops::DropCount;
use thiserror::Error;

use super::btf::{self, BtfError};
use super::load::{self, MapsError, insist, take, write};

const TYPES: &str = "/sys/kernel/btf/vmlinux";
/// Maximum size; distribution kernels have 5 to 10 MiB.
const MOST_TYPES: u64 = 32 << 20;
const TRACEPOINT: &str = "kfree_skb";

#[derive(Debug, Error)]
pub enum DropsError {
    #[error(
        "the kernel refused the BPF program that counts drops ({0}); check for CAP_PERFMON, and \
         for kernel lockdown in confidentiality mode"
    )]
    Load(String),
    #[error("{TYPES} cannot be read ({0}): the kernel needs CONFIG_DEBUG_INFO_BTF")]
    NoTypes(#[source] io::Error),
    #[error(transparent)]
    Types(#[from] BtfError),
    #[error("the kernel refused to attach the BPF program to the tracepoint skb:{TRACEPOINT} ({}); \
             check for a seccomp profile that forbids bpf(2)", chain(.0))]
    Attach(#[source] ProgramError),
    #[error(transparent)]
    Maps(#[from] MapsError),
}

/// Reader of drop reasons. Attaches nothing until `watch`.
pub struct Drops {
    counts: HashMap<MapData, DropKey, u64>,
    layout: Array<MapData, SkbLayout>,
    /// Names of reasons; `None` until the first loss.
    reasons: Option<BTreeMap<u32, String>>,
    link: Option<RawTracePointLink>,
    seen: Seen<DropKey, u64>,
    not_loaded: Option<String>,
}

impl Drops {
    pub(super) fn open(ebpf: &mut Ebpf) -> Result<Self, MapsError> {
        Ok(Self {
            counts: take(ebpf, map::DROPS)?,
            layout: take(ebpf, map::SKB_LAYOUT)?,
            reasons: None,
            link: None,
            seen: Seen::new(),
            not_loaded: None,
        })
    }

    /// Loads the program without attaching it. [`Drops::watch`] reports the error if the kernel refuses.
    pub(super) fn load(&mut self, ebpf: &mut Ebpf) {
        let loaded = tracepoint(ebpf).map_err(|error| error.to_string());
        let loaded =
            loaded.and_then(|program| insist(|| program.load()).map_err(|error| chain(&error)));
        self.not_loaded = loaded.err();
    }

    pub(super) fn watch(&mut self, ebpf: &mut Ebpf, on: bool) -> Result<(), DropsError> {
        if !on {
            self.leave();
            return Ok(());
        }
        if let Some(why) = &self.not_loaded {
            return Err(DropsError::Load(why.clone()));
        }
        self.learn()?;
        if self.link.is_none() {
            let program = tracepoint(ebpf).map_err(MapsError::from)?;
            let id = program.attach(TRACEPOINT).map_err(DropsError::Attach)?;
            let link = program.take_link(id);
            self.link = Some(link.map_err(DropsError::Attach)?);
        }
        Ok(())
    }

    fn learn(&mut self) -> Result<(), DropsError> {
        if self.reasons.is_some() {
            return Ok(());
        }
        let types = btf::read(&types().map_err(DropsError::NoTypes)?)?;
        write(&mut self.layout, map::SKB_LAYOUT, 0, types.layout)?;
        self.reasons = Some(types.reasons);
        Ok(())
    }

    /// Detaches, and deletes the counts: the next loss may have other reasons, which need room in the
    /// map.
    fn leave(&mut self) {
        self.link = None;
        let keys: Vec<DropKey> = self.counts.keys().flatten().collect();
        for key in keys {
            let _ = self.counts.remove(&key);
        }
        self.seen.clear();
    }

    /// Counts since the previous reading; empty while the program is not attached.
    pub(super) fn read(&mut self) -> Vec<DropCount> {
        let (Some(_), Some(reasons)) = (&self.link, &self.reasons) else {
            return Vec::new();
        };
        let mut counted = Vec::new();
        for (key, now) in self.counts.iter().flatten() {
            let before = self.seen.insert(key, now).unwrap_or_default();
            let packets = now.saturating_sub(before);
            if packets > 0 {
                counted.push(DropCount {
                    service: key.service,
                    reason: name(reasons, key.reason),
                    packets,
                });
            }
        }
        counted
    }
}

/// Name of a reason. Reasons of subsystems (Open vSwitch, mac80211) have separate enums, and are shown
/// as numbers.
fn name(reasons: &BTreeMap<u32, String>, reason: u32) -> String {
    let known = reasons.get(&reason).cloned();
    known.unwrap_or_else(|| format!("reason {reason}"))
}

fn tracepoint(ebpf: &mut Ebpf) -> Result<&mut RawTracePoint, load::LoadError> {
    load::program(ebpf, program::DROPPED)
}

fn types() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(TYPES)?;
    // Files in sysfs report their size: allocate once.
    bytes.reserve_exact(file.metadata()?.len().min(MOST_TYPES) as usize + 1);
    file.take(MOST_TYPES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_other_subsystems_are_numbers() {
        let reasons = BTreeMap::from([(9, "NETFILTER_DROP".to_owned())]);
        assert_eq!(name(&reasons, 9), "NETFILTER_DROP");
        assert_eq!(name(&reasons, 0x2_0001), "reason 131073");
    }
}
