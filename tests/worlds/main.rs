//! Worlds of other software: what it does to the packets of a healthy node, where every verdict but
//! "the users are served" is wrong, and the same world with a fault, which must be seen all the same.
//!
//! Each file is one world. docs/worlds.md lists them for users, with what cannot be seen in them.

mod bandwidth;
mod default_deny;
mod denied_on_a_quiet_node;
mod filtered_sentinel;
mod graceful_ending;
mod late_proxy;
mod mirrored;
mod parts;
mod rejecting_policy;
mod routes_gone;
mod table_deleted;
