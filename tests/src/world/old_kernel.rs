//! A kernel that can do less than this one: a seccomp filter in the agent's process answers bpf(2)
//! as an older kernel would. Nothing else of the machine is touched.

use std::collections::BTreeMap;

use anyhow::Result;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

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

    /// Refuses one command of bpf(2) (linux/bpf.h), or all.
    pub(super) fn filter(self) -> Result<BpfProgram> {
        let (command, error) = match self {
            Self::NoBpf => (None, libc::ENOSYS),
            Self::NoMaps => (Some(0), libc::EINVAL),
            Self::NoPrograms => (Some(5), libc::EINVAL),
            Self::NoTcx => (Some(28), libc::EINVAL),
            Self::NoBatchLookup => (Some(24), libc::EINVAL),
            Self::NoBatchDelete => (Some(27), libc::EINVAL),
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
