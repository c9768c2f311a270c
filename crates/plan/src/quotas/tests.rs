use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn name(namespace: &str, name: &str) -> ObjectName {
    ObjectName::new(namespace, name)
}

/// Records Services by namespace and name, each with this demand of every kind.
fn quotas(room: u64, services: &[(&str, &str, u64)]) -> Quotas {
    let mut quotas = Quotas::new([room; KINDS]);
    for (namespace, service, places) in services {
        quotas.note(&name(namespace, service), Some([*places; KINDS]));
    }
    quotas.settle();
    quotas
}

fn followed<'a>(quotas: &Quotas, services: &[(&'a str, &'a str, u64)]) -> Vec<&'a str> {
    let followed = services.iter();
    let followed =
        followed.filter(|(namespace, service, _)| quotas.follows(&name(namespace, service)));
    followed.map(|(_, service, _)| *service).collect()
}

#[rstest]
#[case::everything_fits(&[("t", "a", 60), ("h", "b", 40)], &["a", "b"])]
#[case::one_may_have_all_there_is(&[("t", "a", 50), ("t", "b", 50)], &["a", "b"])]
#[case::who_needs_little_has_it(&[("t", "a", 60), ("t", "b", 30), ("t", "c", 30), ("h", "d", 10)], &["a", "b", "d"])]
#[case::a_smaller_one_fits(&[("t", "a", 80), ("t", "b", 30), ("t", "c", 10), ("h", "d", 15)], &["a", "d"])]
#[case::the_rest_is_shared(&[("s", "a", 40), ("s", "b", 40), ("t", "c", 40), ("t", "d", 40)], &["a", "c"])]
#[case::kube_system_has_its_part(
    &[("kube-system", "a", 12), ("b", "b", 90), ("c", "c", 5), ("d", "d", 5), ("e", "e", 5), ("f", "f", 5),
      ("g", "g", 5), ("h", "h", 5), ("i", "i", 5)],
    &["a", "c", "d", "e", "f", "g", "h", "i"]
)]
fn namespaces_share(#[case] services: &[(&str, &str, u64)], #[case] expected: &[&str]) {
    let quotas = quotas(100, services);
    assert_eq!(followed(&quotas, services), expected);
    let over = services.len() - expected.len();
    assert_eq!(quotas.unjudged().namespace as usize, over);
}

/// A followed Service stays followed, whatever its name, until the level falls below its demand.
#[test]
fn what_is_followed_stays() {
    let mut quotas = quotas(100, &[("t", "b", 60)]);
    quotas.note(&name("t", "a"), Some([60; KINDS]));
    let changed = quotas.settle();
    assert_eq!(changed, BTreeMap::from([(name("t", "a"), false)]));
    assert!(quotas.follows(&name("t", "b")) && !quotas.follows(&name("t", "a")));
    quotas.note(&name("h", "c"), Some([45; KINDS]));
    let changed = quotas.settle();
    let both = [(name("h", "c"), false), (name("t", "b"), true)];
    assert_eq!(changed, BTreeMap::from(both));
    quotas.note(&name("h", "c"), None);
    quotas.settle();
    assert_eq!(quotas.unjudged().namespace, 1);
}

/// A Service beyond its own limit does not count against its namespace.
#[test]
fn a_single_service_has_a_limit() {
    let mut quotas = Quotas::default();
    quotas.note(&name("t", "large"), Some([4_097, 1, 1]));
    quotas.note(&name("t", "larger"), Some([1, 65_537, 1]));
    quotas.note(&name("t", "small"), Some([4_096, 65_536, 1]));
    quotas.settle();
    assert!(quotas.follows(&name("t", "small")));
    let unjudged = Unjudged {
        service: 2,
        namespace: 0,
    };
    assert_eq!(quotas.unjudged(), unjudged);
    assert_eq!(
        quotas.problems(),
        [
            "Service t/large has 4097 frontends (ports times addresses), more than 4096: its \
             connections are not judged, and neither are those of 1 more Services in this namespace"
        ]
    );
    quotas.note(&name("t", "large"), None);
    quotas.note(&name("t", "larger"), Some([1, 1, 1]));
    quotas.settle();
    assert_eq!(quotas.unjudged(), Unjudged::default());
}

#[test]
fn problems_of_many_namespaces_are_a_few_lines() {
    let mut quotas = Quotas::new([10; KINDS]);
    for namespace in 0..30 {
        quotas.note(&name(&format!("t{namespace:02}"), "a"), Some([11; KINDS]));
    }
    quotas.settle();
    let problems = quotas.problems();
    assert_eq!(problems.len(), NAMED + 1);
    assert_eq!(
        problems[0],
        "Service t00/a exceeds its namespace's share of the BPF maps: its connections are not \
         judged"
    );
    assert_eq!(
        problems[NAMED],
        "Services in 10 more namespaces are not judged"
    );
}

proptest! {
    /// For any order of changes: all followed Services fit, a namespace that needs no more than an
    /// equal share gets all it needs, and if everything fits, every Service is followed.
    #[test]
    fn shares_are_fair(
        steps in prop::collection::vec((0..5_usize, 0..8_u8, prop::option::of(prop::array::uniform3(0..40_u64))), 1..60),
    ) {
        const ROOM: u64 = 100;
        let mut quotas = Quotas::new([ROOM; KINDS]);
        let namespaces = ["default", "a", "b", "c", "d"];
        let mut known = BTreeMap::new();
        for (namespace, service, demand) in steps {
            let name = name(namespaces[namespace], &service.to_string());
            quotas.note(&name, demand);
            let before = quotas.settle();
            assert!(before.contains_key(&name));
            known.insert(name, demand.unwrap_or_default());
            let sum = |of: &dyn Fn(&ObjectName) -> bool| {
                let of = known.iter().filter(|(name, _)| of(name));
                of.fold([0; KINDS], |sum, (_, demand)| each(&sum, demand, u64::saturating_add))
            };
            let taken = sum(&|name| quotas.follows(name));
            assert!(fits(&taken, &[ROOM; KINDS]), "{taken:?}");
            for namespace in namespaces {
                if fits(&sum(&|name| &*name.namespace == namespace), &[ROOM / 5; KINDS]) {
                    assert!(quotas.over.keys().all(|name| &*name.namespace != namespace));
                }
            }
            assert!(!fits(&sum(&|_| true), &[ROOM; KINDS]) || quotas.over.is_empty());
        }
    }
}
