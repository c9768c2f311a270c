//! Every state and every rule, each fault beside an innocent counterpart, and properties of the rules that
//! outrank all others.

mod accusation;
mod cilium;
mod counted;
mod data;
mod declared;
mod filters;
mod host;
mod lag;
mod lost_answers;
mod network;
mod one_shot;
mod own_parts;
mod partial;
mod peers;
mod probe_properties;
mod probes;
mod properties;
mod remote_routes;
mod restart;
mod scene;
mod sentinel;
mod states;
mod two_scopes;
mod world;
