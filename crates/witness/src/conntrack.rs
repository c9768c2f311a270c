//! The kernel's connection table: how full it is, and whether packets are dropped because it is full. The
//! node and all of its pods share one table. A dropped packet leaves no trace except a counter.

use pathproof_facts::limits::TABLE_FULL;
use pathproof_facts::time::Mono;
use serde::{Deserialize, Serialize};

/// Minimum fill, in percent of the limit, to attribute a drop to a full table. It is below 100, because
/// entries may expire between the drop and the read.
const NEARLY: u64 = 95;

/// Counters of the agent's network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    pub entries: u64,
    /// Zero if there is no limit.
    pub limit: u64,
    /// Packets dropped since boot, because the table was full, memory was short, or two packets of
    /// one connection raced. Races also count as `insert_failed`.
    pub drop: u64,
    /// Entries that could not be inserted. On sound nodes this happens when packets of a DNS client race.
    pub insert_failed: u64,
    /// Entries of unanswered connections that were evicted for new ones: the table was full, but nothing was
    /// dropped.
    pub early_drop: u64,
}

impl Table {
    /// Number of entries in percent of the limit.
    pub fn percent(&self) -> u64 {
        let percent = self.entries.saturating_mul(100).checked_div(self.limit);
        percent.unwrap_or_default()
    }

    /// Packets dropped by a full table since an earlier read. Counters that went down count as unchanged: the
    /// module was loaded again, and this is another table.
    fn dropped_since(&self, before: &Table) -> u64 {
        let dropped = self.drop.saturating_sub(before.drop);
        let raced = self.insert_failed.saturating_sub(before.insert_failed);
        match self.percent() >= NEARLY {
            true => dropped.saturating_sub(raced),
            false => 0,
        }
    }
}

/// The successive reads of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conntrack {
    /// The last read; `None` if the kernel tracks no connections or does not show the counters.
    pub table: Option<Table>,
    pub read: Option<Mono>,
    /// Number of packets dropped by a full table since the agent started.
    pub dropped: u64,
    /// Time of the last read that showed packets dropped because the table was full.
    pub full: Option<Mono>,
}

impl Conntrack {
    pub fn take(&mut self, table: Option<Table>, now: Mono) {
        let before = std::mem::replace(&mut self.table, table);
        self.read = Some(now);
        if let (Some(before), Some(table)) = (before, table)
            && let dropped @ 1.. = table.dropped_since(&before)
        {
            self.dropped = self.dropped.saturating_add(dropped);
            self.full = Some(now);
        }
    }

    /// Whether recent reads show that the kernel drops connections because the table is full.
    pub fn is_full(&self, now: Mono) -> bool {
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
