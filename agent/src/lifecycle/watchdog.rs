//! systemd's watchdog (sd_notify(3)): the unit is restarted if the main loop hangs. In Kubernetes the liveness
//! probe at `/agent/livez` does the same.

use std::env;
use std::future::Future;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::pin::pin;
use std::time::Duration;

use pathproof_facts::time::Mono;

/// Time without a beat after which systemd ends the agent. It is long, because the main loop may wait for the
/// kernel on a node where thousands of interfaces change.
const LIMIT: Duration = Duration::from_secs(60);
/// Minimum interval between beats.
const INTERVAL: Duration = Duration::from_secs(10);

/// Variable with the service manager's socket. A name that begins with @ is abstract.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Whether the service manager's socket is abstract.
pub(crate) fn is_abstract() -> bool {
    env::var_os(SOCKET).is_some_and(|name| name.as_bytes().starts_with(b"@"))
}

/// The service manager's socket, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    socket: Option<UnixDatagram>,
    last: Option<Mono>,
}

impl Watchdog {
    /// Connects to the service manager's socket.
    pub(crate) fn of_systemd() -> Self {
        let socket = env::var_os(SOCKET).and_then(|name| connect(name.as_bytes()));
        Self { socket, last: None }
    }

    /// Reports that the main loop runs. The first beat starts the watchdog, so that a slow start is no hang.
    pub(crate) fn beat(&mut self, now: Mono) {
        let Some(socket) = &self.socket else { return };
        if self.last.is_some_and(|last| now.since(last) < INTERVAL) {
            return;
        }
        let text = match self.last.replace(now) {
            None => format!("WATCHDOG_USEC={}\nWATCHDOG=1", LIMIT.as_micros()),
            Some(_) => "WATCHDOG=1".to_owned(),
        };
        // A lost beat is no problem: several fit into the limit.
        let _ = socket.send(text.as_bytes());
    }

    /// Beats while `work` takes its time on purpose.
    pub(crate) async fn beat_during<T>(
        &mut self,
        now: fn() -> Mono,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        loop {
            self.beat(now());
            tokio::select! {
                done = &mut work => return done,
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }
}

/// `None` if there is no such socket.
fn connect(name: &[u8]) -> Option<UnixDatagram> {
    let address = match name {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok()?,
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path)).ok()?,
    };
    let socket = UnixDatagram::unbound().ok()?;
    // The main loop must not wait for the service manager.
    socket.set_nonblocking(true).ok()?;
    socket.connect_addr(&address).ok()?;
    Some(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_beat_sets_the_limit_and_the_next_ones_are_rare() {
        let name = format!("pathproof-watchdog-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        manager.set_nonblocking(true).unwrap();
        let mut watchdog = Watchdog {
            socket: connect(format!("@{name}").as_bytes()),
            last: None,
        };
        let received = || {
            let mut bytes = [0; 64];
            let length = manager.recv(&mut bytes).ok()?;
            String::from_utf8(bytes[..length].to_vec()).ok()
        };
        let second = |n: u64| Mono(n * 1_000_000_000);
        watchdog.beat(second(100));
        assert_eq!(received().unwrap(), "WATCHDOG_USEC=60000000\nWATCHDOG=1");
        watchdog.beat(second(109));
        assert_eq!(received(), None);
        watchdog.beat(second(110));
        assert_eq!(received().unwrap(), "WATCHDOG=1");
    }

    #[test]
    fn without_a_manager_nothing_is_sent() {
        assert!(connect(b"@pathproof-no-such-manager").is_none());
        assert!(connect(b"/no/such/socket").is_none());
        Watchdog::default().beat(Mono(1));
    }
}
