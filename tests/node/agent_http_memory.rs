//! Unauthenticated clients try to fill the memory of the agent's container through the kernel's buffers of
//! the health port. Each test has as many polite clients, which are answered meanwhile.

use std::io::Write as _;
use std::net::TcpStream;

use node_tests::abuse::raise_open_files;
use node_tests::little_memory::MemoryGroup;
use node_tests::prelude::*;
use node_tests::traffic::Forged;
use node_tests::{http, usage};
use pathproof::http::limits::{TALKING_BYTES, WAITING_BYTES};
use socket2::{Domain, Protocol, Socket, Type};

use crate::agent_http_abuse::{LIMIT, assert_answers, contained, health_port, open, rest};

const REQUEST: &str = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
/// A request whose connection the agent closes after the answer.
const LAST_REQUEST: &str = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// An agent under attack in its container, with what it held before. Dropped in this order.
struct Victim {
    group: MemoryGroup,
    scene: Scene,
    target: SocketAddr,
    sockets: u64,
    files: u64,
}

impl Victim {
    fn new() -> Needed<Self> {
        let (scene, group) = contained()?;
        Ok(Self {
            target: health_port(&scene, Family::V4),
            sockets: group.sockets().expect("bytes"),
            files: usage::open_files(scene.agent().pid()).expect("files"),
            group,
            scene,
        })
    }

    /// Bytes of socket buffers that the attack added.
    fn added(&self) -> u64 {
        let sockets = self.group.sockets().expect("bytes");
        sockets.saturating_sub(self.sockets)
    }

    /// Waits until the agent has accepted this many connections.
    fn wait_open(&self, count: u64) {
        eventually("all accepted", || open(&self.scene) >= count);
    }

    /// Asserts that this many connections, at any time from now on, have at least `least` and at most `most`
    /// bytes of buffers each, and that the container has room.
    fn assert_held(&self, count: u64, least: u64, most: u64) {
        eventually("the attack shows", || self.added() >= count * least);
        for _ in 0..20 {
            self.assert_within(count * most);
            thread::sleep(Duration::from_millis(100));
        }
        println!("MEASURED {} bytes of each of {count}", self.added() / count);
    }

    fn assert_within(&self, bytes: u64) {
        let (added, held) = (self.added(), self.group.held().expect("bytes"));
        assert!(added <= bytes, "{added} bytes of buffers, not {bytes}");
        assert!(held < LIMIT, "{held} bytes in the container");
    }

    /// Asserts that polite clients get their answers.
    fn assert_polite(&self, count: u64) {
        let target = self.target;
        self.scene.world.outside.run(|| {
            for _ in 0..count {
                let answer = http::get(target, "/healthz", PATIENCE).expect("an answer");
                assert_eq!(answer.status, 200);
            }
        });
    }

    /// Asserts that nothing of an attack remains once it has ended.
    fn assert_recovered(&self) {
        eventually("none left open", || open(&self.scene) < 10);
        let pid = self.scene.agent().pid();
        let files = || usage::open_files(pid).expect("files");
        eventually("descriptors closed", || files() <= self.files + 10);
        eventually("buffers released", || self.added() <= 128 << 10);
        assert_answers(&self.scene);
    }
}

/// A connection that is reset when it is dropped, and whose writes do not wait.
fn connect(target: SocketAddr, receive_buffer: usize) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
    let set = socket.set_recv_buffer_size(receive_buffer);
    set.expect("a size that fits the first window");
    socket.connect(&target.into()).expect("connect");
    socket.set_tcp_nodelay(true).expect("no delay");
    socket.set_nonblocking(true).expect("no waiting");
    let reset = socket.set_linger(Some(Duration::ZERO));
    reset.expect("a reset at the end");
    socket.into()
}

fn connect_all(victim: &Victim, count: u64, receive_buffer: usize) -> Vec<TcpStream> {
    let target = victim.target;
    let connect = |_| connect(target, receive_buffer);
    raise_open_files();
    let outside = &victim.scene.world.outside;
    let all = outside.run(|| (0..count).map(connect).collect());
    victim.wait_open(count);
    all
}

/// Writes to all connections. A partial write is enough: the kernel takes what fits, and the agent may have
/// closed some.
fn write(strangers: &[TcpStream], bytes: &[u8]) {
    for mut stranger in strangers {
        let _ = stranger.write(bytes);
    }
}

