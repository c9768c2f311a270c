//! An arbitrary state file is either refused or restored. A restored state is unchanged after it is written
//! and read again. At any clock time, the agent continues from it with a verdict that gives a reason.

use std::time::Duration;

use pathproof_facts::cause::State;
use pathproof_facts::directory::{Directory, ServiceInfo};
use pathproof_facts::limits::Limits;
use pathproof_facts::switches::Enforcement;
use pathproof_facts::time::{Anchor, Mono, Wall};
use pathproof_judge::answer::{Endpoint, Refuses, UnknownPolicy, answer, is_eligible};
use pathproof_judge::brake::Brake;
use pathproof_judge::damping::Damping;
use pathproof_judge::verdict::{CountedFamilies, Inputs, verdict};
use pathproof_node::effect::PersistedState;
use pathproof_wire::service::Family;
use pathproof_witness::evidence::{ObserverHealth, Sample};
use pathproof_witness::ledger::Ledger;

pub(crate) fn check(bytes: &[u8]) -> bool {
    let Ok(known) = serde_json::from_slice::<PersistedState>(bytes) else {
        return false;
    };
    let text = serde_json::to_vec(&known).expect("what was read is written");
    let again: PersistedState = serde_json::from_slice(&text).expect("what was written is read");
    assert_eq!(again, known);
    // Before, at and long after the time of writing.
    let written = known.written;
    for now in [Mono(0), written, written.plus(Duration::from_secs(400))] {
        for observed in [false, true] {
            go_on(&known, observed, now);
        }
    }
    true
}

fn go_on(known: &PersistedState, observed: bool, now: Mono) {
    let mut ledger = Ledger::restore(Limits::default(), known.ledger.clone(), observed, now);
    let mut damping = Damping::restore(Duration::from_secs(10), known.damping.clone());
    let mut brake = Brake::restore(Some(20), "node", known.brake);
    let inputs = Inputs {
        eligibility: known.eligibility.clone(),
        view_synced: observed,
        families: [observed, true],
        sentinel_exists: false,
        booted: Mono(0),
        pods_expected: [false; 2],
        network: None,
        uplinks: Vec::new(),
        usual_lag: None,
        counted: CountedFamilies::Used,
        clients_unseen: false,
    };
    let anchor = Anchor {
        mono: now,
        wall: Wall(1_795_266_000_000_000_000),
    };
    for round in 0..3 {
        let now = now.plus(Duration::from_millis(250 * round));
        let judged = verdict(&ledger, &inputs, now).following(Some(&known.verdict));
        assert!(!judged.reason().is_empty() && judged.since <= now.max(known.verdict.since));
        let served = damping.step(&judged, UnknownPolicy::Open);
        let held = brake.step(!served.healthy, observed, now);
        let refuses = match (known.switches.audit(Enforcement::Enforce), held) {
            (Some(_), _) => Refuses::Nothing,
            (None, Some(_)) => Refuses::BootOnly,
            (None, None) => Refuses::All,
        };
        for endpoint in [Endpoint::Healthz, Endpoint::Livez] {
            let eligible = is_eligible(&judged.eligibility, UnknownPolicy::Open);
            let waits = judged.state == State::Starting;
            let said = answer(
                endpoint, &judged, &served, waits, eligible, refuses, &anchor,
            );
            let now = anchor.wall_of(now);
            let body = said.body(now, now);
            serde_json::from_str::<serde_json::Value>(&body).expect("an answer is JSON");
        }
        ledger.absorb(&look(now), &Names);
        ledger.sentinel.looked(now);
    }
    serde_json::to_string(&ledger.memory()).expect("what is known is written");
}

fn look(at: Mono) -> Sample {
    Sample {
        at,
        observer: ObserverHealth {
            attached: 2,
            wanted: 2,
            ..ObserverHealth::default()
        },
        ..Sample::default()
    }
}

struct Names;

impl Directory for Names {
    fn service(&self, _: u32) -> Option<ServiceInfo> {
        Some(ServiceInfo {
            endpoints: 2,
            ..ServiceInfo::plain("default", "web", Family::V4)
        })
    }
}
