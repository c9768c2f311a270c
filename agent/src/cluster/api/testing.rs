//! Entry of fuzz targets.

use serde_json::value::RawValue;

use super::store::{Event, Store};
use super::wire;
use crate::cluster::Update;
use crate::cluster::facts::Kind;

/// The update that fills an empty view with the objects in `lines`, one per line, as in the responses of an
/// API server. Each line is read as every kind of object.
pub fn listed(node_name: &str, lines: &[u8]) -> Option<Update> {
    let mut store = Store::new(node_name);
    for kind in Kind::ALL {
        store.take(Event::ListBegins(kind));
        for line in lines.split(|byte| *byte == b'\n') {
            if let Ok(text) = serde_json::from_slice::<&RawValue>(line) {
                store.take(wire::object(kind, text).0);
            }
        }
        store.take(Event::ListEnds(kind));
    }
    store.update()
}
