//! Filters and qdiscs that a killed agent left behind: `pathproof cleanup` removes them.

use std::io;
use std::path::Path;

use nix::net::if_::if_nameindex;

use super::hook::Place;
use super::qdisc::Added;
use super::{Direction, filters};
use crate::datapath::pins::Pins;

/// Removes the agents' filters from every interface, and the qdiscs that agents added according to the
/// records among the pins. Returns the number of filters, or the first failure: removal goes on after it.
pub fn remove_all(pins: Option<&Path>) -> io::Result<usize> {
    let mut added = Added::read(pins.map(Pins::qdiscs));
    let (mut removed, mut failed) = (0, None);
    for interface in &if_nameindex()? {
        let index = interface.index();
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
