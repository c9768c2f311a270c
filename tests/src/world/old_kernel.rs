//! A kernel that can do less than this one: a seccomp filter in the agent's process answers bpf(2)
//! as an older kernel would. Nothing else of the machine is touched.

use std::collections::BTreeMap;

use anyhow::Result;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Commands of bpf(2) (linux/bpf.h).
const BPF_MAP_CREATE: u64 = 0;
const BPF_PROG_LOAD: u64 = 5;
const BPF_MAP_LOOKUP_BATCH: u64 = 24;
const BPF_MAP_DELETE_BATCH: u64 = 27;
const BPF_LINK_CREATE: u64 = 28;

/// What an older kernel lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldKernel {
    /// Built without bpf(2).
    NoBpf,
    /// It does not know the kinds of maps.
    NoMaps,
    /// It does not know what programs are made of.
    NoPrograms,
    /// It has no links of the kind that TCX takes.
    NoTcx,
    /// It reads one element of a map at a time.
    NoBatchLookup,
    /// It deletes one element of a map at a time.
    NoBatchDelete,
}

impl OldKernel {
    /// Makes this thread, and whatever it starts, live on that kernel for good.
    pub fn begin(self) -> Result<()> {
        Ok(seccompiler::apply_filter(&self.filter()?)?)
    }

    /// Refuses one command of bpf(2), or all.
    pub(super) fn filter(self) -> Result<BpfProgram> {
        let (command, error) = match self {
            Self::NoBpf => (None, libc::ENOSYS),
            Self::NoMaps => (Some(BPF_MAP_CREATE), libc::EINVAL),
            Self::NoPrograms => (Some(BPF_PROG_LOAD), libc::EINVAL),
            Self::NoTcx => (Some(BPF_LINK_CREATE), libc::EINVAL),
            Self::NoBatchLookup => (Some(BPF_MAP_LOOKUP_BATCH), libc::EINVAL),
            Self::NoBatchDelete => (Some(BPF_MAP_DELETE_BATCH), libc::EINVAL),
        };
        let mut rules = Vec::new();
        if let Some(command) = command {
            let (number, equal) = (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq);
            let condition = SeccompCondition::new(0, number, equal, command)?;
            rules.push(SeccompRule::new(vec![condition])?);
        }
        let filter = SeccompFilter::new(
            BTreeMap::from([(libc::SYS_bpf, rules)]),
            SeccompAction::Allow,
            SeccompAction::Errno(error as u32),
            std::env::consts::ARCH.try_into()?,
        )?;
        Ok(filter.try_into()?)
    }
}
