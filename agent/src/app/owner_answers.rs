//! Requests the answers of kube-proxy or Cilium at the health check node ports that the agent took over. The
//! steering program leaves connections of the node itself to the port's owner.
//!
//! Only ports that the agent would answer with 200 are requested, one at a time. Each round is short, however
//! many ports there are, so that a refusal ends soon after its owner has recovered.
//! `pathproof_judge::health_ports::owner` decides which replies count.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pathproof_judge::health_ports::PortTable;
use pathproof_judge::health_ports::owner::{
    OwnerRefusals, OwnerReplies, OwnerReply, PortKey, is_expected,
};
use pathproof_node::effect::Answers;
use pathproof_report::Report;
use pathproof_wire::service::{Address, Family};
use pathproof_wire::steer::is_loopback;
use pathproof_witness::evidence::ip_of;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::agent::Agent;
use crate::clock;
use crate::config::PortRange;
use crate::datapath::listeners;
use crate::port::steered;

/// Pause between two rounds, in which each port gets one request.
const ROUND: Duration = Duration::from_secs(2);
/// Pause before the second round, so that a successor soon knows what its predecessor knew.
const SECOND_ROUND: Duration = Duration::from_millis(1_100);
/// Maximum pause before each request.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum sum of the pauses in a round.
const MAX_PAUSES: Duration = Duration::from_secs(5);
/// After so many requests in a row without an answer in time, a round requests nothing more.
const MAX_SILENT: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(1);
const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

struct Owners {
    range: PortRange,
    table: watch::Receiver<Arc<PortTable>>,
    answers: watch::Receiver<Arc<Answers>>,
    report: watch::Receiver<Option<Arc<Report>>>,
    replies: OwnerReplies,
    refusals: watch::Sender<Arc<OwnerRefusals>>,
}

/// Starts the requests, if connections to these ports are steered. They end with the runtime.
pub(super) fn begin(agent: &Agent) {
    if let Some(steered) = &agent.health_ports {
        let mut owners = Owners {
            range: steered.range.clone(),
            table: steered.table.subscribe(),
            answers: agent.output.answers.subscribe(),
            report: agent.output.report.subscribe(),
            replies: OwnerReplies::default(),
            refusals: steered.refusals.clone(),
        };
        tokio::spawn(async move {
            while !owners.round().await {
                if let Ok(Err(_)) = timeout(ROUND, owners.table.changed()).await {
                    return;
                }
            }
            sleep(SECOND_ROUND).await;
            loop {
                owners.round().await;
                sleep(ROUND).await;
            }
        });
    }
}

impl Owners {
    /// Returns whether any port was due.
    async fn round(&mut self) -> bool {
        let due = self.due();
        let known = steered(&self.table.borrow(), &self.range).collect();
        self.replies.retain(&known, clock::mono());
        self.replies.pause_all_but(&due);
        self.publish();
        if due.is_empty() {
            return false;
        }
        match listeners::by_port(&self.range) {
            Ok(listening) => {
                request_all(&due, &listening, |port, reply| self.record(port, reply)).await;
            }
            // Without the listeners nothing is known, and an earlier refusal must not last for ever.
            Err(error) => {
                tracing::debug!(%error, "listeners at health check node ports cannot be read");
                for port in &due {
                    self.record(*port, OwnerReply::Unclear);
                }
            }
        }
        true
    }

    fn record(&mut self, port: PortKey, reply: OwnerReply) {
        let expected = (self.report.borrow().as_ref()).is_some_and(|report| {
            report.port.owner == Some(true) && is_expected(&report.datapath, port.0)
        });
        self.replies.record(port, reply, expected, clock::mono());
        self.publish();
    }

    /// Steered ports that the agent would answer with 200 by itself.
    fn due(&self) -> BTreeSet<PortKey> {
        let (table, answers) = (self.table.borrow(), self.answers.borrow());
        let is_healthy = |(family, port): &PortKey| {
            table.get(port).is_some_and(|served| {
                served.local[*family as usize] > Some(0) && answers.serve(&served.service, *family)
            })
        };
        steered(&table, &self.range).filter(is_healthy).collect()
    }

    fn publish(&self) {
        let new = self.replies.refusals();
        let none_before = self.refusals.borrow().is_empty();
        match new.first_key_value() {
            Some(((_, port), refusal)) if none_before => tracing::warn!(
                port, %refusal, "a health check node port answers 503 as its owner does"
            ),
            None if !none_before => {
                tracing::info!(
                    "no health check node port answers 503 because of its owner any more"
                );
            }
            _ => {}
        }
        self.refusals.send_replace(Arc::new(new));
    }
}

/// Requests the ports in turn and records each reply.
async fn request_all(
    due: &BTreeSet<PortKey>,
    listening: &BTreeMap<u16, BTreeSet<Address>>,
    mut record: impl FnMut(PortKey, OwnerReply),
) {
    let mut silent = 0;
    for port in due {
        let reply = match dialled(listening, *port) {
            None => OwnerReply::Absent,
            Some(_) if silent == MAX_SILENT => OwnerReply::Unclear,
            Some(to) => {
                sleep(pause(due.len())).await;
                let reply = request(to).await;
                silent = if reply.is_some() { 0 } else { silent + 1 };
                reply.unwrap_or(OwnerReply::Unclear)
            }
        };
        record(*port, reply);
    }
}

/// Pause before each request of a round with so many ports.
fn pause(ports: usize) -> Duration {
    let ports = u32::try_from(ports).unwrap_or(u32::MAX);
    PAUSE.min(MAX_PAUSES / ports.max(1))
}

