//! The table against docs/behaviour.md, exact bodies, and the rules with priority over the others.
//!
//! Length: one table holds every answer, beside the page that lists them.

use pathproof_facts::limits::Limits;
use pathproof_facts::switches::Enforcement;
use pathproof_facts::time::Mono;
use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::damping::Damping;
use crate::verdict::finding::{MissingCriterion, Named};
use crate::verdict::report::{CoverageReport, PathView};
use crate::verdict::{Evidence, Finding, Rule};

const BEHAVIOUR: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/behaviour.md"
));

const ANCHOR: Anchor = Anchor {
    mono: Mono(1_000_000_000),
    wall: Wall(1_795_305_600_000_000_000),
};

fn finding(state: State) -> Finding {
    let rule = match state {
        State::Unknown => Rule::Idle,
        State::Starting => Rule::Starting,
        State::Proven => Rule::ProvenByProbe,
        State::Suspect => Rule::SuspectByProbes,
        State::Degraded => Rule::DegradedServices,
        State::Stale => Rule::StaleByProbes,
        State::Broken => Rule::BrokenByProbes,
    };
    Finding::new(rule, Evidence::Nothing)
}

/// After a repair, 200 does not wait for the next connection if probes have passed on every path since.
#[rstest]
#[case::probes_passed_since(Some(MissingCriterion::ProbesPass), Required::Pass)]
#[case::too_few_services(Some(MissingCriterion::Services), Required::Undecided)]
fn a_suspicion_that_probes_refute_is_200(
    #[case] lacking: Option<MissingCriterion>,
    #[case] expected: Required,
) {
    let evidence = Evidence::Connections {
        services: Named::of(["default/web"].into_iter()),
        since: Mono(0),
        lacking,
        clients: Vec::new(),
        failures: 3,
        last_success: None,
    };
    let finding = Finding::new(Rule::SuspectByConnections, evidence);
    for policy in [UnknownPolicy::Open, UnknownPolicy::Closed] {
        assert_eq!(required(&finding, policy), expected);
    }
}

fn family(family: Family, state: State, last_proof: Option<Mono>) -> FamilyVerdict {
    FamilyVerdict {
        family,
        state,
        cause: None,
        why: None,
        finding: finding(state),
        findings: Vec::new(),
        last_proof,
        last_failure: None,
        failing_since: None,
        paths: Vec::<PathView>::new(),
        lanes: Vec::new(),
    }
}

fn verdict(families: Vec<FamilyVerdict>, eligibility: Eligibility) -> Verdict {
    let state = families
        .iter()
        .map(|family| family.state)
        .max()
        .unwrap_or(State::Unknown);
    Verdict {
        at: Mono(2_000_000_000),
        state,
        since: Mono(0),
        cause: None,
        why: None,
        finding: finding(state),
        limits: Limits::default(),
        eligibility,
        families,
        services: Vec::new(),
        services_omitted: 0,
        coverage: CoverageReport::default(),
        conntrack: Default::default(),
        drops: Default::default(),
    }
}

fn tainted() -> Eligibility {
    Eligibility::Tainted {
        taint: "ToBeDeletedByClusterAutoscaler".to_owned(),
    }
}

fn refuses(enforcement: Enforcement) -> Refuses {
    match enforcement {
        Enforcement::Enforce => Refuses::All,
        Enforcement::Audit => Refuses::Nothing,
    }
}

/// The answer to a first verdict.
fn first(
    endpoint: Endpoint,
    verdict: &Verdict,
    policy: UnknownPolicy,
    enforcement: Enforcement,
) -> Answer {
    let served = Damping::new(std::time::Duration::ZERO).step(verdict, policy);
    let waits = verdict.state == State::Starting;
    let eligible = is_eligible(&verdict.eligibility, policy);
    let refuses = refuses(enforcement);
    answer(
        endpoint, verdict, &served, waits, eligible, refuses, &ANCHOR,
    )
}

