//! Every state and every rule, each fault beside its innocent twin; and properties for the rules
//! that outrank everything.

mod properties;
mod restart;
mod states;
mod world;
