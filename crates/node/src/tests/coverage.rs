//! Losses of coverage: they suspend a judgement, and a blind observer accuses no node.

use pathproof_facts::cause::{State, Why};
use pathproof_judge::answer::UnknownPolicy;
use pathproof_judge::verdict::CoverageReport;
use pathproof_wire::evidence::{FAULTS, Fault};
use pathproof_witness::coverage::{Hook, Hooks, ObserverStart};
use pathproof_witness::evidence::CoverageLoss;
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::event::{Event, KernelSample};

/// Whether the next sample's coverage suspends judgements of lost and of misrouted connections.
fn suspended(scene: &mut Scene) -> [bool; 2] {
    let coverage = coverage(scene);
    [coverage.lost_suspended, coverage.misrouted_suspended]
}

fn coverage(scene: &mut Scene) -> CoverageReport {
    scene.idle().verdict_update().verdict.coverage.clone()
}

fn has(coverage: &CoverageReport, loss: &CoverageLoss) -> bool {
    coverage.losses.contains(loss)
}

fn faults(fault: Fault, count: u64) -> KernelSample {
    let mut faults = [0; FAULTS];
    faults[fault as usize] = count;
    KernelSample {
        faults,
        ..KernelSample::default()
    }
}

#[test]
fn a_sound_observer_suspends_nothing() {
    let mut scene = Scene::probed();
    let coverage = coverage(&mut scene);
    assert_eq!((coverage.attached, coverage.wanted), (2, 2));
    assert!(coverage.losses.is_empty());
    assert_eq!(coverage.sampled, Some(ms(PROBED)));
    assert_eq!(suspended(&mut scene), [false, false]);
}

#[test]
fn a_fresh_observer_settles_for_two_seconds() {
    let mut scene = Scene::new();
    scene.feed(Event::Hooks(hooks()));
    assert_eq!(suspended(scene.at(1_999)), [true, true]);
    assert_eq!(suspended(scene.at(2_000)), [false, false]);
}

#[test]
fn hooks_that_were_put_back_settle_again() {
    let mut scene = Scene::probed();
    let repaired = scene.feed(Event::HooksRepaired(ms(PROBED)));
    assert_eq!(repaired.names(), NOTHING, "the hooks follow");
    assert_eq!(suspended(scene.later(1_999)), [true, true]);
    assert_eq!(suspended(scene.later(1)), [false, false]);
}

#[test]
fn a_silent_source_suspends_where_connections_go() {
    let mut scene = Scene::probed();
    assert!(scene.source(true).has("publish"));
    let silent = coverage(&mut scene);
    assert_eq!(
        (silent.lost_suspended, silent.misrouted_suspended),
        (false, true)
    );
    assert!(has(&silent, &CoverageLoss::SourceSilent));
    scene.later(60_000).source(false);
    assert_eq!(suspended(scene.later(89_999)), [false, true]);
    assert_eq!(suspended(scene.later(1)), [false, false]);
}

fn edited(edit: fn(&mut Hooks)) -> Hooks {
    let mut hooks = hooks();
    edit(&mut hooks);
    hooks
}

#[rstest]
#[case::left_out(edited(|hooks| hooks.left_out = 1), [false, false], CoverageLoss::LeftOut { devices: 1 })]
#[case::detached(
    edited(|hooks| {
        hooks.devices[1].attached = false;
        hooks.devices[1].problem = Some("e".to_owned());
    }),
    [false, false],
    CoverageLoss::Detached { device: "veth1".to_owned(), why: "e".to_owned() },
)]
#[case::not_first(
    edited(|hooks| hooks.devices[0].first = false),
    [false, false],
    CoverageLoss::NotFirst { device: "eth0".to_owned() },
)]
fn interfaces_that_are_not_observed(
    #[case] hooks: Hooks,
    #[case] suspends: [bool; 2],
    #[case] loss: CoverageLoss,
) {
    let mut scene = Scene::probed();
    assert!(scene.feed(Event::Hooks(hooks)).has("publish"));
    let coverage = coverage(&mut scene);
    assert_eq!(
        [coverage.lost_suspended, coverage.misrouted_suspended],
        suspends
    );
    assert!(has(&coverage, &loss), "{:?}", coverage.losses);
    assert_eq!(scene.state(), State::Proven);
}

