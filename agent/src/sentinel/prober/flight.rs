//! A probe written as frames: what is sent when, and the numbers it ends with.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use agent_common::probe::{DATA_LEN, Phase, ProbeEvent, ProbeKey, probe_event};

use super::Kernel;
use super::round::Errand;
use super::tools::{Times, Tools};
use super::trace::Sent;
use super::wire::{Network, Side};
use crate::sentinel::frame;
use agent_core::time::Mono;
use agent_core::trace::{Lane, ProbeTrace, Transport};

/// A probe written as frames.
pub(super) struct Flight {
    pub(super) key: ProbeKey,
    what: Sent,
    times: Times,
    awaits: Phase,
    /// Follows the last byte sent.
    sequence: u32,
    /// Follows the last byte received.
    acknowledged: Option<u32>,
    refused: bool,
}

impl Flight {
    pub(super) fn errand(&self) -> Errand {
        Errand {
            lane: self.what.lane,
            client: Some(self.what.client.ip()),
            frontend: self.what.frontend,
        }
    }

    /// When something is to be done with it at the latest.
    pub(super) fn next(&self) -> Mono {
        self.times.next(self.is_looked_at())
    }

    /// The observer follows handshakes alone.
    fn is_looked_at(&self) -> bool {
        self.awaits == Phase::Handshake
    }

    fn ends(&self) -> (SocketAddr, SocketAddr) {
        (self.what.client, self.what.frontend)
    }
}

impl<K: Kernel, N: Network> Tools<K, N> {
    /// Sends a probe's first packet. What could not be sent is complete.
    pub(super) fn launch(
        &mut self,
        lane: Lane,
        client: IpAddr,
        frontend: SocketAddr,
        due: Mono,
    ) -> Result<Flight, Box<ProbeTrace>> {
        let mut what = Sent {
            lane,
            client: SocketAddr::new(client, self.ports.next(lane)),
            frontend,
            due,
            sent: self.now(),
        };
        let key = match self.register(lane.family, lane.transport, 0) {
            Ok(key) => key,
            Err(why) => return Err(Box::new(what.unsent(self.now(), why))),
        };
        what.sent = self.now();
        let flight = Flight {
            key,
            what,
            times: Times::from(what.sent),
            awaits: match lane.transport {
                Transport::Tcp => Phase::Handshake,
                Transport::Udp => Phase::Data,
            },
            sequence: key.token.wrapping_add(1),
            acknowledged: None,
            refused: false,
        };
        let sent = self.send(Side::Client, flight.ends(), |flow, frame| {
            match lane.transport {
                Transport::Tcp => flow.syn(frame, key.token),
                Transport::Udp => flow.datagram(frame, &frame::data(key.token)),
            }
        });
        match sent {
            Ok(()) => Ok(flight),
            Err(why) => {
                self.unregister(&key);
                Err(Box::new(what.unsent(self.now(), why)))
            }
        }
    }

    /// Goes on by what came. Whether the probe is complete.
    pub(super) fn take(&mut self, flight: &mut Flight, event: &ProbeEvent) -> bool {
        match (event.kind, flight.awaits) {
            (probe_event::HANDSHAKE, Phase::Handshake) => {
                flight.acknowledged = Some(event.sequence.wrapping_add(1));
                flight.awaits = Phase::Data;
                self.send_data(flight).is_err()
            }
            (probe_event::DATA, Phase::Data) => {
                let end = event.sequence.wrapping_add(DATA_LEN as u32);
                flight.acknowledged = Some(end);
                true
            }
            (probe_event::REFUSED, _) => {
                flight.refused = true;
                true
            }
            _ => false,
        }
    }

    fn send_data(&mut self, flight: &mut Flight) -> Result<(), String> {
        let (sequence, token) = (flight.sequence, flight.key.token);
        let acknowledged = flight.acknowledged.unwrap_or(0);
        self.send(Side::Client, flight.ends(), |flow, frame| {
            flow.push(frame, sequence, acknowledged, &frame::data(token))
        })?;
        flight.sequence = sequence.wrapping_add(DATA_LEN as u32);
        Ok(())
    }

    /// Whether its time is up, or the observer saw how it went wrong.
    pub(super) fn is_over(&self, flight: &mut Flight, now: Mono) -> bool {
        flight.times.is_over(now)
            || flight.is_looked_at()
                && flight.times.take_look(now)
                && self.is_told(
                    Some(flight.key),
                    self.seen(flight.key.token, flight.what.lane.family),
                )
    }

    /// Ends it, however far it came.
    pub(super) fn finish(&mut self, flight: Flight) -> ProbeTrace {
        let what = flight.what;
        let ended = self.now();
        let seen = match what.lane.transport {
            Transport::Tcp => self.seen(flight.key.token, what.lane.family),
            // The observer follows no datagrams.
            Transport::Udp => 0,
        };
        let trace = match self.kernel.read(&flight.key) {
            Ok(Some(probe)) => what.trace(ended, &probe, seen),
            Ok(None) => what.unsent(ended, "the kernel's record of it is gone".to_owned()),
            Err(error) => what.unsent(ended, unread(&error)),
        };
        self.close(flight);
        trace
    }

    /// Forgets it and closes its connection-tracking entry.
    pub(super) fn close(&mut self, flight: Flight) {
        self.unregister(&flight.key);
        // A refused handshake left no entry, or one that the refusal closed; a RST of ours would
        // only go astray.
        let refused = flight.refused && flight.acknowledged.is_none();
        if flight.what.lane.transport == Transport::Tcp && !refused {
            // What cannot be sent leaves an entry behind, and the next probe tells why.
            let _ = self.send(Side::Client, flight.ends(), |flow, frame| {
                flow.reset(frame, flight.sequence, flight.acknowledged)
            });
        }
    }
}

/// Why nothing can be said of a probe.
pub(super) fn unread(error: &dyn fmt::Display) -> String {
    format!("the kernel's record of it cannot be read: {error}")
}
