//! Reads the maps of a running agent, to see when a change at the API has reached the kernel.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use aya::maps::{HashMap, Map, MapData, MapInfo};
use pathproof_wire::abi::map;
use pathproof_wire::service::{
    EndpointEntry, EndpointKey, FrontendKey, FrontendValue, TCP, mapped,
};

use crate::usage;

/// Ports of the Services and of their endpoints.
const PORTS: [u16; 2] = [80, 8080];

pub struct MapEye {
    frontends: HashMap<MapData, FrontendKey, FrontendValue>,
    endpoints: HashMap<MapData, EndpointKey, EndpointEntry>,
}

impl MapEye {
    /// Opens the maps of the process with this id.
    pub fn open(pid: u32) -> Result<Self> {
        let find = |name: &str| -> Result<Map> {
            for id in usage::maps(pid)?.into_keys() {
                if MapInfo::from_id(id)?.name_as_str() == Some(name) {
                    return Ok(Map::HashMap(MapData::from_id(id)?));
                }
            }
            anyhow::bail!("the agent has no map {name}")
        };
        Ok(Self {
            frontends: find(map::FRONTENDS)?.try_into()?,
            endpoints: find(map::ENDPOINTS)?.try_into()?,
        })
    }

    /// The id of the Service at this ClusterIP.
    pub fn service(&self, cluster_ip: Ipv4Addr) -> Result<u32> {
        let key = FrontendKey {
            address: mapped(cluster_ip.octets()),
            port: PORTS[0].to_be_bytes(),
            protocol: TCP,
            padding: 0,
        };
        let value = self.frontends.get(&key, 0);
        let value = value.with_context(|| format!("no frontend {cluster_ip}"))?;
        Ok(value.service)
    }

    /// Waits for an endpoint of a Service. Returns when it appeared, or `None` after `patience`.
    pub fn wait(&self, service: u32, address: Ipv4Addr, patience: Duration) -> Option<Instant> {
        let key = EndpointKey {
            service,
            address: mapped(address.octets()),
            port: PORTS[1].to_be_bytes(),
            padding: [0; 2],
        };
        let end = Instant::now() + patience;
        while self.endpoints.get(&key, 0).is_err() {
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Some(Instant::now())
    }
}
