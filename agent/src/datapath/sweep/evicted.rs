//! Memory of connections whose entries were evicted: a SYN of theirs that comes again gets an entry
//! that looks like a new connection's, and is evidence of nothing (finding 11).
//!
//! A bit for each, found by its initial sequence number. Two that share a bit are one: of a new
//! connection whose bit is set no failure counts.

use agent_common::evidence::PendingKey;

/// Bits of one generation: 2 MiB, which an idle node never allocates.
const BITS: usize = 1 << 24;
/// With more of them set too many new connections would be taken for old ones.
const MOST: usize = BITS / 4;

/// Connections that were evicted lately.
#[derive(Debug, Default)]
pub(super) struct Evicted {
    current: Generation,
    before: Generation,
    /// Begin of the current generation.
    since: u64,
}

#[derive(Debug, Default)]
struct Generation {
    words: Vec<u64>,
    set: usize,
}

impl Evicted {
    /// Forgets what was evicted before the last so many nanoseconds, and not all of it at once.
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

    /// Whether more were evicted than can be remembered.
    pub(super) fn is_full(&self) -> bool {
        self.current.set.max(self.before.set) > MOST
    }
}

/// Sequence numbers are as good as random: no other hash is needed. A client that chooses its own hits
/// those of others no more often.
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
    fn more_than_can_be_remembered_is_told() {
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
