//! Who has the connections after this agent: which programs were attached behind its own, and whether
//! one of them is another agent's.
//!
//! Whose a program is the kernel tells only with CAP_SYS_ADMIN. So an agent says it itself: while it
//! steers, it holds an abstract Unix socket that is named after its program. Like the program, such a
//! name belongs to a network namespace and goes with the process, however that ends.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::datapath::syscall::lookup_programs;

/// Who was attached behind this agent's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Nobody.
    Nobody,
    /// A program of somebody else's: it may take the connections, or have to do with others.
    Stranger,
    /// Another agent's: the successor.
    Agent,
}

/// What is asked for the successor.
pub struct Succession {
    program: u32,
    namespace: File,
    /// Bears the name; nothing where it could not be had.
    _name: Option<UnixDatagram>,
}

impl Succession {
    /// To be called before the program is attached: who sees it must find its name.
    pub(super) fn begin(program: u32, namespace: File) -> Self {
        let named = address(program).and_then(|name| UnixDatagram::bind_addr(&name));
        if let Err(error) = &named {
            tracing::warn!(%error, "other agents cannot tell whose the steering program is");
        }
        Self {
            program,
            namespace,
            _name: named.ok(),
        }
    }

    /// Asks the kernel.
    pub fn ask(&self) -> Behind {
        let programs = lookup_programs(self.namespace.as_fd()).unwrap_or_default();
        behind(&programs, self.program, is_an_agents)
    }

    pub(super) fn namespace(&self) -> &File {
        &self.namespace
    }
}

fn behind(programs: &[u32], own: u32, is_an_agents: impl Fn(u32) -> bool) -> Behind {
    let mut later = programs.iter().skip_while(|id| **id != own).skip(1);
    match later.next() {
        None => Behind::Nobody,
        Some(next) if is_an_agents(*next) || later.any(|id| is_an_agents(*id)) => Behind::Agent,
        Some(_) => Behind::Stranger,
    }
}

/// Whether an agent holds the name of this program. One that may not be spoken to is there.
fn is_an_agents(program: u32) -> bool {
    let asked = || UnixDatagram::unbound()?.connect_addr(&address(program)?);
    match asked() {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

fn address(program: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("pathproof/steer/{program}"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::alone(&[7], Behind::Nobody)]
    #[case::last(&[8, 3, 7], Behind::Nobody)]
    #[case::successor(&[3, 7, 8], Behind::Agent)]
    #[case::stranger(&[8, 7, 3], Behind::Stranger)]
    #[case::successor_behind_a_stranger(&[7, 3, 8], Behind::Agent)]
    #[case::detached(&[8, 3], Behind::Nobody)]
    fn only_an_agent_that_was_attached_later_succeeds(
        #[case] programs: &[u32],
        #[case] expected: Behind,
    ) {
        assert_eq!(behind(programs, 7, |id| id == 8), expected);
    }

    #[test]
    fn a_name_goes_with_its_agent() {
        // No id that a kernel gives.
        let program = u32::MAX - std::process::id();
        assert!(!is_an_agents(program));
        let namespace = File::open("/proc/thread-self/ns/net").unwrap();
        let held = Succession::begin(program, namespace);
        assert!(held._name.is_some() && is_an_agents(program));
        drop(held);
        assert!(!is_an_agents(program));
    }
}