/// The rows of the answer table, as docs/behaviour.md must have them.
fn table() -> String {
    let states = [
        ("Starting", State::Starting),
        ("Proven", State::Proven),
        ("Suspect", State::Suspect),
        ("Degraded", State::Degraded),
        ("Broken", State::Broken),
        ("Stale", State::Stale),
        ("Unknown", State::Unknown),
    ];
    let nodes = [
        ("eligible", Eligibility::Eligible),
        ("leaving", tainted()),
        ("never seen", Eligibility::NeverSeen),
    ];
    let policies = [
        ("open", UnknownPolicy::Open),
        ("closed", UnknownPolicy::Closed),
    ];
    let mut rows = String::new();
    for (state_name, state) in states {
        for (node_name, eligibility) in &nodes {
            for (policy_name, policy) in policies {
                let judged = family(Family::V4, state, None);
                let verdict = verdict(vec![judged], eligibility.clone());
                let status =
                    |endpoint, enforcement| first(endpoint, &verdict, policy, enforcement).status;
                let _ = writeln!(
                    rows,
                    "| {state_name} | {node_name} | {policy_name} | {} | {} | {} | {} |",
                    status(Endpoint::Healthz, Enforcement::Enforce),
                    status(Endpoint::Livez, Enforcement::Enforce),
                    status(Endpoint::Healthz, Enforcement::Audit),
                    status(Endpoint::Livez, Enforcement::Audit),
                );
            }
        }
    }
    rows
}

#[test]
fn the_documented_table_is_the_real_one() {
    let section = BEHAVIOUR
        .split("<!-- answers -->")
        .nth(1)
        .expect("docs/behaviour.md has the table");
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| State");
    let documented: Vec<String> = section.lines().filter(is_row).flat_map(expanded).collect();
    let sorted = |mut rows: Vec<String>| {
        rows.sort();
        rows
    };
    let real = table();
    let wanted = real.lines().map(str::to_owned).collect();
    assert!(
        sorted(documented) == sorted(wanted),
        "docs/behaviour.md, between the two <!-- answers -->, needs:\n{real}"
    );
}

/// Expands a row of the page, whose first three cells are lists, to one row for each combination.
fn expanded(row: &str) -> Vec<String> {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let mut rows = vec![String::from("|")];
    for (column, cell) in cells.iter().enumerate() {
        let values: Vec<&str> = match column {
            0..3 => cell.split(", ").collect(),
            _ => vec![cell],
        };
        rows = rows
            .iter()
            .flat_map(|left| values.iter().map(move |value| format!("{left} {value} |")))
            .collect();
    }
    rows
}

#[test]
fn every_state_and_why_is_documented() {
    use pathproof_facts::cause::Why;
    for state in State::ALL {
        assert!(
            BEHAVIOUR.contains(&format!("| `{}` |", state.name())),
            "{}",
            state.name()
        );
    }
    for why in Why::ALL {
        assert!(
            BEHAVIOUR.contains(&format!("| `{}` |", why.name())),
            "{}",
            why.name()
        );
    }
}

fn proven() -> Vec<FamilyVerdict> {
    vec![
        family(Family::V4, State::Proven, Some(Mono(1_500_000_000))),
        family(Family::V6, State::Proven, Some(Mono(1_000_120_000))),
    ]
}

const NOW: Wall = Wall(1_795_305_602_250_000_000);

#[test]
fn a_sound_body_is_that_of_kube_proxy() {
    let verdict = verdict(proven(), Eligibility::Eligible);
    let healthz = first(
        Endpoint::Healthz,
        &verdict,
        UnknownPolicy::Open,
        Enforcement::Enforce,
    );
    assert_eq!(healthz.status, 200);
    assert_eq!(
        healthz.body(NOW, NOW),
        "{\"lastUpdated\":\"2026-11-22T00:00:02.25Z\",\"currentTime\":\"2026-11-22T00:00:02.25Z\",\
         \"nodeEligible\":true,\"healthy\":true,\"status\":{\
         \"IPv4\":{\"lastUpdated\":\"2026-11-22T00:00:00.5Z\",\"healthy\":true},\
         \"IPv6\":{\"lastUpdated\":\"2026-11-22T00:00:00.00012Z\",\"healthy\":true}}}"
    );
    let livez = first(
        Endpoint::Livez,
        &verdict,
        UnknownPolicy::Open,
        Enforcement::Enforce,
    );
    assert_eq!(
        livez.body(NOW, NOW),
        "{\"lastUpdated\":\"2026-11-22T00:00:02.25Z\",\"currentTime\":\"2026-11-22T00:00:02.25Z\",\
         \"healthy\":true,\"status\":{\
         \"IPv4\":{\"lastUpdated\":\"2026-11-22T00:00:00.5Z\",\"healthy\":true},\
         \"IPv6\":{\"lastUpdated\":\"2026-11-22T00:00:00.00012Z\",\"healthy\":true}}}"
    );
}

