//! The listeners and their answers: `health` for load balancers and kubelet, `service` for load
//! balancers that probe one Service, `admin` for people, Prometheus and `pathproof status`. `serve`
//! manages the connections of all three.
//!
//! Handlers do not judge the node, and no request changes state. Answers about the node come from what the
//! main loop has published; only `/drainz` and `/recording` are made on request.

use std::net::IpAddr;

use ipnet::IpNet;

pub mod admin;
pub mod bind;
mod closing;
mod go;
pub mod health;
pub mod limits;
mod proxied;
pub mod serve;
pub mod service;

/// Ranges of sources that may connect; empty allows all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList(Vec<IpNet>);

impl AllowList {
    /// Allows these ranges. An IPv4-mapped IPv6 range (`::ffff:10.0.0.0/104`) counts as the IPv4 range.
    pub fn new(ranges: impl IntoIterator<Item = IpNet>) -> Self {
        let ranges: Vec<IpNet> = ranges.into_iter().map(unmapped).collect();
        Self(IpNet::aggregate(&ranges))
    }

    /// Whether this source may connect. A socket of both families reports IPv4 peers as IPv4-mapped IPv6;
    /// such a source is matched as IPv4.
    pub fn allows(&self, source: IpAddr) -> bool {
        let source = source.to_canonical();
        self.0.is_empty() || self.0.iter().any(|range| range.contains(&source))
    }
}

/// Converts an IPv4-mapped IPv6 range to IPv4; returns any other as it is.
pub fn unmapped(range: IpNet) -> IpNet {
    let IpNet::V6(v6) = range else { return range };
    match (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96)) {
        (Some(address), Some(prefix)) => IpNet::new(address.into(), prefix).unwrap_or(range),
        _ => range,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10.0.0.0/8", "10.1.2.3", true)]
    #[case("10.0.0.0/8", "11.1.2.3", false)]
    #[case("10.0.0.0/8", "::ffff:10.1.2.3", true)]
    #[case("::ffff:10.0.0.0/104", "10.1.2.3", true)]
    #[case("::ffff:10.0.0.0/104", "11.1.2.3", false)]
    #[case("0.0.0.0/0", "2001:db8::1", false)]
    #[case("::/0", "10.1.2.3", false)]
    #[case("::/0", "::ffff:10.1.2.3", false)]
    #[case("2001:db8::/32", "2001:db8::1", true)]
    fn ranges(#[case] range: &str, #[case] source: &str, #[case] expected: bool) {
        let list = AllowList::new([range.parse().unwrap()]);
        assert_eq!(list.allows(source.parse().unwrap()), expected);
    }

    #[test]
    fn an_empty_list_allows_everyone() {
        assert!(AllowList::default().allows("192.0.2.1".parse().unwrap()));
    }
}
