//! `pathproof fleet`: reads the Nodes of a cluster and asks the agents on them, through the API
//! server.
//!
//! The API server's port-forward reaches an agent's admin port on its node's loopback, so nothing
//! has to be opened for it. Every step but the first may be denied: what is missing is noted, and
//! the rest goes on. What it amounts to is decided in `domain::fleet`.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use kube::Client;
use thiserror::Error;

use agent_core::fleet::{AgentSeen, Ask, NodeFacts, NodeSeen, to_ask};
use agent_core::time::Wall;

mod agent;
mod error;
mod forward;
mod lists;
mod websocket;

pub use agent::{AgentError, Page};
pub use error::{FleetError, Right};
pub use forward::ForwardError;

use forward::Door;
use lists::PodSeen;

/// Where the agents are, and how patient we are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Their namespace.
    pub namespace: String,
    /// Their admin port.
    pub port: u16,
    /// How long one request may take.
    pub timeout: Duration,
}

/// What is wanted of a whole cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Nodes, by label.
    pub selector: Option<String>,
    /// Which agents are asked.
    pub ask: Ask,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surveyed {
    /// By node.
    pub nodes: Vec<NodeFacts>,
    /// What is not known, why, and what would help: a sentence each.
    pub notes: Vec<String>,
}

/// How far a survey is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many Nodes were read.
    Nodes(usize),
    /// So many agents answered or did not, of so many.
    Agents(usize, usize),
}

/// Agents that are asked at a time: each holds a connection to the API server and one of its to a
/// kubelet.
const AT_A_TIME: usize = 16;

/// A cluster that can be asked.
pub struct Cluster {
    client: Client,
    reach: Reach,
}

impl Cluster {
    /// By that client.
    pub fn new(client: Client, reach: Reach) -> Self {
        Self { client, reach }
    }

    /// Reads all Nodes, and asks those agents that are worth it.
    ///
    /// # Errors
    /// The Nodes cannot be listed. Whatever else cannot be had is a note.
    pub async fn survey(
        &self,
        survey: &Survey,
        now: Wall,
        progress: impl Fn(Progress),
    ) -> Result<Surveyed, FleetError> {
        let selector = survey.selector.as_deref();
        let read = |read| progress(Progress::Nodes(read));
        let nodes = lists::nodes(&self.client, selector, self.reach.timeout, read).await?;
        let asked = to_ask(survey.ask, &nodes, now);
        let facts = |node: NodeSeen| NodeFacts {
            node,
            agent: AgentSeen::Unsought,
        };
        let mut found = Surveyed {
            nodes: nodes.into_iter().map(facts).collect(),
            notes: Vec::new(),
        };
        if survey.ask != Ask::None && !found.nodes.is_empty() {
            self.ask(&mut found, survey.ask, &asked, &progress).await;
        }
        Ok(found)
    }

    /// The report of one node's agent.
    ///
    /// # Errors
    /// There is no agent there, it cannot be reached, or it has nothing to say.
    pub async fn report(&self, node: &str) -> Result<Page, NodeError> {
        let Reach {
            namespace, timeout, ..
        } = &self.reach;
        let pods = lists::pods(&self.client, namespace, Some(node), *timeout).await?;
        let pod = pods.into_iter().max_by_key(PodSeen::promise);
        let Some(pod) = pod else {
            return Err(NodeError::NoAgent {
                node: node.to_owned(),
                namespace: namespace.clone(),
            });
        };
        if !pod.running {
            return Err(NodeError::NotRunning {
                pod: pod.name,
                looks: pod.looks,
            });
        }
        self.page(&pod.name).await.map_err(|source| match source {
            AgentError::Forward(ForwardError::Fleet(error)) => NodeError::Fleet(error),
            source => NodeError::Silent {
                pod: pod.name.clone(),
                source,
            },
        })
    }

    async fn page(&self, pod: &str) -> Result<Page, AgentError> {
        let door = Door {
            namespace: &self.reach.namespace,
            pod,
            port: self.reach.port,
        };
        let answer = forward::get(&self.client, door, agent::PAGE, self.reach.timeout).await?;
        agent::page(&answer)
    }

