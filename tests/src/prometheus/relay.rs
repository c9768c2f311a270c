//! Passes TCP connections on from one namespace to another.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use anyhow::Result;

use crate::world::Namespace;

/// A listener in one namespace whose connections end in another. Dropping it closes the listener.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    from: Namespace,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Listens on a loopback port of `from`, and passes what comes on to an address in `to`. Where
    /// nobody listens there, connections are closed.
    pub fn start(from: &Namespace, to: &Namespace, target: SocketAddr) -> Result<Self> {
        let listener = from.run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        // A socket stays in the namespace that it was made in: accepted there, connected here.
        let thread = to.spawn("relay", move || {
            while let Ok((near, _)) = listener.accept() {
                if end.load(Relaxed) {
                    break;
                }
                if let Ok(far) = TcpStream::connect(target) {
                    pass_on(near, far);
                }
            }
        })?;
        Ok(Self {
            address,
            from: from.clone(),
            ended,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        // Wakes the listener.
        let _ = self.from.run(|| TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Both ways, each on a thread that ends with its half of the connection.
fn pass_on(near: TcpStream, far: TcpStream) {
    let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else {
        return;
    };
    for (mut from, mut to) in [(near, far), (far_too, near_too)] {
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}
