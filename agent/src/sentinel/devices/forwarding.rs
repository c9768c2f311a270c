//! Whether the node forwards what comes in by the sentinel's client device: read, never written.

use std::fs;

use agent_common::service::Family;

use super::SentinelDevices;

const CONF: &str = "/proc/sys/net";

/// Whether the node forwards, as far as the kernel's switches say; `None` where they cannot be read,
/// or where only our own device says otherwise ([`overridden`]).
///
/// IPv4 asks the device that a packet came by; it is set with `ip_forward`, and may be set apart.
/// IPv6 asks `all`, whatever the device says, or the device's `force_forwarding` (Linux 6.17).
pub fn forwarding(devices: &SentinelDevices, family: Family) -> Option<bool> {
    match family {
        Family::V4 => match (own(devices), read("ipv4/ip_forward")) {
            (Some(false), Some(true)) => None,
            (own, node) => own.or(node),
        },
        Family::V6 => {
            let device = &devices.client_near.name;
            let all = read("ipv6/conf/all/forwarding");
            let forced = read(&format!("ipv6/conf/{device}/force_forwarding"));
            match (all, forced) {
                (Some(false), Some(true)) => Some(true),
                (all, _) => all,
            }
        }
    }
}

/// In words, that somebody turned IPv4 forwarding off for our device alone: probes are not
/// forwarded then, and pods' packets are.
pub fn overridden(devices: &SentinelDevices) -> Option<String> {
    let apart = own(devices) == Some(false) && read("ipv4/ip_forward") == Some(true);
    apart.then(|| {
        let device = &devices.client_near.name;
        format!(
            "net.ipv4.conf.{device}.forwarding is 0 while the node forwards: let whoever set it (a \
             network manager, a hardening role) leave {device} alone, and set it to 1"
        )
    })
}

/// Whether a family can be had on the near ends.
pub fn is_enabled(devices: &SentinelDevices, family: Family) -> bool {
    let device = &devices.client_near.name;
    match family {
        Family::V4 => true,
        Family::V6 => read(&format!("ipv6/conf/{device}/disable_ipv6")) == Some(false),
    }
}

fn own(devices: &SentinelDevices) -> Option<bool> {
    let device = &devices.client_near.name;
    read(&format!("ipv4/conf/{device}/forwarding"))
}

fn read(path: &str) -> Option<bool> {
    let text = fs::read_to_string(format!("{CONF}/{path}")).ok()?;
    let number: i64 = text.trim().parse().ok()?;
    Some(number != 0)
}
