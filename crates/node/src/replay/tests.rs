//! A recording replays to the same verdicts, and other files are rejected with a sentence.

mod recordings;

use std::io::Read as _;
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use pathproof_facts::cause::State;
use pathproof_facts::cluster::{NodeFacts, ObjectName};
use pathproof_facts::limits::Limits;
use pathproof_facts::switches::Enforcement;
use pathproof_facts::trace::ProbePath;
use pathproof_judge::answer::UnknownPolicy;
use pathproof_judge::eligibility::TerminatingMarks;
use pathproof_judge::verdict::CountedFamilies;
use pathproof_plan::expect::sentinel::{Sentinel, SentinelFamily, SentinelPort, SentinelRule};
use pathproof_wire::evidence::OUTCOMES;
use pathproof_wire::probe::Stage;
use pathproof_wire::service::{Family, FrontendKind, SourceClass};
use pathproof_witness::coverage::{Hook, Hooks};
use pathproof_witness::evidence::{CountDelta, Place, Success};
use pathproof_witness::testing::traces::{passed, stuck, tcp};

use super::*;
use crate::effect::WriteEffect;
use crate::event::{KernelSample, KernelState, SentinelEvent, ViewFacts};
use crate::record::{EventLine, RING, compress};
use crate::{Settings, Start};

fn ms(ms: u64) -> Mono {
    Mono(ms * 1_000_000)
}

fn settings() -> Settings {
    Settings {
        node: "node-1".to_owned(),
        limits: Limits::default(),
        terminating: TerminatingMarks::default(),
        unknown_policy: UnknownPolicy::Open,
        enforcement: Enforcement::Enforce,
        enforce_nodes: None,
        families: CountedFamilies::default(),
        flap_dwell: Duration::from_secs(10),
        fleet_brake: None,
        leaving_brake: None,
        drain_ignore: Default::default(),
        watches_services: true,
        own_ports: Vec::new(),
        sentinel: Some(SentinelRule {
            service: ObjectName::new("pathproof", "pathproof-sentinel"),
            echo: ["198.18.0.2".parse().unwrap(), "2001:2::2".parse().unwrap()],
            clients: Vec::new(),
            pods: Vec::new(),
        }),
        rereads: false,
    }
}

/// A node with an uptime of one hour, and its published verdicts.
struct Scene {
    node: Node,
    now: u64,
    updates: Vec<VerdictUpdate>,
    saves: usize,
}

impl Scene {
    fn new() -> Self {
        let start = Start {
            now: ms(3_600_000),
            wall: Wall(1_795_266_000_000_000_000),
            ..Start::default()
        };
        let mut scene = Self {
            node: Node::new(settings(), start),
            now: 3_600_000,
            updates: Vec::new(),
            saves: 0,
        };
        scene.feed(Event::Hooks(Hooks {
            devices: vec![Hook {
                device: "eth0".to_owned(),
                uplink: true,
                attached: true,
                first: true,
                problem: None,
            }],
            left_out: 0,
            unseen: 0,
            ..Hooks::default()
        }));
        scene.feed(Event::Facts(Box::new(facts())));
        scene.feed(Event::Sentinel(SentinelEvent::Ready));
        scene.feed(Event::Sentinel(SentinelEvent::Started(None)));
        scene
    }

    fn feed(&mut self, event: Event) {
        for effect in self.node.step(event, ms(self.now)) {
            match effect {
                Effect::Publish(update) => self.updates.push(*update),
                Effect::Write(WriteEffect::Recording) => self.saves += 1,
                _ => {}
            }
        }
    }

    /// Four probes and samples a second, for this number of seconds.
    fn run(&mut self, seconds: u64, works: bool) {
        for _ in 0..seconds * 4 {
            self.now += 250;
            for path in [ProbePath::OffCluster, ProbePath::NodePort, ProbePath::Host] {
                let sent = ms(self.now - 210);
                let lane = tcp(path);
                let trace = match works {
                    true => passed(lane, sent),
                    false => {
                        let mut trace = stuck(lane, sent, Some(Stage::Arrived));
                        trace.sightings.leaked = true;
                        trace
                    }
                };
                self.feed(Event::Trace(Box::new(trace)));
            }
            self.feed(Event::Sentinel(SentinelEvent::Kernel(KernelState {
                sound_since: Some(ms(self.now - 1)),
                forwarding: [Some(true); 2],
                ..KernelState::default()
            })));
            self.feed(Event::Sample(Box::default()));
        }
    }

