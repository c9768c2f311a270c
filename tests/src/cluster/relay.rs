//! A TCP relay before the API server: the network that nodes meet, which can be slow, silent or
//! gone while the server itself, and the test's own connection to it, stay.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch::{self, Receiver, Sender};
use tokio::time::{sleep, timeout};

use crate::traffic::runtime;
use crate::wait::bound;
use crate::worker::Worker;
use crate::world::Namespace;

/// Time in which a change of the manner is in force.
const CHANGE: Duration = Duration::from_millis(40);

/// What the relay does to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Passes everything on.
    Open,
    /// Passes on what came only so often.
    Slow(Duration),
    /// Accepts connections, keeps those that there are, and passes nothing on.
    Silent,
    /// Keeps the connections that there are and passes nothing on for them, as a network that lost
    /// their state; new ones are passed on.
    Hung,
    /// Refuses connections, and ends those that there are.
    Closed,
}

/// The manner, and the moment at which it changed.
type State = (Manner, Instant);

/// A running relay; ends when dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    // Before the worker, which ends without it.
    state: Sender<State>,
    _worker: Worker,
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
        let (state, seen) = watch::channel((Manner::Open, Instant::now()));
        let listener = ns.run(|| listen(at)).context("listen for the relay")?;
        let address = listener.local_addr()?;
        let ns = ns.clone();
        let open = move || bound(|| ns.run(|| listen(address)));
        let runtime = runtime()?;
        let work = move |_: &_| {
            let served = runtime.block_on(serve(listener, open, to, seen));
            served.expect("listen for the relay");
        };
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

    /// Changes what it does, for the connections that there are as well. In force within 50 ms, or
    /// once what is slow was passed on.
    pub fn set(&self, manner: Manner) {
        self.state.send_replace((manner, Instant::now()));
        thread::sleep(CHANGE);
    }
}

fn listen(at: SocketAddr) -> io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Accepts connections until nobody can change the manner any more.
async fn serve(
    listener: std::net::TcpListener,
    open: impl Fn() -> io::Result<std::net::TcpListener>,
    to: SocketAddr,
    mut state: Receiver<State>,
) -> io::Result<()> {
    let mut listener = Some(TcpListener::from_std(listener)?);
    loop {
        if state.borrow_and_update().0 == Manner::Closed {
            // Without a listener the kernel refuses.
            listener = None;
        } else if listener.is_none() {
            listener = Some(TcpListener::from_std(open()?)?);
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = state.changed() => if changed.is_err() {
                return Ok(());
            },
            Ok((client, _)) = accepted => drop(tokio::spawn(join(client, to, state.clone()))),
        }
    }
}

/// Passes on what both ends send, until one fails, both have ended or the relay is closed.
async fn join(mut client: TcpStream, to: SocketAddr, mut state: Receiver<State>) -> io::Result<()> {
    let born = Instant::now();
    // Without a server behind it the client's connection just ends.
    let mut server = timeout(Duration::from_secs(1), TcpStream::connect(to)).await??;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut copy = pin!(copy_bidirectional(&mut client, &mut server));
    loop {
        let (manner, since) = *state.borrow_and_update();
        let holds = match manner {
            Manner::Closed => return Ok(()),
            Manner::Slow(delay) => {
                sleep(delay).await;
                if timeout(Duration::ZERO, &mut copy).await.is_ok() {
                    return Ok(());
                }
                continue;
            }
            Manner::Silent => true,
            Manner::Hung => born < since,
            Manner::Open => false,
        };
        tokio::select! {
            changed = state.changed() => if changed.is_err() {
                return Ok(());
            },
            _ = &mut copy, if !holds => return Ok(()),
        }
    }
}
