//! Nodes, Services and EndpointSlices: the objects that are read, and their facts.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{LoadBalancerStatus, Node, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pathproof_facts::cluster::{Change, NodeFacts, ServiceFacts, SliceFacts};
use serde::{Deserialize, Deserializer};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    Node,
    Service,
    Slice,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Node, Kind::Service, Kind::Slice];

    pub(super) fn name(self) -> &'static str {
        ["Node", "Service", "EndpointSlice"][self as usize]
    }

    /// The kind's resource name, as used in roles.
    pub(super) fn resource(self) -> &'static str {
        ["nodes", "services", "endpointslices"][self as usize]
    }

    /// The kind of an object with this `apiVersion` and `kind`; `None` if it does not matter here.
    pub(super) fn of(version: &str, kind: &str) -> Option<Self> {
        match (version, kind) {
            ("v1", "Node") => Some(Kind::Node),
            ("v1", "Service") => Some(Kind::Service),
            ("discovery.k8s.io/v1", "EndpointSlice") => Some(Kind::Slice),
            _ => None,
        }
    }

    /// Parses an object. If it is not of this kind, only its metadata is read.
    pub(super) fn parse<'de, D: Deserializer<'de> + Copy>(self, from: D) -> Parsed {
        let object = match self {
            Kind::Node => Box::<Node>::deserialize(from).map(Object::Node),
            Kind::Service => Box::<ServedService>::deserialize(from).map(Object::Service),
            Kind::Slice => Box::<ServedSlice>::deserialize(from).map(Object::Slice),
        };
        object.map_err(|error| Unreadable {
            kind: self,
            metadata: Box::new(metadata(from)),
            error: error.to_string(),
        })
    }

    /// Kind, namespace and name: the identity of an object.
    pub(super) fn identity(self, metadata: &ObjectMeta) -> (Self, &str, &str) {
        let (namespace, name) = object_names(metadata);
        (self, namespace, name)
    }

    /// Kind and name for messages.
    pub(super) fn title(self, metadata: &ObjectMeta) -> String {
        match self.identity(metadata) {
            (_, _, "") => format!("{} without a name", self.name()),
            (Kind::Node, _, name) => format!("Node {name}"),
            (_, namespace, name) => format!("{} {namespace}/{name}", self.name()),
        }
    }
}

/// Namespace and name. As for `kubectl apply`, an object without a namespace is in `default`.
pub(super) fn object_names(metadata: &ObjectMeta) -> (&str, &str) {
    let (namespace, name) = (&metadata.namespace, &metadata.name);
    let namespace = namespace.as_deref().filter(|text| !text.is_empty());
    let name = name.as_deref().unwrap_or_default();
    (namespace.unwrap_or("default"), name)
}

#[derive(Debug)]
pub enum Object {
    Node(Box<Node>),
    Service(Box<ServedService>),
    Slice(Box<ServedSlice>),
}

/// An object that cannot be parsed as its kind.
#[derive(Debug)]
pub struct Unreadable {
    pub(super) kind: Kind,
    pub(super) metadata: Box<ObjectMeta>,
    pub(super) error: String,
}

pub(super) type Parsed = Result<Object, Unreadable>;

/// Kind and metadata of an object, whether it could be parsed or not.
pub(super) fn identity(parsed: &Parsed) -> (Kind, &ObjectMeta) {
    match parsed {
        Ok(object) => (object.kind(), object.metadata()),
        Err(unreadable) => (unreadable.kind, &unreadable.metadata),
    }
}

/// The parts of a Service that the agent needs. `status.conditions` is not read: an API server accepts a
/// condition with a null time, but the typed object refuses it, and the whole Service would be lost.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServedService {
    #[serde(default, deserialize_with = "used_metadata")]
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Option<ServiceSpec>,
    pub(super) status: Option<ServedStatus>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServedStatus {
    pub(super) load_balancer: Option<LoadBalancerStatus>,
}

/// The parts of an EndpointSlice that the agent needs.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServedSlice {
    #[serde(default, deserialize_with = "used_metadata")]
    pub(super) metadata: ObjectMeta,
    pub(super) address_type: Option<String>,
    pub(super) endpoints: Option<Vec<Endpoint>>,
    pub(super) ports: Option<Vec<EndpointPort>>,
}

