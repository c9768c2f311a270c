//! Lines and pages as the API server sends them.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Kind;
use super::store::Event;
use crate::cluster::facts::used_metadata;

#[derive(Deserialize)]
pub(super) struct Line<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

#[derive(Deserialize)]
pub(super) struct Page<'a> {
    pub(super) metadata: ListMeta,
    #[serde(borrow, default)]
    pub(super) items: Option<Vec<&'a RawValue>>,
}

/// The event for an object, and the version from which a watch continues after it.
pub(super) fn object(kind: Kind, text: &RawValue) -> (Event, Option<String>) {
    match kind.read(&mut serde_json::Deserializer::from_str(text.get())) {
        Ok(object) => {
            let version = object.metadata().resource_version.clone();
            (Event::There(object), version)
        }
        Err(error) => {
            let metadata = metadata(text);
            let version = metadata.resource_version.clone();
            let event = Event::Unreadable(kind, Box::new(metadata), error.to_string());
            (event, version)
        }
    }
}

/// Metadata of an object whose other fields do not matter or cannot be read.
pub(super) fn metadata(text: &RawValue) -> ObjectMeta {
    #[derive(Default, Deserialize)]
    struct Stub {
        #[serde(default, deserialize_with = "used_metadata")]
        metadata: ObjectMeta,
    }
    let stub: Stub = serde_json::from_str(text.get()).unwrap_or_default();
    stub.metadata
}
