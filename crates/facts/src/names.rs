//! Families, paths and failures by the names that metrics and `/verdict` use.

use pathproof_wire::service::{Family, SourceClass};

/// `IPv4` or `IPv6`, as Kubernetes writes them.
pub fn of_family(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// `pod`, `host` or `external`.
pub fn of_path(path: SourceClass) -> &'static str {
    match path {
        SourceClass::Pod => "pod",
        SourceClass::Host => "host",
        SourceClass::External => "external",
    }
}
