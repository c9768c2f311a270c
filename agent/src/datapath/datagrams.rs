//! The account of datagrams under way: which of them are lost, how long answers took, and which can
//! be forgotten. As `sweep` for connections, and apart from it.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd as _;

use agent_common::abi::{LOSS_WINDOW_NS, map};
use agent_common::evidence::{Budget, Pending, PendingKey, state};
use agent_common::service::{Owed, frontend_flag};
use agent_common::udp::is_flow;
use aya::Ebpf;
use aya::maps::{Array, Map, MapData, MapError};

use super::load::LoadError;
use super::sample::{SampleError, take};
use super::syscall;

/// An answered datagram is forgotten after this long, and with it its flow: the next of that flow is
/// followed again.
const KEEP_ANSWERED_NS: u64 = 1_500_000_000;
/// An unanswered one waits so long for its answer. The map has room for as many as come meanwhile
/// (`abi::MAX_UDP_PENDING`).
const KEEP_UNANSWERED_NS: u64 = 4_000_000_000;

/// The answer to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpAnswer {
    /// Id of the Service port and family.
    pub service: u32,
    /// Microseconds from the datagram's arrival to it.
    pub after_us: u32,
}

/// What one sweep found.
#[derive(Debug, Default)]
pub struct SweptDatagrams {
    /// Datagrams that became lost since the last sweep.
    pub lost: Vec<Pending>,
    /// Answers to datagrams that are forgotten now.
    pub answers: Vec<UdpAnswer>,
}

/// The map of datagrams, and what was told of it.
pub(super) struct Datagrams {
    pending: MapData,
    rates: Array<MapData, Budget>,
    /// Lost datagrams that were told already and are still in the map.
    told: HashSet<PendingKey>,
    /// Window of the last datagram that was followed before the last sweep.
    window: u64,
    /// Entries that the last sweep left; none is known before the first.
    left: Option<usize>,
    /// It could not be read the last time.
    unread: bool,
}

impl Datagrams {
    /// Takes the maps.
    pub(super) fn open(ebpf: &mut Ebpf) -> Result<Self, SampleError> {
        let pending = match ebpf.take_map(map::UDP_PENDING) {
            Some(Map::HashMap(data)) => data,
            _ => Err(LoadError::Missing {
                kind: "map",
                name: map::UDP_PENDING,
            })?,
        };
        Ok(Self {
            pending,
            rates: take(ebpf, map::UDP_RATES)?,
            told: HashSet::new(),
            window: 0,
            left: None,
            unread: false,
        })
    }

    /// [`Datagrams::sweep`], or nothing, with one warning for as long as it cannot be done.
    pub(super) fn sweep_or_warn(&mut self, now: u64) -> SweptDatagrams {
        let swept = self.sweep(now);
        if let Err(error) = &swept
            && !self.unread
        {
            tracing::warn!(%error, "what becomes of datagrams cannot be read");
        }
        self.unread = swept.is_err();
        swept.unwrap_or_default()
    }

    /// One sweep at `now`. On a node without datagrams for Services it reads one word.
    fn sweep(&mut self, now: u64) -> Result<SweptDatagrams, SampleError> {
        let window = self.window()?;
        if self.left == Some(0) && window == self.window {
            return Ok(SweptDatagrams::default());
        }
        let mut swept = self.sweep_map(now).map_err(|source| SampleError::Sweep {
            map: map::UDP_PENDING,
            source,
        })?;
        if self.left.is_none() {
            // Told by the agent before this one.
            swept.0.lost.clear();
        }
        self.left = Some(swept.1);
        self.window = window;
        Ok(swept.0)
    }

    fn window(&self) -> Result<u64, SampleError> {
        let budget = self.rates.get(&0, 0);
        let read = |source: MapError| SampleError::Read {
            map: map::UDP_RATES,
            source,
        };
        Ok(budget.map_err(read)?.window)
    }

