//! Traffic: servers in pods, clients that open connections at a steady rate and report live, and
//! crafted packets.
//!
//! Everything is bounded: a client has a rate, a limit of open connections and a patience for each;
//! all of it ends when the value is dropped. Clients take their source ports in sequence from a
//! range of their own (see [`World::source_ports`](crate::world::World::source_ports)): a port that
//! the kernel chooses may meet the conntrack entry of an earlier fault and fail for no reason.

mod client;
pub mod dns;
mod flood;
mod poll;
mod raw;
mod server;
mod tally;

pub use client::{Answer, Client, Ended, Failure, Plan, connect_once};
pub use dns::{DnsClient, DnsServer};
pub use flood::Flood;
pub use raw::{RawSender, Syn};
pub use server::{Manner, Server};
pub use tally::Tally;
