//! Remembers connections whose entries were evicted. A retransmitted SYN of such a connection gets
//! an entry that resembles a new connection's, and must not count as evidence (finding 11).
//!
//! Each connection has one bit, indexed by its initial sequence number. Connections can share a bit, so
//! failures of a new connection whose bit is set do not count.

use pathproof_wire::evidence::PendingKey;

/// Bits per generation: 2 MiB, allocated at the first eviction.
const BITS: usize = 1 << 24;
/// With more bits set, too many new connections would count as evicted ones.
const MOST: usize = BITS / 4;

#[derive(Debug, Default)]
pub(super) struct Evicted {
    current: Generation,
    before: Generation,
    since: u64,
}

#[derive(Debug, Default)]
struct Generation {
    words: Vec<u64>,
    set: usize,
}

impl Evicted {
    /// Forgets evictions older than `memory` nanoseconds, one generation at a time.
    pub(super) fn age(&mut self, now: u64, memory: u64) {
        if now.saturating_sub(self.since) > memory {
            self.since = now;
            self.before = std::mem::take(&mut self.current);
        }
    }

    pub(super) fn note(&mut self, key: &PendingKey) {
        let generation = &mut self.current;
        if generation.words.is_empty() {
            generation.words = vec![0; BITS / 64];
        }
        let (word, bit) = place(key);
        let word = &mut generation.words[word];
        generation.set += usize::from(*word & bit == 0);
        *word |= bit;
    }

    pub(super) fn holds(&self, key: &PendingKey) -> bool {
        let (word, bit) = place(key);
        let of = |generation: &Generation| generation.words.get(word).is_some_and(|w| w & bit != 0);
        [&self.current, &self.before].into_iter().any(of)
    }

    /// Whether more connections were evicted than can be remembered.
    pub(super) fn is_full(&self) -> bool {
        self.current.set.max(self.before.set) > MOST
    }
}

/// Sequence numbers are random enough to need no hash. A client that chooses its numbers does not hit other
/// clients' bits more often.
fn place(key: &PendingKey) -> (usize, u64) {
    let at = (key.isn ^ (key.family << 23)) as usize % BITS;
    (at / 64, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(isn: u32) -> PendingKey {
        PendingKey { isn, family: 1 }
    }

    #[test]
    fn evicted_connections_are_remembered_for_as_long_as_their_syns_come_again() {
        let mut evicted = Evicted::default();
        evicted.age(1_000, 130);
        assert!(!evicted.holds(&key(5)));
        evicted.note(&key(5));
        for now in [1_001, 1_130, 1_131, 1_261] {
            evicted.age(now, 130);
            assert!(evicted.holds(&key(5)), "{now}");
        }
        assert!(!evicted.holds(&key(6)), "no other");
        assert!(!evicted.holds(&PendingKey { isn: 5, family: 0 }));
        evicted.age(1_262, 130);
        assert!(!evicted.holds(&key(5)));
    }

    #[test]
    fn too_many_evictions_are_reported() {
        let mut evicted = Evicted::default();
        for _ in 0..3 {
            (0..MOST as u32).for_each(|isn| evicted.note(&key(isn)));
        }
        assert!(!evicted.is_full());
        evicted.note(&key(u32::MAX));
        assert!(evicted.is_full());
        evicted.age(131, 130);
        evicted.age(262, 130);
        assert!(!evicted.is_full());
    }
}
