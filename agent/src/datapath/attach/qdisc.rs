//! The qdisc that has an interface's filters, clsact. An interface has one qdisc in this place, and the qdisc
//! `ingress` takes it as well.

use std::io;

use aya::programs::tc;
use netlink_sys::protocols::NETLINK_ROUTE;

use super::filters::tcmsg;
use super::hook::{HookError, Spot};
use crate::netlink::{ECHO, ask, find};

const CLSACT: &str = "clsact";
/// The place of both kinds (linux/pkt_sched.h).
const PARENT: u32 = 0xffff_fff1;
const TCA_KIND: u16 = 1;

/// Makes sure that clsact is there, and adds it if nothing is in its place and that is allowed.
pub(super) fn ready(spot: &Spot<'_>) -> Result<(), HookError> {
    match kind(spot.index).map_err(HookError::Qdisc)? {
        Some(kind) if kind == CLSACT => Ok(()),
        Some(kind) => Err(HookError::OtherQdisc(kind)),
        None if !spot.may_add_qdisc => Err(HookError::New),
        None => Ok(tc::qdisc_add_clsact(spot.device)?),
    }
}

/// Kind of the qdisc in the place of clsact.
fn kind(index: u32) -> io::Result<Option<String>> {
    const GET_QDISC: u16 = 38;
    let body = tcmsg(index, 0, PARENT, 0);
    let mut found = None;
    // Without ECHO kernels answer the listeners alone.
    let asked = ask(NETLINK_ROUTE, (GET_QDISC, ECHO), &body, |answer| {
        let attributes = answer.get(body.len()..).unwrap_or_default();
        let kind = find(attributes, TCA_KIND).and_then(|kind| kind.split(|byte| *byte == 0).next());
        found = kind.map(|kind| String::from_utf8_lossy(kind).into_owned());
        Ok(())
    });
    match asked.map_err(|error| (error.raw_os_error(), error)) {
        Ok(()) => Ok(found),
        // The second is the answer where a qdisc was removed; newer kernels acknowledge alone.
        Err((Some(libc::ENOENT | libc::EINVAL), _)) => Ok(None),
        Err((_, error)) => Err(error),
    }
}
