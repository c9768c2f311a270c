//! Runs the commands of docs/rollout.md on a real node, from shadow (the first stage) to closed (the last)
//! and back. tests/deploy tests the page's queries.

use std::path::Path;

use node_tests::cluster::flush_services;
use node_tests::deploy;
use node_tests::prelude::*;
use node_tests::watch::Change;

use crate::scene::Scene;

struct Page(String);

impl Page {
    fn read() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/rollout.md");
        Self(std::fs::read_to_string(file).expect("docs/rollout.md"))
    }

    /// The commands of a section, split into words. Blocks that name a language contain no commands.
    fn commands(&self, section: &str) -> Vec<Vec<String>> {
        let start = format!("\n## {section}\n");
        let (_, rest) = self.0.split_once(&start).expect("a section of the page");
        let text = rest.split("\n## ").next().unwrap_or_default();
        let blocks = text
            .split("\n```")
            .skip(1)
            .step_by(2)
            .filter_map(|block| block.strip_prefix('\n'));
        let lines = blocks.map(|block| block.replace("\\\n", " "));
        let lines: Vec<String> = lines.collect();
        let commands = lines.iter().flat_map(|block| block.lines());
        commands
            .filter(|line| !line.starts_with('#'))
            .map(words)
            .collect()
    }
}

fn words(line: &str) -> Vec<String> {
    let chart = deploy::folder().join("chart").display().to_string();
    line.split_whitespace()
        .map(|word| word.trim_matches('\''))
        .map(|word| match word {
            "deploy/chart" => chart.clone(),
            // Replace the image by its name in containerd.
            _ => word.replace("REGISTRY/", "docker.io/library/"),
        })
        .collect()
}

impl Scene {
    fn play(&self, commands: &[Vec<String>]) {
        for command in commands {
            println!("$ {}", command.join(" "));
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let desk = &self.node.desk;
            match words.as_slice() {
                ["helm", rest @ ..] => desk.helm(rest).map(drop),
                // Wait by `wait_rolled_out`, which handles a rollout that Kubernetes forgets.
                ["kubectl", "-n", "pathproof", "rollout", ..] => {
                    self.wait_rolled_out();
                    Ok(())
                }
                ["kubectl", rest @ ..] => desk.kubectl_with(rest).map(drop),
                other => panic!("who runs {other:?}?"),
            }
            .unwrap_or_else(|error| panic!("{}: {error:#}", command.join(" ")));
            if command[0] == "helm" {
                // Shorten the 30 s between two nodes, which only cost time here.
                self.patch_agent(&[("replace", "/spec/minReadySeconds", json!(1))]);
            }
        }
    }

    /// Runs the commands of one section, and waits for the rollout.
    fn play_only(&self, page: &Page, section: &str) {
        let commands = page.commands(section);
        assert!(!commands.is_empty(), "{section} has no command");
        self.play(&commands);
        self.wait_rolled_out();
    }

    /// Number of load balancers' requests that the agent answered.
    pub(crate) fn answered(&self) -> u64 {
        let text = self.node.admin("/metrics").expect("metrics").body;
        let all: [&str; 0] = [];
        metric(&text, "pathproof_healthz_requests_total", &all)
    }

    fn flush(&self) {
        flush_services(&self.node.world.node).expect("flush");
        self.wait("broken", || {
            let report = self.node.verdict().unwrap_or_default();
            report["verdict"]["state"] == "broken"
        });
    }

    fn repair(&mut self) {
        self.node.start_proxy().expect("kube-proxy again");
        self.wait_proven();
    }

    /// The setting that puts the agent into audit mode, if any.
    fn audits_by(&self) -> Value {
        self.node.verdict().expect("a verdict")["answers"]["audit"].clone()
    }

    /// Asserts audit mode: the node answers 200 although its rules are gone.
    fn assert_audits(&mut self) {
        self.flush();
        self.wait_condition("False");
        self.wait_codes(200, 200);
        let report = self.node.verdict().expect("a verdict");
        assert_eq!(report["answers"]["livez"]["would_fail"], true, "{report:#}");
        self.repair();
    }
}

#[test]
fn the_way_from_shadow_to_enforce_is_as_the_page_says() {
    let mut scene = needs!(Scene::bare());
    let page = Page::read();
    let [hold, release] = &page.commands("Back at once")[..] else {
        panic!("the emergency brake is two commands");
    };
    let prober = scene.node.watch().expect("a prober");

    scene.kubectl("create namespace pathproof");
    scene.play_only(&page, "1. Shadow");
    scene.wait_codes(200, 200);
    assert_eq!(scene.answered(), 0, "kube-proxy answers");
    scene.wait_condition("True");

    scene.play_only(&page, "2. Audit");
    scene.wait_codes(200, 200);
    scene.wait("pathproof answers", || scene.answered() > 0);
    assert_eq!(scene.audits_by(), "flag");
    scene.assert_audits();

    // The node must be in audit mode, because it does not belong to the pool.
    scene.play_only(&page, "3. Canary pool");
    assert_eq!(scene.audits_by(), "selector");
    let failed = |change: &Change| [change.codes.healthz, change.codes.livez].contains(&503);
    let changes = prober.changes();
    assert!(!changes.iter().any(failed), "{changes:#?}");

    scene.play_only(&page, "4. Enforce");
    scene.wait("it enforces", || scene.audits_by().is_null());
    scene.flush();
    scene.wait_codes(503, 503);
    let began = Instant::now();
    scene.play(std::slice::from_ref(hold));
    scene.wait_codes(200, 200);
    println!(
        "held after {:.1?}, kubectl's time among it",
        began.elapsed()
    );
    assert_eq!(scene.audits_by(), "cluster");
    scene.play(std::slice::from_ref(release));
    scene.wait_codes(503, 503);
    scene.repair();
    scene.wait_codes(200, 200);

    scene.play_only(&page, "5. Closed");
    let args = scene.agent()["spec"]["containers"][0]["args"].to_string();
    assert!(args.contains("--unknown-policy=closed"), "{args}");
    // A node that starts with this setting does not answer 503 for long.
    scene.wait_codes(200, 200);
}
