//! A TCP relay before the API server: the network that nodes meet, which can be slow, silent or
//! gone while the server itself, and the test's own connection to it, stay.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

use crate::worker::Worker;
use crate::world::Namespace;

/// How often a connection looks whether the manner has changed.
const LOOK: Duration = Duration::from_millis(20);

/// What the relay does to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Passes everything on.
    Open,
    /// Keeps everything that comes for so long.
    Slow(Duration),
    /// Accepts connections, keeps those that there are, and passes nothing on.
    Silent,
    /// Keeps the connections that there are and passes nothing on for them, as a network that lost
    /// their state; new ones are passed on.
    Hung,
    /// Refuses connections, and ends those that there are.
    Closed,
}

/// A running relay; ends when dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    _worker: Worker,
}

#[derive(Debug)]
struct Shared {
    manner: Mutex<Manner>,
    /// Counts changes of the manner.
    age: AtomicU64,
}

impl Shared {
    fn manner(&self) -> Manner {
        *self.manner.lock().expect("no panic while it is held")
    }

    fn set(&self, manner: Manner) {
        *self.manner.lock().expect("no panic while it is held") = manner;
        self.age.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether nothing is passed on for a connection that began at this age.
    fn holds(&self, born: u64) -> bool {
        match self.manner() {
            Manner::Silent => true,
            Manner::Hung => born < self.age.load(Ordering::Relaxed),
            _ => false,
        }
    }
}

impl Relay {
    /// Listens at `at` inside a namespace and passes on to `to` in the same.
    pub fn start(ns: &Namespace, at: SocketAddr, to: SocketAddr) -> Result<Self> {
        Self::between(ns, at, Some(ns), to)
    }

    /// Listens at `at` inside a namespace and passes on to `to` as the calling process reaches it.
    pub fn from_outside(ns: &Namespace, at: SocketAddr, to: SocketAddr) -> Result<Self> {
        Self::between(ns, at, None, to)
    }

    /// Listens at `at` inside a namespace and passes on to `to` as another namespace reaches it. Port
    /// 0 is a free one.
    pub fn across(
        ns: &Namespace,
        at: SocketAddr,
        beyond: &Namespace,
        to: SocketAddr,
    ) -> Result<Self> {
        Self::between(ns, at, Some(beyond), to)
    }

    fn between(
        ns: &Namespace,
        at: SocketAddr,
        beyond: Option<&Namespace>,
        to: SocketAddr,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            manner: Mutex::new(Manner::Open),
            age: AtomicU64::new(0),
        });
        let listener = ns.run(|| listen(at)).context("listen for the relay")?;
        let address = listener.local_addr()?;
        let door = Door {
            ns: ns.clone(),
            at: address,
        };
        let inside = Arc::clone(&shared);
        let work = move |stop: &AtomicBool| serve(listener, &door, to, &inside, stop);
        let worker = match beyond {
            Some(beyond) => Worker::within(beyond, "relay", work)?,
            None => Worker::here(work),
        };
        Ok(Self {
            address,
            shared,
            _worker: worker,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what it does, for the connections that there are as well. In force within 50 ms.
    pub fn set(&self, manner: Manner) {
        self.shared.set(manner);
        thread::sleep(2 * LOOK);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The threads of its connections end as well.
        self.shared.set(Manner::Closed);
    }
}

/// Where a relay listens.
struct Door {
    ns: Namespace,
    at: SocketAddr,
}

impl Door {
    fn open(&self) -> io::Result<TcpListener> {
        self.ns.run(|| listen(self.at))
    }
}

fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&at.into())?;
    socket.listen(128)?;
    Ok(socket.into())
}

fn serve(
    listener: TcpListener,
    door: &Door,
    to: SocketAddr,
    shared: &Arc<Shared>,
    stop: &AtomicBool,
) {
    let mut listener = Some(listener);
    while !stop.load(Ordering::Relaxed) {
        if shared.manner() == Manner::Closed {
            // Without a listener the kernel refuses.
            listener = None;
        } else if listener.is_none() {
            listener = door.open().ok();
        }
        while let Some((client, _)) = listener.as_ref().and_then(|l| l.accept().ok()) {
            // Without a server behind it the client's connection just ends.
            if let Ok(server) = TcpStream::connect_timeout(&to, Duration::from_secs(1)) {
                join(client, server, shared);
            }
        }
        thread::sleep(LOOK / 4);
    }
}

/// One thread for each direction; they end with the connection.
fn join(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) {
    let halves = [
        (client.try_clone(), server.try_clone()),
        (Ok(server), Ok(client)),
    ];
    for half in halves {
        if let (Ok(from), Ok(to)) = half {
            let shared = Arc::clone(shared);
            let born = shared.age.load(Ordering::Relaxed);
            thread::spawn(move || {
                let _ = copy(&from, &to, &shared, born);
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    }
}

fn copy(mut from: &TcpStream, mut to: &TcpStream, shared: &Shared, born: u64) -> io::Result<()> {
    from.set_nonblocking(false)?;
    from.set_read_timeout(Some(LOOK))?;
    to.set_nodelay(true)?;
    let mut bytes = [0; 16 * 1024];
    loop {
        let count = match from.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        if let Manner::Slow(delay) = shared.manner()
            && count > 0
        {
            thread::sleep(delay);
        }
        while shared.holds(born) {
            thread::sleep(LOOK);
        }
        if shared.manner() == Manner::Closed {
            return Ok(());
        }
        to.write_all(&bytes[..count])?;
    }
}
