//! The sentinel in the view: its condition, and the devices for it.

use std::sync::Arc;

use pathproof_facts::cause::{State, Why};
use pathproof_facts::cluster::{Change, NodeFacts, ObjectName};
use pathproof_facts::freshness::FIRST_GENERATION;
use pathproof_facts::trace::{Lane, ProbePath};
use pathproof_plan::Installed;
use pathproof_wire::service::Family;
use pathproof_witness::testing::traces::{passed, tcp, udp};
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::Condition;
use crate::effect::Notice;
use crate::event::{Event, SentinelEvent};

fn gone() -> Change {
    Change::ServiceGone(rule().service)
}

#[test]
fn it_is_absent_until_the_view_is_complete() {
    let mut scene = Scene::new();
    scene.view(sentinel_objects());
    assert_eq!(scene.condition(), Condition::Absent);
    assert!(!scene.node.sentinel().unwrap().exists());
    scene.view(services());
    assert_eq!(scene.condition(), Condition::Absent);
    let mut scene = Scene::new();
    scene.synced();
    assert_eq!(scene.condition(), Condition::Settling);
    assert!(scene.node.sentinel().unwrap().exists());
}

#[test]
fn it_is_probed_once_its_programs_run() {
    let mut scene = Scene::new();
    scene.synced();
    scene.sentinel_changed(SentinelEvent::Ready);
    assert_eq!(scene.condition(), Condition::Settling);
    scene.sentinel_changed(SentinelEvent::Started(None));
    assert_eq!(scene.condition(), Condition::Probing);
    let watched = scene.node.sentinel().unwrap();
    assert!(watched.is_running());
    scene.view(vec![gone()]);
    assert_eq!(scene.condition(), Condition::Absent);
}

/// The rotator creates one slice after the other, some seconds after the Service. A slice that is deleted later
/// is a change by somebody else.
#[test]
fn a_new_sentinel_waits_for_its_slices_without_a_warning() {
    let mut scene = Scene::new();
    scene.view(synced_services());
    scene.feed(Event::Installed(Installed::default()));
    let mut objects = dual_stack_sentinel();
    let last = objects.pop().unwrap();
    for object in objects {
        let effects = scene.view(vec![object]);
        let notices = effects.notices();
        assert!(matches!(notices[..], [Notice::Awaited(_)]), "{notices:?}");
        assert!(matches!(scene.condition(), Condition::Altered(_)));
    }
    let effects = scene.view(vec![last]);
    assert!(effects.notices().is_empty());
    assert_eq!(scene.condition(), Condition::Settling);
    let effects = scene.view(vec![Change::SliceGone {
        slice: ObjectName::new("pathproof", "sentinel-v6"),
        service: "sentinel".into(),
    }]);
    let notices = effects.notices();
    assert!(matches!(notices[..], [Notice::Altered(_)]), "{notices:?}");
}

#[rstest]
#[case::altered(vec![alteration()])]
#[case::its_slice_is_gone(vec![Change::SliceGone {
    slice: ObjectName::new("pathproof", "sentinel-v4"),
    service: "sentinel".into(),
}])]
fn an_edit_is_logged_once_and_nothing_is_concluded_from_probes(#[case] edit: Vec<Change>) {
    let mut scene = Scene::probed_with(|settings, _| settings.rereads = false);
    let effects = scene.view(edit);
    let altered = |notice: &&Notice| matches!(notice, Notice::Altered(_));
    assert_eq!(effects.notices().into_iter().filter(altered).count(), 1);
    assert!(matches!(scene.condition(), Condition::Altered(_)));
    let effects = scene.view(vec![tainted(&["x"])]);
    assert!(effects.notices().is_empty(), "the sentinel is unchanged");
    scene.fault();
    assert_eq!(scene.state(), State::Proven, "by what was proven before");
    scene.later(31_000).idle();
    assert_eq!(
        scene.node.judge().last.unwrap().why,
        Some(Why::SentinelAltered)
    );
    scene.rest(11_000);
    scene.fault();
    assert_ne!(scene.state(), State::Broken, "however long it was so");
}

/// After an edit the datapath gets time to follow, so failures do not count. A rotation is not an edit.
#[rstest]
#[case::another_node_port(sentinel_service(30_081), State::Proven)]
#[case::rotated(sentinel_slice(FIRST_GENERATION + 1), State::Broken)]
fn an_edited_sentinel_has_to_settle(#[case] change: Change, #[case] state: State) {
    let mut scene = Scene::probed_with(|settings, _| settings.rereads = false);
    scene.view(vec![change]);
    scene.fault();
    assert_eq!(scene.idle().state(), state);
    scene.rest(10_000);
    assert_eq!(scene.fault().state(), State::Broken);
}

#[test]
fn the_devices_are_wanted_in_the_families_of_the_sentinel() {
    let mut scene = Scene::new();
    assert_eq!(scene.synced().devices(), Some((true, &[Family::V4][..])));
    let mut scene = Scene::new();
    scene.view(synced_services());
    let effects = scene.feed(Event::Installed(Installed::default()));
    assert_eq!(effects.devices(), Some((false, &[][..])), "there is none");
}

/// An edit may be reverted soon, so it does not remove the devices.
#[rstest]
#[case::deleted(gone())]
#[case::altered(alteration())]
fn devices_stay_once_they_were_wanted(#[case] change: Change) {
    let mut scene = Scene::new();
    scene.synced();
    let effects = scene.view(vec![change]);
    assert_eq!(effects.devices(), Some((true, &[Family::V4][..])));
    let mut before = Scene::new();
    let mut changes = services();
    changes.extend([sentinel_service(30_080), alteration(), Change::Synced]);
    before.view(changes);
    let effects = before.feed(Event::Installed(Installed::default()));
    assert_eq!(
        effects.devices(),
        Some((false, &[][..])),
        "never sound so far"
    );
}

