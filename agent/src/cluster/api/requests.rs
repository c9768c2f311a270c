//! What is asked of the API server: paths, selectors, and nothing else.

use std::fmt::Write as _;

use super::{Kind, Scope};

/// What kube-proxy 1.36 asks Services and EndpointSlices for (cmd/kube-proxy/app/server.go):
/// `!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless`, in a URL.
const SERVED: &str = "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name%2C%21service.kubernetes.io%2Fheadless";

/// Requests for one resource.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    pub(super) kind: Kind,
    path: String,
    selector: String,
    /// Objects on a page. One page is in memory at a time, and a slice can have 1,000 endpoints.
    page: u32,
}

/// From where a watch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From<'a> {
    /// From what is there, told first, at least as new as this version; `0` is any.
    Beginning(&'a str),
    /// From this version.
    Version(&'a str),
}

impl Requests {
    /// For a resource, as far as it is watched.
    pub(super) fn new(kind: Kind, scope: &Scope, node_name: &str) -> Self {
        let named = |name: &str| format!("fieldSelector=metadata.name%3D{}", escaped(name));
        let (path, selector) = match (kind, scope) {
            (Kind::Node, _) => ("/api/v1/nodes".to_owned(), named(node_name)),
            (Kind::Service, Scope::Full) => ("/api/v1/services".to_owned(), SERVED.to_owned()),
            (Kind::Slice, Scope::Full) => {
                let path = "/apis/discovery.k8s.io/v1/endpointslices";
                (path.to_owned(), SERVED.to_owned())
            }
            (Kind::Service, Scope::Sentinel(of)) => {
                let path = format!("/api/v1/namespaces/{}/services", escaped(&of.namespace));
                (path, named(&of.name))
            }
            (Kind::Slice, Scope::Sentinel(of)) => {
                let namespace = escaped(&of.namespace);
                let path =
                    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
                let label = "labelSelector=kubernetes.io%2Fservice-name%3D";
                (path, format!("{label}{}", escaped(&of.name)))
            }
        };
        let page = if kind == Kind::Slice { 50 } else { 250 };
        Self {
            kind,
            path,
            selector,
            page,
        }
    }

    /// One page of what is there: the newest, or what follows a page.
    pub(super) fn list(&self, after: Option<&str>) -> String {
        let mut url = format!("{}?{}&limit={}", self.path, self.selector, self.page);
        if let Some(token) = after {
            url.push_str("&continue=");
            url.push_str(&escaped(token));
        }
        url
    }

    /// What changes, for so many seconds.
    pub(super) fn watch(&self, from: From<'_>, seconds: u64) -> String {
        let mut url = format!(
            "{}?watch=true&{}&allowWatchBookmarks=true&timeoutSeconds={seconds}",
            self.path, self.selector
        );
        let version = match from {
            From::Beginning(version) => {
                url.push_str("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
                version
            }
            From::Version(version) => version,
        };
        url.push_str("&resourceVersion=");
        url.push_str(&escaped(version));
        url
    }
}

/// A value in a URL's query or path.
fn escaped(text: &str) -> String {
    let mut url = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(url, "%{byte:02X}");
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_core::cluster::ObjectName;

    #[test]
    fn selectors_are_those_of_kube_proxy() {
        let full = Requests::new(Kind::Slice, &Scope::Full, "here");
        assert_eq!(
            full.watch(From::Version("7"), 300),
            "/apis/discovery.k8s.io/v1/endpointslices?watch=true&labelSelector=%21service.kubernetes.io%2Fservice-proxy-name%2C%21service.kubernetes.io%2Fheadless&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=7"
        );
        let node = Requests::new(Kind::Node, &Scope::Full, "here");
        assert_eq!(
            node.watch(From::Beginning("0"), 300),
            "/api/v1/nodes?watch=true&fieldSelector=metadata.name%3Dhere&allowWatchBookmarks=true&timeoutSeconds=300&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0"
        );
    }

    #[test]
    fn the_sentinel_alone_can_be_watched() {
        let scope = Scope::Sentinel(ObjectName::new("pathproof", "sentinel"));
        let list = |kind| Requests::new(kind, &scope, "here").list(Some("a=b"));
        assert_eq!(
            list(Kind::Service),
            "/api/v1/namespaces/pathproof/services?fieldSelector=metadata.name%3Dsentinel&limit=250&continue=a%3Db"
        );
        assert_eq!(
            list(Kind::Slice),
            "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dsentinel&limit=50&continue=a%3Db"
        );
    }
}
