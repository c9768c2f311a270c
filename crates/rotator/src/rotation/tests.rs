use proptest::prelude::*;
use rstest::rstest;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn s(seconds: u64) -> Mono {
    Mono(1_000_000_000 * (10_000 + seconds))
}

fn lease(holder: Option<&str>, version: u32) -> LeaseSeen {
    LeaseSeen {
        holder: holder.map(str::to_owned),
        version: version.to_string(),
        duration: LEASE,
    }
}

fn wanted() -> SliceSpec {
    SliceSpec {
        service: "sentinel".to_owned(),
        families: Family::ALL.to_vec(),
        ports: vec![
            ("tcp".to_owned(), Protocol::Tcp),
            ("udp".to_owned(), Protocol::Udp),
        ],
        echo: ["198.18.0.2".parse().unwrap(), "2001:2::2".parse().unwrap()],
        fleet: None,
    }
}

fn slice(family: Family, generation: u16) -> SliceSeen {
    let wanted = wanted();
    SliceSeen {
        name: slice_name("sentinel", family),
        version: "7".to_owned(),
        family: Some(family),
        is_labelled: true,
        endpoints: (vec![wanted.echo[family as usize].to_string()], true),
        ports: wanted
            .ports
            .into_iter()
            .map(|(name, protocol)| (name, protocol, generation))
            .collect(),
        fleet: None,
    }
}

fn both(generation: u16) -> Vec<SliceSeen> {
    Family::ALL.map(|family| slice(family, generation)).to_vec()
}

fn update(family: Family, generation: u16) -> Write {
    Write::Update {
        family,
        version: "7".to_owned(),
        generation,
    }
}

/// A rotator that leads since `s(0)`.
fn leading() -> Rotation {
    let mut rotation = Rotation::new(MINUTE);
    assert_eq!(
        rotation.plan(&wanted(), &both(20_005), 3, s(0)),
        Plan::default()
    );
    rotation
}

#[rstest]
#[case(0, 15_000)]
#[case(1, 15_000)]
#[case(300, 15_000)]
#[case(750, 15_000)]
#[case(751, 15_020)]
#[case(1_000, 20_000)]
#[case(3_000, 60_000)]
#[case(3_001, 60_020)]
#[case(5_000, 100_000)]
#[case(15_000, 300_000)]
fn rotations_slow_with_the_cluster(#[case] nodes: u32, #[case] ms: u64) {
    assert_eq!(interval(INTERVAL, nodes), Duration::from_millis(ms));
}

#[rstest]
#[case(300, 120)]
#[case(5_000, 120)]
#[case(6_000, 120)]
#[case(6_001, 121)]
fn an_operator_can_slow_rotations_and_not_hasten_them(#[case] nodes: u32, #[case] seconds: u64) {
    let chosen = interval(2 * MINUTE, nodes);
    assert_eq!(chosen.as_secs_f64().ceil(), seconds as f64);
    assert!(interval(Duration::ZERO, nodes) >= Duration::from_millis(20 * u64::from(nodes)));
}

/// 3,000 nodes with a rotation a minute cause 200 watch events a second.
#[test]
fn no_number_of_nodes_costs_the_api_server_more_than_3_000_once_a_minute() {
    let mut before = Duration::ZERO;
    for nodes in 1..=20_000_u32 {
        let each = interval(INTERVAL, nodes);
        let (events, most) = (u128::from(4 * nodes) * 60_000, 4 * 3_000 * each.as_millis());
        assert!(events <= most, "{nodes} nodes: {each:?}");
        assert!(each >= before, "{nodes} nodes rotate faster than fewer");
        before = each;
    }
}

#[test]
fn both_families_move_together_once_a_minute() {
    let mut rotation = leading();
    assert_eq!(
        rotation.plan(&wanted(), &both(20_005), 3, s(59)),
        Plan::default()
    );
    let plan = rotation.plan(&wanted(), &both(20_005), 3, s(60));
    let writes = Family::ALL.map(|family| update(family, 20_006));
    assert_eq!((plan.writes, plan.rotates), (writes.to_vec(), true));
    rotation.wrote(20_006, true, s(60));
    rotation.wrote(20_006, true, s(60));
    assert_eq!(
        rotation.plan(&wanted(), &both(20_006), 3, s(119)),
        Plan::default()
    );
    assert!(rotation.plan(&wanted(), &both(20_006), 3, s(120)).rotates);
    assert!(
        !rotation
            .plan(&wanted(), &both(20_006), 9_000, s(120))
            .rotates
    );
}