    /// Looks for the agents' pods, and asks those of the nodes at these places.
    async fn ask(
        &self,
        found: &mut Surveyed,
        ask: Ask,
        places: &[usize],
        progress: &impl Fn(Progress),
    ) {
        let Reach {
            namespace, timeout, ..
        } = &self.reach;
        let pods = match lists::pods(&self.client, namespace, None, *timeout).await {
            Ok(pods) => pods,
            Err(error) => {
                found.notes.push(format!("{UNKNOWN}: {error}"));
                return;
            }
        };
        if pods.is_empty() {
            found.notes.push(format!(
                "{UNKNOWN}: no pod of an agent is in namespace {namespace}; give --namespace \
                 where pathproof is installed in another"
            ));
            return;
        }
        let doors = look_for(&mut found.nodes, pods, places);
        let not_asked = found
            .nodes
            .iter()
            .filter(|facts| facts.agent == AgentSeen::Unasked)
            .count();
        let left = not_asked.saturating_sub(doors.len());
        // Who says which are asked knows that the others are not.
        if left > 0 && ask == Ask::Auto {
            found.notes.push(format!(
                "{left} agents were not asked, so their nodes have neither lag nor coverage here; \
                 --ask all asks them too"
            ));
        }
        self.ask_doors(found, doors, progress).await;
    }

    async fn ask_doors(
        &self,
        found: &mut Surveyed,
        doors: Vec<(usize, String)>,
        progress: &impl Fn(Progress),
    ) {
        let (mut done, of) = (0, doors.len());
        progress(Progress::Agents(done, of));
        let ask = |(place, pod): (usize, String)| async move { (place, self.page(&pod).await) };
        let mut answers = stream::iter(doors).map(ask).buffer_unordered(AT_A_TIME);
        let mut denials = Denials::default();
        while let Some((place, answer)) = answers.next().await {
            done += 1;
            progress(Progress::Agents(done, of));
            let seen = match answer {
                Ok(page) => AgentSeen::Told(Box::new(agent::told(page.report))),
                Err(error) => {
                    if let Some(denied) = error.denied() {
                        denials.add(denied.to_string());
                        if denials.count == done && done >= AT_A_TIME {
                            // Nobody was let through: nor will another be.
                            break;
                        }
                        // Not asked, as it stands there.
                        continue;
                    }
                    AgentSeen::Silent(format!("its agent does not answer: {error}"))
                }
            };
            if let Some(facts) = found.nodes.get_mut(place) {
                facts.agent = seen;
            }
        }
        found.notes.extend(denials.note(done));
    }
}

/// Agents that a right was missing for. Roles can name single pods, so one that is denied says
/// nothing of the next.
#[derive(Default)]
struct Denials {
    count: usize,
    /// The first of them.
    said: Option<String>,
}

impl Denials {
    fn add(&mut self, said: String) {
        self.count += 1;
        self.said.get_or_insert(said);
    }

    /// Once for all of them, of so many that were tried.
    fn note(self, tried: usize) -> Option<String> {
        let Self { count, said } = self;
        let whose = match count == tried {
            true => String::new(),
            false => format!(" of {count} of {tried} agents"),
        };
        Some(format!("{UNKNOWN}{whose}: {}", said?))
    }
}

/// What a list without agents lacks.
const UNKNOWN: &str = "lag and coverage are not known";

/// Notes of each node whether it has an agent. Pods to ask for those at these places, in that order.
fn look_for(nodes: &mut [NodeFacts], pods: Vec<PodSeen>, places: &[usize]) -> Vec<(usize, String)> {
    let mut best: HashMap<String, PodSeen> = HashMap::new();
    for pod in pods {
        let known = best.get(&pod.node).map(PodSeen::promise);
        if known.is_none_or(|known| known < pod.promise()) {
            best.insert(pod.node.clone(), pod);
        }
    }
    for facts in nodes.iter_mut() {
        facts.agent = match best.get(&facts.node.name) {
            None => AgentSeen::Missing,
            Some(pod) if pod.running => AgentSeen::Unasked,
            Some(PodSeen { name, looks, .. }) => {
                AgentSeen::Silent(format!("its agent's pod {name} does not run ({looks})"))
            }
        };
    }
    let door = |place: &usize| {
        let facts = nodes.get(*place)?;
        let pod = best.remove(&facts.node.name)?;
        pod.running.then_some((*place, pod.name))
    };
    places.iter().filter_map(door).collect()
}

/// No page of one node.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The API server says no.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// Nobody to ask.
    #[error(
        "no pod of an agent is on node {node} in namespace {namespace}: look at the node's name, or give --namespace where pathproof is installed in another"
    )]
    NoAgent {
        /// The node.
        node: String,
        /// Where its agent was looked for.
        namespace: String,
    },
    /// It has no process.
    #[error("the agent's pod {pod} does not run ({looks}): kubectl describe pod says why")]
    NotRunning {
        /// The pod.
        pod: String,
        /// Its phase.
        looks: String,
    },
    /// It does not answer.
    #[error("the agent in pod {pod} does not answer: {source}")]
    Silent {
        /// The pod.
        pod: String,
        /// Why.
        source: AgentError,
    },
}

impl NodeError {
    /// Rights are missing.
    pub fn is_permission(&self) -> bool {
        matches!(self, NodeError::Fleet(error) if error.is_permission())
    }
}

#[cfg(test)]
mod tests;
