//! The pod probe of this node as a witness beside connections: two scopes that fail together.

use agent_common::service::SourceClass::{self, External, Pod};
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::cause::{Failure, State};
use crate::trace::ProbePath;

/// Refused connections to a Service: from one client or two, first and last in ms, and the pause between them.
type Refused = (u32, SourceClass, u8, u64, u64, usize);

const PROBE: Refused = (ECHO, Pod, 1, 3_000, 9_000, 250);
const WEB_OF_PODS: Refused = (WEB, Pod, 1, 3_000, 9_000, 250);

/// A node whose Services and pod probe worked refuses these connections.
fn refuse(mut world: World, all: &[Refused], lanes: &[ProbePath]) -> State {
    world.worked(ECHO).worked_outside(WEB);
    for at in (2_250..=9_000).step_by(250) {
        for (service, class, clients, first, last, pause) in all {
            if (*first..=*last).step_by(*pause).any(|due| due == at) {
                for client in 1..=*clients {
                    world.fail(*service, *class, client, Failure::Refused, at - 10);
                }
            }
        }
        match lanes {
            [] => drop(world.look(at)),
            lanes => drop(world.rounds(at, at, lanes, |_| Fate::Pass)),
        }
    }
    world.verdict(9_000).state
}

#[rstest]
#[case::beside_a_service_of_pods(&[PROBE, WEB_OF_PODS], true)]
#[case::beside_two_clients_outside(&[PROBE, (WEB, External, 2, 3_000, 9_000, 250)], true)]
#[case::alone(&[PROBE], false)]
#[case::connections_alone(&[WEB_OF_PODS], false)]
#[case::failed_twice(&[(ECHO, Pod, 1, 3_000, 3_250, 250), WEB_OF_PODS], false)]
#[case::beside_two_failures(&[PROBE, (WEB, Pod, 1, 3_000, 7_000, 4_000)], false)]
#[case::beside_a_short_failure(&[PROBE, (WEB, Pod, 1, 3_000, 3_750, 250)], false)]
fn the_pod_probe_needs_a_second_scope(#[case] all: &[Refused], #[case] broken: bool) {
    let state = refuse(World::new(), all, &[]);
    assert_eq!(state == State::Broken, broken, "{state:?}");
}

/// Packets with a pod's address pass: a policy denies the pod probe.
#[rstest]
#[case::of_pods(&[ProbePath::Pod, ProbePath::OffCluster], false)]
#[case::that_are_masqueraded(&[ProbePath::OffCluster, ProbePath::NodePort], true)]
fn a_lane_passes_beside_the_pod_probe(#[case] lanes: &[ProbePath], #[case] broken: bool) {
    let world = World::probed(lanes);
    let state = refuse(world, &[PROBE, WEB_OF_PODS], lanes);
    assert_eq!(state == State::Broken, broken, "{state:?}");
}
