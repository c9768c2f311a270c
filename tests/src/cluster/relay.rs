//! A TCP relay before the API server: the network that nodes meet, which can be slow, silent or
//! gone while the server itself, and the test's own connection to it, stay.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};

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
    state: State,
    _worker: Worker,
}

/// The manner, and the moment at which it changed.
#[derive(Clone, Debug)]
struct State(Arc<Mutex<(Manner, Instant)>>);

impl State {
    fn get(&self) -> (Manner, Instant) {
        *self.0.lock().expect("no panic while it is held")
    }

    fn set(&self, manner: Manner) {
        *self.0.lock().expect("no panic while it is held") = (manner, Instant::now());
    }

    /// Whether nothing is passed on for a connection of this age.
    fn holds(&self, born: Instant) -> bool {
        match self.get() {
            (Manner::Silent, _) => true,
            (Manner::Hung, changed) => born < changed,
            _ => false,
        }
    }
}

impl Relay {
    /// Listens at `at` inside a namespace, where port 0 is a free one, and passes on to `to` as another
    /// namespace reaches it, or the calling process.
    pub fn start(
        ns: &Namespace,
        at: SocketAddr,
        beyond: Option<&Namespace>,
        to: SocketAddr,
    ) -> Result<Self> {
        let state = State(Arc::new(Mutex::new((Manner::Open, Instant::now()))));
        let listener = ns.run(|| listen(at)).context("listen for the relay")?;
        let address = listener.local_addr()?;
        let (ns, seen) = (ns.clone(), state.clone());
        let open = move || ns.run(|| listen(address)).ok();
        let work = move |stop: &AtomicBool| serve(listener, open, to, &seen, stop);
        let worker = match beyond {
            Some(beyond) => Worker::within(beyond, "relay", work)?,
            None => Worker::here(work),
        };
        Ok(Self {
            address,
            state,
            _worker: worker,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what it does, for the connections that there are as well. In force within 50 ms.
    pub fn set(&self, manner: Manner) {
        self.state.set(manner);
        thread::sleep(2 * LOOK);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The threads of its connections end as well.
        self.state.set(Manner::Closed);
    }
}

fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&at.into())?;
    socket.listen(128)?;
    Ok(socket.into())
}

fn serve(
    listener: TcpListener,
    open: impl Fn() -> Option<TcpListener>,
    to: SocketAddr,
    state: &State,
    stop: &AtomicBool,
) {
    let mut listener = Some(listener);
    while !stop.load(Ordering::Relaxed) {
        listener = match state.get() {
            // Without a listener the kernel refuses.
            (Manner::Closed, _) => None,
            _ => listener.or_else(&open),
        };
        while let Some((client, _)) = listener.as_ref().and_then(|l| l.accept().ok()) {
            // Without a server behind it the client's connection just ends.
            if let Ok(server) = TcpStream::connect_timeout(&to, Duration::from_secs(1)) {
                join(client, server, state);
            }
        }
        thread::sleep(LOOK / 4);
    }
}

/// One thread for each direction; they end with the connection.
fn join(client: TcpStream, server: TcpStream, state: &State) {
    let born = Instant::now();
    let ends = Arc::new([client, server]);
    for from in [0, 1] {
        let (ends, state) = (Arc::clone(&ends), state.clone());
        thread::spawn(move || {
            let _ = copy(&ends[from], &ends[1 - from], &state, born);
            ends.iter()
                .for_each(|end| drop(end.shutdown(Shutdown::Both)));
        });
    }
}

fn copy(mut from: &TcpStream, mut to: &TcpStream, state: &State, born: Instant) -> io::Result<()> {
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
        if let (Manner::Slow(delay), _) = state.get()
            && count > 0
        {
            thread::sleep(delay);
        }
        while state.holds(born) {
            thread::sleep(LOOK);
        }
        if state.get().0 == Manner::Closed {
            return Ok(());
        }
        to.write_all(&bytes[..count])?;
    }
}
