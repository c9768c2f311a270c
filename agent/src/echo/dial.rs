//! Dials the Service of the pod probe once a second in each family; the node's rules choose the pod.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::future::join_all;
use pathproof_witness::peers::{ECHO_PORT, LARGE_TRANSFER_PORT};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::frame::Frame;

const EVERY: Duration = Duration::from_secs(1);
/// Timeout for the handshake and for each answer.
const PATIENCE: Duration = Duration::from_millis(900);
/// Every n-th connection carries [`LARGE`] bytes.
const LARGE_ONE_IN: u32 = 3;
/// Bytes of a large transfer in each direction: several packets at any usual MTU.
const LARGE: u32 = 9 * 1024;
/// Interval between name lookups; the Service's address hardly ever changes.
const LOOK_UP_EVERY: Duration = Duration::from_secs(60);
/// Interval after an incomplete lookup.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(5);
const LOOK_UP: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The answer was complete.
    Whole,
    /// Small packets came back and large ones did not.
    SmallOnly,
    Silent,
}

pub(super) async fn run(service: &str) {
    let mut targets = Vec::new();
    let mut look = Instant::now();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for number in 0u32.. {
        ticks.tick().await;
        if Instant::now() >= look {
            // Known addresses stay valid while lookups fail.
            match resolve(service).await {
                found if found.len() >= targets.len().max(1) => {
                    (targets, look) = (found, Instant::now() + LOOK_UP_EVERY)
                }
                _ => look = Instant::now() + LOOK_UP_AGAIN,
            }
        }
        let is_large = number % LARGE_ONE_IN == 0;
        let dialled = targets.iter().map(|ip| dial(*ip, ECHO_PORT, is_large));
        for (ip, end) in targets.iter().zip(join_all(dialled).await) {
            if end == End::SmallOnly {
                tell(*ip).await;
            }
        }
    }
}

/// The Service's address in each family. If DNS is absent or does not answer, the one in the variable
/// that kubelet sets in every pod.
async fn resolve(service: &str) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    for name in service.split(',').map(str::trim) {
        // Every error has the same effect: no address yet.
        let Ok(Ok(addresses)) = timeout(LOOK_UP, lookup_host((name, ECHO_PORT))).await else {
            continue;
        };
        for ip in addresses.map(|address| address.ip()) {
            if !found.iter().any(|known| known.is_ipv4() == ip.is_ipv4()) {
                found.push(ip);
            }
        }
    }
    if found.is_empty() {
        let variable = std::env::var(host_variable(service)).unwrap_or_default();
        found.extend(variable.parse::<IpAddr>());
    }
    found
}

/// Name of kubelet's variable with the cluster IP of a Service.
pub(super) fn host_variable(service: &str) -> String {
    let name = service.to_ascii_uppercase().replace('-', "_");
    format!("{name}_SERVICE_HOST")
}

/// Opens one connection and exchanges a small frame, and with `is_large` a large one after it.
pub(super) async fn dial(ip: IpAddr, port: u16, is_large: bool) -> End {
    let connect = TcpStream::connect(SocketAddr::new(ip, port));
    let Ok(Ok(mut stream)) = timeout(PATIENCE, connect).await else {
        return End::Silent;
    };
    let small = Frame {
        token: 1,
        length: 0,
    };
    if !exchange(&mut stream, small).await {
        return End::Silent;
    }
    let large = Frame {
        token: 2,
        length: LARGE,
    };
    match !is_large || exchange(&mut stream, large).await {
        true => End::Whole,
        false => End::SmallOnly,
    }
}

/// Whether a frame comes back in time.
async fn exchange(stream: &mut TcpStream, frame: Frame) -> bool {
    let both = async {
        frame.write(stream).await?;
        Frame::read(stream).await
    };
    matches!(timeout(PATIENCE, both).await, Ok(Ok(answer)) if answer == frame)
}

/// Signals that a large transfer failed, by a packet that the observers see.
async fn tell(ip: IpAddr) {
    // The connection is the whole signal.
    let _ = timeout(PATIENCE, TcpStream::connect((ip, LARGE_TRANSFER_PORT))).await;
}
