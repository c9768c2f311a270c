//! `pathproof rotate` as it was asked for.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use agent_common::service::FAMILIES;

use super::{ConfigError, Surroundings, parse, sentinel};
use crate::args::{Hardening, RotateArgs};
use crate::telemetry::Format;
use agent_core::cluster::ObjectName;

/// What the rotator was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RotateConfig {
    /// The sentinel's Service.
    pub service: ObjectName,
    /// The endpoint of its slices, by [`Family`](agent_common::service::Family).
    pub echo: [IpAddr; FAMILIES],
    /// The Lease beside the Service.
    pub lease: String,
    /// The host's name, or the pod's.
    pub host: String,
    /// From one generation to the next, at least.
    pub interval: Duration,
    /// A kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server.
    pub server: Option<String>,
    /// Whether the process gives up what it does not need.
    pub hardening: bool,
    /// Format of the log.
    pub log_format: Format,
    /// What is logged.
    pub log_filter: String,
}

impl RotateConfig {
    /// Turns what was said into values.
    ///
    /// # Errors
    /// The first setting that is unsound, with the remedy.
    pub fn resolve(args: &RotateArgs, around: &Surroundings) -> Result<Self, ConfigError> {
        parse::node_name(&args.lease_name).map_err(|_| ConfigError::ObjectName {
            option: "--lease-name",
            value: args.lease_name.clone(),
        })?;
        let host = around.hostname.as_deref().unwrap_or_default().trim();
        Ok(Self {
            service: sentinel::service(&args.sentinel_service)?,
            echo: sentinel::echo(&args.sentinel_endpoint_addresses)?,
            lease: args.lease_name.clone(),
            host: host.to_owned(),
            interval: Duration::from_secs(args.interval),
            kubeconfig: args.kubeconfig.clone(),
            server: args.server.clone(),
            hardening: args.hardening == Hardening::On,
            log_format: args.log_format.into(),
            log_filter: args.log_filter.clone(),
        })
    }
}