/// The address at which the node reaches the port's owner; `None` if clients outside would reach no process.
/// Connections to an unspecified address go to the loopback address.
fn dialled(
    listening: &BTreeMap<u16, BTreeSet<Address>>,
    (family, port): PortKey,
) -> Option<SocketAddr> {
    let outside = |at: &&Address| Family::of(at) == family && !is_loopback(at);
    let at = listening.get(&port)?.iter().find(outside)?;
    Some(SocketAddr::new(ip_of(at), port))
}

/// `None` without an answer in time.
async fn request(to: SocketAddr) -> Option<OwnerReply> {
    let exchange = async {
        let mut stream = TcpStream::connect(to).await?;
        stream.write_all(REQUEST).await?;
        let mut head = [0; "HTTP/1.1 200".len()];
        stream.read_exact(&mut head).await?;
        io::Result::Ok(head)
    };
    Some(match timeout(PATIENCE, exchange).await.ok()? {
        Ok(head) if head.ends_with(b" 200") => OwnerReply::Healthy,
        Ok(head) if head.ends_with(b" 503") => OwnerReply::Unhealthy,
        _ => OwnerReply::Unclear,
    })
}

#[cfg(test)]
mod tests {
    use pathproof_facts::node_context::address;
    use rstest::rstest;
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    use super::*;

    #[rstest]
    #[case::nobody(&[], Family::V4, None)]
    #[case::everywhere(&["0.0.0.0", "192.0.2.1"], Family::V4, Some("0.0.0.0:30999"))]
    #[case::everywhere_v6(&["::"], Family::V6, Some("[::]:30999"))]
    #[case::the_other_family(&["::"], Family::V4, None)]
    #[case::one_address(&["127.0.0.1", "192.0.2.10"], Family::V4, Some("192.0.2.10:30999"))]
    #[case::one_address_v6(&["2001:db8::10"], Family::V6, Some("[2001:db8::10]:30999"))]
    #[case::loopback_alone(&["127.0.0.1"], Family::V4, None)]
    fn owners_are_dialled_where_they_listen(
        #[case] at: &[&str],
        #[case] family: Family,
        #[case] expected: Option<&str>,
    ) {
        let parsed = at.iter().map(|text| address(&text.parse().unwrap()));
        let listening = BTreeMap::from([(30_999, parsed.collect())]);
        let found = dialled(&listening, (family, 30_999));
        assert_eq!(found.map(|to| to.to_string()).as_deref(), expected);
        assert_eq!(dialled(&listening, (family, 30_998)), None);
    }

    #[rstest]
    #[case::refuses("HTTP/1.1 503 Service Unavailable\r\n\r\n", OwnerReply::Unhealthy)]
    #[case::agrees("HTTP/1.0 200 OK\r\n\r\n", OwnerReply::Healthy)]
    #[case::another_program("HTTP/1.1 404 Not Found\r\n\r\n", OwnerReply::Unclear)]
    #[case::another_protocol("SSH-2.0-OpenSSH_9.2\r\n", OwnerReply::Unclear)]
    #[case::closes("", OwnerReply::Unclear)]
    #[tokio::test]
    async fn replies_of_owners(#[case] answer: &str, #[case] expected: OwnerReply) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let to = SocketAddr::from(([0, 0, 0, 0], port));
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; REQUEST.len()];
            stream.read_exact(&mut request).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        assert_eq!(tokio::join!(request(to), serve).0, Some(expected));
        drop(listener);
        let refused = request(to).await;
        assert_eq!(refused, Some(OwnerReply::Unclear), "it closed just now");
    }

    /// A frozen process: the kernel accepts the connection, and nothing answers.
    #[tokio::test(start_paused = true)]
    async fn an_owner_that_does_not_answer_ends_the_round_early() {
        let bind = |_| std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let owners: Vec<_> = (0..300).map(bind).collect();
        let ports = owners
            .iter()
            .map(|owner| owner.local_addr().unwrap().port());
        let ports: BTreeSet<u16> = ports.collect();
        let everywhere = BTreeSet::from([address(&"0.0.0.0".parse().unwrap())]);
        let listening = ports.iter().map(|port| (*port, everywhere.clone()));
        let due = ports.iter().map(|port| (Family::V4, *port)).collect();
        let (start, mut unclear) = (Instant::now(), 0);
        let count =
            |_: PortKey, reply: OwnerReply| unclear += usize::from(reply == OwnerReply::Unclear);
        request_all(&due, &listening.collect(), count).await;
        assert_eq!(unclear, ports.len());
        let most = (PATIENCE + PAUSE) * MAX_SILENT;
        assert!(start.elapsed() <= most, "{:?}", start.elapsed());
    }

    /// Neither a request nor a pause.
    #[tokio::test(start_paused = true)]
    async fn ports_where_nobody_listens_take_no_time() {
        let due = (30_000..31_000).map(|port| (Family::V4, port)).collect();
        let (start, mut absent) = (Instant::now(), 0);
        let count =
            |_: PortKey, reply: OwnerReply| absent += usize::from(reply == OwnerReply::Absent);
        request_all(&due, &BTreeMap::new(), count).await;
        assert_eq!((absent, start.elapsed()), (1_000, Duration::ZERO));
    }

    #[rstest]
    #[case::one(1, PAUSE)]
    #[case::as_many_as_have_the_full_pause(50, PAUSE)]
    #[case::many(1_000, Duration::from_millis(5))]
    fn many_ports_have_short_pauses(#[case] ports: usize, #[case] expected: Duration) {
        assert_eq!(pause(ports), expected);
    }
}
