//! `pathproof rotate`: moves the sentinel's endpoint from one generation to the next, for the whole cluster,
//! and publishes how many nodes fail. Several rotators elect a leader by a Lease; only the leader writes the
//! sentinel's slices.
//!
//! [`pathproof_rotator`] decides what to write and when; this module performs the reads and writes. Every
//! write names the version of the object that was read. If another client wrote in between, the server
//! refuses the rotator's write, and the next check reads the new version. Only a signal ends the process: a
//! failure is logged once, and retried at the next check.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, Preconditions};
use kube::{Api, Client};
use pathproof_facts::switches::{ENFORCEMENT, Enforcement, Switches};
use pathproof_rotator::rotation::{Candidate, Plan, Rotation, SliceSpec, Write, slice_name};
use pathproof_rotator::withdrawal::{LABEL, Step, VALUE, WithdrawalLimits};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::clock;
use crate::cluster::api::client::{client, root_cause};
use crate::cluster::api::{Nodes, follow_nodes, with_advice};
use crate::config::{RotateConfig, Withdraw};
use crate::http::bind::listen;
use crate::http::limits::Limits;
use crate::http::serve::{Listener, Rules, serve};
use crate::http::{AllowList, admin};
use crate::lifecycle::Shutdown;
use crate::metrics::{Metrics, WriteResult, Written};

mod lease;
mod slices;
#[cfg(test)]
mod tests;

/// Interval between checks of the lease and, in the leader, of the slices.
const LOOK: Duration = Duration::from_secs(5);
/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(5);
/// Minimum pause before an early check, which happens when a node starts or stops failing.
const EARLY: Duration = Duration::from_secs(1);
/// Memory for connections to the metrics, in bytes.
const CONNECTIONS: u64 = 4 << 20;

/// Reason why a check could not do all of its work.
#[derive(Debug, Error)]
enum Trouble {
    /// Another client wrote meanwhile, or the object is gone; the next check shows which.
    #[error("{what} was changed by another client")]
    Raced { what: String },
    #[error("the API server refuses to {what}: {why}")]
    Refused { what: String, why: String },
    /// The API server does not answer, or answers that it is not able to (429, 5xx). The text does not name
    /// the request, so that an outage is logged as one problem.
    #[error("the API server is not available: {why}")]
    Away { why: String },
    /// The count of nodes in the slices may be outdated.
    #[error("the nodes cannot be counted: {why}")]
    Uncounted { why: String },
    /// The annotation has a limited length, which all agents read.
    #[error("the count has no room for the labels {labels}: name fewer with --brake-by")]
    Unlisted { labels: String },
}

impl Trouble {
    fn result(&self) -> WriteResult {
        match self {
            Trouble::Raced { .. } => WriteResult::Conflict,
            Trouble::Away { .. } => WriteResult::Unreachable,
            _ => WriteResult::Rejected,
        }
    }
}

/// Runs the rotator until SIGTERM or SIGINT. Then it releases the lease, so that another rotator
/// leads at once.
pub async fn run(config: RotateConfig) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut shutdown = Shutdown::listen()?;
    let api = &config.api;
    let client = client(api.kubeconfig.as_deref(), api.server.as_deref(), None).await?;
    let mut rotator = Rotator::new(&client, config);
    // The server ends when this is dropped.
    let mut served = JoinSet::new();
    if let Some(address) = rotator.config.metrics_bind_address {
        let listener = TcpListener::from_std(listen("--metrics-bind-address", address)?)?;
        let rules = Rules {
            listener: Listener::Admin,
            allow: AllowList::default(),
            proxied: false,
            limits: Limits::default().within_memory(CONNECTIONS),
            metrics: Arc::clone(&rotator.metrics),
        };
        let router = admin::of_rotator(Arc::clone(&rotator.metrics));
        served.spawn(serve(listener, router, rules, std::future::pending()));
    }
    loop {
        let turn = async {
            rotator.look().await;
            rotator.pause().await;
        };
        // A request may be interrupted here. If the server has executed it, the next leader reads the result.
        tokio::select! {
            biased;
            _ = shutdown.requested() => break,
            () = turn => {}
        }
    }
    rotator.give_up().await;
    Ok(())
}

