//! One round of one family: a control probe, a probe on every lane, and their traces once the
//! control's result is known.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use pathproof_facts::time::Mono;
use pathproof_facts::trace::{Control, Lane, ProbePath, ProbeTrace, Transport};
use pathproof_report::sentinel::SentinelAddresses;
use pathproof_wire::probe::{Phase, ProbeEvent, ProbeKey, Stage, probe_event, probe_flag};
use pathproof_wire::service::Family;

use super::Waiting;
use super::probe::{Call, Flight};
use super::tools::{CONTROL, Times, Tools};
use super::wire::{Network, Side, Socket};
use crate::probe::Kernel;
use crate::sentinel::frame::Packet;

/// A lane's probe: its source (`None` for the host) and its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errand {
    lane: Lane,
    client: Option<IpAddr>,
    frontend: SocketAddr,
}

impl Errand {
    pub(super) fn is_of_host(&self) -> bool {
        self.lane.path == ProbePath::Host
    }
}

/// Every lane that has a target.
pub(super) fn errands(targets: &SentinelAddresses) -> impl Iterator<Item = Errand> {
    use ProbePath::{Host, NodePort, OffCluster, Pod};
    use Transport::{Tcp, Udp};
    let (family, pod, outside) = (targets.family, targets.pod_client, Some(targets.client));
    let (tcp, udp) = (Some(targets.cluster_ip), targets.cluster_ip_udp);
    [
        (Pod, Tcp, pod, tcp.filter(|_| pod.is_some())),
        (Pod, Udp, pod, udp.filter(|_| pod.is_some())),
        (OffCluster, Tcp, outside, tcp),
        (OffCluster, Udp, outside, udp),
        (NodePort, Tcp, outside, targets.node_port),
        (NodePort, Udp, outside, targets.node_port_udp),
        // Only TCP: the eBPF program finds a probe's socket, by its cookie, only on a SYN.
        (Host, Tcp, None, tcp),
    ]
    .into_iter()
    .filter_map(move |(path, transport, client, frontend)| {
        Some(Errand {
            lane: Lane {
                path,
                family,
                transport,
            },
            client,
            frontend: frontend?,
        })
    })
}

fn errand_of(trace: &ProbeTrace) -> Errand {
    Errand {
        lane: trace.lane,
        client: (trace.lane.path != ProbePath::Host).then(|| trace.client.ip()),
        frontend: trace.frontend,
    }
}

enum ControlProbe {
    UnderWay { key: ProbeKey, times: Times },
    Known(Control),
}

/// Probes of one round, under way or waiting for the control's result.
pub(super) struct Round<S> {
    control: ControlProbe,
    flights: Vec<Flight>,
    call: Option<Call<S>>,
    done: Vec<ProbeTrace>,
}

impl<K: Kernel, N: Network> Tools<K, N> {
    /// Sends all probes of a round at once: one wake-up for all, and the control is as close in time as
    /// possible. `lanes` are those of this round.
    pub(super) fn begin(
        &mut self,
        round: &mut Round<N::Socket>,
        targets: &SentinelAddresses,
        due: Mono,
        lanes: impl Iterator<Item = Errand>,
    ) {
        round.control = self.launch_control(targets);
        let any: IpAddr = match targets.family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        for errand in lanes {
            let client = SocketAddr::new(errand.client.unwrap_or(any), 0);
            let trace = ProbeTrace::sent(errand.lane, (client, errand.frontend), due, self.now());
            let unsent = match errand.client {
                Some(_) => self.launch(trace).map(|flight| round.flights.push(flight)),
                None => self.dial(trace).map(|call| round.call = Some(call)),
            };
            round.done.extend(unsent.err().map(|trace| *trace));
        }
    }

