//! Filters and qdiscs that outlive an agent that was killed: `pathproof cleanup` removes them.

use std::io;
use std::path::Path;

use netlink_sys::protocols::NETLINK_ROUTE;

use super::Direction;
use super::filters;
use super::hook::Place;
use super::qdisc::Added;
use crate::datapath::pins::Pins;
use crate::netlink::{dump, too_short, word};

/// Removes the filters of agents from every interface, and the qdiscs that agents added, where those are
/// recorded in the folder of pins. Returns the number of filters.
///
/// # Errors
/// The first that could not be removed; the others are.
pub fn remove_all(pins: Option<&Path>) -> io::Result<usize> {
    let mut added = Added::read(pins.map(Pins::qdiscs));
    let (mut removed, mut failed) = (0, None);
    for index in interfaces()? {
        match remove(index) {
            Ok(count) => removed += count,
            Err(error) => failed = failed.or(Some(error)),
        }
        added.delete(index);
    }
    failed.map_or(Ok(removed), Err)
}

/// Removes the filters of agents from an interface.
pub(super) fn remove(index: u32) -> io::Result<usize> {
    let of = |direction| filters::remove(index, direction, &Place::all());
    let [ingress, egress] = Direction::BOTH.map(of);
    Ok(ingress? + egress?)
}

/// Indexes of all interfaces.
fn interfaces() -> io::Result<Vec<u32>> {
    const GET_LINK: u16 = 18;
    // `struct ifinfomsg`, of which an answer has the index in its second word.
    let all = [0; 16];
    let mut indexes = Vec::new();
    dump(NETLINK_ROUTE, GET_LINK, &all, |answer| {
        indexes.push(word(answer, 4).ok_or_else(too_short)?);
        Ok(())
    })?;
    Ok(indexes)
}
