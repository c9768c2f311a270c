//! What `cargo xtask bench load` measures with: clients that open connections one after another as
//! fast as they are answered, and one that sends as much as goes through.

mod bulk;
mod dialers;

pub use bulk::{Sink, push};
pub use dialers::{Dialers, Felt};