struct Rotator {
    config: RotateConfig,
    metrics: Arc<Metrics>,
    candidate: Candidate,
    rotation: Rotation,
    leases: Api<Lease>,
    services: Api<slices::SentinelService>,
    slices: Api<EndpointSlice>,
    labelled: Api<Node>,
    client: Client,
    /// `None` unless this rotator leads, because following all nodes loads the API server.
    nodes: Option<Nodes>,
    /// Last problem, so that it is logged once.
    said: Option<String>,
    led: bool,
    /// The emergency switch of the whole cluster, as last read from the sentinel's Service. `None`
    /// until the Service was read or found to be absent.
    switches: Option<Switches>,
}

impl Rotator {
    fn new(client: &Client, config: RotateConfig) -> Self {
        let namespace = &*config.sentinel.service.namespace;
        // With the start time, a container that restarts in the same pod is a different candidate.
        let me = format!("{}_{:x}", config.host, clock::mono().0);
        Self {
            candidate: Candidate::new(me),
            rotation: Rotation::new(config.interval),
            leases: Api::namespaced(client.clone(), namespace),
            services: slices::services(client, namespace),
            slices: Api::namespaced(client.clone(), namespace),
            labelled: Api::all(client.clone()),
            client: client.clone(),
            nodes: None,
            said: None,
            led: false,
            switches: None,
            metrics: Metrics::new(),
            config,
        }
    }

    /// Checks everything once, and does the resulting work.
    async fn look(&mut self) {
        let result = self.try_look().await;
        let now = clock::mono();
        if let Err(Trouble::Away { .. }) = &result {
            self.rotation.failed(now);
        } else if self.rotation.answered(now) {
            tracing::info!(
                "the API server answers again; the sentinel's endpoint stays unchanged for 10 min"
            );
        }
        let leads = self.candidate.leads(now);
        if std::mem::replace(&mut self.led, leads) != leads {
            tracing::info!(leads, lease = %self.config.lease, "leadership changed");
        }
        self.metrics.rotating(|rotating| {
            rotating.leads = leads;
            rotating.counted = rotating.counted.take().filter(|_| leads);
        });
        let trouble = result.err().map(|error| error.to_string());
        if let Some(why) = trouble.as_ref().filter(|_| trouble != self.said) {
            tracing::warn!(%why, "the rotator could not do all of its work");
        }
        self.said = trouble;
    }

    async fn try_look(&mut self) -> Result<(), Trouble> {
        self.elect().await?;
        if !self.candidate.leads(clock::mono()) {
            self.rotation.rest();
            self.nodes = None;
            return Ok(());
        }
        let clocks = || (clock::wall(), clock::mono());
        let (ours, by) = (self.config.addresses(), self.config.domains());
        let follow = || follow_nodes(self.client.clone(), clocks, ours, by);
        self.nodes.get_or_insert_with(follow);
        // Do not return yet if this failed: a node must return to load balancers even if the sentinel has a
        // problem.
        let maintained = self.maintain().await;
        let Some(nodes) = &self.nodes else {
            return maintained;
        };
        let mut steps = match self.config.withdraw {
            Withdraw::Label => nodes.withdrawals(self.withdrawal_limits(), clock::mono()),
            Withdraw::Off => Vec::new(),
        };
        // Withdraw no node before the sentinel's Service was read, because withdrawal may be switched off
        // there.
        steps.retain(|step| !step.withdraw || self.switches.is_some());
        let (left, uncounted) = (nodes.withdrawn(), nodes.trouble());
        let unlisted = nodes.left_out();
        let withdrawn = self.withdraw(&steps).await;
        maintained.and(withdrawn)?;
        if self.config.withdraw == Withdraw::Off && left > 0 {
            let why = format!(
                "{left} nodes have {LABEL}={VALUE}, and --withdraw is off: remove the label with \
                 `kubectl label nodes -l {LABEL}={VALUE} {LABEL}-`"
            );
            return Err(refused("remove the withdrawal label from nodes", why));
        }
        let uncounted = uncounted.map(|why| Trouble::Uncounted { why });
        let unlisted = unlisted.map(|labels| Trouble::Unlisted { labels });
        uncounted.or(unlisted).map_or(Ok(()), Err)
    }

