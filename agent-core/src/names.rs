//! Families, paths and failures by the names that metrics and `/verdict` use.

use agent_common::service::{Family, SourceClass};

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

/// For `#[serde(with)]`.
pub mod family {
    use super::*;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(family: &Family, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(of_family(*family))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Family, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = Family::ALL
            .into_iter()
            .find(|family| of_family(*family) == name);
        found.ok_or_else(|| D::Error::unknown_variant(&name, &["IPv4", "IPv6"]))
    }
}

/// For `#[serde(with)]`.
pub(crate) mod some_family {
    use super::*;
    use serde::{Deserialize, Deserializer, Serialize as _, Serializer};

    #[derive(Deserialize)]
    struct Named(#[serde(with = "super::family")] Family);

    pub(crate) fn serialize<S: Serializer>(
        family: &Option<Family>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        family.map(of_family).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Family>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map(|Named(family)| family))
    }
}

/// For `#[serde(with)]`.
pub(crate) mod path {
    use super::*;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        path: &SourceClass,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(of_path(*path))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<SourceClass, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = SourceClass::ALL
            .into_iter()
            .find(|path| of_path(*path) == name);
        found.ok_or_else(|| D::Error::unknown_variant(&name, &["pod", "host", "external"]))
    }
}

/// Counts by failure: an object in JSON, for `#[serde(with)]`.
pub(super) mod by_failure {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::cause::Failure;

    pub(in super::super) fn serialize<S: Serializer>(
        counts: &[(Failure, u64)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(counts.iter().copied())
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(Failure, u64)>, D::Error> {
        Ok(BTreeMap::deserialize(deserializer)?.into_iter().collect())
    }
}
