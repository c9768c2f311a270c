//! One interval of one family: a control probe, a probe on every lane, and the traces they give
//! once the control's result is known.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use agent_common::probe::{Phase, ProbeEvent, ProbeKey, Stage, probe_event, probe_flag};
use agent_common::service::Family;

use super::call::Call;
use super::flight::Flight;
use super::tools::{Times, Tools};
use super::wire::{Network, Side};
use super::{FamilyTargets, Kernel};
use agent_core::time::Mono;
use agent_core::trace::{Control, Lane, ProbePath, ProbeTrace, Transport};

/// What a lane sends: from where (nothing: the host's own source) to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errand {
    pub(super) lane: Lane,
    pub(super) client: Option<IpAddr>,
    pub(super) frontend: SocketAddr,
}

/// Every lane that has a target.
pub(super) fn errands(family: Family, targets: &FamilyTargets) -> impl Iterator<Item = Errand> {
    let cluster_ip = targets.cluster_ip;
    let outside = Some(targets.client);
    [
        (
            ProbePath::Pod,
            cluster_ip.filter(|_| targets.pod_client.is_some()),
            targets.pod_client,
        ),
        (ProbePath::OffCluster, cluster_ip, outside),
        (ProbePath::NodePort, targets.node_port, outside),
        (ProbePath::Host, cluster_ip, None),
    ]
    .into_iter()
    .flat_map(move |(path, frontend, client)| {
        Transport::ALL.into_iter().filter_map(move |transport| {
            let frontend = frontend?;
            let port = match transport {
                Transport::Tcp => frontend.tcp,
                // Its socket's cookie is found by a SYN alone.
                Transport::Udp if path == ProbePath::Host => return None,
                Transport::Udp => frontend.udp?,
            };
            Some(Errand {
                lane: Lane {
                    path,
                    family,
                    transport,
                },
                client,
                frontend: SocketAddr::new(frontend.address, port),
            })
        })
    })
}

enum ControlProbe {
    UnderWay { key: ProbeKey, times: Times },
    Known(Control),
}

/// Probes of one interval, under way or waiting for the control's result.
pub(super) struct Round<S> {
    control: ControlProbe,
    flights: Vec<Flight>,
    call: Option<Call<S>>,
    done: Vec<ProbeTrace>,
}

impl<S> Default for Round<S> {
    fn default() -> Self {
        Self {
            control: ControlProbe::Known(Control::Failed),
            flights: Vec::new(),
            call: None,
            done: Vec::new(),
        }
    }
}

impl<K: Kernel, N: Network> Tools<K, N> {
    /// Sends everything of an interval at once: one wake-up for all, and the control is as near in
    /// time as can be. If the round is not `whole`, its first lane stands for all.
    pub(super) fn begin(
        &mut self,
        round: &mut Round<N::Socket>,
        family: Family,
        targets: &FamilyTargets,
        due: Mono,
        whole: bool,
    ) {
        round.control = self.launch_control(family, targets);
        let most = if whole { usize::MAX } else { 1 };
        for errand in errands(family, targets).take(most) {
            let Errand {
                lane,
                client,
                frontend,
            } = errand;
            let unsent = match client {
                Some(client) => self
                    .launch(lane, client, frontend, due)
                    .map(|flight| round.flights.push(flight)),
                None => self
                    .dial(lane, frontend, due)
                    .map(|call| round.call = Some(call)),
            };
            round.done.extend(unsent.err().map(|trace| *trace));
        }
    }

    fn launch_control(&mut self, family: Family, targets: &FamilyTargets) -> ControlProbe {
        let failed = ControlProbe::Known(Control::Failed);
        let Ok(key) = self.register(family, Transport::Tcp, probe_flag::CONTROL) else {
            return failed;
        };
        let client = SocketAddr::new(targets.client, self.ports.next_control(family));
        let times = Times::from(self.now());
        let sent = self.send(Side::Server, (client, targets.echo), |flow, frame| {
            flow.syn(frame, key.token)
        });
        if sent.is_err() {
            self.unregister(&key);
            return failed;
        }
        ControlProbe::UnderWay { key, times }
    }