#[rstest]
#[case::more_than_can_be_followed(Fault::PendingFull, [true, false], CoverageLoss::PendingFull { missed: 5 })]
#[case::single_sources(Fault::OverBudget, [false, false], CoverageLoss::OverBudget { missed: 5 })]
fn connections_that_were_not_followed_are_missed_for_ten_seconds(
    #[case] fault: Fault,
    #[case] suspends: [bool; 2],
    #[case] loss: CoverageLoss,
) {
    let mut scene = Scene::probed();
    let mut missed = |after: u64, count: u64| {
        let effects = scene.later(after).sample(faults(fault, count));
        let coverage = effects.verdict_update().verdict.coverage.clone();
        (
            has(&coverage, &loss),
            [coverage.lost_suspended, coverage.misrouted_suspended],
        )
    };
    assert_eq!(missed(250, 5), (true, suspends));
    assert_eq!(missed(9_999, 5), (true, suspends));
    assert_eq!(missed(1, 5), (false, [false, false]));
}

#[test]
fn what_was_not_followed_before_the_agent_began_is_not_missed() {
    let mut scene = Scene::new();
    scene.feed(Event::Hooks(hooks()));
    let effects = scene.later(3_000).sample(faults(Fault::PendingFull, 7));
    assert!(!effects.verdict_update().verdict.coverage.lost_suspended);
}

/// Clients repeat a SYN for two minutes, so a repeated SYN cannot be distinguished from a first one.
#[test]
fn connections_that_were_forgotten_leave_first_syns_uncertain() {
    let mut scene = Scene::probed();
    let sample = KernelSample {
        forgotten_early: 1,
        ..KernelSample::default()
    };
    scene.sample(sample);
    assert_eq!(suspended(scene.later(129_999)), [false, true]);
    assert_eq!(suspended(scene.later(1)), [false, false]);
}

fn blind() -> ObserverStart {
    ObserverStart {
        blind: Some("no BTF".to_owned()),
        ..ObserverStart::default()
    }
}

#[rstest]
#[case::open(UnknownPolicy::Open, [200, 200])]
#[case::closed(UnknownPolicy::Closed, [503, 503])]
fn without_an_observer_nothing_is_known(#[case] policy: UnknownPolicy, #[case] statuses: [u16; 2]) {
    let mut scene = Scene::with(|settings, start| {
        settings.unknown_policy = policy;
        start.observer = blind();
    });
    scene.view(vec![tainted(&[])]);
    let effects = scene.feed(Event::Tick);
    let verdict = &effects.verdict_update().verdict;
    assert_eq!(
        (verdict.state, verdict.why),
        (State::Unknown, Some(Why::ObserverBlind))
    );
    let why = "no BTF".to_owned();
    assert!(has(&verdict.coverage, &CoverageLoss::NotLoaded { why }));
    assert_eq!(effects.statuses(), statuses);
    // Later too, all that is known is that the observer is blind.
    let verdict = scene
        .later(60_000)
        .feed(Event::Tick)
        .verdict_update()
        .verdict
        .clone();
    assert_eq!(verdict.why, Some(Why::ObserverBlind));
}

#[test]
fn pins_that_cannot_be_made_are_reported() {
    let why = || "read-only".to_owned();
    let mut scene = Scene::probed_with(|_, start| start.observer.no_pins = Some(why()));
    assert!(has(
        &coverage(&mut scene),
        &CoverageLoss::NoPins { why: why() }
    ));
    assert_eq!(scene.state(), State::Proven);
}

/// The links are still attached, so nothing else changes.
#[test]
fn pins_that_are_gone_are_reported_until_they_are_back() {
    let mut scene = Scene::probed();
    let why = "not on a BPF file system";
    let loss = CoverageLoss::NoPins {
        why: why.to_owned(),
    };
    for not_pinned in [Some(why), None] {
        let not_pinned = not_pinned.map(ToOwned::to_owned);
        let is_reported = not_pinned.is_some();
        scene.feed(Event::Hooks(Hooks {
            not_pinned,
            ..hooks()
        }));
        assert_eq!(has(&coverage(&mut scene), &loss), is_reported);
        assert_eq!(scene.state(), State::Proven);
    }
}

#[test]
fn a_node_without_interfaces_is_not_seen() {
    let mut scene = Scene::probed();
    scene.feed(Event::Hooks(Hooks::default()));
    assert_eq!(
        scene.idle().verdict_update().verdict.why,
        Some(Why::ObserverBlind)
    );
    let lone = Hook {
        attached: true,
        first: true,
        ..Hook::default()
    };
    scene.feed(Event::Hooks(Hooks {
        devices: vec![lone],
        ..Hooks::default()
    }));
    assert_eq!(scene.idle().state(), State::Proven);
}