    fn states(&self) -> Vec<State> {
        let mut states: Vec<_> = self
            .updates
            .iter()
            .map(|update| update.verdict.state)
            .collect();
        states.dedup();
        states
    }
}

fn facts() -> ViewFacts {
    let port = SentinelPort {
        port: 80,
        node_port: Some(30_080),
        generation: 20_001,
    };
    ViewFacts {
        synced: true,
        node: Some(NodeFacts {
            name: "node-1".into(),
            addresses: vec!["10.0.0.5".parse().unwrap()],
            ..NodeFacts::default()
        }),
        families: [true, false],
        sentinel: Sentinel {
            exists: true,
            altered: None,
            families: [
                Some(SentinelFamily {
                    cluster_ip: "10.96.0.53".parse().unwrap(),
                    tcp: port,
                    udp: None,
                    node_address: Some("10.0.0.5".parse().unwrap()),
                    echo: "198.18.0.2:20001".parse().unwrap(),
                }),
                None,
            ],
            ..Sentinel::default()
        },
        ..ViewFacts::default()
    }
}

/// Broken for ten seconds, then repaired.
fn incident() -> Scene {
    let mut scene = Scene::new();
    scene.run(30, true);
    scene.run(10, false);
    scene.run(10, true);
    let states = scene.states();
    assert!(states.contains(&State::Broken), "{states:?}");
    assert_eq!(states.last(), Some(&State::Proven), "{states:?}");
    assert_eq!(scene.saves, 2, "into 503 and out of it");
    scene
}

/// The changes among the verdicts and status codes that the live node published: a replay must have the
/// same.
fn changes(updates: &[VerdictUpdate]) -> Vec<(pathproof_judge::verdict::LastVerdict, u16, u16)> {
    let of = |update: &VerdictUpdate| {
        let answers = &update.answers;
        let short = pathproof_judge::verdict::LastVerdict::of(&update.verdict);
        (short, answers.healthz.status, answers.livez.status)
    };
    let mut changes: Vec<_> = updates.iter().map(of).collect();
    changes.dedup();
    changes
}

#[test]
fn a_replay_is_the_run_bit_for_bit() {
    let scene = incident();
    let replayed = replay(&scene.node.recording(), None).unwrap();
    assert_eq!(replayed.differs, None);
    assert_eq!(replayed.node, "node-1");
    let moments: Vec<VerdictUpdate> = replayed
        .moments
        .iter()
        .map(|moment| moment.update.clone())
        .collect();
    assert_eq!(changes(&moments), changes(&scene.updates));
    let bytes = |node: &Node| serde_json::to_string(node.judge()).unwrap();
    assert_eq!(bytes(&replayed.last), bytes(&scene.node));
    let last = replayed.latest.map(|moment| moment.update.verdict);
    assert_eq!(
        last.as_ref(),
        scene.updates.last().map(|update| &update.verdict)
    );
}

#[test]
fn a_replay_stops_at_the_requested_time() {
    let scene = incident();
    let file = scene.node.recording();
    let whole = replay(&file, None).unwrap();
    let broken = whole
        .moments
        .iter()
        .find(|moment| moment.update.answers.livez.status == 503);
    let at = broken.unwrap().at;
    let part = replay(&file, Some(at)).unwrap();
    assert_eq!(part.span.1, at);
    assert_eq!(
        part.moments.last().unwrap().update.verdict.state,
        State::Broken
    );
    assert!(part.events < whole.events);
}

#[test]
fn a_different_answer_than_the_recorded_one_is_reported() {
    let scene = incident();
    let file = scene.node.recording();
    let mut text = String::new();
    MultiGzDecoder::new(&file[..])
        .read_to_string(&mut text)
        .unwrap();
    let forged = text.replacen("\"livez\":503", "\"livez\":200", 1);
    assert_ne!(forged, text);
    assert!(
        replay(&compress(forged.as_bytes()), None)
            .unwrap()
            .differs
            .is_some()
    );
    assert_eq!(
        replay(&compress(text.as_bytes()), None).unwrap().differs,
        None
    );
}

#[test]
fn the_ring_is_bounded_and_what_is_left_replays() {
    let mut scene = Scene::new();
    for round in 0..40 {
        scene.run(20, round % 7 != 3);
        assert!(scene.node.recording().len() <= RING, "round {round}");
    }
    // An hour of events does not fit, so the oldest parts are gone.
    let replayed = replay(&scene.node.recording(), None).unwrap();
    assert_eq!(replayed.differs, None);
    let last = replayed.latest.map(|moment| moment.update.verdict);
    assert_eq!(
        last.as_ref(),
        scene.updates.last().map(|update| &update.verdict)
    );
}

