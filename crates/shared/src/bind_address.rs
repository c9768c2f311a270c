//! An address to listen at, as kube-proxy's configuration and pathproof's options have it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Default port of /healthz and /livez, the same as kube-proxy's.
pub const HEALTHZ_PORT: u16 = 10256;

/// The word for no address.
const NONE: &str = "none";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindAddress {
    /// All addresses of both families, at this port: Go's meaning of 0.0.0.0, `[::]` or no host.
    Everywhere(u16),
    One(SocketAddr),
}

impl BindAddress {
    /// The port; 0 lets the kernel pick one.
    pub fn port(&self) -> u16 {
        match self {
            BindAddress::Everywhere(port) => *port,
            BindAddress::One(address) => address.port(),
        }
    }

    /// Whether only this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        matches!(self, BindAddress::One(address) if address.ip().is_loopback())
    }
}

impl From<SocketAddr> for BindAddress {
    fn from(address: SocketAddr) -> Self {
        let ip = address.ip().to_canonical();
        if ip.is_unspecified() {
            BindAddress::Everywhere(address.port())
        } else if ip == address.ip() {
            // Keep the whole address, because an IPv6 address may have a scope id.
            BindAddress::One(address)
        } else {
            BindAddress::One(SocketAddr::new(ip, address.port()))
        }
    }
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindAddress::Everywhere(port) => write!(f, "all addresses, port {port}"),
            BindAddress::One(address) => write!(f, "{address}"),
        }
    }
}

/// `IP:PORT`, `IP`, `[IP]`, `:PORT` or `[IP]:PORT`; the default port is `port`. `none` means no address.
///
/// # Errors
/// The forms of an address.
pub fn bind_address(
    port: u16,
) -> impl Fn(&str) -> Result<Option<BindAddress>, String> + Clone + Send + Sync + 'static {
    move |text| {
        let text = text.trim();
        if text == NONE {
            return Ok(None);
        }
        let inner = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let ip = inner.unwrap_or(text).parse::<IpAddr>();
        let one = text
            .parse()
            .or_else(|_| ip.map(|ip| SocketAddr::new(ip, port)));
        let everywhere = || text.strip_prefix(':')?.parse().ok();
        let address = one.map(BindAddress::from).ok();
        let address = address.or_else(|| everywhere().map(BindAddress::Everywhere));
        address.map(Some).ok_or_else(|| {
            format!(
                "it is not an address: give IP:PORT, IP, :PORT or none, for example 0.0.0.0:{port} \
                 (host names are not resolved)"
            )
        })
    }
}
