//! Actions of a tenant of the cluster in a storm.

/// Action of a tenant, who may edit one namespace. None of them is a fault of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tenant {
    /// A Service of his claims the addresses of another's, and its rules win.
    ClaimsFirst,
    /// The same, and they do not.
    ClaimsLast,
    /// His Services claim what the sentinel's probes dial. The port of /healthz is left out: load balancers
    /// would get his answer, and the storm judges by theirs.
    ClaimsProbed,
    /// A Service of his claims the address of the sentinel's endpoint, and has it as its own.
    ClaimsEcho,
    /// His slices hold others' pods and addresses outside, as pods of this node.
    ForeignSlices,
    /// Services of a thousand ports with a hundred endpoints each.
    Products,
    /// A pod of his keeps its source port while an endpoint leaves.
    KeepsPort,
    /// A policy of his drops what his pods send.
    Dropped,
    /// It rejects it.
    Rejected,
    /// SYNs to a Service without endpoints.
    Floods,
}

impl Tenant {
    /// Every one.
    pub const ALL: [Self; 10] = [
        Self::ClaimsFirst,
        Self::ClaimsLast,
        Self::ClaimsProbed,
        Self::ClaimsEcho,
        Self::ForeignSlices,
        Self::Products,
        Self::KeepsPort,
        Self::Dropped,
        Self::Rejected,
        Self::Floods,
    ];

    /// Its line in a storm's account.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::ClaimsFirst => "tenant: claims another's address, and wins",
            Self::ClaimsLast => "tenant: claims another's address",
            Self::ClaimsProbed => "tenant: claims what probes dial",
            Self::ClaimsEcho => "tenant: claims the sentinel's endpoint",
            Self::ForeignSlices => "tenant: others' addresses in his slices",
            Self::Products => "tenant: ports times endpoints",
            Self::KeepsPort => "tenant: keeps a port to an endpoint that left",
            Self::Dropped => "tenant: his pods denied, dropped",
            Self::Rejected => "tenant: his pods denied, rejected",
            Self::Floods => "tenant: SYN flood to a Service without endpoints",
        }
    }
}
