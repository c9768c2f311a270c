//! The datapath's shape. Every label has a handful of values.

use std::fmt;

use super::*;
use agent_core::shape::{Cilium, Shape};

impl Page<'_, '_> {
    pub(super) fn datapath(&mut self, shape: &Shape) -> fmt::Result {
        let cilium = shape.cilium;
        let of = |name: fn(Cilium) -> &'static str| cilium.map_or("none", name);
        let yes = |is: bool| if is { "yes" } else { "no" };
        let labels = [
            ("cilium", yes(cilium.is_some())),
            ("replacement", of(|cilium| cilium.replacement.name())),
            ("socket_lb", of(|cilium| cilium.socket_lb.name())),
            ("routing", of(|cilium| cilium.routing.name())),
            ("xdp", yes(!shape.accelerated.is_empty())),
            ("netkit", yes(shape.netkit > 0)),
            ("sentinel_managed", shape.sentinel_managed.name()),
        ];
        self.family(define::DATAPATH)?.gauge(&labels, 1.0)?;
        let mut seen = self.family(define::PATH_SEEN)?;
        for path in &shape.paths {
            let labels = [
                ("family", names::of_family(path.family)),
                ("path", names::of_path(path.path)),
                ("seen", path.seen.name()),
            ];
            seen.gauge(&labels, 1.0)?;
        }
        Ok(())
    }
}
