//! A freshly loaded observer with maps of its own, and the means to run a packet through a hook.

use aya::Ebpf;
use pathproof::datapath::load;

/// The observer, attached to nothing.
pub struct Observer {
    pub ebpf: Ebpf,
}

impl Observer {
    /// Loads it; nothing, loudly, without the privileges.
    pub fn load() -> Option<Self> {
        match load::load(None) {
            Ok(ebpf) => Some(Self { ebpf }),
            Err(error) if error.is_permission() => {
                eprintln!("SKIPPED: needs root: {error}");
                None
            }
            Err(error) => panic!("{}", load::describe(&error)),
        }
    }
}
