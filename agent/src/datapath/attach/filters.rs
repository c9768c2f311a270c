//! The programs that stand as filters at an interface, as the kernel lists them.

use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;

use super::Direction;
use crate::netlink::{dump, find, too_short, word};

/// A filter as the kernel describes it.
pub(in crate::datapath) struct StandingFilter {
    pub(in crate::datapath) handle: u32,
    /// Id of its program.
    pub(in crate::datapath) program: u32,
    /// The name that was given to it.
    pub(in crate::datapath) name: Option<String>,
}

/// The programs that stand as filters at this direction of a device, of one priority or of all (0).
pub(in crate::datapath) fn filters(
    index: u32,
    direction: Direction,
    priority: u16,
) -> io::Result<Vec<StandingFilter>> {
    const GET_FILTER: u16 = 46;
    // A dump takes no notice of the handle.
    let body = tcmsg(index, 0, direction.parent(), u32::from(priority) << 16);
    let mut found = Vec::new();
    dump(NETLINK_ROUTE, GET_FILTER, &body, |answer| {
        let handle = word(answer, 8).ok_or_else(too_short)?;
        if word(answer, 4) == Some(index) {
            let attributes = answer.get(body.len()..).unwrap_or_default();
            found.extend(standing(handle, attributes));
        }
        Ok(())
    })?;
    Ok(found)
}

/// `struct tcmsg`: family and padding, interface, handle, parent, and a filter's priority and protocol.
pub(super) fn tcmsg(index: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let words = [0, index, handle, parent, info];
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// A filter by its attributes, where it is one of the kind bpf: others give the options other
/// meanings.
fn standing(handle: u32, bytes: &[u8]) -> Option<StandingFilter> {
    const TCA_KIND: u16 = 1;
    const TCA_OPTIONS: u16 = 2;
    const TCA_BPF_NAME: u16 = 7;
    const TCA_BPF_ID: u16 = 11;
    if find(bytes, TCA_KIND)? != b"bpf\0" {
        return None;
    }
    let options = find(bytes, TCA_OPTIONS)?;
    let name = find(options, TCA_BPF_NAME).map(|name| {
        let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    });
    Some(StandingFilter {
        handle,
        program: word(find(options, TCA_BPF_ID)?, 0)?,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    /// Of u32 the same numbers are its action and its flags, of flower an address.
    #[test]
    fn filters_without_a_program_are_none() {
        let options = [
            attribute(7, b"cali_tc\0"),
            attribute(11, &5u32.to_ne_bytes()),
        ]
        .concat();
        for (kind, program) in [("bpf\0", Some(5)), ("u32\0", None), ("flower\0", None)] {
            let filter = [attribute(1, kind.as_bytes()), attribute(2, &options)].concat();
            let found = standing(1, &filter);
            let found = found.map(|found| (found.program, found.name));
            let expected = program.map(|id| (id, Some("cali_tc".to_owned())));
            assert_eq!(found, expected, "{kind}");
        }
    }
}
