//! The overlay between two nodes dies.

use std::time::Instant;

use anyhow::Result;

use super::Play;
use crate::demo::teller::seconds;
use crate::demo::timeline::Kind;
use crate::tunnels::path;

impl Play<'_> {
    /// Nobody dials but the pod probe.
    pub(super) fn overlay_dead(&mut self) -> Result<()> {
        self.timeline.tell(
            Kind::Act,
            "a VXLAN overlay to the other node, and `pathproof echo` in a pod on each: small pods \
             that connect to their own Service",
        );
        let probes = self.stage.start_probes()?;
        self.linger(seconds(6))?;
        self.timeline.tell(
            Kind::Fault,
            "the other node's firewall drops UDP port 8472: the rules are intact, packets leave, \
             and nothing comes back",
        );
        let start = Instant::now();
        self.stage.world.worker.nft(&path("input", ""))?;
        self.await_row(
            ("idle: overlay dead", "degraded, names it, 200", seconds(15)),
            start,
            |view, _| view.is(200, 200) && view.verdict.cause.as_deref() == Some("overlay"),
        )?;
        self.linger(seconds(1))?;
        self.timeline.tell(Kind::Act, "port 8472 open again");
        let start = Instant::now();
        self.stage.world.worker.nft("delete table inet path")?;
        self.await_row(
            ("overlay repaired", "proven", seconds(10)),
            start,
            |view, _| view.is(200, 200) && view.verdict.state == "proven",
        )?;
        drop(probes);
        self.stage.remove_probes()
    }
}
