//! Whether the node forwards what comes in by the sentinel's client device: read, never written.

use std::fs;

use agent_common::service::Family;

use super::SentinelDevices;

const CONF: &str = "/proc/sys/net";

/// Whether a packet that comes in at the client's near end would be forwarded, as far as the
/// kernel's switches say; `None` where they cannot be read.
///
/// IPv4 asks the device that the packet came by; it inherits from `ip_forward`. IPv6 asks `all`,
/// whatever the device says, or the device's `force_forwarding` (Linux 6.17).
pub fn forwarding(devices: &SentinelDevices, family: Family) -> Option<bool> {
    let device = &devices.client_near.name;
    match family {
        Family::V4 => {
            read(&format!("ipv4/conf/{device}/forwarding")).or_else(|| read("ipv4/ip_forward"))
        }
        Family::V6 => {
            let all = read("ipv6/conf/all/forwarding");
            let forced = read(&format!("ipv6/conf/{device}/force_forwarding"));
            match (all, forced) {
                (Some(false), Some(true)) => Some(true),
                (all, _) => all,
            }
        }
    }
}

fn read(path: &str) -> Option<bool> {
    let text = fs::read_to_string(format!("{CONF}/{path}")).ok()?;
    let number: i64 = text.trim().parse().ok()?;
    Some(number != 0)
}
