//! A Service's health check node port, which Cilium's agent also serves.

use node_tests::http::{self, Response};
use node_tests::prelude::*;

use crate::scene::{PATIENCE, REPLACING, Scene};

/// Health check node port of web.
const PORT: u16 = 30_999;

impl Scene {
    /// Adds a health check node port to web, and waits until Cilium serves it.
    fn balance(&mut self) {
        let port = |service: &mut node_tests::manifests::Service| {
            *service = service.clone().health_port(PORT);
        };
        self.manifests.change("web", port).expect("web");
        self.put("web");
        for family in Family::ALL {
            let served = until(PATIENCE, || {
                let answer = self.ask(&self.world.outside, family)?;
                (answer.status == 200).then_some(())
            });
            assert!(served.is_some(), "Cilium serves {PORT}, {family:?}");
        }
    }

    fn ask(&self, from: &Namespace, family: Family) -> Option<Response> {
        let to = SocketAddr::new(self.world.node_address(family), PORT);
        from.run(|| http::get(to, "/", Duration::from_secs(1))).ok()
    }

    fn outside(&self) -> [u16; 2] {
        Family::ALL.map(|family| {
            let answer = self.ask(&self.world.outside, family);
            answer.map_or(0, |answer| answer.status)
        })
    }
}

/// Cilium answers 200 even with empty tables. If pathproof serves the port, outside clients get its answer.
/// Otherwise, or after a kill of pathproof's agent, they get Cilium's.
#[test]
fn outside_clients_get_our_answer_and_ciliums_after_a_kill() {
    let mut scene = needs!(Scene::bare(REPLACING));
    scene.balance();
    let ciliums = scene.ask(&scene.world.outside, Family::V4);
    println!("Cilium's: {ciliums:?}");
    for (options, broken) in [
        (["--health-check-node-ports", "none"], 200),
        (["--enforcement", "audit"], 200),
        (["--enforcement", "enforce"], 503),
    ] {
        let is_ours = options[1] != "none";
        scene.start_agent(&options);
        scene.wait_for("proven", 200, PATIENCE);
        settle();
        let told = until(PATIENCE, || {
            let before = scene.agent().health_port_answers().ok()?;
            let statuses = scene.outside();
            let after = scene.agent().health_port_answers().ok()?;
            (statuses == [200, 200] && (after - before == 2) == is_ours).then_some(())
        });
        assert!(told.is_some(), "{options:?}: sound");
        println!(
            "{options:?}: {:?}",
            scene.ask(&scene.world.outside, Family::V4)
        );
        let mend = scene.cilium.empty_tables().expect("empty");
        scene.wait("broken", |report| report["verdict"]["state"] == "broken");
        let told = until(PATIENCE, || (scene.outside() == [broken; 2]).then_some(()));
        assert!(told.is_some(), "{options:?}: {:?}", scene.outside());
        let own = scene.ask(&scene.world.node, Family::V4);
        assert_eq!(
            own.map(|answer| answer.status),
            Some(200),
            "Cilium's own answer"
        );
        if broken == 503 {
            // The fault is still in force.
            let agent = scene.agent.take().expect("an agent");
            agent.kill().expect("kill");
            let killed = Instant::now();
            let gone = until(PATIENCE, || (scene.outside() == [200; 2]).then_some(()));
            println!(
                "MEASURED Cilium answers {:?} after the agent was killed",
                killed.elapsed()
            );
            assert!(gone.is_some());
        } else {
            let agent = scene.agent.take().expect("an agent");
            agent.terminate().expect("the agent ends");
        }
        mend();
    }
}
