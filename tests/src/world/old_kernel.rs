//! Simulates a kernel that lacks features: a seccomp filter in the agent's process fails bpf(2) calls as an
//! older kernel would. The rest of the machine is not affected.

use std::collections::BTreeMap;

use anyhow::Result;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

const BPF_MAP_CREATE: u64 = 0;
const BPF_PROG_LOAD: u64 = 5;
const BPF_MAP_LOOKUP_BATCH: u64 = 24;
const BPF_MAP_DELETE_BATCH: u64 = 27;
const BPF_LINK_CREATE: u64 = 28;

/// A missing kernel feature that a filter simulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldKernel {
    /// The kernel is built without bpf(2).
    NoBpf,
    /// The map types are unknown.
    NoMaps,
    /// The programs' instructions are unknown.
    NoPrograms,
    /// The kernel has no BPF links for TCX.
    NoTcx,
    /// Maps can only be read one element at a time.
    NoBatchLookup,
    /// Map elements can only be deleted one at a time.
    NoBatchDelete,
}

impl OldKernel {
    /// Applies the filter to this thread and all threads and processes that it starts, permanently.
    pub fn begin(self) -> Result<()> {
        Ok(seccompiler::apply_filter(&self.filter()?)?)
    }

    /// The filter, which refuses one command of bpf(2), or all.
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
