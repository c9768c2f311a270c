//! Conversion between the sentinel's EndpointSlices in the API and the core's types.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, NotUsed, Object, PatchParams, PostParams};
use kube::{Api, Client};
use pathproof_facts::cluster::Protocol;
use pathproof_facts::fleet_report::FLEET;
use pathproof_facts::names;
use pathproof_facts::node_context::address;
use pathproof_rotator::rotation::{SliceSeen, SliceSpec, slice_name};
use pathproof_wire::service::Family;
use serde_json::{Value, json};

use crate::cluster::NOT_SERVED_LABELS;
use crate::config::RotateConfig;

/// Label that selects the slices of a Service.
pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`]. If the label is missing or has another value, a controller of the cluster may
/// take over the slice.
const MANAGER: &str = "pathproof";
/// Owner of the fields that the rotator writes, in `metadata.managedFields`. Without this name the API server
/// records "unknown".
const FIELD_MANAGER: &str = "pathproof-rotator";

/// Parameters of all requests that create or replace an object.
pub(super) fn posting() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

/// Parameters of all patches.
pub(super) fn patching() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER)
}

const PROTOCOLS: [(Protocol, &str); 3] = [
    (Protocol::Tcp, "TCP"),
    (Protocol::Udp, "UDP"),
    (Protocol::Sctp, "SCTP"),
];

/// A port without a protocol uses TCP, as in the API.
fn protocol(name: Option<&str>) -> Protocol {
    let found = PROTOCOLS.iter().find(|(_, named)| Some(*named) == name);
    found.map_or(Protocol::Tcp, |(protocol, _)| *protocol)
}

pub(super) fn seen(slice: EndpointSlice) -> SliceSeen {
    let labels = slice.metadata.labels.unwrap_or_default();
    let mut annotations = slice.metadata.annotations.unwrap_or_default();
    let endpoints = slice.endpoints.unwrap_or_default();
    let ready = |endpoint: &Endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.is_none_or(|conditions| {
            conditions.ready != Some(false) && conditions.terminating != Some(true)
        })
    };
    let is_ready = endpoints.iter().all(ready);
    let addresses = endpoints.into_iter().flat_map(|one| one.addresses);
    let port = |found: EndpointPort| {
        let number = found.port.and_then(|port| u16::try_from(port).ok());
        let protocol = protocol(found.protocol.as_deref());
        let name = found.name.unwrap_or_default();
        (name, protocol, number.unwrap_or(0))
    };
    let is_type = |family: &Family| slice.address_type == names::of_family(*family);
    let manager = labels.get(MANAGED_BY).map(String::as_str);
    let is_hidden = NOT_SERVED_LABELS
        .iter()
        .any(|label| labels.contains_key(*label));
    SliceSeen {
        name: slice.metadata.name.unwrap_or_default(),
        version: slice.metadata.resource_version.unwrap_or_default(),
        family: Family::ALL.into_iter().find(is_type),
        is_labelled: manager == Some(MANAGER) && !is_hidden,
        endpoints: (addresses.collect(), is_ready),
        ports: slice.ports.into_iter().flatten().map(port).collect(),
        fleet: annotations.remove(FLEET),
    }
}

/// The sentinel's Service, read without its status. An API server accepts a condition with a null time, but
/// the typed object refuses it.
pub(super) type SentinelService = Object<Option<ServiceSpec>, NotUsed>;

pub(super) fn services(client: &Client, namespace: &str) -> Api<SentinelService> {
    let kind = ApiResource::erase::<Service>(&());
    Api::namespaced_with(client.clone(), namespace, &kind)
}

pub(super) fn wanted(
    spec: Option<ServiceSpec>,
    config: &RotateConfig,
    fleet: Option<String>,
) -> SliceSpec {
    let spec = spec.unwrap_or_default();
    let ips = spec.cluster_ips.or(spec.cluster_ip.map(|ip| vec![ip]));
    let ips = ips.into_iter().flatten().filter_map(|ip| ip.parse().ok());
    let held: Vec<Family> = ips.map(|ip| Family::of(&address(&ip))).collect();
    let families = Family::ALL.into_iter();
    let port = |port: ServicePort| {
        let protocol = protocol(port.protocol.as_deref());
        (port.name.unwrap_or_default(), protocol)
    };
    SliceSpec {
        service: config.sentinel.service.name.to_string(),
        families: families.filter(|family| held.contains(family)).collect(),
        ports: spec.ports.into_iter().flatten().map(port).collect(),
        echo: config.sentinel.echo,
        fleet,
    }
}

pub(super) fn slice(wanted: &SliceSpec, family: Family, generation: u16) -> EndpointSlice {
    let port = |(name, protocol): &(String, Protocol)| EndpointPort {
        name: Some(name.clone()),
        port: Some(i32::from(generation)),
        protocol: Some(PROTOCOLS[*protocol as usize].1.to_owned()),
        ..EndpointPort::default()
    };
    EndpointSlice {
        address_type: names::of_family(family).to_owned(),
        metadata: ObjectMeta {
            name: Some(slice_name(&wanted.service, family)),
            labels: Some(BTreeMap::from([
                (SERVICE_NAME.to_owned(), wanted.service.clone()),
                (MANAGED_BY.to_owned(), MANAGER.to_owned()),
            ])),
            annotations: counts(wanted, family),
            ..ObjectMeta::default()
        },
        endpoints: Some(vec![Endpoint {
            addresses: vec![wanted.echo[family as usize].to_string()],
            conditions: Some(EndpointConditions {
                ready: Some(true),
                ..EndpointConditions::default()
            }),
            ..Endpoint::default()
        }]),
        ports: Some(wanted.ports.iter().map(port).collect()),
    }
}

/// Annotation with the count of nodes; only the slice of the first family has it.
fn counts(wanted: &SliceSpec, family: Family) -> Option<BTreeMap<String, String>> {
    let has = wanted.families.first() == Some(&family);
    let fleet = wanted.fleet.clone().filter(|_| has)?;
    Some(BTreeMap::from([(FLEET.to_owned(), fleet)]))
}

/// Patch that changes only the count, if the slice is still at this version.
pub(super) fn count_patch(wanted: &SliceSpec, family: Family, version: &str) -> Value {
    json!({ "metadata": { "resourceVersion": version, "annotations": counts(wanted, family) } })
}

/// Patch that restores a slice, if it is still at this version. Other annotations are kept.
pub(super) fn patch(slice: &EndpointSlice, version: &str) -> Value {
    let metadata = &slice.metadata;
    let labels = metadata.labels.iter().flatten();
    let labels = labels.map(|(label, value)| (label.clone(), json!(value)));
    let taken_off = NOT_SERVED_LABELS.map(|label| (label.to_owned(), Value::Null));
    let labels: serde_json::Map<_, _> = labels.chain(taken_off).collect();
    let annotations = metadata.annotations.clone().unwrap_or_default();
    json!({
        "metadata": {
            "resourceVersion": version, "labels": labels, "annotations": annotations,
        },
        "endpoints": slice.endpoints,
        "ports": slice.ports,
    })
}