    fn launch_control(&mut self, targets: &SentinelAddresses) -> ControlProbe {
        let failed = ControlProbe::Known(Control::Failed);
        let Ok(key) = self.register(targets.family, Transport::Tcp, probe_flag::CONTROL) else {
            return failed;
        };
        let client = SocketAddr::new(targets.client, self.ports.next(CONTROL));
        let times = Times::from(self.now());
        let ends = (client, targets.endpoint);
        if self
            .send(Side::Server, ends, Packet::Syn(key.token))
            .is_err()
        {
            self.unregister(&key);
            return failed;
        }
        ControlProbe::UnderWay { key, times }
    }

    /// Passes an event to its probe, if it belongs to this round.
    pub(super) fn deliver(&mut self, round: &mut Round<N::Socket>, event: &ProbeEvent) -> bool {
        if let ControlProbe::UnderWay { key, .. } = round.control
            && key == event.key
        {
            if event.kind == probe_event::HANDSHAKE {
                self.end_control(round, key, Control::Passed);
            }
            return true;
        }
        let mut flights = round.flights.iter();
        let Some(at) = flights.position(|flight| flight.key == event.key) else {
            return false;
        };
        if self.take(&mut round.flights[at], event) {
            let flight = round.flights.swap_remove(at);
            round.done.push(self.finish(flight));
        }
        true
    }

    /// Ends the probes that are over by `now`, and continues with a ready socket.
    pub(super) fn go_on(&mut self, round: &mut Round<N::Socket>, now: Mono) {
        for at in (0..round.flights.len()).rev() {
            if self.is_over(&mut round.flights[at], now) {
                let flight = round.flights.swap_remove(at);
                round.done.push(self.finish(flight));
            }
        }
        if let Some(call) = round.call.take_if(|call| self.go_on_with(call, now)) {
            round.done.push(self.hang_up(call));
        }
        self.look_at_control(round, now);
    }

    /// Ends the control probe if its record has the stamp of an answer, even if no event came, or if it timed
    /// out.
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

    /// Abandons probes that are no longer wanted, without a trace.
    pub(super) fn keep(&mut self, round: &mut Round<N::Socket>, wanted: impl Fn(&Errand) -> bool) {
        let wanted = |trace: &ProbeTrace| wanted(&errand_of(trace));
        for at in (0..round.flights.len()).rev() {
            if !wanted(&round.flights[at].trace) {
                let flight = round.flights.swap_remove(at);
                self.close(flight);
            }
        }
        if let Some(call) = round.call.take_if(|call| !wanted(&call.trace)) {
            self.forget(call);
        }
        round.done.retain(wanted);
    }

    /// Abandons everything, without a trace.
    pub(super) fn abandon(&mut self, round: &mut Round<N::Socket>) {
        self.keep(round, |_| false);
        if let ControlProbe::UnderWay { key, .. } = round.control {
            self.end_control(round, key, Control::Failed);
        }
    }
}

impl<S: Socket> Round<S> {
    pub(super) fn new() -> Self {
        Self {
            control: ControlProbe::Known(Control::Failed),
            flights: Vec::new(),
            call: None,
            done: Vec::new(),
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        matches!(self.control, ControlProbe::Known(_))
            && self.flights.is_empty()
            && self.call.is_none()
    }

    /// Traces whose control is known.
    pub(super) fn settled(&mut self) -> impl Iterator<Item = ProbeTrace> + '_ {
        let (control, ready) = match self.control {
            ControlProbe::UnderWay { .. } => (Control::Failed, 0),
            ControlProbe::Known(control) => (control, self.done.len()),
        };
        let done = self.done.drain(..ready);
        done.map(move |trace| ProbeTrace { control, ..trace })
    }

    /// Latest time at which the round needs attention.
    pub(super) fn next(&self) -> Option<Mono> {
        let control = match &self.control {
            ControlProbe::UnderWay { times, .. } => Some(times.next(true)),
            ControlProbe::Known(_) => None,
        };
        let flights = self.flights.iter().map(Flight::next);
        let call = self.call.as_ref().map(Call::next);
        flights.chain(control).chain(call).min()
    }

    /// The socket to wait for, and whether to wait until it is writable.
    pub(super) fn socket(&self) -> Option<Waiting> {
        self.call.as_ref().map(Call::waiting)
    }
}
