//! Traffic: servers in pods, clients that open connections at a steady rate, and crafted packets.
//!
//! Each client has a rate, a limit of open connections and a timeout for each connection, so the load is
//! bounded. A client or server ends when its value is dropped. Clients take their source ports in sequence
//! from a reserved range (see [`World::source_ports`](crate::world::World::source_ports)). A port that the
//! kernel chooses may still have a conntrack entry of an earlier fault, and fail for that reason.

mod client;
pub mod dns;
mod flood;
mod forged;
mod raw;
mod server;
mod tally;

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use client::{Answer, Client, Ended, Failure, Plan};
pub use dns::DnsClient;
pub use flood::Flood;
pub use forged::Forged;
pub use raw::RawSender;
pub use server::{Manner, Server};
pub use tally::Tally;
use tokio::runtime::{Builder, Runtime};

use crate::worker::Worker;
use crate::world::Namespace;

/// Interval between checks whether the thread must end.
const TURN: Duration = Duration::from_millis(20);

/// Runs a task on a thread in a namespace, until the worker is dropped.
fn run(
    ns: &Namespace,
    name: &str,
    task: impl Future<Output = ()> + Send + 'static,
) -> io::Result<Worker> {
    // Create the runtime before the worker, so that its failure is reported. Otherwise a client that never
    // starts would look like one without failures.
    let runtime = ns.run(runtime)?;
    Worker::within(ns, name, move |stop| {
        runtime.spawn(task);
        runtime.block_on(async {
            while !stop.load(Ordering::Relaxed) {
                tokio::time::sleep(TURN).await;
            }
        });
    })
}

/// A runtime that works on the calling thread, so that its sockets are in that thread's namespace.
pub(crate) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}
