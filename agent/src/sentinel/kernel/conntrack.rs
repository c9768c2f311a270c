//! Counters of the kernel's connection table, from the files that node_exporter reads too. Reading them
//! needs no capability, and loads no module, which a netlink request would.

use std::fs;

use pathproof_witness::conntrack::Table;

/// Counters per processor, in the network namespace of the reader.
const STATISTICS: &str = "/proc/thread-self/net/stat/nf_conntrack";
const LIMIT: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// Reads the counters. `None` if the kernel tracks no connections, or was built without
/// CONFIG_NF_CONNTRACK_PROCFS.
pub fn table() -> Option<Table> {
    let limit = fs::read_to_string(LIMIT).ok()?;
    let counts = fs::read_to_string(STATISTICS).ok()?;
    parse(&counts, limit.trim().parse().ok()?)
}

/// Parses a line of names, then a line of hexadecimal numbers per processor. The number of entries is
/// the same in all lines.
fn parse(counts: &str, limit: u64) -> Option<Table> {
    let mut lines = counts.lines();
    let names: Vec<&str> = lines.next()?.split_whitespace().collect();
    let mut found = None;
    for line in lines {
        let numbers: Vec<&str> = line.split_whitespace().collect();
        let number = |name| {
            let place = names.iter().position(|other| *other == name)?;
            u64::from_str_radix(numbers.get(place)?, 16).ok()
        };
        let table = found.get_or_insert(Table {
            limit,
            ..Table::default()
        });
        table.entries = number("entries")?;
        table.drop = table.drop.saturating_add(number("drop")?);
        table.insert_failed = table.insert_failed.saturating_add(number("insert_failed")?);
        table.early_drop = table.early_drop.saturating_add(number("early_drop")?);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: &str = "\
entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart
0000001f  00000002 00000000 00000000 0000001a 000001b2 00000000 00000000 00000000 0000000a 000000ff 00000001 00000000  00000000 00000000 00000000 00000000
0000001f  00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000001 00000001 00000003 00000000  00000000 00000000 00000000 00000000
";

    #[test]
    fn counts_of_all_processors_are_added() {
        let table = Table {
            entries: 31,
            limit: 262_144,
            drop: 256,
            insert_failed: 11,
            early_drop: 4,
        };
        assert_eq!(parse(COUNTS, 262_144), Some(table));
    }

    #[test]
    fn columns_are_found_by_their_names() {
        let moved = "early_drop drop entries insert_failed new\n1 2 3 4 5\n";
        let table = parse(moved, 9).expect("all of them");
        let found = [
            table.entries,
            table.drop,
            table.insert_failed,
            table.early_drop,
        ];
        assert_eq!(found, [3, 2, 4, 1]);
    }

    #[test]
    fn malformed_counters_are_no_table_and_no_panic() {
        for end in 0..COUNTS.len() {
            let table = parse(&COUNTS[..end], 1);
            assert!(table.is_none_or(|table| table.drop <= 256), "{end}");
        }
        for odd in ["", "\n", "entries drop\n1 2\n", "a\nb\n", "entries\nzz\n"] {
            assert_eq!(parse(odd, 1), None, "{odd:?}");
        }
        let (names, _) = COUNTS.split_once('\n').expect("two lines");
        let most = format!("{names}\n{0}\n{0}\n", "ffffffffffffffff ".repeat(17));
        let most = parse(&most, u64::MAX).expect("a table");
        assert_eq!((most.drop, most.percent()), (u64::MAX, 1));
    }
}
