//! A service mesh with sidecars, as with Istio. In each client pod's network namespace, connections to
//! Services are redirected to a proxy, which dials an endpoint's address. So the node never receives a
//! connection to a Service from these pods. Outside clients dial as usual.

use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;

use node_tests::packet::mapped;
use node_tests::prelude::*;
use node_tests::worker::Worker;
use node_tests::world::Pod;

use crate::parts::idle_then_busy;

/// Timeout of the proxy for its connection to either side.
const PATIENCE: Duration = Duration::from_millis(500);

#[test]
fn sidecars_change_no_verdict() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let upstream = ["web-1", "web-3"].map(|name| scene.world.pod(name).clone());
    let sidecar = |pod| sidecar(scene.world.pod(pod), upstream.clone());
    let _proxies = ["client-1", "client-2"].map(sidecar);
    idle_then_busy(&mut scene);
    for family in Family::ALL {
        for service in ["web", "api", "db"] {
            let arrived = |path| scene.count(service, family, path, "arrived");
            assert_eq!(
                arrived("pod"),
                0,
                "not redirected to the sidecar: {service} {family:?}"
            );
        }
        assert!(scene.count("web", family, "external", "arrived") > 0);
    }
}

fn sidecar(pod: &Pod, upstream: [Pod; 2]) -> Worker {
    let listen = || TcpListener::bind((Ipv6Addr::UNSPECIFIED, 15_001));
    let listener = pod.ns.run(listen).expect("a port");
    listener.set_nonblocking(true).expect("not waiting");
    let rule = "table inet mesh { chain output { type nat hook output priority -100;\n\
         tcp dport 80 redirect to :15001\n}\n}\n";
    pod.ns.nft(rule).expect("a redirection");
    let work = move |stop: &std::sync::atomic::AtomicBool| {
        let mut upstream = upstream.iter().cycle();
        while !stop.load(Ordering::Relaxed) {
            let Ok((client, from)) = listener.accept() else {
                thread::sleep(Duration::from_millis(2));
                continue;
            };
            let family = Family::of(&mapped(from.ip()));
            if let Some(pod) = upstream.next() {
                let _ = pass(client, pod.endpoint(family, PORT));
            }
        }
    };
    Worker::within(&pod.ns, "sidecar", work).expect("a proxy")
}

fn pass(mut client: TcpStream, endpoint: SocketAddr) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(PATIENCE))?;
    let mut server = TcpStream::connect_timeout(&endpoint, PATIENCE)?;
    server.set_read_timeout(Some(PATIENCE))?;
    let mut bytes = [0; 128];
    let asked = client.read(&mut bytes)?;
    server.write_all(&bytes[..asked])?;
    loop {
        let length = server.read(&mut bytes)?;
        client.write_all(&bytes[..length])?;
        if length == 0 || bytes[..length].ends_with(b"\n") {
            return Ok(());
        }
    }
}