// The second of two writes was rejected: its family follows with the next check.
#[test]
fn half_a_rotation_is_brought_to_its_end() {
    let mut rotation = leading();
    rotation.wrote(20_006, true, s(60));
    let halves = vec![slice(Family::V4, 20_006), slice(Family::V6, 20_005)];
    let plan = rotation.plan(&wanted(), &halves, 3, s(65));
    assert_eq!(
        (plan.writes, plan.rotates),
        (vec![update(Family::V6, 20_006)], false)
    );
    // A successor, which does not remember this write, does the same.
    let mut next = Rotation::new(MINUTE);
    let plan = next.plan(&wanted(), &halves, 3, s(65));
    assert_eq!(plan.writes, [update(Family::V6, 20_006)]);
}

#[test]
fn generations_come_round() {
    let mut rotation = leading();
    let plan = rotation.plan(&wanted(), &both(20_999), 3, s(60));
    assert_eq!(
        plan.writes,
        Family::ALL.map(|family| update(family, 20_001))
    );
    rotation.wrote(20_001, true, s(60));
    let halves = vec![slice(Family::V4, 20_001), slice(Family::V6, 20_999)];
    let plan = rotation.plan(&wanted(), &halves, 3, s(65));
    assert_eq!(plan.writes, [update(Family::V6, 20_001)]);
}

#[test]
fn slices_that_are_gone_come_back() {
    let mut rotation = leading();
    let plan = rotation.plan(&wanted(), &both(20_005)[..1], 3, s(5));
    let create = |family, generation| Write::Create { family, generation };
    assert_eq!(
        (plan.writes, plan.rotates),
        (vec![create(Family::V6, 20_005)], false)
    );
    // Without slices, the last written generation continues; if that is unknown, the first one is used.
    rotation.wrote(20_006, true, s(60));
    let plan = rotation.plan(&wanted(), &[], 3, s(65));
    assert_eq!(
        plan.writes,
        Family::ALL.map(|family| create(family, 20_006))
    );
    let mut fresh = Rotation::new(MINUTE);
    let plan = fresh.plan(&wanted(), &[], 3, s(65));
    assert_eq!(
        plan.writes,
        Family::ALL.map(|family| create(family, 20_001))
    );
    let plan = fresh.plan(&wanted(), &[], 3, s(265));
    assert!(!plan.rotates, "there is nothing to move");
}

#[rstest]
#[case::other_endpoint(|slice: &mut SliceSeen| slice.endpoints.0 = vec!["10.1.1.1".to_owned()])]
#[case::one_more(|slice: &mut SliceSeen| slice.endpoints.0.push("10.1.1.1".to_owned()))]
#[case::no_endpoint(|slice: &mut SliceSeen| slice.endpoints.0.clear())]
#[case::not_ready(|slice: &mut SliceSeen| slice.endpoints.1 = false)]
#[case::label_gone(|slice: &mut SliceSeen| slice.is_labelled = false)]
#[case::no_ports(|slice: &mut SliceSeen| slice.ports.clear())]
#[case::port_gone(|slice: &mut SliceSeen| drop(slice.ports.pop()))]
#[case::two_generations(|slice: &mut SliceSeen| slice.ports[1].2 = 20_004)]
#[case::no_generation(|slice: &mut SliceSeen| slice.ports.iter_mut().for_each(|port| port.2 = 80))]
#[case::renamed(|slice: &mut SliceSeen| slice.ports[0].0 = "web".to_owned())]
fn what_somebody_edited_is_mended(#[case] edit: fn(&mut SliceSeen)) {
    let mut slices = both(20_005);
    edit(&mut slices[0]);
    let plan = leading().plan(&wanted(), &slices, 3, s(5));
    assert_eq!(
        (plan.writes, plan.rotates),
        (vec![update(Family::V4, 20_005)], false)
    );
}

#[test]
fn an_address_type_cannot_be_changed() {
    let mut slices = both(20_005);
    slices[0].family = None;
    let plan = leading().plan(&wanted(), &slices, 3, s(5));
    let delete = Write::Delete {
        name: "sentinel-ipv4".to_owned(),
        version: "7".to_owned(),
    };
    assert_eq!(plan.writes, [delete]);
}

/// Only one slice has the count, because each write is sent to every node.
#[test]
fn the_count_of_nodes_is_kept_in_the_first_slice() {
    let counted = |fleet: Option<&str>, held: Option<&str>| {
        let wanted = SliceSpec {
            fleet: fleet.map(str::to_owned),
            ..wanted()
        };
        let mut slices = both(20_005);
        slices[0].fleet = held.map(str::to_owned);
        leading().plan(&wanted, &slices, 3, s(5)).writes
    };
    let write = Write::Count {
        family: Family::V4,
        version: "7".to_owned(),
    };
    assert_eq!(counted(Some("1 of 3"), None), std::slice::from_ref(&write));
    assert_eq!(counted(Some("1 of 3"), Some("0 of 3")), [write]);
    assert_eq!(counted(Some("1 of 3"), Some("1 of 3")), []);
    assert_eq!(
        counted(None, Some("1 of 3")),
        [],
        "the slice keeps its count"
    );
}

