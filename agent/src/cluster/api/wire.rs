//! Lines and pages as the API server sends them.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::cluster::facts::{Kind, identity};
use crate::cluster::store::Event;

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
    let parsed = kind.parse(text);
    let version = identity(&parsed).1.resource_version.clone();
    (Event::There(parsed), version)
}