/// The first byte of the request never arrives, so the kernel has to keep what follows, and the agent cannot
/// read it. The clients ignore the window, and none of the single bytes is next to another one, so that the
/// kernel cannot merge them.
#[rstest]
#[case::long_segments(1_400, 1_400, 46)]
#[case::single_bytes(1, 2, 64)]
fn bytes_behind_a_missing_one_take_little_memory(
    #[case] size: usize,
    #[case] step: u32,
    #[case] segments: u32,
) {
    const COUNT: u16 = 1_000;
    let victim = needs!(Victim::new());
    let strangers = Forged::connect(&victim.scene.world, victim.target, COUNT);
    let strangers = strangers.expect("connections");
    victim.wait_open(COUNT.into());
    for number in 0..segments {
        let sent = strangers.send(1 + number * step, &b"x".repeat(size));
        sent.expect("send a segment");
    }
    victim.assert_held(COUNT.into(), 2_048, WAITING_BYTES as u64);
    victim.assert_polite(COUNT.into());
    strangers.reset().expect("send a reset");
    victim.assert_recovered();
}

/// Each byte of a header arrives in a separate packet, for which the kernel needs hundreds of bytes.
#[test]
fn headers_in_single_bytes_take_little_memory() {
    const COUNT: u64 = 100;
    // Fewer bytes than the agent leaves in the socket.
    const BYTES: usize = 1_000;
    let victim = needs!(Victim::new());
    let strangers = connect_all(&victim, COUNT, 64 << 10);
    let endless = format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(BYTES));
    for byte in endless.bytes().take(BYTES) {
        write(&strangers, &[byte]);
    }
    victim.assert_held(COUNT, 512, WAITING_BYTES as u64);
    assert!(open(&victim.scene) >= COUNT, "the agent waits for the rest");
    victim.assert_polite(COUNT);
    drop(strangers);
    victim.assert_recovered();
}

/// These clients send 12 requests a second, which no limit forbids, and read none of the answers. Their
/// receive buffers are tiny, so the answers stay in the agent's send buffers.
#[test]
fn unread_answers_take_little_memory() {
    const COUNT: u64 = 50;
    let victim = needs!(Victim::new());
    let strangers = connect_all(&victim, COUNT, 2 << 10);
    let mut most = 0;
    for _ in 0..64 {
        write(&strangers, REQUEST.repeat(3).as_bytes());
        thread::sleep(Duration::from_millis(250));
        victim.assert_within(COUNT * TALKING_BYTES as u64);
        most = most.max(victim.added() / COUNT);
    }
    println!("MEASURED {most} bytes of each of {COUNT}");
    assert!(most >= 16 << 10, "the answers were read: {most}");
    victim.assert_polite(COUNT);
    drop(strangers);
    victim.assert_recovered();
}

/// The agent closes these connections although their clients do not, and keeps nothing of them.
#[test]
fn floods_of_unread_requests_take_little_memory() {
    const COUNT: u64 = 50;
    let victim = needs!(Victim::new());
    let strangers = connect_all(&victim, COUNT, 2 << 10);
    let many = REQUEST.repeat(30_000);
    write(&strangers, many.as_bytes());
    let most = COUNT * TALKING_BYTES as u64;
    eventually("all closed", || {
        victim.assert_within(most);
        open(&victim.scene) < 10
    });
    victim.assert_polite(COUNT);
    victim.assert_recovered();
    drop(strangers);
}

/// The agent has closed these connections, and the kernel would send their answers again and again.
#[test]
fn answers_that_nobody_acknowledges_are_dropped() {
    const COUNT: u16 = 300;
    let victim = needs!(Victim::new());
    let strangers = Forged::connect(&victim.scene.world, victim.target, COUNT);
    let strangers = strangers.expect("connections");
    let sent = strangers.send(0, LAST_REQUEST.as_bytes());
    sent.expect("send a request");
    let least = u64::from(COUNT) * 2_048;
    eventually("answered", || victim.added() >= least);
    victim.assert_polite(COUNT.into());
    victim.assert_recovered();
}

/// The negative control: the network loses an answer for some seconds only.
#[test]
fn an_answer_that_is_lost_at_first_arrives() {
    let scene = Scene::new(Backend::Nftables, &[]);
    let outside = &scene.world.outside;
    let lost = "table inet lossy { chain first { type filter hook prerouting priority -400; \
                tcp sport 10256 meta length > 100 drop; }; }";
    outside.nft(lost).expect("a rule that drops answers");
    let target = health_port(&scene, Family::V4);
    let connected = outside.run(|| TcpStream::connect_timeout(&target, PATIENCE));
    let mut client = connected.expect("connect");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let sent = client.write_all(LAST_REQUEST.as_bytes());
    sent.expect("send a request");
    thread::sleep(Duration::from_secs(3));
    outside.nft("delete table inet lossy").expect("no rule");
    let answer = rest(&mut client);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