    /// Hands an event to its probe, if it is of this round.
    pub(super) fn deliver(&mut self, round: &mut Round<N::Socket>, event: &ProbeEvent) -> bool {
        if let ControlProbe::UnderWay { key, .. } = round.control
            && key == event.key
        {
            if event.kind == probe_event::HANDSHAKE {
                self.end_control(round, key, Control::Passed);
            }
            return true;
        }
        let Some(at) = round
            .flights
            .iter()
            .position(|flight| flight.key == event.key)
        else {
            return false;
        };
        if self.take(&mut round.flights[at], event) {
            let flight = round.flights.swap_remove(at);
            round.done.push(self.finish(flight));
        }
        true
    }

    /// Ends what is over by `now` and goes on with what a socket is ready for.
    pub(super) fn go_on(&mut self, round: &mut Round<N::Socket>, now: Mono) {
        for at in (0..round.flights.len()).rev() {
            if self.is_over(&mut round.flights[at], now) {
                let flight = round.flights.swap_remove(at);
                round.done.push(self.finish(flight));
            }
        }
        if let Some(mut call) = round.call.take() {
            if self.go_on_with(&mut call, now) {
                round.done.push(self.hang_up(call));
            } else {
                round.call = Some(call);
            }
        }
        self.look_at_control(round, now);
    }

    /// Its answer is told by a stamp, whether or not by an event too.
    fn look_at_control(&mut self, round: &mut Round<N::Socket>, now: Mono) {
        let ControlProbe::UnderWay { key, times } = &mut round.control else {
            return;
        };
        let key = *key;
        times.take_look(now);
        let is_over = times.is_over(now);
        let probe = self.kernel.read(&key).ok().flatten().unwrap_or_default();
        if probe.stamps[Phase::Handshake as usize][Stage::Returned as usize] != 0 {
            self.end_control(round, key, Control::Passed);
        } else if is_over {
            self.end_control(round, key, Control::Failed);
        }
    }

    fn end_control(&mut self, round: &mut Round<N::Socket>, key: ProbeKey, result: Control) {
        self.unregister(&key);
        round.control = ControlProbe::Known(result);
    }

    /// Gives up probes that are no longer wanted, without a trace.
    pub(super) fn keep(&mut self, round: &mut Round<N::Socket>, wanted: impl Fn(&Errand) -> bool) {
        for at in (0..round.flights.len()).rev() {
            if !wanted(&round.flights[at].errand()) {
                let flight = round.flights.swap_remove(at);
                self.close(flight);
            }
        }
        if let Some(call) = round.call.take_if(|call| !wanted(&call.errand())) {
            self.forget(call);
        }
        round.done.retain(|trace| {
            let client = (trace.lane.path != ProbePath::Host).then(|| trace.client.ip());
            wanted(&Errand {
                lane: trace.lane,
                client,
                frontend: trace.frontend,
            })
        });
    }

    /// Gives up everything, without a trace.
    pub(super) fn abandon(&mut self, round: &mut Round<N::Socket>) {
        self.keep(round, |_| false);
        if let ControlProbe::UnderWay { key, .. } = round.control {
            self.end_control(round, key, Control::Failed);
        }
    }
}

impl<S: crate::sentinel::host::Socket> Round<S> {
    /// Whether nothing is under way.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.control, ControlProbe::Known(_))
            && self.flights.is_empty()
            && self.call.is_none()
    }

    /// Traces whose control is known.
    pub(super) fn settled(&mut self) -> impl Iterator<Item = ProbeTrace> + '_ {
        let control = match self.control {
            ControlProbe::UnderWay { .. } => None,
            ControlProbe::Known(control) => Some(control),
        };
        let ready = control.map(|control| (control, self.done.drain(..)));
        ready
            .into_iter()
            .flat_map(|(control, done)| done.map(move |trace| ProbeTrace { control, ..trace }))
    }

    /// When something is to be done at the latest.
    pub(super) fn next(&self) -> Option<Mono> {
        let control = match &self.control {
            ControlProbe::UnderWay { times, .. } => Some(times.next(true)),
            ControlProbe::Known(_) => None,
        };
        let flights = self.flights.iter().map(Flight::next);
        let call = self.call.as_ref().map(Call::next);
        flights.chain(control).chain(call).min()
    }

    /// The socket that is waited for, and whether until it is writable.
    pub(super) fn socket(&self) -> Option<(RawFd, bool)> {
        self.call.as_ref().map(Call::waiting)
    }
}
