//! Limits of the map of connections, per client and per Service. Clients and Services with the most entries
//! lose those beyond the limits. So a flood evicts its own entries, and Services with few connections keep
//! theirs.

use std::cmp::Reverse;
use std::collections::HashMap;

use pathproof_wire::abi::MAX_PENDING;
use pathproof_wire::evidence::PendingKey;
use pathproof_wire::service::Address;

/// Unanswered connections per client that are kept after their loss window.
const PER_CLIENT: usize = 1_024;
/// Unanswered connections per Service port and family that are kept after their loss window.
const PER_SERVICE: usize = 4_096;
/// Above this many entries of any age the map is crowded.
const CROWDED: usize = MAX_PENDING as usize / 4 * 3;
/// A crowded map is reduced to this many entries: as many again may arrive until the next sweep.
const RELIEVED: usize = MAX_PENDING as usize / 2;

/// The Service of all aliases together. Their entries do not contain their Service, so without a limit for
/// all of them, a flood of SYNs with data would keep its aliases and evict other Services' connections.
pub(super) const ALIASES: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) key: PendingKey,
    pub(super) client: Address,
    /// The Service's id, or [`ALIASES`].
    pub(super) service: u32,
    pub(super) arrived_ns: u64,
    /// Whether its outcome is judged already.
    pub(super) is_settled: bool,
    /// Whether its loss window is over without an answer. Such an entry is kept only to recognise
    /// retransmitted SYNs.
    pub(super) is_waiting: bool,
}

pub(super) fn surplus(mut entries: Vec<Candidate>) -> Vec<PendingKey> {
    let waiting = entries.iter().filter(|entry| entry.is_waiting).count();
    // Return early, because most entries of a busy node are answered connections, which need no sorting.
    if entries.len() <= CROWDED && waiting <= PER_CLIENT {
        return Vec::new();
    }
    // Order by preference: entries whose outcome is open, and the newest first.
    entries.sort_unstable_by_key(|entry| (entry.is_settled, Reverse(entry.arrived_ns)));
    let waiting = entries.iter().filter(|entry| entry.is_waiting);
    let mut evicted = beyond(waiting, PER_CLIENT, PER_SERVICE);
    let mut most = RELIEVED;
    if entries.len() - evicted.len() > CROWDED {
        while entries.len() - evicted.len() > RELIEVED && most > 1 {
            most /= 2;
            evicted = beyond(entries.iter(), most, most);
        }
    }
    evicted
}

/// Entries beyond the first `per_client` of their client or `per_service` of their Service.
fn beyond<'a>(
    entries: impl Iterator<Item = &'a Candidate>,
    per_client: usize,
    per_service: usize,
) -> Vec<PendingKey> {
    let (mut clients, mut services) = (HashMap::new(), HashMap::new());
    let mut evicted = Vec::new();
    for entry in entries {
        let client: &mut usize = clients.entry(entry.client).or_default();
        let service: &mut usize = services.entry(entry.service).or_default();
        if *client >= per_client || *service >= per_service {
            evicted.push(entry.key);
        } else {
            *client += 1;
            *service += 1;
        }
    }
    evicted
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use pathproof_wire::service::mapped;
    use rstest::rstest;

    use super::*;

    const HONEST: u32 = 7;

    /// `each` connections from each of the clients to a Service, ordered by arrival.
    fn flood(service: u32, clients: u32, each: u32, is_waiting: bool) -> Vec<Candidate> {
        let entry = |number: u32| Candidate {
            key: PendingKey {
                isn: (service << 20) | number,
                family: 0,
            },
            client: mapped(((service << 16) | (number % clients)).to_be_bytes()),
            service,
            arrived_ns: u64::from(number),
            is_settled: is_waiting,
            is_waiting,
        };
        (0..clients * each).map(entry).collect()
    }

    fn kept(all: &[Candidate]) -> HashMap<u32, usize> {
        let evicted: HashSet<PendingKey> = surplus(all.to_vec()).into_iter().collect();
        let mut kept = HashMap::new();
        for entry in all.iter().filter(|entry| !evicted.contains(&entry.key)) {
            *kept.entry(entry.service).or_default() += 1;
        }
        kept
    }

    #[rstest]
    #[case::of_one_client(1, 24_000, PER_CLIENT)]
    #[case::of_many_clients(1_000, 24, PER_SERVICE)]
    #[case::within_the_bounds(4, 1_000, 4_000)]
    fn a_flood_evicts_its_own(#[case] clients: u32, #[case] each: u32, #[case] left: usize) {
        let mut all = flood(HONEST, 50, 2, true);
        all.extend(flood(1, clients, each, true));
        assert_eq!(kept(&all), HashMap::from([(HONEST, 100), (1, left)]));
    }

    #[test]
    fn the_oldest_go_first() {
        let all = flood(1, 1, PER_CLIENT as u32 + 2, true);
        let gone: Vec<u32> = surplus(all).iter().map(|key| key.isn & 0xffff).collect();
        assert_eq!(gone, [1, 0]);
    }

    /// One client of one Service: connections that may still be answered have no limit while there is room.
    #[test]
    fn connections_under_way_have_no_bound_but_room() {
        let all = flood(HONEST, 1, 20_000, false);
        assert_eq!(kept(&all), HashMap::from([(HONEST, 20_000)]));
    }

    #[rstest]
    #[case::one_service(1, true)]
    #[case::as_many_services_as_the_map_has_room_for(8, true)]
    #[case::not_over_yet(4, false)]
    fn a_crowded_map_is_relieved_of_a_flood(#[case] floods: u32, #[case] waits: bool) {
        let mut all = flood(HONEST, 100, 10, false);
        for service in 1..=floods {
            let flooded = flood(service + 20, 1_000, 30 / floods, false);
            all.extend(flooded.into_iter().map(|entry| Candidate {
                is_settled: waits,
                ..entry
            }));
        }
        let kept = kept(&all);
        assert_eq!(kept[&HONEST], 1_000, "{kept:?}");
        assert!(kept.values().sum::<usize>() <= RELIEVED, "{kept:?}");
        assert!(kept.values().all(|one| *one > 500), "{kept:?}");
    }

    #[test]
    fn unjudged_connections_are_evicted_last() {
        let mut all = flood(1, 30_000, 1, false);
        for entry in &mut all[5_000..] {
            entry.is_settled = true;
        }
        let gone = surplus(all);
        assert!(gone.len() > 13_000, "{}", gone.len());
        assert!(gone.iter().all(|key| key.isn & 0xffff >= 5_000));
    }
}