    fn sweep_map(&mut self, now: u64) -> io::Result<(SweptDatagrams, usize)> {
        let mut swept = SweptDatagrams::default();
        let (mut seen, mut lost, mut forget) = (0, Vec::new(), Vec::new());
        // A payload that comes again has the same key, and another agent may forget it too.
        let mut still_told = HashSet::new();
        syscall::for_each(self.pending.fd().as_fd(), |key, pending: Pending| {
            seen += 1;
            let age = now.saturating_sub(pending.arrived_ns);
            if is_lost(&key, &pending, age) {
                if self.told.contains(&key) {
                    still_told.insert(key);
                } else {
                    lost.push((key, pending));
                }
            }
            if age > keep_for(&pending) {
                forget.push(key);
                swept.answers.extend(answer_of(&key, &pending));
            }
        })?;
        syscall::delete(self.pending.fd().as_fd(), &forget)?;
        // Only now: what a sweep that fails had found is found again.
        self.told = still_told;
        self.told.extend(lost.iter().map(|(key, _)| *key));
        for key in &forget {
            self.told.remove(key);
        }
        swept.lost = lost.into_iter().map(|(_, pending)| pending).collect();
        Ok((swept, seen - forget.len()))
    }
}

fn keep_for(pending: &Pending) -> u64 {
    if pending.state & state::ANSWERED != 0 {
        KEEP_ANSWERED_NS
    } else {
        KEEP_UNANSWERED_NS
    }
}

/// As for connections: owed forwarding, and nothing but its arrival was seen.
fn is_lost(key: &PendingKey, pending: &Pending, age: u64) -> bool {
    !is_flow(key)
        && age > LOSS_WINDOW_NS
        && pending.state & state::PROGRESS == 0
        && Owed::from_byte(pending.owed).is_forward()
        && pending.flags & frontend_flag::HOST_ENDPOINT == 0
}

fn answer_of(key: &PendingKey, pending: &Pending) -> Option<UdpAnswer> {
    (!is_flow(key) && pending.answer_us != 0).then_some(UdpAnswer {
        service: pending.service,
        after_us: pending.answer_us,
    })
}

#[cfg(test)]
mod tests {
    use agent_common::udp::flow_key;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::arrived(0, Owed::Forward, 0, true)]
    #[case::sent_again(state::RETRANSMITTED, Owed::Forward, 0, true)]
    #[case::forwarded_and_silent(state::FORWARDED, Owed::Forward, 0, false)]
    #[case::leaked(state::LEAKED, Owed::Forward, 0, false)]
    #[case::ambiguous(state::AMBIGUOUS, Owed::Forward, 0, false)]
    #[case::nothing_owed(0, Owed::Nothing, 0, false)]
    #[case::endpoint_on_the_node(0, Owed::Forward, frontend_flag::HOST_ENDPOINT, false)]
    fn lost(#[case] state: u32, #[case] owed: Owed, #[case] flags: u8, #[case] expected: bool) {
        let pending = Pending {
            state,
            owed: owed as u8,
            flags,
            ..Pending::default()
        };
        let key = PendingKey::default();
        assert_eq!(is_lost(&key, &pending, LOSS_WINDOW_NS + 1), expected);
        assert!(
            !is_lost(&key, &pending, LOSS_WINDOW_NS),
            "the window is not over"
        );
        let flow = flow_key((&[0; 16], [0; 2]), [0; 2], [0; 2], 0);
        assert!(
            !is_lost(&flow, &pending, LOSS_WINDOW_NS + 1),
            "a flow is no datagram"
        );
    }

    #[test]
    fn an_answer_is_told_once_and_of_the_datagram() {
        let pending = Pending {
            service: 7,
            state: state::FORWARDED | state::ANSWER_OUT,
            answer_us: 400,
            ..Pending::default()
        };
        let told = answer_of(&PendingKey::default(), &pending);
        assert_eq!(
            told,
            Some(UdpAnswer {
                service: 7,
                after_us: 400
            })
        );
        let flow = flow_key((&[0; 16], [0; 2]), [0; 2], [0; 2], 0);
        assert_eq!(answer_of(&flow, &pending), None);
    }
}