#[test]
fn a_broken_family_is_named_and_the_last_update_is_the_latest() {
    let mut families = proven();
    families[1] = family(Family::V6, State::Broken, families[1].last_proof);
    let verdict = verdict(families, Eligibility::Eligible);
    let healthz = first(
        Endpoint::Healthz,
        &verdict,
        UnknownPolicy::Open,
        Enforcement::Enforce,
    );
    assert_eq!(healthz.status, 503);
    assert_eq!(
        healthz.body(NOW, NOW),
        "{\"lastUpdated\":\"2026-11-22T00:00:00.5Z\",\"currentTime\":\"2026-11-22T00:00:02.25Z\",\
         \"nodeEligible\":true,\"healthy\":false,\"status\":{\
         \"IPv4\":{\"lastUpdated\":\"2026-11-22T00:00:00.5Z\",\"healthy\":true},\
         \"IPv6\":{\"lastUpdated\":\"2026-11-22T00:00:00.00012Z\",\"healthy\":false}}}"
    );
}

#[test]
fn a_leaving_node_has_a_healthy_datapath() {
    let verdict = verdict(proven()[..1].to_vec(), tainted());
    let healthz = first(
        Endpoint::Healthz,
        &verdict,
        UnknownPolicy::Open,
        Enforcement::Enforce,
    );
    assert_eq!((healthz.status, healthz.would_fail), (503, false));
    assert_eq!(
        healthz.body(NOW, NOW),
        "{\"lastUpdated\":\"2026-11-22T00:00:00.5Z\",\"currentTime\":\"2026-11-22T00:00:02.25Z\",\
         \"nodeEligible\":false,\"healthy\":true,\"status\":{\
         \"IPv4\":{\"lastUpdated\":\"2026-11-22T00:00:00.5Z\",\"healthy\":true}}}"
    );
}

#[test]
fn without_a_proof_the_time_is_gos_zero_and_an_empty_status_is_omitted() {
    let starting = verdict(
        vec![family(Family::V4, State::Starting, None)],
        Eligibility::Eligible,
    );
    let healthz = first(
        Endpoint::Healthz,
        &starting,
        UnknownPolicy::Open,
        Enforcement::Enforce,
    );
    assert_eq!(
        healthz.body(NOW, NOW),
        "{\"lastUpdated\":\"0001-01-01T00:00:00Z\",\"currentTime\":\"2026-11-22T00:00:02.25Z\",\
         \"nodeEligible\":true,\"healthy\":false,\"status\":{\
         \"IPv4\":{\"lastUpdated\":\"0001-01-01T00:00:00Z\",\"healthy\":false}}}"
    );
    let empty = verdict(Vec::new(), Eligibility::Eligible);
    let livez = first(
        Endpoint::Livez,
        &empty,
        UnknownPolicy::Closed,
        Enforcement::Enforce,
    );
    assert_eq!(livez.status, 503);
    assert_eq!(
        livez.body(NOW, NOW),
        "{\"lastUpdated\":\"0001-01-01T00:00:00Z\",\"currentTime\":\"2026-11-22T00:00:02.25Z\",\
         \"healthy\":false}"
    );
}

#[rstest]
#[case::one_unknown_beside_proven([State::Proven, State::Unknown], 200)]
#[case::both_unknown([State::Unknown, State::Unknown], 503)]
#[case::one_unknown_beside_starting([State::Starting, State::Unknown], 200)]
#[case::one_unknown_beside_broken([State::Broken, State::Unknown], 503)]
fn the_closed_policy_answers_503_for_unknown(#[case] states: [State; 2], #[case] status: u16) {
    let [four, six] = states;
    let families = vec![
        family(Family::V4, four, None),
        family(Family::V6, six, None),
    ];
    let verdict = verdict(families, Eligibility::Eligible);
    let livez = first(
        Endpoint::Livez,
        &verdict,
        UnknownPolicy::Closed,
        Enforcement::Enforce,
    );
    assert_eq!(livez.status, status);
}

/// The datapath is already served as healthy: only /healthz waits until the node has left Starting.
#[rstest]
#[case(Endpoint::Healthz, Enforcement::Enforce, 503, false, true)]
#[case(Endpoint::Healthz, Enforcement::Audit, 200, true, true)]
#[case(Endpoint::Livez, Enforcement::Enforce, 200, true, false)]
#[case(Endpoint::Livez, Enforcement::Audit, 200, true, false)]
fn only_healthz_answers_503_during_a_start(
    #[case] endpoint: Endpoint,
    #[case] enforcement: Enforcement,
    #[case] status: u16,
    #[case] healthy: bool,
    #[case] would_fail: bool,
) {
    let verdict = verdict(
        vec![family(Family::V6, State::Starting, None)],
        Eligibility::Eligible,
    );
    let served = Served {
        healthy: true,
        families: [true; FAMILIES],
    };
    let waits = verdict.state == State::Starting;
    let refuses = refuses(enforcement);
    let given_of = |served| answer(endpoint, &verdict, served, waits, true, refuses, &ANCHOR);
    let given = given_of(&served);
    assert_eq!((given.status, given.healthy), (status, healthy));
    assert_eq!(given.would_fail, would_fail);
    assert_eq!(given.families[0].healthy, healthy);
    // A family that is not healthy is listed, whatever the node's state.
    let served = Served {
        families: [true, false],
        ..served
    };
    let given = given_of(&served);
    assert_eq!(given.families[0].healthy, enforcement == Enforcement::Audit);
}

