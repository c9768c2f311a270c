//! Thousands of Services and endpoints, created through the API as controllers do it, and changed as often as
//! in a busy cluster.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};

use super::{Api, namespace};
use crate::prelude::*;
use crate::scale::{self, SERVICES, address, name, slice};

const NAMESPACES: usize = 40;
/// Distance between the Services of two consecutive changes. A prime, so that the changes reach all Services.
const STRIDE: usize = 7_919;

/// Number of Services that [`churn`] changes; the caller may change the others.
pub const CHURNED: usize = SERVICES * 9 / 10;

/// Creates all Services and slices, with all clients in parallel.
pub fn bring(apis: &[Api]) -> Result<()> {
    let first = apis.first().context("a client")?;
    for index in 0..NAMESPACES {
        namespace(first, &name(index).0)?;
    }
    each(apis, SERVICES, |api, index| {
        let services = format!("/api/v1/namespaces/{}/services", name(index).0);
        api.post(&services, &service(index))?;
        api.post(&slices(index), &slice(index)).map(drop)
    })
}

/// Replaces the address of a Service's first endpoint.
pub fn change(api: &Api, index: usize, address: Ipv4Addr) -> Result<()> {
    let mut slice = slice(index);
    slice["endpoints"][0]["addresses"] = json!([address]);
    let path = format!("{}/{}-v4", slices(index), name(index).1);
    let change = json!({ "endpoints": slice["endpoints"] });
    api.patch(&path, &change).map(drop)
}

/// Changes endpoints `rate` times a second, with all clients. Returns the time that all changes took.
pub fn churn(apis: &[Api], rate: f64, changes: usize) -> Result<Duration> {
    let start = Instant::now();
    each(apis, changes, |api, turn| {
        let due = Duration::from_secs_f64(turn as f64 / rate);
        thread::sleep(due.saturating_sub(start.elapsed()));
        change(api, turn * STRIDE % CHURNED, fresh(turn))
    })?;
    Ok(start.elapsed())
}

/// ClusterIP that the API assigned to a Service.
pub fn cluster_ip(api: &Api, index: usize) -> Result<Ipv4Addr> {
    let (namespace, name) = name(index);
    let service = api.get(&format!("/api/v1/namespaces/{namespace}/services/{name}"))?;
    let address = service["spec"]["clusterIP"].as_str();
    Ok(address.context("a ClusterIP")?.parse()?)
}

fn slices(index: usize) -> String {
    let (namespace, _) = name(index);
    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
}

/// A Service without the fields that the API assigns: ClusterIP and node port.
fn service(index: usize) -> Value {
    let mut service = scale::service(index);
    for given in ["clusterIP", "clusterIPs"] {
        service["spec"][given].take();
    }
    service["spec"]["ports"][0]["nodePort"].take();
    service["metadata"]["resourceVersion"].take();
    service
}

/// An address that no endpoint has, and none had in the last 65,000 changes.
fn fresh(turn: usize) -> Ipv4Addr {
    address([10, 80, 0, 1], turn % 65_000)
}

/// Calls `act` for each number below `count`, with all clients in parallel. Returns the first error.
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
        let slices: Vec<Value> = (0..3).map(slice).collect();
        let all = slices
            .iter()
            .flat_map(|slice| slice["endpoints"].as_array().expect("endpoints"));
        let mut addresses: Vec<String> = all
            .map(|endpoint| endpoint["addresses"][0].to_string())
            .collect();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 30);
        assert_eq!(slices[2]["metadata"]["name"], "service-00002-v4");
        assert_ne!(fresh(0), fresh(64_999));
    }
}
