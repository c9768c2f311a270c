//! `pathproof echo`: the pod probe. A small pod on every node dials its own Service, as any pod
//! dials any Service, and answers the pods of the other nodes.
//!
//! The pod probe and the agent exchange nothing. The observer follows the pod probe's connections like all
//! others, and the Service's slices show which nodes they go to. The pod probe needs no rights, no privileges
//! and no configuration but the Service's name. It uses TCP only: with UDP, a forged source address could
//! direct answers to others.
//!
//! This module must not judge.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use clap::Args as ClapArgs;
use pathproof_witness::peers::{ECHO_PORT, LARGE_TRANSFER_PORT};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::lifecycle::Shutdown;

mod dial;
pub mod frame;
mod serve;
#[cfg(test)]
mod tests;

/// Time for which a terminating pod keeps answering.
const LEAVING: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct EchoArgs {
    /// Name of the pod probe's Service, or its addresses separated by commas; one address of each
    /// family is dialled
    #[arg(
        long,
        env = "PATHPROOF_ECHO_SERVICE",
        value_name = "NAME",
        default_value = pathproof_facts::node_context::ECHO_SERVICE
    )]
    pub service: String,
}

#[derive(Debug, Error)]
pub enum EchoError {
    #[error("cannot listen on port {port}: {error}; check for a second process in this pod")]
    Listen { port: u16, error: io::Error },
    #[error("{0}")]
    Signals(String),
}

/// Answers and dials until a signal ends it.
pub async fn run(args: EchoArgs) -> Result<(), EchoError> {
    let echo = listen(ECHO_PORT).await?;
    let large = listen(LARGE_TRANSFER_PORT).await?;
    let mut shutdown = Shutdown::listen().map_err(EchoError::Signals)?;
    tracing::info!(service = %args.service, "answering on port {ECHO_PORT}, connecting to the \
                                             Service once a second");
    let answers = async { tokio::join!(serve::answer(&echo), serve::accept(&large)) };
    tokio::pin!(answers);
    tokio::select! {
        _ = &mut answers => {}
        () = dial::run(&args.service) => {}
        _ = shutdown.requested() => {}
    }
    // Keep answering: other nodes use this endpoint until they learn of its removal.
    let _ = timeout(LEAVING, answers).await;
    Ok(())
}

/// Listens on an IPv6 socket, which also accepts IPv4 unless `net.ipv6.bindv6only` is set. In a pod's own
/// network namespace it is not.
async fn listen(port: u16) -> Result<TcpListener, EchoError> {
    let listening = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        both => both,
    };
    listening.map_err(|error| EchoError::Listen { port, error })
}
