//! Connections of clients that no kernel manages: they send any segment, however little it fits, and
//! acknowledge nothing after the handshake.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::RawSender;
use crate::capture::Capture;
use crate::packet::{self, flag};
use crate::wait::until;
use crate::world::World;

/// Maximum time for all handshakes.
const PATIENCE: Duration = Duration::from_secs(40);
/// Sequence number of the first byte of each client.
const FIRST: u32 = 1_000_000;

/// Open connections from addresses of 11.1.0.0/16, which nothing here uses: so no kernel resets them, and the
/// router drops what the server sends.
#[derive(Debug)]
pub struct Forged {
    sender: RawSender,
    target: SocketAddr,
    /// Each client, and the sequence number of the server's first byte.
    connections: Vec<(SocketAddr, u32)>,
}

impl Forged {
    /// Opens this many connections from outside to an IPv4 address of the node.
    pub fn connect(world: &World, target: SocketAddr, count: u16) -> Result<Self> {
        let mut forged = Self {
            sender: RawSender::from_outside(world)?,
            target,
            connections: Vec::new(),
        };
        let mut capture = Capture::start(&world.outside);
        let mut missing: BTreeSet<SocketAddr> = (0..count).map(client).collect();
        let connected = until(PATIENCE, || {
            let tried = forged.shake_hands(&mut capture, &mut missing);
            (tried.is_err() || missing.is_empty()).then_some(tried)
        });
        connected.transpose()?;
        ensure!(missing.is_empty(), "{} are not accepted", missing.len());
        Ok(forged)
    }

    /// Sends a SYN for each missing connection, again if there was one before, and completes those that the
    /// server accepts.
    fn shake_hands(
        &mut self,
        capture: &mut Capture,
        missing: &mut BTreeSet<SocketAddr>,
    ) -> io::Result<()> {
        for client in missing.iter() {
            self.sender.send_syn(*client, self.target, FIRST - 1)?;
        }
        capture.drain();
        for frame in capture.frames.drain(..) {
            let (Some(sequence), Some([_, to])) = (frame.syn_ack(), frame.ends()) else {
                continue;
            };
            // The capture has a frame once for each device that it passes.
            let client = SocketAddr::from(to);
            if missing.remove(&client) {
                let connection = (client, sequence.wrapping_add(1));
                self.connections.push(connection);
                self.segment(connection, flag::ACK, 0, &[])?;
            }
        }
        Ok(())
    }

    /// Sends these bytes on each connection, at this distance behind the first byte that the server expects.
    pub fn send(&self, distance: u32, bytes: &[u8]) -> io::Result<()> {
        let mut each = self.connections.iter();
        each.try_for_each(|client| self.segment(*client, flag::ACK | flag::PSH, distance, bytes))
    }

    /// Resets the connections whose first byte was never sent.
    pub fn reset(&self) -> io::Result<()> {
        let mut each = self.connections.iter();
        each.try_for_each(|client| self.segment(*client, flag::ACK | flag::RST, 0, &[]))
    }

    fn segment(
        &self,
        (client, acknowledged): (SocketAddr, u32),
        flags: u8,
        distance: u32,
        bytes: &[u8],
    ) -> io::Result<()> {
        let sequence = FIRST + distance;
        let packet = packet::tcp(client, self.target, flags, sequence, acknowledged, bytes);
        self.sender.send(&packet.between(self.sender.link).bytes())
    }
}

fn client(number: u16) -> SocketAddr {
    let [high, low] = number.to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(11, 1, high, low), 40_000))
}