#[test]
fn events_of_many_services_fill_the_ring_and_no_more() {
    let mut scene = Scene::new();
    for round in 0..120u32 {
        scene.now += 250;
        let counts = (0..2_000).map(|service| CountDelta {
            service,
            class: SourceClass::Pod,
            counts: std::array::from_fn::<u32, OUTCOMES, _>(|i| (round * 31 + i as u32) ^ service),
            lost: 0,
        });
        scene.feed(Event::Sample(Box::new(KernelSample {
            counts: counts.collect(),
            ..KernelSample::default()
        })));
        assert!(scene.node.recording().len() <= RING, "round {round}");
    }
    assert_eq!(replay(&scene.node.recording(), None).unwrap().differs, None);
}

#[test]
fn redacted_recordings_come_to_the_same() {
    let scene = incident();
    let file = scene.node.recording();
    let redacted = redact(&file, &mut Pseudonyms::default()).unwrap();
    // The redacted file is compressed as a whole, not line by line.
    assert!(
        redacted.len() < 2 * file.len(),
        "{} of {}",
        redacted.len(),
        file.len()
    );
    let mut text = String::new();
    MultiGzDecoder::new(&redacted[..])
        .read_to_string(&mut text)
        .unwrap();
    for address in ["10.96.0.53", "10.0.0.5", "198.18.0.2:"] {
        let kept = text.contains(&format!("\"{address}"));
        assert!(!kept || address.starts_with("198.18"), "{address}");
    }
    let (before, after) = (
        replay(&file, None).unwrap(),
        replay(&redacted, None).unwrap(),
    );
    assert_eq!(after.differs, None);
    let short = |replayed: &Replayed| {
        let updates: Vec<VerdictUpdate> = replayed
            .moments
            .iter()
            .map(|moment| moment.update.clone())
            .collect();
        changes(&updates)
    };
    assert_eq!(short(&after), short(&before));
}

#[test]
fn files_that_are_no_recording_are_rejected_with_a_sentence() {
    let file = incident().node.recording();
    let why = |bytes: &[u8]| replay(bytes, None).err().map(|error| error.to_string());
    let foreign = Some(
        "this is not a pathproof recording: it is not gzip, or does not begin with a \
         recording's header"
            .to_owned(),
    );
    assert_eq!(why(b""), foreign);
    assert_eq!(why(b"hello"), foreign);
    assert_eq!(why(&compress(b"{}\n")), foreign);
    let line = serde_json::to_string(&EventLine::At(ms(1), &Event::Tick)).unwrap() + "\n";
    assert_eq!(
        why(&compress(line.as_bytes())),
        foreign,
        "the file begins in the middle"
    );
    let cut = why(&file[..file.len() / 2]).unwrap();
    assert!(cut.contains("cut off after line"), "{cut}");
    let newer = compress(b"{\"part\":{\"recording\":9,\"agent\":\"7.1.0\",\"judge\":null}}\n");
    let newer = why(&newer).unwrap();
    assert!(
        newer.contains("format 9") && newer.contains("7.1.0"),
        "{newer}"
    );
    let mut damaged = file.clone();
    damaged.extend(compress(b"{\"at\":[1,\"nonsense\"]}\n"));
    let damaged = why(&damaged).unwrap();
    assert!(damaged.contains("cannot be read"), "{damaged}");
}

/// A sample without successes has no field for them.
#[test]
fn successes_are_recorded() {
    let success = Success {
        family: Family::V6,
        class: SourceClass::External,
        kind: FrontendKind::NodePort,
        place: Place::Remote,
        at: ms(3_601_000),
        answered: Some(ms(3_600_900)),
        data_answered: Some((ms(3_600_900), "192.0.2.7".parse().unwrap())),
        client: Some(([192, 0, 2, 7].into(), 3)),
    };
    let sample = KernelSample {
        successes: vec![success],
        ..KernelSample::default()
    };
    let text = serde_json::to_string(&sample).unwrap();
    let read: KernelSample = serde_json::from_str(&text).unwrap();
    assert_eq!(read.successes, [success]);
    let empty = serde_json::to_value(KernelSample::default()).unwrap();
    assert_eq!(empty.get("successes"), None);
    let read: KernelSample = serde_json::from_value(empty).unwrap();
    assert_eq!(read.successes, []);
}
