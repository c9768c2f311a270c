//! Families, paths and failures by the names that metrics and `/verdict` use.

use pathproof_wire::service::{Family, FrontendKind, SourceClass};
use serde::{Deserialize, Serialize};

/// `IPv4` or `IPv6`, as Kubernetes writes them.
pub fn of_family(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// `pod`, `host` or `external`.
pub fn of_path(path: SourceClass) -> &'static str {
    match path {
        SourceClass::Pod => "pod",
        SourceClass::Host => "host",
        SourceClass::External => "external",
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Family")]
pub enum FamilyName {
    #[serde(rename = "IPv4")]
    V4,
    #[serde(rename = "IPv6")]
    V6,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "SourceClass", rename_all = "snake_case")]
pub enum ClassName {
    Pod,
    Host,
    External,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "FrontendKind", rename_all = "snake_case")]
pub enum KindName {
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalIp,
}

pub mod some_family {
    use serde::{Deserializer, Serializer};

    use super::*;

    #[derive(Deserialize)]
    struct Named(#[serde(with = "FamilyName")] Family);

    pub fn serialize<S: Serializer>(
        family: &Option<Family>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        family.map(of_family).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Family>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map(|Named(family)| family))
    }
}
