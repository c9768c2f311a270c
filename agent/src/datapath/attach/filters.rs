//! The BPF filters of an interface, as listed by the kernel.

use std::io;

use libc::RTM_GETTFILTER;
use netlink_sys::protocols::NETLINK_ROUTE;

use super::Direction;
use super::hook::Place;
use crate::netlink::{PATIENCE, ask, dump, find, too_short, word};

const TCMSG: usize = 20;

pub(in crate::datapath) struct AttachedFilter {
    pub(in crate::datapath) handle: u32,
    pub(in crate::datapath) priority: u16,
    pub(in crate::datapath) program: u32,
    pub(in crate::datapath) name: Option<String>,
}

/// BPF filters of a device in one direction, with one priority or any (0).
pub(in crate::datapath) fn filters(
    index: u32,
    direction: Direction,
    priority: u16,
) -> io::Result<Vec<AttachedFilter>> {
    let mut found = Vec::new();
    each(index, direction, priority, |answer| {
        let handle = word(answer, 8).ok_or_else(too_short)?;
        let priority = word(answer, 16).ok_or_else(too_short)? >> 16;
        let attributes = answer.get(TCMSG..).unwrap_or_default();
        found.extend(attached_filter(handle, priority as u16, attributes));
        Ok(())
    })?;
    Ok(found)
}

/// Whether no filter of any kind exists in either direction.
pub(super) fn is_empty(index: u32) -> io::Result<bool> {
    let mut is_empty = true;
    for direction in Direction::BOTH {
        each(index, direction, 0, |_| {
            is_empty = false;
            Ok(())
        })?;
    }
    Ok(is_empty)
}

fn each(
    index: u32,
    direction: Direction,
    priority: u16,
    mut each: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    // A dump ignores the handle.
    let body = tcmsg(index, 0, direction.parent(), u32::from(priority) << 16);
    dump(PATIENCE, NETLINK_ROUTE, RTM_GETTFILTER, &body, |answer| {
        if word(answer, 4) == Some(index) {
            each(answer)?;
        }
        Ok(())
    })
}

/// Deletes the filters that a pathproof agent left in these places, and returns their number.
pub(super) fn remove(index: u32, direction: Direction, places: &[Place]) -> io::Result<usize> {
    let in_place = |filter: &AttachedFilter| {
        let is_in =
            |place: &Place| (place.handle, place.priority) == (filter.handle, filter.priority);
        places.iter().any(is_in)
    };
    let is_ours = |name: &String| name.starts_with("pathproof_");
    let mut removed = 0;
    for filter in filters(index, direction, 0)? {
        if !in_place(&filter) || !filter.name.as_ref().is_some_and(is_ours) {
            continue;
        }
        let all = u32::from((libc::ETH_P_ALL as u16).to_be());
        let info = u32::from(filter.priority) << 16 | all;
        let body = tcmsg(index, filter.handle, direction.parent(), info);
        ask(NETLINK_ROUTE, (libc::RTM_DELTFILTER, 0), &body)?;
        removed += 1;
    }
    Ok(removed)
}

/// `struct tcmsg`: family and padding, interface, handle, parent, and a filter's priority and protocol.
pub(super) fn tcmsg(index: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let words = [0, index, handle, parent, info];
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// Parses the attributes of a filter of kind bpf; `None` for other kinds, whose options differ.
fn attached_filter(handle: u32, priority: u16, bytes: &[u8]) -> Option<AttachedFilter> {
    const TCA_BPF_NAME: u16 = 7;
    const TCA_BPF_ID: u16 = 11;
    if find(bytes, libc::TCA_KIND)? != b"bpf\0" {
        return None;
    }
    let options = find(bytes, libc::TCA_OPTIONS)?;
    let name = find(options, TCA_BPF_NAME).map(|name| {
        let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    });
    Some(AttachedFilter {
        handle,
        priority,
        program: word(find(options, TCA_BPF_ID)?, 0)?,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    /// In filters of kind u32 these attributes are an action and flags; in flower, one of them is an address.
    #[test]
    fn filters_without_a_program_are_none() {
        let options = [
            attribute(7, b"cali_tc\0"),
            attribute(11, &5u32.to_ne_bytes()),
        ]
        .concat();
        for (kind, program) in [("bpf\0", Some(5)), ("u32\0", None), ("flower\0", None)] {
            let filter = [attribute(1, kind.as_bytes()), attribute(2, &options)].concat();
            let found = attached_filter(1, 7, &filter);
            let found = found.map(|found| (found.program, found.name));
            let expected = program.map(|id| (id, Some("cali_tc".to_owned())));
            assert_eq!(found, expected, "{kind}");
        }
    }
}