/// Reads the metadata that the agent needs. `managedFields` is skipped: its author may fill it with 100,000
/// maps of one entry, and each would take 600 bytes of memory.
fn used_metadata<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Used {
        name: Option<String>,
        namespace: Option<String>,
        resource_version: Option<String>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
    }
    let used = Option::<Used>::deserialize(from)?.unwrap_or_default();
    Ok(ObjectMeta {
        name: used.name,
        namespace: used.namespace,
        resource_version: used.resource_version,
        labels: used.labels,
        annotations: used.annotations,
        ..ObjectMeta::default()
    })
}

/// Metadata of an object whose other fields do not matter or cannot be read.
pub(super) fn metadata<'de, D: Deserializer<'de>>(from: D) -> ObjectMeta {
    #[derive(Default, Deserialize)]
    struct Stub {
        #[serde(default, deserialize_with = "used_metadata")]
        metadata: ObjectMeta,
    }
    Stub::deserialize(from).unwrap_or_default().metadata
}

impl Object {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Object::Node(_) => Kind::Node,
            Object::Service(_) => Kind::Service,
            Object::Slice(_) => Kind::Slice,
        }
    }

    pub(super) fn metadata(&self) -> &ObjectMeta {
        match self {
            Object::Node(node) => &node.metadata,
            Object::Service(service) => &service.metadata,
            Object::Slice(slice) => &slice.metadata,
        }
    }
}

/// Facts of an object, shared with the view.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ObjectFacts {
    Node(Arc<NodeFacts>),
    Service(Arc<ServiceFacts>),
    Slice(Arc<SliceFacts>),
}

impl ObjectFacts {
    /// Namespace and name of the Service itself, or of the Service that a slice belongs to; `None` for a
    /// Node.
    pub(super) fn owner(&self) -> Option<(&Arc<str>, &Arc<str>)> {
        match self {
            ObjectFacts::Node(_) => None,
            ObjectFacts::Service(facts) => Some((&facts.name.namespace, &facts.name.name)),
            ObjectFacts::Slice(facts) => Some((&facts.name.namespace, &facts.service)),
        }
    }

    /// Estimate of the memory in bytes for the object, and for everything that is stored per object, port and
    /// address.
    pub(super) fn weight(&self) -> usize {
        const OBJECT: usize = 512;
        const PORT: usize = 80;
        const ADDRESS: usize = 20;
        let text = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        let (ports, addresses, text): (usize, _, _) = match self {
            ObjectFacts::Node(_) => return 0,
            ObjectFacts::Service(facts) => {
                let ports = facts.ports.iter().map(|port| PORT + port.name.len());
                let chosen = facts.external_ips.len() + facts.load_balancer_ips.len();
                let addresses = facts.cluster_ips.len() + chosen;
                (ports.sum(), addresses, text(&facts.enforcement))
            }
            ObjectFacts::Slice(facts) => {
                let ports = facts.ports.iter().map(|port| PORT + port.name.len());
                (ports.sum(), facts.endpoints.len(), text(&facts.fleet))
            }
        };
        OBJECT + ports + ADDRESS * addresses + text
    }

    fn put(self) -> Change {
        match self {
            ObjectFacts::Node(facts) => Change::Node(facts),
            ObjectFacts::Service(facts) => Change::Service(facts),
            ObjectFacts::Slice(facts) => Change::Slice(facts),
        }
    }

    pub(super) fn gone(&self) -> Change {
        match self {
            ObjectFacts::Node(_) => Change::NodeGone,
            ObjectFacts::Service(facts) => Change::ServiceGone(facts.name.clone()),
            ObjectFacts::Slice(facts) => Change::SliceGone {
                slice: facts.name.clone(),
                service: Arc::clone(&facts.service),
            },
        }
    }
}

/// Adds the changes of the view between `before` and `now`.
pub(super) fn compare(
    before: Option<&ObjectFacts>,
    now: Option<&ObjectFacts>,
    changes: &mut Vec<Change>,
) {
    if before == now {
        return;
    }
    // A slice that now belongs to another Service is removed from the previous one.
    let stays = match (before, now) {
        (Some(ObjectFacts::Slice(before)), Some(ObjectFacts::Slice(now))) => {
            before.service == now.service
        }
        (_, now) => now.is_some(),
    };
    if !stays {
        changes.extend(before.map(ObjectFacts::gone));
    }
    changes.extend(now.cloned().map(ObjectFacts::put));
}
