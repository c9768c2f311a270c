//! One node's row.

use std::time::Duration;

use super::{AgentSeen, ConditionSeen, NodeFacts, NodeSeen, OUT_OF_DATE, Told};
use crate::cause::State;
use crate::condition::{Reason, Status, says_leaving};
use crate::eligibility::{Eligibility, PRESETS};
use crate::explain;
use crate::time::{Anchor, Spoken, Wall};
use crate::verdict::Verdict;

/// Where a row belongs, in the order of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Broken or stale: its traffic is lost.
    Sick,
    /// Not known to be sound.
    Doubtful,
    /// Being removed, which is expected; whatever else it is.
    Leaving,
    /// Proven, and staying.
    Sound,
}

/// What is said of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The verdict's state.
    State(State),
    /// Proven again, and still answered 503 until that lasts.
    Recovering,
    /// The condition is True and does not say of which state.
    Ready,
    /// The condition is False, by a reason that this release does not know.
    NotReady,
    /// The agent does not answer, and no condition says anything.
    NoAnswer,
    /// Nobody keeps the condition any more.
    OutOfDate,
    /// There is no agent.
    NoAgent,
}

impl Judged {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Judged::State(state) => state.name(),
            Judged::Recovering => "recovering",
            Judged::Ready => "ready",
            Judged::NotReady => "not ready",
            Judged::NoAnswer => "no answer",
            Judged::OutOfDate => "out of date",
            Judged::NoAgent => "no agent",
        }
    }

    /// The worst has the most.
    pub fn severity(self) -> u8 {
        match self {
            Judged::State(State::Broken) => 12,
            Judged::State(State::Stale) => 11,
            Judged::NotReady => 10,
            Judged::Recovering => 9,
            Judged::State(State::Degraded) => 8,
            Judged::State(State::Suspect) => 7,
            Judged::NoAnswer => 6,
            Judged::OutOfDate => 5,
            Judged::State(State::Unknown) => 4,
            Judged::NoAgent => 3,
            Judged::State(State::Starting) => 2,
            Judged::Ready => 1,
            Judged::State(State::Proven) => 0,
        }
    }

    fn group(self) -> Group {
        match self {
            Judged::State(State::Broken | State::Stale) | Judged::NotReady | Judged::Recovering => {
                Group::Sick
            }
            Judged::State(State::Proven) | Judged::Ready => Group::Sound,
            _ => Group::Doubtful,
        }
    }
}

/// Whether the node may be sent new connections, apart from its datapath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eligible {
    /// It stays.
    Yes,
    /// It leaves: one word for why, such as a taint's key.
    No(String),
}

/// How well an agent sees.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CoverageSeen {
    /// Interfaces with hooks in both directions.
    pub attached: u32,
    /// That should have them.
    pub wanted: u32,
    /// What is not seen: a sentence each.
    pub losses: Vec<String>,
}

impl CoverageSeen {
    /// Everything is seen.
    pub fn is_full(&self) -> bool {
        self.attached == self.wanted && self.losses.is_empty()
    }
}

/// Who says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The node's agent, asked now.
    Agent,
    /// The Node's condition.
    Condition,
    /// Nobody.
    Nobody,
}

/// The row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The node's name.
    pub node: String,
    /// Where it belongs.
    pub group: Group,
    /// What is said of it.
    pub judged: Judged,
    /// Why, in a word or two; nothing of a node that is proven.
    pub reason: String,
    /// Why, in a sentence, where there is something to tell.
    pub sentence: Option<String>,
    /// Since when: of the state where the agent says it, of the condition's status otherwise.
    pub since: Option<Wall>,
    /// How far the rules lag behind the API, where the agent says it.
    pub lag: Option<Duration>,
    /// How well the agent sees, where it says it.
    pub coverage: Option<CoverageSeen>,
    /// Whether the node stays.
    pub eligible: Eligible,
    /// The verdict has no consequences, as the agent says.
    pub audit: bool,
    /// Who says the verdict.
    pub source: Source,
}

/// Of one node, as of `now`.
pub fn row(facts: &NodeFacts, now: Wall) -> Row {
    let mut row = match (&facts.agent, &facts.node.condition) {
        (AgentSeen::Told(told), _) => of_agent(&facts.node, told),
        (agent, Some(condition)) => of_condition(&facts.node, agent, condition, now),
        (agent, None) => of_nothing(&facts.node, agent),
    };
    if row.eligible != Eligible::Yes {
        row.group = Group::Leaving;
    }
    row
}

fn blank(node: &NodeSeen, judged: Judged, source: Source) -> Row {
    Row {
        node: node.name.clone(),
        group: judged.group(),
        judged,
        reason: String::new(),
        sentence: None,
        since: None,
        lag: None,
        coverage: None,
        eligible: eligible(node),
        audit: false,
        source,
    }
}

fn of_agent(node: &NodeSeen, told: &Told) -> Row {
    let verdict = &told.verdict;
    let judged = match verdict.state {
        State::Proven | State::Degraded if !told.sound => Judged::Recovering,
        state => Judged::State(state),
    };
    let clocks = Anchor {
        mono: verdict.at,
        wall: told.written,
    };
    let mut row = blank(node, judged, Source::Agent);
    row.reason = short(Reason::of(verdict.state, verdict.cause, verdict.why));
    row.sentence = (verdict.state != State::Proven).then(|| verdict.reason());
    row.since = Some(clocks.wall_of(verdict.since));
    row.lag = lag(verdict);
    row.coverage = Some(coverage(verdict));
    row.audit = told.audit;
    match &verdict.eligibility {
        Eligibility::Deleting => row.eligible = Eligible::No("deleted".to_owned()),
        Eligibility::Tainted { taint } => row.eligible = Eligible::No(taint.clone()),
        // The Node as it is now outranks one that the agent has yet to see.
        Eligibility::Eligible | Eligibility::NeverSeen => {}
    }
    row
}

