//! Filters and qdiscs that a killed agent left behind: `pathproof cleanup` removes them.

use std::io;
use std::path::Path;

use netlink_sys::protocols::NETLINK_ROUTE;

use super::hook::Place;
use super::qdisc::Added;
use super::{Direction, filters};
use crate::datapath::pins::Pins;
use crate::netlink::{dump, too_short, word};

/// Removes the agents' filters from every interface, and the qdiscs that agents added according to the
/// records among the pins. Returns the number of filters.
///
/// # Errors
/// The first failure; removal goes on after it.
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

pub(super) fn remove(index: u32) -> io::Result<usize> {
    let of = |direction| filters::remove(index, direction, &Place::all());
    let [ingress, egress] = Direction::BOTH.map(of);
    Ok(ingress? + egress?)
}

fn interfaces() -> io::Result<Vec<u32>> {
    const GET_LINK: u16 = 18;
    // `struct ifinfomsg`: an answer has the index in its second word.
    let all = [0; 16];
    let mut indexes = Vec::new();
    dump(NETLINK_ROUTE, GET_LINK, &all, |answer| {
        indexes.push(word(answer, 4).ok_or_else(too_short)?);
        Ok(())
    })?;
    Ok(indexes)
}
