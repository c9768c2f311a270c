//! The qdisc for an interface's filters, clsact. It shares its place with the qdisc `ingress`, and an
//! interface has only one of the two.
//!
//! A qdisc that is no longer needed is deleted, since it blocks other programs' `ingress` until a
//! reboot. Only empty qdiscs that an agent added are deleted: another program that added one is about to
//! add filters. The kernel does not record who added a qdisc, so [`Added`] does.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{fs, io};

use aya::programs::tc;
use netlink_sys::protocols::NETLINK_ROUTE;
use rtnetlink::packet_core::NLM_F_ECHO;

use super::filters::{is_empty, tcmsg};
use super::hook::{HookError, Spot};
use crate::datapath::pins::{numbers, record};
use crate::netlink::{ask, attribute, find};

const CLSACT: &str = "clsact";
/// Parent of the qdiscs clsact and ingress (linux/pkt_sched.h).
const PARENT: u32 = 0xffff_fff1;

/// Ensures that clsact exists: adds it if its place is free and adding is allowed.
pub(super) fn ready(spot: &Spot<'_>) -> Result<(), HookError> {
    match kind(spot.index).map_err(HookError::Qdisc)? {
        Some(kind) if kind == CLSACT => Ok(()),
        Some(kind) => Err(HookError::OtherQdisc(kind)),
        None if !spot.may_add_qdisc => Err(HookError::New),
        None => {
            tc::qdisc_add_clsact(spot.device)?;
            spot.added_qdisc.set(true);
            Ok(())
        }
    }
}

/// Kind of the qdisc in the place of clsact.
fn kind(index: u32) -> io::Result<Option<String>> {
    let body = tcmsg(index, 0, PARENT, 0);
    // Without NLM_F_ECHO, kernels send the answer only to multicast listeners.
    let asked = ask(NETLINK_ROUTE, (libc::RTM_GETQDISC, NLM_F_ECHO), &body);
    match asked.map_err(|error| (error.raw_os_error(), error)) {
        Ok(answer) => {
            let kind = find(answer.get(body.len()..).unwrap_or_default(), libc::TCA_KIND);
            let kind = kind.and_then(|kind| kind.split(|byte| *byte == 0).next());
            Ok(kind.map(|kind| String::from_utf8_lossy(kind).into_owned()))
        }
        // Kernels return EINVAL after a qdisc was removed; newer ones only acknowledge.
        Err((Some(libc::ENOENT | libc::EINVAL), _)) => Ok(None),
        Err((_, error)) => Err(error),
    }
}

/// Deletes clsact if it has no filter, and returns whether it is gone.
fn delete(index: u32) -> io::Result<bool> {
    if kind(index)?.as_deref() != Some(CLSACT) {
        return Ok(true);
    }
    if !is_empty(index)? {
        return Ok(false);
    }
    let body = [
        tcmsg(index, 0xffff_0000, PARENT, 0),
        // With a kind the kernel deletes no qdisc of another kind.
        attribute(libc::TCA_KIND, b"clsact\0"),
    ];
    ask(NETLINK_ROUTE, (libc::RTM_DELQDISC, 0), &body.concat()).map(|_| true)
}

/// Interfaces where agents added clsact. The folder, if any, has a symlink per interface index, for
/// later agents.
pub(super) struct Added {
    indexes: BTreeSet<u32>,
    folder: Option<PathBuf>,
}

impl Added {
    pub(super) fn read(folder: Option<PathBuf>) -> Self {
        Self {
            indexes: folder.as_deref().map(numbers).unwrap_or_default(),
            folder,
        }
    }

    pub(super) fn indexes(&self) -> Vec<u32> {
        self.indexes.iter().copied().collect()
    }

    pub(super) fn record(&mut self, index: u32) {
        self.indexes.insert(index);
        if let Some(folder) = &self.folder {
            // Without the record a later agent would leave the qdisc behind.
            let _ = record(folder, index);
        }
    }

    pub(super) fn forget(&mut self, index: u32) {
        self.indexes.remove(&index);
        if let Some(folder) = &self.folder {
            let _ = fs::remove_file(folder.join(index.to_string()));
        }
    }

    /// Deletes the qdisc of an interface if an agent added it and it has no filter.
    pub(super) fn delete(&mut self, index: u32) {
        if self.indexes.contains(&index) && delete(index).unwrap_or(false) {
            self.forget(index);
        }
    }
}