    /// Creates, repairs and updates the sentinel's slices.
    async fn maintain(&mut self) -> Result<(), Trouble> {
        let name = self.config.sentinel.service.name.to_string();
        let service = ask("read the sentinel's Service", self.services.get_opt(&name)).await?;
        let found = service.as_ref();
        let annotations = found.and_then(|service| service.metadata.annotations.as_ref());
        let text = annotations.and_then(|annotations| annotations.get(ENFORCEMENT));
        let switches = self.switches.get_or_insert_default();
        switches.read(None, Some(text.map(String::as_str)));
        let Some(service) = service else {
            let missing = &self.config.sentinel.service;
            let why = format!("Service {missing} is not in the cluster");
            return Err(refused("maintain the sentinel", why));
        };
        let listed = ListParams::default().labels(&format!("{}={name}", slices::SERVICE_NAME));
        let found = self.slices.list(&listed);
        let found = ask("list the sentinel's EndpointSlices", found).await?;
        let Some(nodes) = &mut self.nodes else {
            return Ok(());
        };
        let now = clock::mono();
        let number = nodes.number();
        let rotates = self.rotation.is_due(number, now);
        let wall = clock::wall();
        let counted = nodes.publish(rotates, wall, now);
        if let Some(count) = counted.clone() {
            self.metrics
                .rotating(|rotating| rotating.counted = Some((wall, count)));
        }
        let wanted = slices::wanted(
            service.spec,
            &self.config,
            counted.map(|count| count.text()),
        );
        let seen: Vec<_> = found.items.into_iter().map(slices::seen).collect();
        let plan = self.rotation.plan(&wanted, &seen, number, now);
        self.write(&wanted, &plan).await?;
        if let Some(stranger) = plan.foreign_slices.first() {
            let why = format!(
                "EndpointSlice {stranger} belongs to the sentinel's Service, but the rotator did \
                 not create it: delete it"
            );
            return Err(refused("use the sentinel", why));
        }
        Ok(())
    }

    fn withdrawal_limits(&self) -> WithdrawalLimits {
        let audits = |switches: &Switches| switches.audit(Enforcement::Enforce).is_some();
        WithdrawalLimits {
            after: self.config.withdraw_after,
            share: self.config.withdraw_share,
            recalls: self.switches.as_ref().is_some_and(audits),
        }
    }

    /// Withdraws nodes from load balancers and returns them, while this rotator leads. A Node that changed
    /// meanwhile is skipped until its new version is read. A refused label does not delay other nodes.
    async fn withdraw(&self, steps: &[Step]) -> Result<(), Trouble> {
        let mut refused = Ok(());
        for step in steps {
            if !self.candidate.leads(clock::mono()) {
                break;
            }
            let value = step.withdraw.then_some(VALUE);
            let patch = json!({ "metadata": {
                "resourceVersion": step.version, "labels": { LABEL: value },
            } });
            let (params, patch) = (slices::patching(), Patch::Merge(patch));
            let patched = self.labelled.patch_metadata(&step.node, &params, &patch);
            let labelled = ask(&format!("label node {}", step.node), patched).await;
            self.note(Written::Label, &labelled);
            match labelled {
                Err(Trouble::Raced { .. }) => {}
                Err(why @ Trouble::Refused { .. }) => {
                    tracing::debug!(node = step.node, %why, "a node's label could not be written");
                    refused = refused.and(Err(why));
                }
                Err(other) => return Err(other),
                Ok(_) if step.withdraw => tracing::warn!(
                    node = step.node,
                    "withdrew a failing node from load balancers"
                ),
                Ok(_) => {
                    tracing::info!(node = step.node, "removed the withdrawal label from a node")
                }
            }
        }
        refused
    }

    fn note<T>(&self, kind: Written, written: &Result<T, Trouble>) {
        let result = written.as_ref().err();
        let result = result.map_or(WriteResult::Ok, Trouble::result);
        self.metrics
            .rotating(|rotating| rotating.wrote(kind, result));
    }

    /// Waits until the next check, which is early if a node starts or stops failing.
    async fn pause(&self) {
        let Some(nodes) = &self.nodes else {
            return sleep(LOOK).await;
        };
        let early = async {
            sleep(EARLY).await;
            nodes.changed().await;
        };
        // Usually the time is up first.
        let _ = timeout(LOOK, early).await;
    }

