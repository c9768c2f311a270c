//! Compile-time checks of the shared layouts: sizes, no padding, `Pod`.

use crate::dropped::{DropKey, SkbLayout};
use crate::evidence::{Anomaly, Budget, Pending, PendingKey, ServiceCounts, Touched, UdpPorts};
use crate::gate::{Marks, Rate};
use crate::probe::{HostProbe, Probe, ProbeEvent, ProbeKey};
use crate::service::{EndpointEntry, EndpointKey, EndpointValue, FrontendKey, FrontendValue};
use crate::steer::SteerRule;

/// Fails to compile unless the sizes of the fields add up to the size of the type. So the type has no
/// padding, and no uninitialised byte crosses the kernel boundary.
macro_rules! no_padding {
    ($type:ident, $size:expr, $($field:ident: $field_type:ty),+ $(,)?) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            assert!(size_of::<$type>() == 0 $(+ size_of::<$field_type>())+);
            // Names every field, so that a new one cannot be forgotten here.
            const fn every_field(value: &$type) {
                let $type { $($field: _),+ } = value;
            }
            let _: fn(&$type) = every_field;
        };
        #[cfg(feature = "user")]
        // SAFETY: `repr(C)`, integers and arrays of integers only, and no padding, as asserted above.
        unsafe impl aya::Pod for $type {}
    };
}

no_padding!(FrontendKey, 20, address: [u8; 16], port: [u8; 2], protocol: u8, padding: u8);
no_padding!(FrontendValue, 12, service: u32, kind: u8, flags: u8, owed: [u8; 3], padding: [u8; 3]);
no_padding!(EndpointKey, 24, service: u32, address: [u8; 16], port: [u8; 2], padding: [u8; 2]);
no_padding!(EndpointValue, 4, flags: u32);
no_padding!(EndpointEntry, 16, value: EndpointValue, padding: u32, met_ns: u64);
no_padding!(PendingKey, 8, isn: u32, family: u32);
no_padding!(
    Pending, 72,
    arrived_ns: u64, state: u32, service: u32, device: u32, client_port: [u8; 2],
    frontend_port: [u8; 2], client: [u8; 16], frontend: [u8; 16], class: u8, owed: u8, kind: u8,
    flags: u8, note: u32, left_by: u32, range: u32,
);
no_padding!(ServiceCounts, 144, counts: [[u32; 11]; 3], padding: u32, reported_ns: u64);
no_padding!(Touched, 8192, words: [u32; 2048]);
no_padding!(UdpPorts, 8192, words: [u64; 1024]);
no_padding!(Budget, 16, window: u64, used: u32, padding: u32);
no_padding!(
    Rate, 24, window: u32, seen: u32, shift: u32, high: u32, high_before: u32, turned: u32,
);
no_padding!(
    Marks, 475_136,
    connections: [u32; 2048], payloads: [u16; 65536], clients: [u16; 65536], looked: [u16; 65536],
    answered: [u32; 16384], tries: [u32; 2048],
);
no_padding!(
    Anomaly, 88,
    at_ns: u64, arrived_ns: u64, isn: u32, service: u32, device: u32, outcome: u8, class: u8,
    kind: u8, flags: u8, client: [u8; 16], frontend: [u8; 16], destination: [u8; 16],
    client_port: [u8; 2], frontend_port: [u8; 2], destination_port: [u8; 2], padding: [u8; 2],
);

no_padding!(ProbeKey, 8, token: u32, family: u8, protocol: u8, padding: [u8; 2]);
no_padding!(
    Probe, 104,
    stamps: [[u64; 5]; 2], echo_source: [u8; 16], echo_source_port: [u8; 2], echo_port: [u8; 2],
    flags: u32,
);
no_padding!(HostProbe, 8, token: u32, seen: u32);
no_padding!(
    ProbeEvent, 32,
    at_ns: u64, key: ProbeKey, kind: u32, sequence: u32, acknowledged: u32, padding: u32,
);

no_padding!(DropKey, 8, service: u32, reason: u32);
no_padding!(
    SkbLayout, 16,
    head: u32, network_header: u32, inner_network_header: u32, padding: u32,
);

no_padding!(SteerRule, 24, address: [u8; 16], port: u32, flags: u32);
