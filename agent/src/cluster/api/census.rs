//! Follows the conditions of all Nodes, so that the rotator can count failing nodes. To save memory, only the
//! fields that the rotator needs are stored.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use pathproof_facts::fleet_report::FleetReport;
use pathproof_facts::time::{Mono, Wall};
use pathproof_judge::eligibility::is_final;
use pathproof_report::condition::Reason;
use pathproof_rotator::ConditionSeen;
use pathproof_rotator::census::Census;
use pathproof_rotator::domains::Labels;
use pathproof_rotator::withdrawal::{Excluded, LABEL, Step, WithdrawalLimits};
use pathproof_shared::listed;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::Requests;
use super::follow::{Follower, Pace};
use crate::cluster::convert::shuts_down;
use crate::cluster::facts::Object;
use crate::cluster::store::Event;

/// All Nodes, followed until this value is dropped.
#[derive(Debug)]
pub struct Nodes {
    known: Arc<Known>,
    _task: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// The fields of all Nodes, and the current problem of the watch, if any.
    census: Mutex<(Census, Option<String>)>,
    changed: Notify,
}

impl Known {
    /// Ignores a poisoned lock: the value is consistent even if a thread panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, (Census, Option<String>)> {
        self.census.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows all Nodes. `clocks` reads the wall clock and the monotonic clock. `ours` has the sentinel's
/// addresses, which no Node should use. Values of the labels `by` are failure domains. Must be called within a
/// tokio runtime.
pub fn follow_nodes(
    client: Client,
    clocks: fn() -> (Wall, Mono),
    ours: Vec<IpAddr>,
    by: Vec<Arc<str>>,
) -> Nodes {
    let known = Arc::new(Known::default());
    let taken = Arc::clone(&known);
    let mut task = JoinSet::new();
    task.spawn(async move {
        let (events, mut received) = mpsc::channel(16);
        let follower = Follower::new(client, Requests::nodes(), Pace::default(), events);
        let take = async {
            while let Some(event) = received.recv().await {
                if take(&mut taken.lock(), event, clocks(), &ours, &by) {
                    taken.changed.notify_one();
                }
            }
        };
        tokio::join!(follower.run(), take);
    });
    Nodes { known, _task: task }
}

impl Nodes {
    pub fn number(&self) -> u32 {
        self.known.lock().0.nodes()
    }

    /// The count of nodes that the sentinel's slices should have, if it is known. See [`Census::publish`].
    pub fn publish(&self, anyway: bool, wall: Wall, now: Mono) -> Option<FleetReport> {
        let (census, silent) = &mut *self.known.lock();
        census.publish(silent.is_some(), anyway, wall, now).cloned()
    }

    /// Nodes to withdraw from load balancers, and nodes to return to them. See [`Census::withdrawals`].
    pub fn withdrawals(&self, limits: WithdrawalLimits, now: Mono) -> Vec<Step> {
        let (census, silent) = &*self.known.lock();
        census.withdrawals(limits, silent.is_some(), now)
    }

    pub fn withdrawn(&self) -> usize {
        self.known.lock().0.withdrawn()
    }

    /// Labels of failure domains for which the published count has no room, as text; `None` if it has all.
    pub fn left_out(&self) -> Option<String> {
        let known = self.known.lock();
        let labels = Vec::from_iter(known.0.left_out()).join(", ");
        (!labels.is_empty()).then_some(labels)
    }

    /// The current problem of the watch, as a sentence; `None` if it works.
    pub fn trouble(&self) -> Option<String> {
        self.known.lock().1.clone()
    }

    /// Waits until a node starts or stops failing.
    pub async fn changed(&self) {
        self.known.changed.notified().await;
    }
}

/// Handles an event; returns whether the number of failing nodes may have changed.
fn take(
    (census, silent): &mut (Census, Option<String>),
    event: Event,
    at: (Wall, Mono),
    ours: &[IpAddr],
    by: &[Arc<str>],
) -> bool {
    match event {
        Event::ListBegins(_) => census.begin_list(),
        Event::ListEnds(_) => {
            census.end_list();
            return true;
        }
        Event::There(Ok(Object::Node(node))) => {
            let changed = put(census, &node, at);
            let name = node.metadata.name.as_deref().unwrap_or_default();
            census.set_in_use(name, use_of(&node, ours));
            census.set_domains(name, domains_of(&node, by));
            return changed;
        }
        Event::Gone(_, metadata) => census.remove(metadata.name.as_deref().unwrap_or_default()),
        Event::Trouble(_, trouble) => *silent = trouble.map(|trouble| trouble.to_string()),
        // A Node that cannot be parsed keeps its previous condition.
        Event::There(_) => {}
    }
    false
}

fn put(census: &mut Census, node: &Node, (wall, now): (Wall, Mono)) -> bool {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref());
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let condition = listed::condition(conditions.unwrap_or_default());
    let condition = condition.map(|condition| ConditionSeen {
        message: String::new(),
        ..condition
    });
    let changed = census.put(name, condition.as_ref(), wall, now);
    let labels = node.metadata.labels.as_ref();
    let label = labels.and_then(|labels| labels.get(LABEL));
    let version = node.metadata.resource_version.as_deref();
    let excluded = Excluded::of(label.map(String::as_str));
    census.exclude(name, excluded, version.unwrap_or_default());
    // Nodes that go in any case are not limited, so they do not count.
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_deref());
    let mut taints = taints.unwrap_or_default().iter();
    let counts_as_leaving = node.metadata.deletion_timestamp.is_none()
        && !taints.any(|taint| is_final(&taint.key))
        && !conditions.unwrap_or_default().iter().any(shuts_down)
        && condition.is_some_and(|condition| condition.reason == Reason::Leaving.name());
    changed | census.set_leaving(name, counts_as_leaving)
}

fn domains_of(node: &Node, by: &[Arc<str>]) -> Labels {
    let labels = node.metadata.labels.as_ref();
    let value_of = |label: &Arc<str>| labels?.get(&**label);
    let domains = by.iter().filter_map(|label| {
        let value = value_of(label)?;
        Some((Arc::clone(label), Box::from(value.as_str())))
    });
    domains.collect()
}

/// A sentence if the Node uses an address of the sentinel. The Node's name needs no escaping, because it
/// follows DNS rules.
fn use_of(node: &Node, ours: &[IpAddr]) -> Option<String> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let addresses = (node.status.iter()).flat_map(|status| status.addresses.iter().flatten());
    let mut addresses = addresses.filter_map(|entry| entry.address.parse().ok());
    if let Some(address) = addresses.find(|address| ours.contains(address)) {
        return Some(format!(
            "the sentinel's address {address} is an address of Node {name}"
        ));
    }
    let cidrs = node.spec.iter().flat_map(|spec| {
        let all = spec.pod_cidrs.iter().flatten();
        all.chain(&spec.pod_cidr)
    });
    let mut cidrs = cidrs.filter_map(|text| text.parse::<IpNet>().ok());
    cidrs.find_map(|cidr| {
        let address = ours.iter().find(|address| cidr.contains(*address))?;
        Some(format!(
            "the sentinel's address {address} is in podCIDR {cidr} of Node {name}"
        ))
    })
}
