//! A TCP relay in front of the API server. It makes the network between nodes and server slow, silent or
//! dead, while the server, and the connection of the test to it, keep working.

use std::io;
use std::pin::pin;

use anyhow::{Context, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch::{self, Receiver, Sender};
use tokio::time::{sleep, timeout};

use crate::prelude::*;
use crate::traffic::runtime;
use crate::wait::bound;
use crate::worker::Worker;

/// Time until a new [`Manner`] is in force.
const CHANGE: Duration = Duration::from_millis(40);

/// How the relay treats connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Forwards everything.
    Open,
    /// Forwards received data once per this interval.
    Slow(Duration),
    /// Accepts connections and keeps existing ones, but forwards nothing.
    Silent,
    /// Keeps existing connections without forwarding, like a network device that lost their state. Forwards
    /// new connections.
    Hung,
    /// Refuses new connections and closes existing ones.
    Closed,
}

/// The manner and the time of its last change.
type State = (Manner, Instant);

/// A running relay; ends when dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    // Dropped before the worker, which ends when its sender is dropped.
    state: Sender<State>,
    _worker: Worker,
}

impl Relay {
    /// Listens at `at` inside a namespace (port 0: any free port). Forwards to `to` from the namespace
    /// `beyond`, or from that of the calling process if there is none.
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

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the manner, also for existing connections. The change is in force within 50 ms, or once
    /// delayed data has been forwarded.
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

/// Accepts connections until the sender of the manner is dropped.
async fn serve(
    listener: std::net::TcpListener,
    open: impl Fn() -> io::Result<std::net::TcpListener>,
    to: SocketAddr,
    mut state: Receiver<State>,
) -> io::Result<()> {
    let mut listener = Some(TcpListener::from_std(listener)?);
    loop {
        if state.borrow_and_update().0 == Manner::Closed {
            // Close the listener, so that the kernel refuses connections.
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

/// Forwards data of both ends until one fails, both have ended, or the relay is closed.
async fn join(mut client: TcpStream, to: SocketAddr, mut state: Receiver<State>) -> io::Result<()> {
    let born = Instant::now();
    // If the server is unreachable, end the client's connection.
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
