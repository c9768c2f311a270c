//! Requests the answers of kube-proxy or Cilium at the health check node ports that the agent took over. The
//! steering program leaves connections of the node itself to the port's owner.
//!
//! Only ports that the agent would answer with 200 are requested, one at a time and at a limited rate.
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

/// Pause between two rounds, in which each port gets one request.
const ROUND: Duration = Duration::from_secs(2);
/// Pause before each request.
const PAUSE: Duration = Duration::from_millis(100);
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
            loop {
                sleep(ROUND).await;
                owners.round().await;
            }
        });
    }
}

impl Owners {
    async fn round(&mut self) {
        let due = self.due();
        self.replies.retain(&due);
        self.publish();
        if due.is_empty() {
            return;
        }
        let Ok(listening) = listeners::by_port(&self.range) else {
            return;
        };
        for port in due {
            sleep(PAUSE).await;
            let reply = match dialled(&listening, port) {
                Some(to) => request(to).await,
                None => OwnerReply::Absent,
            };
            let expected = (self.report.borrow().as_ref()).is_some_and(|report| {
                report.port.owner == Some(true) && is_expected(&report.datapath, port.1)
            });
            self.replies.record(port, reply, expected, clock::mono());
            self.publish();
        }
    }

    /// Steered ports that the agent would answer with 200 by itself.
    fn due(&self) -> BTreeSet<PortKey> {
        let (table, answers) = (self.table.borrow(), self.answers.borrow());
        let mut due = BTreeSet::new();
        for (port, served) in table.iter().filter(|(port, _)| self.range.contains(port)) {
            let healthy = Family::ALL.into_iter().filter(|family| {
                served.local[*family as usize] > Some(0) && answers.serve(&served.service, *family)
            });
            due.extend(healthy.map(|family| (*port, family)));
        }
        due
    }

    fn publish(&self) {
        let new = self.replies.refusals();
        if self.refusals.borrow().is_empty()
            && let Some(((port, _), refusal)) = new.first_key_value()
        {
            tracing::warn!(port, %refusal, "a health check node port answers 503 as its owner does");
        }
        self.refusals.send_replace(Arc::new(new));
    }
}

/// The address at which the node reaches the port's owner; `None` if clients outside would reach no process.
/// Connections to an unspecified address go to the loopback address.
fn dialled(
    listening: &BTreeMap<u16, BTreeSet<Address>>,
    (port, family): PortKey,
) -> Option<SocketAddr> {
    let outside = |at: &&Address| Family::of(at) == family && !is_loopback(at);
    let at = listening.get(&port)?.iter().find(outside)?;
    Some(SocketAddr::new(ip_of(at), port))
}

async fn request(to: SocketAddr) -> OwnerReply {
    let exchange = async {
        let mut stream = TcpStream::connect(to).await?;
        stream.write_all(REQUEST).await?;
        let mut head = [0; "HTTP/1.1 200".len()];
        stream.read_exact(&mut head).await?;
        io::Result::Ok(head)
    };
    match timeout(PATIENCE, exchange).await {
        Ok(Ok(head)) if head.ends_with(b" 200") => OwnerReply::Healthy,
        Ok(Ok(head)) if head.ends_with(b" 503") => OwnerReply::Unhealthy,
        _ => OwnerReply::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use pathproof_facts::node_context::address;
    use rstest::rstest;
    use tokio::net::TcpListener;

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
        let found = dialled(&listening, (30_999, family));
        assert_eq!(found.map(|to| to.to_string()).as_deref(), expected);
        assert_eq!(dialled(&listening, (30_998, family)), None);
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
        assert_eq!(tokio::join!(request(to), serve).0, expected);
        drop(listener);
        assert_eq!(request(to).await, OwnerReply::Unclear, "it closed just now");
    }

    /// A frozen process: the kernel accepts the connection, and nothing answers.
    #[tokio::test(start_paused = true)]
    async fn an_owner_that_does_not_answer_is_unclear() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let reply = request(listener.local_addr().unwrap()).await;
        assert_eq!(reply, OwnerReply::Unclear);
    }
}