fn of_condition(node: &NodeSeen, agent: &AgentSeen, condition: &ConditionSeen, now: Wall) -> Row {
    let reason = Reason::parse(&condition.reason);
    let age = condition.heartbeat.map(|at| age(at, now));
    let is_old = age.is_none_or(|age| age > OUT_OF_DATE);
    let judged = if is_old {
        Judged::OutOfDate
    } else {
        judged(condition.status, reason)
    };
    let mut row = blank(node, judged, Source::Condition);
    row.since = condition.transition;
    row.reason = match reason {
        Some(reason) => short(reason),
        None => condition.reason.clone(),
    };
    let mut sentences = Vec::new();
    match agent {
        AgentSeen::Silent(why) => sentences.push(why.clone()),
        AgentSeen::Missing => sentences.push("no pod of an agent is on this node".to_owned()),
        _ => {}
    }
    if is_old {
        let since = age.map_or("ever".to_owned(), |age| Spoken(age).to_string());
        sentences.push(format!(
            "nobody has written its condition for {since}; what it said then: {}",
            condition.message
        ));
        row.reason = "no heartbeat".to_owned();
        row.since = condition.heartbeat;
    } else if judged != Judged::State(State::Proven) && judged != Judged::Ready {
        sentences.push(condition.message.clone());
    }
    // What is not asked any more may change unseen.
    if matches!(agent, AgentSeen::Silent(_)) && row.group == Group::Sound {
        row.group = Group::Doubtful;
    }
    row.sentence = (!sentences.is_empty()).then(|| sentences.join("; "));
    let leaves = reason == Some(Reason::Leaving) || says_leaving(&condition.message);
    if leaves && !is_old && row.eligible == Eligible::Yes {
        row.eligible = Eligible::No("leaving".to_owned());
    }
    row
}

fn of_nothing(node: &NodeSeen, agent: &AgentSeen) -> Row {
    let (judged, reason, sentence) = match agent {
        AgentSeen::Silent(why) => (Judged::NoAnswer, "", Some(why.clone())),
        AgentSeen::Missing => (Judged::NoAgent, "", None),
        AgentSeen::Unasked => (Judged::State(State::Unknown), "no condition", None),
        _ => (
            Judged::State(State::Unknown),
            "no condition",
            Some(
                "there is no condition ServiceDatapathReady: no agent runs there, or it does \
                 not publish"
                    .to_owned(),
            ),
        ),
    };
    let mut row = blank(node, judged, Source::Nobody);
    row.reason = reason.to_owned();
    row.sentence = sentence;
    // pathproof is for Linux: nobody is missed elsewhere.
    if let Some(os) = &node.foreign_os {
        row.judged = Judged::NoAgent;
        row.group = Group::Sound;
        row.reason = format!("{os} node");
        row.sentence = None;
    }
    row
}

/// What a condition's status and reason amount to.
fn judged(status: Status, reason: Option<Reason>) -> Judged {
    let by_status = match status {
        Status::True => Judged::Ready,
        Status::False => Judged::NotReady,
        Status::Unknown => Judged::State(State::Unknown),
    };
    match reason {
        None | Some(Reason::Leaving) => by_status,
        Some(Reason::Proven) => Judged::State(State::Proven),
        Some(Reason::Recovering) => Judged::Recovering,
        Some(Reason::Starting) => Judged::State(State::Starting),
        Some(Reason::Stale) => Judged::State(State::Stale),
        Some(Reason::Broken(_)) => Judged::State(State::Broken),
        Some(Reason::Degraded(_)) => Judged::State(State::Degraded),
        Some(Reason::Suspect(_)) => Judged::State(State::Suspect),
        Some(Reason::Unknown(_)) => Judged::State(State::Unknown),
    }
}

/// The cause, in the words of metrics and runbook, with blanks.
fn short(reason: Reason) -> String {
    let word = match reason {
        Reason::Broken(cause) | Reason::Degraded(cause) | Reason::Suspect(cause) => {
            cause.map_or("", |cause| cause.name())
        }
        Reason::Unknown(why) => why.map_or("", |why| why.name()),
        Reason::Stale => "rules too old",
        Reason::Proven | Reason::Recovering | Reason::Starting | Reason::Leaving => "",
    };
    explain::label(word)
}

/// The longest lag of any lane.
fn lag(verdict: &Verdict) -> Option<Duration> {
    let lanes = verdict.families.iter().flat_map(|family| &family.lanes);
    lanes.filter_map(|lane| lane.programming_lag()).max()
}

fn coverage(verdict: &Verdict) -> CoverageSeen {
    let coverage = &verdict.coverage;
    CoverageSeen {
        attached: coverage.attached,
        wanted: coverage.wanted,
        losses: coverage
            .losses
            .iter()
            .map(|loss| loss.sentence.clone())
            .collect(),
    }
}

/// Of the Node alone: deletion, and the taint that always counts.
fn eligible(node: &NodeSeen) -> Eligible {
    if node.deleting {
        return Eligible::No("deleted".to_owned());
    }
    let counts = |key: &&String| PRESETS[0].keys.contains(&key.as_str());
    match node.taints.iter().find(counts) {
        Some(key) => Eligible::No(key.clone()),
        None => Eligible::Yes,
    }
}

/// How long before `now`; zero where it lies ahead, as with clocks that differ.
pub(super) fn age(at: Wall, now: Wall) -> Duration {
    Duration::from_nanos(u64::try_from(now.0.saturating_sub(at.0)).unwrap_or(0))
}
