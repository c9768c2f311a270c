//! Worlds: each has other software that changes the packets of a healthy node. The verdict must stay healthy
//! while users are served, and a fault in the same world must still be detected.
//!
//! Each file is one world. docs/internal/worlds.md lists the worlds, and the faults that cannot be detected
//! in each.

mod bandwidth;
mod conntrack_zones;
mod default_deny;
mod denied_on_a_quiet_node;
mod fast_open;
mod filtered_sentinel;
mod forward_policy;
mod forward_policy_idle;
mod forward_reject;
mod full_table;
mod graceful_ending;
mod hairpin;
mod hairpin_idle;
mod late_proxy;
mod masquerade_gone;
mod measured;
mod mesh;
mod mirrored;
mod never_written;
mod node_port_addresses;
mod node_port_scanner;
mod nodelocal_dns;
mod nodelocal_dns_dead;
mod one_chain_emptied;
mod overlay;
mod overlay_dead;
mod parts;
mod pod_probe;
mod policy_routing;
mod policy_routing_pods;
mod proxy_migrates;
mod rejecting_policy;
mod routes_gone;
mod routes_gone_in_an_old_view;
mod second_network;
mod source_ranges;
mod stale_endpoint;
mod unknown_translator;