#[test]
fn strangers_are_named_and_left_alone() {
    let mut slices = both(20_005);
    slices.push(SliceSeen {
        name: "sentinel-x7k2p".to_owned(),
        ..slice(Family::V4, 20_005)
    });
    let plan = leading().plan(&wanted(), &slices, 3, s(5));
    assert_eq!(
        (plan.writes, plan.foreign_slices),
        (vec![], vec!["sentinel-x7k2p".to_owned()])
    );
}

#[test]
fn a_service_of_one_family_has_one_slice() {
    let mut one = wanted();
    one.families = vec![Family::V6];
    let mut rotation = Rotation::new(MINUTE);
    let plan = rotation.plan(&one, &[slice(Family::V6, 20_005)], 3, s(5));
    assert_eq!(plan, Plan::default());
    // The other family's slice is shipped with the manifests, so it is not deleted.
    let shipped = [slice(Family::V4, 20_001), slice(Family::V6, 20_005)];
    assert_eq!(rotation.plan(&one, &shipped, 3, s(5)), Plan::default());
}

#[test]
fn after_an_outage_nothing_moves_for_ten_minutes() {
    let mut rotation = leading();
    rotation.failed(s(30));
    assert!(
        !rotation.plan(&wanted(), &both(20_005), 3, s(70)).rotates,
        "while it lasts"
    );
    assert!(rotation.answered(s(50)));
    for at in [60, 120, 600, 649] {
        assert!(!rotation.plan(&wanted(), &both(20_005), 3, s(at)).rotates);
        assert!(!rotation.answered(s(at)));
    }
    // Edits by others are still repaired.
    assert_eq!(
        rotation
            .plan(&wanted(), &both(20_005)[..1], 3, s(640))
            .writes
            .len(),
        1
    );
    assert!(rotation.plan(&wanted(), &both(20_005), 3, s(650)).rotates);
}

#[test]
fn a_hiccup_is_no_outage() {
    let mut rotation = leading();
    rotation.failed(s(50));
    assert!(!rotation.answered(s(55)));
    assert!(rotation.plan(&wanted(), &both(20_005), 3, s(60)).rotates);
}

#[test]
fn the_first_to_come_leads() {
    let mut candidate = Candidate::new("a".to_owned());
    assert!(candidate.is_due(s(0)) && !candidate.leads(s(0)));
    assert_eq!(candidate.step(None, s(0)), LeaseStep::Create);
    candidate.wrote(s(0));
    assert!(candidate.leads(s(1)) && !candidate.is_due(s(14)) && candidate.is_due(s(15)));
    assert_eq!(
        candidate.step(Some(&lease(Some("a"), 1)), s(15)),
        LeaseStep::Renew
    );
    candidate.wrote(s(15));
    assert!(candidate.leads(s(44)), "two renewals may fail");
    assert!(
        !candidate.leads(s(45)),
        "and no more, long before another may lead"
    );
}

#[test]
fn another_one_takes_over_once_the_lease_ran_out() {
    let mut candidate = Candidate::new("b".to_owned());
    for at in [0, 5, 44] {
        assert_eq!(
            candidate.step(Some(&lease(Some("a"), 1)), s(at)),
            LeaseStep::Wait
        );
    }
    // The Lease was renewed: its time starts again, by this rotator's clock.
    for at in [45, 89] {
        assert_eq!(
            candidate.step(Some(&lease(Some("a"), 2)), s(at)),
            LeaseStep::Wait
        );
    }
    assert_eq!(
        candidate.step(Some(&lease(Some("a"), 2)), s(90)),
        LeaseStep::Seize
    );
    assert!(!candidate.leads(s(90)), "not before it is written");
}

#[test]
fn a_lease_that_ran_out_is_followed_by_a_pause() {
    let mut rotation = Rotation::new(MINUTE);
    rotation.seized(s(0));
    for at in [0, 60, 599] {
        assert!(!rotation.plan(&wanted(), &both(20_005), 3, s(at)).rotates);
        assert!(!rotation.answered(s(at)));
    }
    // Edits by others are still repaired.
    let plan = rotation.plan(&wanted(), &both(20_005)[..1], 3, s(300));
    assert_eq!(plan.writes.len(), 1);
    assert!(rotation.plan(&wanted(), &both(20_005), 3, s(600)).rotates);
}