fn any_state() -> impl Strategy<Value = State> {
    prop::sample::select(State::ALL.to_vec())
}

fn any_eligibility() -> impl Strategy<Value = Eligibility> {
    let all = vec![
        Eligibility::Eligible,
        Eligibility::Deleting,
        tainted(),
        Eligibility::NeverSeen,
    ];
    prop::sample::select(all)
}

fn any_policy() -> impl Strategy<Value = UnknownPolicy> {
    prop::sample::select(vec![UnknownPolicy::Open, UnknownPolicy::Closed])
}

fn any_enforcement() -> impl Strategy<Value = Enforcement> {
    prop::sample::select(vec![Enforcement::Enforce, Enforcement::Audit])
}

/// As in kube-proxy 1.36: a node without endpoints of the Service must not get its connections.
#[rstest]
#[case::has_endpoints(2, true, 200)]
#[case::has_one(1, true, 200)]
#[case::has_none(0, true, 503)]
#[case::is_broken(2, false, 503)]
fn the_answer_for_a_service(#[case] endpoints: u32, #[case] healthy: bool, #[case] status: u16) {
    let port = HealthPort {
        service: ObjectName::new("shop", "web"),
        local: [Some(endpoints), None],
    };
    let answer = of_service(&port, Family::V4, healthy).unwrap();
    assert_eq!((answer.status, answer.endpoints), (status, endpoints));
    let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    let expected = serde_json::json!({
        "service": { "namespace": "shop", "name": "web" },
        "localEndpoints": endpoints,
        "serviceProxyHealthy": healthy,
    });
    assert_eq!(body, expected);
    assert_eq!(
        of_service(&port, Family::V6, healthy),
        None,
        "not served in it"
    );
}

proptest! {
    #[test]
    fn livez_ignores_the_nodes_eligibility(
        states in [any_state(), any_state()],
        nodes in [any_eligibility(), any_eligibility()],
        policy in any_policy(),
        enforcement in any_enforcement(),
    ) {
        let [four, six] = states;
        let families = vec![family(Family::V4, four, None), family(Family::V6, six, None)];
        let [one, other] =
            nodes.map(|node| first(Endpoint::Livez, &verdict(families.clone(), node), policy, enforcement));
        prop_assert_eq!(&one, &other);
        prop_assert_eq!(one.node_eligible, None);
    }

    #[test]
    fn audit_never_fails_the_datapath(
        states in [any_state(), any_state()], node in any_eligibility(), policy in any_policy(),
    ) {
        let [four, six] = states;
        let families = vec![family(Family::V4, four, None), family(Family::V6, six, None)];
        let verdict = verdict(families, node);
        for endpoint in [Endpoint::Healthz, Endpoint::Livez] {
            let held = first(endpoint, &verdict, policy, Enforcement::Audit);
            prop_assert!(held.healthy && held.families.iter().all(|family| family.healthy));
            prop_assert_eq!(held.status == 200, held.node_eligible != Some(false));
        }
    }

    /// A 503 has its reason in the body, a 200 has none; and the body is JSON.
    #[test]
    fn status_and_body_agree(
        states in [any_state(), any_state()],
        node in any_eligibility(),
        policy in any_policy(),
        enforcement in any_enforcement(),
        proof in prop::option::of(any::<u64>().prop_map(Mono)),
        now in any::<i64>().prop_map(Wall),
    ) {
        let [four, six] = states;
        let families = vec![family(Family::V4, four, proof), family(Family::V6, six, None)];
        let verdict = verdict(families, node);
        for endpoint in [Endpoint::Healthz, Endpoint::Livez] {
            let given = first(endpoint, &verdict, policy, enforcement);
            let body: serde_json::Value = serde_json::from_str(&given.body(now, now)).unwrap();
            let good = body["healthy"] == true && body["nodeEligible"] != false;
            prop_assert_eq!(given.status, if good { 200 } else { 503 });
            let families = [&body["status"]["IPv4"]["healthy"], &body["status"]["IPv6"]["healthy"]];
            prop_assert_eq!(body["healthy"] == true, families.iter().all(|healthy| **healthy == true));
        }
    }
}
