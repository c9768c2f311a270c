//! Sequences of arbitrary packets at arbitrary devices. State bits are never cleared, and the counts equal
//! a recount of the final states.
//!
//! A byte selects the kind of step, and the next ones its details: see [`Script`].

use std::collections::BTreeMap;

use pathproof_wire::classify::Direction;
use pathproof_wire::evidence::{Outcome, Pending, state};
use pathproof_wire::service::{Family, SourceClass};
use pathproof_wire::transition::failed;

use crate::collections::{Node, steps};
use crate::scenario::{Device, Step};

/// Maximum number of steps; more find nothing new.
const STEPS: usize = 200;

const DEVICES: [Device; 5] = [
    Device::Client,
    Device::Bridge,
    Device::Pods,
    Device::Overlay,
    Device::Uplink,
];

pub(crate) fn check(bytes: &[u8]) -> bool {
    let Some((first, rest)) = bytes.split_first() else {
        return false;
    };
    let node = Node::new(if first & 1 == 0 {
        Family::V4
    } else {
        Family::V6
    });
    // A map with enough room, or one that fills up.
    node.room.set(if first & 2 == 0 { 1_000 } else { 2 });
    let known = KNOWN.with(|known| known[usize::from(first & 1)].clone());
    let mut script = Script(rest);
    for _ in 0..STEPS {
        if script.play(&node, &known).is_none() {
            break;
        }
    }
    recount(&node);
    !node.connections().is_empty()
}

thread_local! {
    /// Built once, because there are thousands of steps.
    static KNOWN: [std::rc::Rc<[Known]>; 2] =
        Family::ALL.map(|family| steps(&Node::new(family).stage).into_iter().map(known).collect());
}

enum Known {
    Packet(Device, Direction, Vec<u8>),
    Other(Box<Step>),
}

fn known(step: Step) -> Known {
    match step {
        Step::In(device, packet) => Known::Packet(device, Direction::Ingress, packet.bytes()),
        Step::Out(device, packet) => Known::Packet(device, Direction::Egress, packet.bytes()),
        other => Known::Other(Box::new(other)),
    }
}

struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    /// Executes the next step; `None` at the end of the bytes.
    fn play(&mut self, node: &Node, known: &[Known]) -> Option<()> {
        let [what, low, high] = self.take()?;
        let number = usize::from(u16::from_le_bytes([low, high]));
        match what % 8 {
            // In most cases, a valid step.
            0..5 => self.known(&known[number % known.len()], node),
            // A valid packet with one changed byte.
            5 => {
                let [at, byte] = self.take()?;
                if let Known::Packet(device, direction, bytes) = &known[number % known.len()] {
                    let mut bytes = bytes.clone();
                    let at = usize::from(at) % bytes.len();
                    bytes[at] = byte;
                    node.look(*device, *direction, &bytes);
                }
            }
            6 => node.take(&Step::Wait(number as u64)),
            // Arbitrary bytes.
            _ => {
                let (frame, rest) = self.0.split_at(usize::from(low).min(self.0.len()));
                self.0 = rest;
                let device = DEVICES[usize::from(high) % DEVICES.len()];
                let direction = [Direction::Ingress, Direction::Egress][usize::from(high >> 7)];
                node.look(device, direction, frame);
            }
        }
        Some(())
    }

    fn known(&mut self, known: &Known, node: &Node) {
        match known {
            Known::Packet(device, direction, bytes) => node.look(*device, *direction, bytes),
            Known::Other(step) => node.take(step),
        }
    }
}

/// Outcomes with a state bit, which are counted exactly.
const BITS: [(Outcome, u32); 3] = [
    (Outcome::Proven, state::PROVEN),
    (Outcome::Rejected, state::REJECTED),
    (Outcome::AnswerNotDelivered, state::ANSWER_NOT_DELIVERED),
];

type Counts = BTreeMap<(u32, SourceClass, Outcome), u32>;

fn recount(node: &Node) {
    let mut naive = Counts::new();
    // An outcome that came too late is not counted, because the connection counts as lost. So these numbers
    // are upper bounds.
    let mut at_most = Counts::new();
    for (fields, state) in node.connections() {
        if state & state::ALIAS != 0 {
            continue;
        }
        let failed = failed(&Pending { state, ..fields }, u64::MAX);
        let answered = state & (state::ANSWER_OUT | state::REJECTED) != 0;
        assert!(
            failed.is_none() || !answered,
            "answered and failed: {state:#x}"
        );
        let key = |outcome| key(&fields, outcome);
        for (outcome, bit) in BITS {
            if state & bit != 0 {
                *naive.entry(key(outcome)).or_default() += 1;
            }
        }
        *at_most.entry(key(Outcome::Arrived)).or_default() += 1;
        for (outcome, bits) in [
            (Outcome::Forwarded, state::FORWARDED),
            (Outcome::Answered, state::ANSWER_OUT),
        ] {
            if state & bits != 0 {
                *at_most.entry(key(outcome)).or_default() += 1;
            }
        }
    }
    let mut counted = node.seen().counts;
    counted.retain(|(_, _, outcome), _| *outcome != Outcome::Retransmitted);
    for (outcome, most) in &at_most {
        let n = counted.remove(outcome).unwrap_or_default();
        assert!(n <= *most, "{outcome:?} counted {n} times of {most}");
    }
    assert_eq!(counted, naive);
}

fn key(fields: &Pending, outcome: Outcome) -> (u32, SourceClass, Outcome) {
    let class = SourceClass::from_index(fields.class.into());
    (fields.service, class, outcome)
}