#[test]
fn addresses_that_the_cluster_uses_are_left_to_it() {
    let mut scene = Scene::probed();
    let effects = scene.taken(true);
    assert_eq!(effects.names()[..4], ["program", "log", "stop", "devices"]);
    assert_eq!(effects.devices(), Some((false, &[Family::V4][..])));
    assert_eq!(scene.condition(), Condition::Off(TAKEN));
    let watched = scene.node.sentinel().unwrap();
    assert!(!watched.exists() && !watched.is_running());
    let effects = scene.taken(true);
    assert!(!effects.has("stop") && effects.notices().is_empty(), "once");

    let effects = scene.taken(false);
    assert_eq!(effects.devices(), Some((true, &[Family::V4][..])));
    assert_eq!(
        scene.condition(),
        Condition::Settling,
        "the devices are made again"
    );
    scene.started();
    assert_eq!(scene.condition(), Condition::Probing);
}

/// The rotator knows all Nodes. It reports such an address together with its count of failing nodes.
#[test]
fn addresses_that_a_node_of_the_cluster_uses_are_left_to_it() {
    let mut scene = Scene::probed();
    let fleet = r#"{"nodes":3,"unsound":{},"in_use":"198.18.0.2 is in podCIDR 198.18.0.0/24"}"#;
    let effects = scene.view(vec![counted(FIRST_GENERATION, Some(fleet))]);
    assert!(effects.has("stop"));
    assert_eq!(effects.devices(), Some((false, &[Family::V4][..])));
    let why = "198.18.0.2 is in podCIDR 198.18.0.0/24: choose other sentinel addresses";
    assert_eq!(scene.condition(), Condition::Off(why));
}

#[test]
fn probes_that_fail_at_addresses_that_are_taken_accuse_nobody() {
    let mut scene = Scene::probed();
    scene.taken(true);
    scene.fault();
    assert_eq!(scene.state(), State::Proven);
    scene.rest(11_000);
    scene.fault();
    assert_ne!(scene.state(), State::Broken, "however long it was so");
}

/// If the addresses are in use from the start, no devices are made.
#[test]
fn devices_are_not_made_at_addresses_that_are_taken() {
    let mut scene = Scene::new();
    scene.view([vec![taker()], cluster()].concat());
    let effects = scene.feed(Event::Installed(Installed::default()));
    assert_eq!(effects.devices(), Some((false, &[Family::V4][..])));
}

#[test]
fn addresses_are_searched_for_at_once_and_then_at_checks() {
    let mut scene = Scene::new();
    scene.synced();
    assert!(!scene.view(vec![taker()]).has("stop"));
    assert!(scene.check().has("stop"));
    assert!(!scene.check().has("stop"), "nothing changed since");
}

#[test]
fn a_sentinel_that_comes_later_is_searched_for_then() {
    let mut scene = Scene::new();
    scene.view([vec![taker()], synced_services()].concat());
    scene.feed(Event::Installed(Installed::default()));
    assert!(!scene.check().has("stop"), "there is none");
    let effects = scene.view(sentinel_objects());
    assert!(effects.has("stop"));
    assert_eq!(effects.devices(), Some((false, &[Family::V4][..])));
}

/// A lane that meets the new generation measures the datapath's lag; only TCP lanes do.
#[rstest]
#[case::by_tcp(tcp(ProbePath::OffCluster), Some(400))]
#[case::by_udp(udp(ProbePath::OffCluster), None)]
fn a_rotation_measures_the_lag(#[case] lane: Lane, #[case] measured: Option<u128>) {
    let mut scene = Scene::probed();
    let rotated = FIRST_GENERATION + 1;
    let mut meets = |at: u64, generation| {
        let mut trace = passed(lane, ms(PROBED + at));
        trace.generation = Some(generation);
        // The probe leaves for the echo 20 us after it was sent.
        let (_, lag) = scene.at(PROBED + at + 1).probe(trace).probed();
        if at == 50 {
            scene.at(PROBED + 100).view(vec![sentinel_slice(rotated)]);
        }
        lag
    };
    assert_eq!(meets(50, FIRST_GENERATION), None);
    assert_eq!(meets(250, FIRST_GENERATION), None);
    assert_eq!(meets(500, rotated), measured);
    assert_eq!(meets(750, rotated), None, "measured once");
    assert_eq!(scene.idle().state(), State::Proven);
}

/// While the kubelet's reports do not reach the control plane, changes may not reach kube-proxy either.
#[rstest]
#[case::the_source_is_silent(true, false)]
#[case::the_node_is_unheard(false, true)]
fn time_without_a_source_of_changes_is_not_lateness(
    #[case] silent: bool,
    #[case] kubelet_silent: bool,
) {
    let mut scene = Scene::probed();
    scene.view(vec![sentinel_slice(FIRST_GENERATION + 1)]);
    let heard = |kubelet_silent| {
        Change::Node(Arc::new(NodeFacts {
            kubelet_silent,
            ..node_facts()
        }))
    };
    scene.later(60_000);
    scene.view(vec![heard(kubelet_silent)]);
    scene.source(silent);
    scene.later(60_000);
    scene.view(vec![heard(false)]);
    scene.source(false);
    scene.rest(200);
    assert_eq!(scene.idle().state(), State::Proven, "60 s of 120 s count");
    scene.rest(59_900);
    assert_eq!(scene.idle().state(), State::Stale);
}
