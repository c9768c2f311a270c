//! Entry of fuzz targets.

use serde_json::value::RawValue;

use crate::cluster::Update;
use crate::cluster::facts::Kind;
use crate::cluster::store::{Event, Store};

/// The update that fills an empty view with the objects in `lines`, one per line, as in the responses of an
/// API server. Each line is read as every kind of object.
pub fn listed(node_name: &str, lines: &[u8]) -> Option<Update> {
    let mut store = Store::new(node_name);
    for kind in Kind::ALL {
        store.take(Event::ListBegins(kind));
        for line in lines.split(|byte| *byte == b'\n') {
            if let Ok(text) = serde_json::from_slice::<&RawValue>(line) {
                store.take(Event::There(kind.parse(text)));
            }
        }
        store.take(Event::ListEnds(kind));
    }
    store.update()
}
