//! The JSON values of one object, up to a limit of memory. A map of one entry takes fifty times as much memory
//! as its text, so a file within its limit could take gigabytes.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Maximum memory of one object in bytes. The largest object that etcd stores, a Service of 54,000 ports in
/// 1.5 MiB, takes less.
pub(super) const LIMIT: usize = 64 << 20;
/// Memory of a map's first node, which has room for 11 entries.
const MAP: usize = 640;
/// Memory of a map's key, without its text.
const KEY: usize = 64;
/// Memory of a list's item, or of a string without its text.
const VALUE: usize = 32;

/// The fields of an object, and whether all of them are within the limit.
pub(super) struct Fields {
    pub(super) map: Map<String, Value>,
    pub(super) fits: bool,
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut left = LIMIT;
        match from.deserialize_map(Bounded(&mut left))? {
            Value::Object(map) => Ok(Self {
                map,
                fits: left > 0,
            }),
            _ => Err(D::Error::custom("a Kubernetes object is expected")),
        }
    }
}

/// Reads a value within the memory that is left. If that is used up, further values are skipped, so that the
/// other objects of a list are still read.
pub(super) struct Bounded<'a>(pub(super) &'a mut usize);

impl Bounded<'_> {
    /// Returns whether that much memory was left.
    fn spend(&mut self, bytes: usize) -> bool {
        *self.0 = self.0.saturating_sub(bytes);
        *self.0 > 0
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        match *self.0 {
            0 => IgnoredAny::deserialize(from).map(|_| Value::Null),
            _ => from.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(mut self, text: &str) -> Result<Value, E> {
        match self.spend(VALUE + text.len()) {
            true => Ok(text.into()),
            false => Ok(Value::Null),
        }
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(Bounded(&mut *self.0))? {
            // The first item takes room for four.
            let room = if all.is_empty() { 4 * VALUE } else { VALUE };
            if self.spend(room) {
                all.push(item);
            }
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        self.spend(MAP);
        while let Some(key) = map.next_key::<String>()? {
            if key == "managedFields" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let fits = self.spend(KEY + key.len());
            let value = map.next_value_seed(Bounded(&mut *self.0))?;
            if fits {
                all.insert(key, value);
            }
        }
        Ok(Value::Object(all))
    }
}
