//! Every state and every rule, each fault beside its innocent twin; and properties for the rules
//! that outrank everything.

mod accusation;
mod cilium;
mod counted;
mod data;
mod declared;
mod filters;
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
mod restart;
mod scene;
mod sentinel;
mod states;
mod world;
