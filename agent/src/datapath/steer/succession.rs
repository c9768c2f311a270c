//! Who has the connections after this agent: which programs were attached behind its own, and whether
//! one of them is another agent's.
//!
//! Whose a program is the kernel tells only with CAP_SYS_ADMIN. So an agent says it itself: while it
//! steers, it holds an abstract Unix socket that is named after its program, another one once load
//! balancers' connections come to it, and one once it keeps the maps of expectations. Like the
//! program, such a name belongs to a network namespace and goes with the process, however that ends.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;

use crate::datapath::syscall::lookup_programs;

/// Who was attached behind this agent's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Nobody.
    Nobody,
    /// A program of somebody else's: it may take the connections, or have to do with others.
    Stranger,
    /// Another agent's: the successor.
    Agent {
        /// Load balancers' connections go to it; before, they still come here.
        answers: bool,
        /// It knows the cluster and keeps the maps of expectations, with ids of its own; before, they
        /// are kept from here.
        plans: bool,
    },
}

/// What an agent says of itself.
#[derive(Clone, Copy)]
enum Name {
    /// This program is an agent's.
    Steers,
    /// And load balancers' connections go to it.
    Answers,
    /// And the maps of expectations are as it planned them.
    Plans,
}

/// What is asked for the successor.
pub struct Succession {
    program: u32,
    namespace: File,
    /// Bear the names; nothing where they could not be had.
    _steers: Option<UnixDatagram>,
    answers: OnceLock<UnixDatagram>,
    plans: OnceLock<UnixDatagram>,
}

impl Succession {
    /// To be called before the program is attached: who sees it must find its name.
    pub(super) fn begin(program: u32, namespace: File) -> Self {
        Self {
            program,
            namespace,
            _steers: bear(Name::Steers, program),
            answers: OnceLock::new(),
            plans: OnceLock::new(),
        }
    }

    /// Load balancers' connections come here from now on.
    pub(super) fn answer(&self) {
        if let Some(name) = bear(Name::Answers, self.program) {
            let _ = self.answers.set(name);
        }
    }

    /// The maps of expectations are kept from here from now on: to be called before they are read.
    pub fn plan(&self) {
        if self.plans.get().is_none()
            && let Some(name) = bear(Name::Plans, self.program)
        {
            let _ = self.plans.set(name);
        }
    }

    /// Whether another agent's connections came before: its program stands, attached before this
    /// one, or about to be followed by it.
    pub fn follows_an_agent(&self) -> bool {
        let programs = lookup_programs(self.namespace.as_fd()).unwrap_or_default();
        let mut before = programs.iter().take_while(|id| **id != self.program);
        before.any(|id| bears(Name::Answers, *id))
    }

    /// Asks the kernel.
    pub fn ask(&self) -> Behind {
        let programs = lookup_programs(self.namespace.as_fd()).unwrap_or_default();
        behind(&programs, self.program, bears)
    }

    pub(super) fn namespace(&self) -> &File {
        &self.namespace
    }
}

fn behind(programs: &[u32], own: u32, bears: impl Fn(Name, u32) -> bool) -> Behind {
    let later = || programs.iter().skip_while(|id| **id != own).skip(1);
    if later().next().is_none() {
        Behind::Nobody
    } else if later().any(|id| bears(Name::Steers, *id)) {
        Behind::Agent {
            answers: later().any(|id| bears(Name::Answers, *id)),
            plans: later().any(|id| bears(Name::Plans, *id)),
        }
    } else {
        Behind::Stranger
    }
}

fn bear(name: Name, program: u32) -> Option<UnixDatagram> {
    let named = address(name, program).and_then(|name| UnixDatagram::bind_addr(&name));
    if let Err(error) = &named {
        tracing::warn!(%error, "other agents cannot tell whose the steering program is");
    }
    named.ok()
}

/// Whether an agent holds the name of this program. One that may not be spoken to is there.
fn bears(name: Name, program: u32) -> bool {
    let asked = || UnixDatagram::unbound()?.connect_addr(&address(name, program)?);
    match asked() {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

fn address(name: Name, program: u32) -> io::Result<SocketAddr> {
    let what = match name {
        Name::Steers => "steer",
        Name::Answers => "answers",
        Name::Plans => "plans",
    };
    SocketAddr::from_abstract_name(format!("pathproof/{what}/{program}"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::alone(&[7], Behind::Nobody)]
    #[case::last(&[8, 3, 7], Behind::Nobody)]
    #[case::successor(&[3, 7, 8], Behind::Agent { answers: true, plans: true })]
    #[case::successor_that_begins(&[3, 7, 9], Behind::Agent { answers: false, plans: false })]
    #[case::successor_without_a_view(&[3, 7, 6], Behind::Agent { answers: true, plans: false })]
    #[case::two_successors(&[7, 8, 9], Behind::Agent { answers: true, plans: true })]
    #[case::stranger(&[8, 7, 3], Behind::Stranger)]
    #[case::successor_behind_a_stranger(&[7, 3, 8], Behind::Agent { answers: true, plans: true })]
    #[case::detached(&[8, 3], Behind::Nobody)]
    fn only_an_agent_that_was_attached_later_succeeds(
        #[case] programs: &[u32],
        #[case] expected: Behind,
    ) {
        let bears = |name, id| match name {
            Name::Steers => [6, 8, 9].contains(&id),
            Name::Answers => id == 6 || id == 8,
            Name::Plans => id == 8,
        };
        assert_eq!(behind(programs, 7, bears), expected);
    }

    #[test]
    fn names_go_with_their_agent() {
        // No id that a kernel gives.
        let program = u32::MAX - std::process::id();
        let all = [Name::Steers, Name::Answers, Name::Plans];
        let borne = || all.map(|name| bears(name, program));
        assert_eq!(borne(), [false; 3]);
        let namespace = File::open("/proc/thread-self/ns/net").unwrap();
        let held = Succession::begin(program, namespace);
        assert_eq!(borne(), [true, false, false]);
        held.plan();
        held.plan();
        assert_eq!(borne(), [true, false, true]);
        held.answer();
        assert_eq!(borne(), [true; 3]);
        drop(held);
        assert_eq!(borne(), [false; 3]);
    }
}