    /// Writes a plan while this rotator leads.
    async fn write(&mut self, wanted: &SliceSpec, plan: &Plan) -> Result<(), Trouble> {
        for write in &plan.writes {
            if !self.candidate.leads(clock::mono()) {
                break;
            }
            let written = self.write_one(wanted, write).await;
            let kind = match write {
                Write::Count { .. } => Written::Count,
                _ => Written::Slice,
            };
            self.note(kind, &written);
            written?;
            if let Write::Create { generation, .. } | Write::Update { generation, .. } = write {
                let now = clock::mono();
                self.rotation.wrote(*generation, plan.rotates, now);
            }
            match write {
                Write::Count { .. } => {
                    let fleet = wanted.fleet.as_deref().unwrap_or_default();
                    tracing::info!(%fleet, "wrote the number of failing nodes");
                }
                _ if plan.rotates => {
                    tracing::debug!(?write, "changed the port of the sentinel's endpoint")
                }
                _ => tracing::info!(?write, "repaired an EndpointSlice of the sentinel"),
            }
        }
        Ok(())
    }

    /// Handles a slice that exists and was not listed: it lacks the label, or another rotator has
    /// just created it.
    async fn find_again(&self, slice: &EndpointSlice, raced: Trouble) -> Result<(), Trouble> {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = ask("list EndpointSlices by name", self.slices.list(&named)).await?;
        let is_lost = |found: &EndpointSlice| {
            let mut labels = found.metadata.labels.iter().flatten();
            !labels.any(|(label, value)| {
                label == slices::SERVICE_NAME && **value == *self.config.sentinel.service.name
            })
        };
        let Some(lost) = found.items.into_iter().find(is_lost) else {
            return Err(raced);
        };
        let version = lost.metadata.resource_version.unwrap_or_default();
        self.restore(slice, &version).await
    }

    /// Overwrites all fields of an existing slice.
    async fn restore(&self, slice: &EndpointSlice, version: &str) -> Result<(), Trouble> {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        let what = format!("update EndpointSlice {name}");
        self.patch(&what, name, slices::patch(slice, version)).await
    }

    async fn patch(&self, what: &str, slice: &str, patch: Value) -> Result<(), Trouble> {
        let (params, patch) = (slices::patching(), Patch::Merge(patch));
        let patched = self.slices.patch(slice, &params, &patch);
        ask(what, patched).await.map(drop)
    }

    async fn write_one(&self, wanted: &SliceSpec, write: &Write) -> Result<(), Trouble> {
        match write {
            Write::Create { family, generation } => {
                let slice = slices::slice(wanted, *family, *generation);
                let params = slices::posting();
                let created = self.slices.create(&params, &slice);
                match ask("create an EndpointSlice", created).await {
                    Err(raced @ Trouble::Raced { .. }) => self.find_again(&slice, raced).await,
                    created => created.map(drop),
                }
            }
            Write::Update {
                family,
                version,
                generation,
            } => {
                let slice = slices::slice(wanted, *family, *generation);
                self.restore(&slice, version).await
            }
            Write::Count { family, version } => {
                let name = slice_name(&wanted.service, *family);
                let what = format!("write the number of failing nodes to EndpointSlice {name}");
                let patch = slices::count_patch(wanted, *family, version);
                self.patch(&what, &name, patch).await
            }
            Write::Delete { name, version } => {
                let params = DeleteParams::default().preconditions(Preconditions {
                    resource_version: Some(version.clone()),
                    uid: None,
                });
                let deleted = self.slices.delete(name, &params);
                let deleted = ask(&format!("delete EndpointSlice {name}"), deleted).await;
                deleted.map(drop)
            }
        }
    }
}

fn refused(what: &str, why: String) -> Trouble {
    let what = what.to_owned();
    Trouble::Refused { what, why }
}

/// Sends a request with a timeout.
async fn ask<T>(
    what: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Trouble> {
    let what = what.to_owned();
    let Ok(answer) = timeout(REQUEST, request).await else {
        let why = format!("no answer within {} s", REQUEST.as_secs());
        return Err(Trouble::Away { why });
    };
    answer.map_err(|error| match error {
        kube::Error::Api(status) => match (status.code, with_advice(&status)) {
            (404 | 409, _) => Trouble::Raced { what },
            // Code 0 means that kube found no code: a gateway may answer with an error format of another
            // kind.
            (0 | 429 | 500.., why) => Trouble::Away { why },
            (_, why) => Trouble::Refused { what, why },
        },
        other => Trouble::Away {
            why: root_cause(&other),
        },
    })
}
