//! The kernel's table of tracked connections: how full it is, and whether connections are dropped
//! because it is. All pods of a node and the node itself share one, and a dropped packet leaves no
//! trace but a count.

use serde::{Deserialize, Serialize};

use crate::limits::TABLE_FULL;
use crate::time::Mono;

/// Per cent of the limit from which on drops are those of a full table: entries that expire free a
/// part of it between a drop and the reading.
const NEARLY: u64 = 95;

/// The kernel's counts for the agent's network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    pub entries: u64,
    /// Zero where there is none.
    pub limit: u64,
    /// Packets dropped since boot: the table was full, memory was short, or two packets of one
    /// connection raced. The last of these counts as `insert_failed` too.
    pub drop: u64,
    /// Entries that could not be inserted. Races of DNS clients do that on sound nodes.
    pub insert_failed: u64,
    /// Entries of unanswered connections that gave way to new ones: a full table without a loss.
    pub early_drop: u64,
}

impl Table {
    /// Entries, in per cent of the limit.
    pub fn percent(&self) -> u64 {
        let percent = self.entries.saturating_mul(100).checked_div(self.limit);
        percent.unwrap_or_default()
    }

    /// Packets dropped for want of room since an earlier reading. Counts that fell are another
    /// table's: the module was loaded again.
    fn dropped_since(&self, before: &Table) -> u64 {
        let dropped = self.drop.saturating_sub(before.drop);
        let raced = self.insert_failed.saturating_sub(before.insert_failed);
        match self.percent() >= NEARLY {
            true => dropped.saturating_sub(raced),
            false => 0,
        }
    }
}

/// The table as it was read from time to time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conntrack {
    /// The last reading; nothing where the kernel tracks no connections or does not show the counts.
    pub table: Option<Table>,
    /// When that was.
    pub read: Option<Mono>,
    /// Packets dropped for want of room since the agent began.
    pub dropped: u64,
    /// When a reading last showed such drops.
    pub full: Option<Mono>,
}

impl Conntrack {
    /// Takes in a reading.
    pub(crate) fn take(&mut self, table: Option<Table>, now: Mono) {
        let before = std::mem::replace(&mut self.table, table);
        self.read = Some(now);
        if let (Some(before), Some(table)) = (before, table)
            && let dropped @ 1.. = table.dropped_since(&before)
        {
            self.dropped = self.dropped.saturating_add(dropped);
            self.full = Some(now);
        }
    }

    /// Whether the kernel drops connections for want of room, as far as was read lately.
    pub(crate) fn is_full(&self, now: Mono) -> bool {
        self.full.is_some_and(|at| now.since(at) <= TABLE_FULL)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn table(entries: u64, drop: u64, insert_failed: u64) -> Option<Table> {
        Some(Table {
            entries,
            limit: 1_000,
            drop,
            insert_failed,
            early_drop: 0,
        })
    }

    const SECOND: u64 = 1_000_000_000;

    #[rstest]
    #[case::full(table(1_000, 5, 0), table(1_000, 9, 0), 4)]
    #[case::a_few_expired(table(1_000, 5, 0), table(960, 9, 0), 4)]
    #[case::full_without_a_drop(table(1_000, 5, 0), table(1_000, 5, 0), 0)]
    #[case::dns_races(table(990, 5, 2), table(990, 9, 6), 0)]
    #[case::inserts_that_fail(table(1_000, 5, 2), table(1_000, 5, 900), 0)]
    #[case::both(table(1_000, 5, 2), table(1_000, 25, 6), 16)]
    #[case::drops_with_room(table(900, 5, 0), table(900, 9, 0), 0)]
    #[case::loaded_again(table(1_000, 500, 0), table(1_000, 9, 0), 0)]
    #[case::the_first_reading(None, table(1_000, 9, 0), 0)]
    #[case::unread(table(1_000, 5, 0), None, 0)]
    fn only_drops_of_a_full_table_count(
        #[case] before: Option<Table>,
        #[case] after: Option<Table>,
        #[case] dropped: u64,
    ) {
        let mut conntrack = Conntrack::default();
        conntrack.take(before, Mono(SECOND));
        conntrack.take(after, Mono(2 * SECOND));
        assert_eq!(conntrack.dropped, dropped);
        assert_eq!(conntrack.is_full(Mono(2 * SECOND)), dropped > 0);
        assert!(!conntrack.is_full(Mono(6 * SECOND)));
    }

    #[test]
    fn without_a_limit_it_is_never_full() {
        let unlimited = |drop| {
            let unlimited = |table| Table { limit: 0, ..table };
            table(5_000_000, drop, 0).map(unlimited)
        };
        let mut conntrack = Conntrack::default();
        conntrack.take(unlimited(0), Mono(0));
        conntrack.take(unlimited(9), Mono(1));
        assert!(!conntrack.is_full(Mono(1)));
    }
}
