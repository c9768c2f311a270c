//! Events of nodes, and their rates. Few of them were ever counted: rates without a source are guesses. Rare
//! events come every day or two here, so that a night of simulation has each of them in every world.

use std::time::Duration;

use crate::cells::{FAMILIES, USES};
use crate::{Act, Client, Dice, Span, World, ms};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn hours(hours: u64) -> Duration {
    s(3_600 * hours)
}

/// Time from the agent's start to the fault. Real nodes have a fault in months; one a day is enough for idle time
/// and other events around each.
pub(super) const LIFE: Span = (hours(12), hours(36));
/// Shares of the rows of [`USES`], in their order. Most nodes have users; new and spare ones are idle.
pub(super) const USE_SHARES: [usize; USES.len()] = [2, 2, 2, 2, 2, 2, 3, 4, 4, 1];
/// Shares of the rows of [`FAMILIES`], in their order. Most clusters have IPv4, alone or beside IPv6.
pub(super) const FAMILY_SHARES: [usize; FAMILIES.len()] = [3, 4, 1, 1, 1];
/// Of how many nodes one differs from the nodes of the tables ([`vary`]).
pub(super) const VARIED: usize = 4;
/// No event begins this long before a fault, so that the fault meets a node at rest.
const CALM: Duration = s(900);
/// Time for which an endpoint serves after the rules follow its removal: the default grace period of a pod.
const GRACE: Duration = s(30);
/// Maximum time without a proxy. After 15 s with a removed endpoint in its rules, a node is at fault.
const PROXY_AWAY: Span = (s(1), s(8));

/// Draws an event on a node with this many Services of users, whose removed endpoints serve for the given time.
type Draw = fn(&mut Dice, usize, Duration) -> Option<Act>;

/// Events beside the rows of the tables, each with the mean time between two of them.
#[rustfmt::skip]
pub(super) const EVENTS: [(Duration, Draw); 9] = [
    // A rollout. Fast teams deploy several times a day (DORA, State of DevOps).
    (hours(6), |dice, services, grace| (services > 0).then(|| Act::Roll(dice.below(services), grace))),
    // One endpoint moves, by an autoscaler, an eviction or a crash. Of containers that live for more than an hour,
    // a quarter end within 6 h, two thirds within a week (Sysdig, Container Usage Report 2019). A Service has four.
    (hours(2), |dice, services, grace| {
        (services > 0).then(|| Act::Replace(dice.below(services), dice.below(4), grace))
    }),
    // The agent is upgraded, with an image to pull, or crashes. Kubernetes has a patch release a month
    // (kubernetes.io/releases/patch-releases), and agents like this one about as many.
    (hours(24), |dice, _, _| Some(Act::Restart(dice.between((ms(20), s(60)))))),
    // The proxy is upgraded or crashes. `draw_events` ends this.
    (hours(48), |_, _, _| Some(Act::FreezeProxy)),
    // The agent gets no CPU time: a limit, or a live migration of the machine.
    (hours(24), |dice, _, _| Some(Act::Starve(dice.between((ms(10), s(9)))))),
    // The API server is away: 3.6 h a month are within the service level of a zonal GKE cluster (99.5 %).
    (hours(48), |dice, _, _| {
        let span = dice.between((s(1), s(300)));
        Some(Act::Silence { span, noticed: dice.between((Duration::ZERO, s(90))) })
    }),
    // A burst of failures, such as a port scan, fills the ring buffer.
    (hours(48), |dice, _, _| Some(Act::LoseSightings(dice.between((ms(10), s(20)))))),
    // Other software removes addresses and routes that it did not set, as systemd-networkd does when it restarts
    // (bottlerocket #3437).
    (hours(48), |dice, _, _| Some(Act::DamageDevices(dice.between((ms(100), s(5)))))),
    // The clock is set, as by chrony after a pause of the machine.
    (hours(48), |dice, _, _| Some(Act::SetClock(dice.below(7_200) as i64 - 3_600))),
];

/// Adds events from the agent's start until shortly before `end`.
pub(super) fn draw_events(world: &mut World, services: usize, end: Duration, dice: &mut Dice) {
    let grace = world.proxy_delay.1 + GRACE;
    for (every, draw) in EVENTS {
        let mut at = dice.between((Duration::ZERO, every * 2));
        while at + CALM < end {
            let act = draw(dice, services, grace);
            if matches!(act, Some(Act::FreezeProxy)) {
                let back = at + dice.between(PROXY_AWAY);
                world.acts.push((back, Act::ThawProxy));
            }
            world.acts.extend(act.map(|act| (at, act)));
            at += dice.between((Duration::ZERO, every * 2));
        }
    }
}

/// Changes what the tables leave fixed: the rate of connections, lanes, and devices of the network plugin.
pub(super) fn vary(world: &mut World, dice: &mut Dice) {
    let (times, of) = [(1, 2), (1, 1), (5, 1), (30, 1)][dice.below(4)];
    let streams = world.streams.iter_mut();
    for stream in streams.filter(|stream| stream.client != Client::PodProbe) {
        stream.every = stream.every * times / of;
    }
    world.pod_lane = dice.below(2) == 0;
    world.bridged = dice.below(2) == 0;
    world.overlay = dice.below(2) == 0;
}