#[test]
fn a_released_lease_is_taken_at_once() {
    let mut candidate = Candidate::new("b".to_owned());
    candidate.step(Some(&lease(Some("a"), 1)), s(0));
    assert_eq!(candidate.step(Some(&lease(None, 2)), s(5)), LeaseStep::Take);
}

#[test]
fn a_lease_that_another_one_took_is_lost() {
    let mut candidate = Candidate::new("a".to_owned());
    candidate.wrote(s(0));
    assert_eq!(
        candidate.step(Some(&lease(Some("b"), 9)), s(15)),
        LeaseStep::Wait
    );
    assert!(!candidate.leads(s(15)));
}

proptest! {
    /// No two rotators may lead at once, whatever fails and whichever is suspended.
    #[test]
    fn two_never_lead_at_once(events in proptest::collection::vec((0..2_usize, any::<bool>(), 1..40_u64), 1..80)) {
        let mut candidates = ["a", "b"].map(|name| Candidate::new(name.to_owned()));
        let mut held: Option<LeaseSeen> = None;
        let mut version = 0;
        let mut now = 0;
        for (who, answered, later) in events {
            now += later;
            let candidate = &mut candidates[who];
            if answered && candidate.is_due(s(now)) {
                match candidate.step(held.as_ref(), s(now)) {
                    LeaseStep::Wait => {}
                    LeaseStep::Create
                    | LeaseStep::Take
                    | LeaseStep::Seize
                    | LeaseStep::Renew => {
                        version += 1;
                        held = Some(lease(Some(["a", "b"][who]), version));
                        candidate.wrote(s(now));
                    }
                }
            }
            prop_assert!(candidates.iter().filter(|one| one.leads(s(now))).count() <= 1);
        }
    }

    /// A plan makes all slices sound with one generation, whatever their state.
    #[test]
    fn a_plan_makes_all_slices_sound(
        generations in proptest::array::uniform2(proptest::option::of(19_990..21_010_u16)),
        at in 0..200_u64,
    ) {
        let mut rotation = leading();
        let mut slices: Vec<SliceSeen> = Family::ALL
            .into_iter()
            .zip(generations)
            .filter_map(|(family, generation)| Some(slice(family, generation?)))
            .collect();
        let plan = rotation.plan(&wanted(), &slices, 3, s(at));
        for write in plan.writes {
            match write {
                Write::Create { family, generation } => slices.push(slice(family, generation)),
                Write::Update { family, generation, .. } => {
                    slices.retain(|slice| slice.family != Some(family));
                    slices.push(slice(family, generation));
                }
                Write::Count { .. } | Write::Delete { .. } => {
                    prop_assert!(false, "nothing is counted, and nothing has another type");
                }
            }
        }
        let held: Vec<Option<u16>> = Family::ALL
            .into_iter()
            .map(|family| slices.iter().find_map(|slice| slice.generation(&wanted(), family)))
            .collect();
        prop_assert!(held[0].is_some() && held[0] == held[1], "{held:?}");
    }
}

#[test]
fn a_leader_that_lost_its_lease_does_not_write() {
    let mut candidate = Candidate::new("a".to_owned());
    assert_eq!(candidate.name(), "a");
    candidate.wrote(s(0));
    assert!(candidate.leads(s(1)));
    candidate.lost();
    assert!(!candidate.leads(s(1)) && candidate.is_due(s(1)));
}

/// A generation written by another leader is neither moved at once nor reverted.
#[test]
fn a_leader_that_comes_back_begins_anew() {
    let mut rotation = leading();
    rotation.wrote(20_006, true, s(60));
    rotation.rest();
    let slices = both(20_003);
    assert_eq!(
        rotation.plan(&wanted(), &slices, 3, s(500)),
        Plan::default()
    );
    assert!(rotation.plan(&wanted(), &slices, 3, s(560)).rotates);
}

/// The minimum length of an outage.
#[rstest]
#[case(14, false)]
#[case(15, true)]
fn an_outage_has_its_bound(#[case] seconds: u64, #[case] outage: bool) {
    let mut rotation = leading();
    rotation.failed(s(20));
    rotation.failed(s(25));
    assert_eq!(rotation.answered(s(20 + seconds)), outage);
    let plan = rotation.plan(&wanted(), &both(20_005), 3, s(100));
    assert_eq!(plan.rotates, !outage);
}

#[test]
fn slices_are_named_by_their_family() {
    let names = Family::ALL.map(|family| slice_name("sentinel", family));
    assert_eq!(names, ["sentinel-ipv4", "sentinel-ipv6"]);
}
