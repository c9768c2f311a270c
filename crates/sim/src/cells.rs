//! The tables of docs/internal/judgement.md as simulations: every use of a node with every fault and with
//! every innocent world. A new use, fault or world is one line in [`USES`], [`FAULTS`] or [`WORLDS`].
//!
//! [`play()`] runs one cell with one seed and compares the answers with the truth; [`play_all`] runs many.
//! No expectation is relaxed because the judge misses it: the tests list the cells that are known to be
//! wrong.

mod expected;
mod faults;
pub mod hours;
mod play;
mod runs;
mod uses;
mod worlds;

pub use expected::{Expected, Felt};
pub use faults::{FAULTS, FaultRow};
use pathproof_wire::service::Family;
pub use play::{Outcome, play};
pub use runs::{Played, Run, dealt, play_all, with_seed};
pub use uses::{USES, Use};
pub use worlds::{WORLDS, WorldRow};

use super::world::Stack;

/// Families of a run: those of the cluster, and the one with the fault if the fault is limited to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Families {
    pub name: &'static str,
    pub stack: Stack,
    /// The only family with the fault; `None` if all have it.
    pub only: Option<Family>,
}

const fn families(name: &'static str, stack: Stack, only: Option<Family>) -> Families {
    Families { name, stack, only }
}

/// Families for faults. Innocent worlds use the entries without `only`.
pub const FAMILIES: [Families; 5] = [
    families("dual", Stack::Dual, None),
    families("v4", Stack::V4, None),
    families("v6", Stack::V6, None),
    families("dual, v4 alone", Stack::Dual, Some(Family::V4)),
    families("dual, v6 alone", Stack::Dual, Some(Family::V6)),
];

/// The event that a node is exposed to.
#[derive(Clone, Copy, Debug)]
pub enum Happens {
    Fault(&'static FaultRow),
    /// An innocent world.
    World(&'static WorldRow),
}

/// One cell of the two tables.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub used: &'static Use,
    pub happens: Happens,
}

impl Cell {
    pub fn happening(&self) -> &'static str {
        match self.happens {
            Happens::Fault(row) => row.name,
            Happens::World(row) => row.name,
        }
    }

    /// Unique name of the cell.
    pub fn name(&self) -> (&'static str, &'static str) {
        (self.happening(), self.used.name)
    }

    pub fn families(self) -> impl Iterator<Item = Families> {
        let by_family = match self.happens {
            Happens::Fault(row) => row.is_of_family(),
            Happens::World(_) => false,
        };
        FAMILIES
            .into_iter()
            .filter(move |families| families.only.is_none() || by_family)
    }
}

/// Every use with every fault.
pub fn fault_cells() -> impl Iterator<Item = Cell> {
    FAULTS.iter().flat_map(|row| {
        USES.iter().map(move |used| Cell {
            used,
            happens: Happens::Fault(row),
        })
    })
}

/// Every use with every innocent world that affects it.
pub fn world_cells() -> impl Iterator<Item = Cell> {
    WORLDS.iter().flat_map(|row| {
        let touched = USES.iter().filter(|used| row.touches(used));
        touched.map(move |used| Cell {
            used,
            happens: Happens::World(row),
        })
    })
}
