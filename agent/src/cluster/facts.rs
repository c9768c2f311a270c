//! Facts of one object, whatever its kind, and the changes they make of the view.

use std::sync::Arc;

use super::convert::{Converter, Invalid, Skipped};
use super::yaml::Object;
use agent_core::cluster::{Change, NodeFacts, ServiceFacts, SliceFacts};

/// Facts of an object, as shared with the view.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Facts {
    Node(Arc<NodeFacts>),
    Service(Arc<ServiceFacts>),
    Slice(Arc<SliceFacts>),
}

impl Facts {
    /// What an object says, or why it is passed over.
    pub(super) fn of(
        converter: &mut Converter,
        object: &Object,
    ) -> Result<Result<Self, Skipped>, Invalid> {
        Ok(match object {
            Object::Node(node) => converter.node(node)?.map(|f| Self::Node(Arc::new(f))),
            Object::Service(service) => converter
                .service(service)?
                .map(|f| Self::Service(Arc::new(f))),
            Object::Slice(slice) => converter.slice(slice)?.map(|f| Self::Slice(Arc::new(f))),
        })
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Facts::Node(_) => "Node",
            Facts::Service(_) => "Service",
            Facts::Slice(_) => "EndpointSlice",
        }
    }

    pub(super) fn name(&self) -> String {
        match self {
            Facts::Node(node) => node.name.to_string(),
            Facts::Service(service) => service.name.to_string(),
            Facts::Slice(slice) => slice.name.to_string(),
        }
    }

    pub(super) fn put(self) -> Change {
        match self {
            Facts::Node(facts) => Change::Node(facts),
            Facts::Service(facts) => Change::Service(facts),
            Facts::Slice(facts) => Change::Slice(facts),
        }
    }

    pub(super) fn gone(&self) -> Change {
        match self {
            Facts::Node(_) => Change::NodeGone,
            Facts::Service(facts) => Change::ServiceGone(facts.name.clone()),
            Facts::Slice(facts) => Change::SliceGone {
                slice: facts.name.clone(),
                service: Arc::clone(&facts.service),
            },
        }
    }

    /// A slice that belongs to another Service now leaves the first one.
    pub(super) fn moved_from(&self, before: &Facts) -> Option<Change> {
        match (before, self) {
            (Facts::Slice(before_facts), Facts::Slice(after))
                if before_facts.service != after.service =>
            {
                Some(before.gone())
            }
            _ => None,
        }
    }
}

/// Kind, namespace and name, as they make an object the same.
pub(super) fn identity(object: &Object) -> (&'static str, &str, &str) {
    let (kind, metadata) = match object {
        Object::Node(node) => ("Node", &node.metadata),
        Object::Service(service) => ("Service", &service.metadata),
        Object::Slice(slice) => ("EndpointSlice", &slice.metadata),
    };
    let namespace = metadata
        .namespace
        .as_deref()
        .filter(|namespace| !namespace.is_empty());
    (
        kind,
        namespace.unwrap_or("default"),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

/// Whether a change takes something away.
pub(super) fn is_gone(change: &Change) -> bool {
    matches!(
        change,
        Change::NodeGone | Change::ServiceGone(_) | Change::SliceGone { .. }
    )
}
