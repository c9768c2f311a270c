//! Services and endpoints by the thousand, brought to the API as controllers would bring them, and
//! changed as a busy cluster changes them.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Api, namespace};
use crate::manifests::{managed, slice};
use crate::scale::{self, endpoint, name};
use crate::world::Family;

/// Namespaces that the Services are spread over.
const NAMESPACES: usize = 40;
/// A prime: changes that follow each other go to Services far apart.
const STRIDE: usize = 7_919;

/// How many there are.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// Services, each with one slice; every tenth has a node port.
    pub services: usize,
    /// Endpoints of each.
    pub endpoints: usize,
}

impl Crowd {
    /// Makes all of it, with every client at once.
    pub fn bring(&self, apis: &[Api]) -> Result<()> {
        let first = apis.first().context("a client")?;
        for index in 0..NAMESPACES.min(self.services) {
            namespace(first, &name(index).0)?;
        }
        each(apis, self.services, |api, index| {
            let services = format!("/api/v1/namespaces/{}/services", name(index).0);
            api.post(&services, &service(index))?;
            api.post(&slices(index), &self.slice(index)).map(drop)
        })
    }

    /// Replaces one endpoint of a Service by one with this address.
    pub fn change(&self, api: &Api, index: usize, address: Ipv4Addr) -> Result<()> {
        let mut slice = self.slice(index);
        slice["endpoints"][0]["addresses"] = json!([address]);
        let path = format!("{}/{}-v4", slices(index), name(index).1);
        let change = json!({ "endpoints": slice["endpoints"] });
        api.patch(&path, &change).map(drop)
    }

    /// How many Services from the first on [`Crowd::churn`] changes; the others are the caller's.
    pub fn churned(&self) -> usize {
        (self.services * 9 / 10).max(1)
    }

    /// Changes endpoints `rate` times a second, with every client.
    pub fn churn(&self, apis: &[Api], rate: f64, changes: usize) -> Result<()> {
        let start = Instant::now();
        each(apis, changes, |api, turn| {
            let due = Duration::from_secs_f64(turn as f64 / rate);
            thread::sleep(due.saturating_sub(start.elapsed()));
            self.change(api, turn * STRIDE % self.churned(), fresh(turn))
        })
    }

    /// ClusterIP that the API gave to a Service.
    pub fn cluster_ip(&self, api: &Api, index: usize) -> Result<Ipv4Addr> {
        let (namespace, name) = name(index);
        let service = api.get(&format!("/api/v1/namespaces/{namespace}/services/{name}"))?;
        let address = service["spec"]["clusterIP"].as_str();
        Ok(address.context("a ClusterIP")?.parse()?)
    }

    fn slice(&self, index: usize) -> Value {
        let (namespace, service) = name(index);
        let first = index * self.endpoints;
        let endpoints: Vec<Value> = (first..first + self.endpoints)
            .map(|number| endpoint(number, &namespace, &service))
            .collect();
        let ports = [json!({ "name": "http", "port": 8080, "protocol": "TCP" })];
        managed(slice(&namespace, &service, Family::V4, &ports, &endpoints))
    }
}

/// Path of a Service's slices in the API.
fn slices(index: usize) -> String {
    let (namespace, _) = name(index);
    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
}

/// A Service as its owner brings it: the API gives it a ClusterIP and a node port.
fn service(index: usize) -> Value {
    let mut service = scale::service(index);
    for given in ["clusterIP", "clusterIPs"] {
        service["spec"][given].take();
    }
    service["spec"]["ports"][0]["nodePort"].take();
    service["metadata"]["resourceVersion"].take();
    service
}

/// An address that no endpoint has, nor had in the last 65,000 changes.
fn fresh(turn: usize) -> Ipv4Addr {
    let host = u32::try_from(turn % 65_000).unwrap_or_default();
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 80, 0, 1)) + host)
}

/// Does something for each number below `count`, with every client at once; the first error is told.
pub fn each(
    apis: &[Api],
    count: usize,
    act: impl Fn(&Api, usize) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = |api: &Api| -> Result<()> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return Ok(());
            }
            act(api, index)?;
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = apis.iter().map(|api| scope.spawn(|| work(api))).collect();
        let mut ends = workers.into_iter().map(|worker| worker.join());
        ends.try_for_each(|end| end.expect("no client panics"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_services_are_their_own() {
        let crowd = Crowd {
            services: 3,
            endpoints: 2,
        };
        let slices: Vec<Value> = (0..3).map(|index| crowd.slice(index)).collect();
        let all = slices
            .iter()
            .flat_map(|slice| slice["endpoints"].as_array().expect("endpoints"));
        let mut addresses: Vec<String> = all
            .map(|endpoint| endpoint["addresses"][0].to_string())
            .collect();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 6);
        assert_eq!(crowd.slice(2)["metadata"]["name"], "service-00002-v4");
        assert_ne!(fresh(0), fresh(64_999));
    }
}
