//! How many nodes there are of each kind: the one line that is read first.

use super::row::{Group, Row};

/// The numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// All nodes.
    pub nodes: usize,
    /// Broken or stale, and staying.
    pub sick: usize,
    /// Of which it is not certain that they are sound.
    pub doubtful: usize,
    /// Being removed.
    pub leaving: usize,
    /// Proven, and staying.
    pub sound: usize,
}

impl Tally {
    /// Of all rows.
    pub fn of(rows: &[Row]) -> Self {
        let count = |group| rows.iter().filter(|row| row.group == group).count();
        Self {
            nodes: rows.len(),
            sick: count(Group::Sick),
            doubtful: count(Group::Doubtful),
            leaving: count(Group::Leaving),
            sound: count(Group::Sound),
        }
    }
}
