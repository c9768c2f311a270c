//! `--cleanup` on what the real kube-proxy leaves in each of its modes, beside rules of others that
//! must stay to the byte, compared with what the real `kube-proxy --cleanup` leaves.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};

use node_tests::cluster::{KubeProxy, Mode, Servers};
use node_tests::skip;
use node_tests::world::{World, agent_binary};

use crate::scene::{PATIENCE, Scene, until};

/// Every chain and rule of others: of kubelet, of a container engine, of people, some of them with
/// names that begin as kube-proxy's do.
const OTHERS: &str = "\
*nat
:DOCKER - [0:0]
:KUBE-MARK-DROP - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-SVCX - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
-A KUBE-SVCX -m comment --comment \"kubernetes service portals\" -j RETURN
COMMIT
*filter
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-SVC-OF-OTHERS - [0:0]
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j ACCEPT
-A FORWARD -m comment --comment \"kubernetes service portals\" -j KUBE-SVC-OF-OTHERS
-A KUBE-SVC-OF-OTHERS -m mark --mark 0x1 -j DROP
COMMIT
*mangle
:KUBE-KUBELET-CANARY - [0:0]
-A OUTPUT -m mark --mark 0x7 -j ACCEPT
COMMIT
";
/// The same in nftables.
const OTHER_TABLES: &str = "\
table inet kube-proxy {
chain services { meta mark 0x7 accept; }
}
table ip kube-proxy-of-others {
chain services { meta mark 0x7 accept; }
}
";

/// The node, and the tools of one mode.
struct Node<'a> {
    world: &'a World,
    path: OsString,
}

impl Node<'_> {
    fn run(&self, program: &Path, words: &[&str]) -> Output {
        let mut command: Command = self.world.node.command(program);
        let lock = self.world.dir().join("xtables.lock");
        command
            .args(words)
            .env("PATH", &self.path)
            .env("XTABLES_LOCKFILE", lock);
        command.output().expect("run it")
    }

    fn feed(&self, program: &str, words: &[&str], input: &str) -> String {
        let env = [("PATH", self.path.as_os_str())];
        let said = self.world.node.feed_with(program, words, &env, input);
        said.expect(program)
    }

    /// Rules of both kinds and families, without what only counts.
    fn rules(&self) -> String {
        let mut all = String::new();
        for kind in ["nft", "legacy"] {
            for family in ["iptables", "ip6tables"] {
                let saved = self.feed(&format!("{family}-{kind}-save"), &[], "");
                all.push_str(&format!("## {family} {kind}\n"));
                all.extend(saved.lines().filter_map(uncounted));
            }
        }
        let tables = self.world.node.nft("list ruleset\n").expect("nft");
        all.push_str("## nftables\n");
        // Those of iptables-nft were saved above.
        let own = tables.split("\n}\n").filter(|table| !is_of_iptables(table));
        own.for_each(|table| all.push_str(table));
        all
    }
}

/// A line of iptables-save without the time and the counters.
fn uncounted(line: &str) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let end = line.rfind(" [").unwrap_or(line.len());
    Some(format!(
        "{}\n",
        &line[..if line.starts_with(':') {
            end
        } else {
            line.len()
        }]
    ))
}

fn is_of_iptables(table: &str) -> bool {
    let of = |name: &str| {
        ["ip", "ip6"]
            .iter()
            .any(|family| table.contains(&format!("table {family} {name} {{")))
    };
    ["nat", "filter", "mangle", "raw", "security"]
        .into_iter()
        .any(of)
}

/// Lines that are kube-proxy's beyond doubt.
fn is_of_kube_proxy(line: &str) -> bool {
    let words = [
        "KUBE-SEP-",
        "KUBE-SERVICES",
        "KUBE-POSTROUTING",
        "KUBE-FORWARD",
        "KUBE-NODEPORTS",
        "KUBE-PROXY-CANARY",
        "KUBE-MARK-MASQ",
        "KUBE-EXT-",
        "table ip kube-proxy {",
        "table ip6 kube-proxy {",
    ];
    words.iter().any(|word| line.contains(word))
}

/// Writes the rules of a mode, and ends.
fn leave_rules(scene: &Scene, programs: &Servers, mode: Mode) {
    let config = scene.control.proxy_kubeconfig(scene.far());
    let proxy = KubeProxy::start(&scene.world, programs, mode, &config).expect("a kube-proxy");
    // Both Services, in both families: its /healthz says 200 before.
    let wanted = ["10.96.0.10", "10.96.0.11", "fd00:10:96::a", "fd00:10:96::b"];
    let written = until(PATIENCE, || {
        let rules = proxy.rules().ok()?;
        wanted
            .iter()
            .all(|address| rules.contains(address))
            .then_some(())
    });
    assert!(written.is_some(), "{mode:?}: {:?}", proxy.rules());
    drop(proxy);
}

#[test]
fn what_is_left_is_what_the_real_cleanup_leaves() {
    let name = "what_is_left_is_what_the_real_cleanup_leaves";
    if Mode::ALL
        .iter()
        .any(|mode| skip::without_tool(name, mode.tool()))
        || skip::without_tool(name, Mode::IptablesLegacy.tool())
    {
        return;
    }
    let modes = [Mode::Nftables, Mode::Iptables, Mode::IptablesLegacy];
    if let Some(scene) = Scene::bare(name, modes[0]) {
        clean(scene, &modes, &[]);
    }
}

/// Ours, after the scene's kube-proxy in each of these modes. The real cleanup leaves the same, but for
/// these chains of iptables.
pub(crate) fn clean(mut scene: Scene, modes: &[Mode], kept_by_the_real_one: &[&str]) {
    drop(scene.proxy.take());
    let programs = scene.programs.clone();
    let agent = agent_binary().expect("the agent's binary");
    scene
        .world
        .node
        .nft(OTHER_TABLES)
        .expect("tables of others");
    for mode in modes.iter().copied() {
        leave_rules(&scene, &programs, mode);
        let node = Node {
            world: &scene.world,
            path: KubeProxy::search_path(scene.world.dir(), mode).expect("a PATH"),
        };
        if mode != Mode::Nftables {
            for family in ["iptables-restore", "ip6tables-restore"] {
                node.feed(family, &["--noflush"], OTHERS);
            }
        }
        let full = node.rules();
        let ours = node.run(
            &agent,
            &["kube-proxy", "--cleanup", "--kubeconfig=/k", "-v=2"],
        );
        let said = String::from_utf8_lossy(&ours.stdout).into_owned();
        let wrong = String::from_utf8_lossy(&ours.stderr).into_owned();
        assert_eq!(ours.status.code(), Some(0), "{mode:?}: {said}{wrong}");
        assert!(said.starts_with("removed "), "{mode:?}: {said}");
        let after_ours = node.rules();
        assert!(full.lines().any(is_of_kube_proxy), "{full}");
        let left: Vec<&str> = after_ours
            .lines()
            .filter(|line| is_of_kube_proxy(line))
            .collect();
        assert!(left.is_empty(), "{mode:?}: {left:?}");
        if mode != Mode::Nftables {
            for rule in OTHERS.lines().filter(|line| line.starts_with("-A")) {
                let count = after_ours.lines().filter(|line| *line == rule).count();
                assert!(count >= 2, "{mode:?}: {rule} is gone:\n{after_ours}");
            }
            // kube-proxy makes kubelet's as well, and leaves it.
            assert!(
                after_ours.contains("-A INPUT -j KUBE-FIREWALL\n"),
                "{after_ours}"
            );
        }
        assert!(after_ours.contains("table inet kube-proxy"), "{after_ours}");
        assert!(after_ours.contains("kube-proxy-of-others"), "{after_ours}");
        // Again: there is nothing, and that is no error.
        let again = node.run(&agent, &["kube-proxy", "--cleanup"]);
        assert_eq!(again.status.code(), Some(0), "{again:?}");
        assert_eq!(after_ours, node.rules(), "{mode:?}: a second time");

        leave_rules(&scene, &programs, mode);
        let real = node.run(&programs.proxy, &["--cleanup"]);
        assert!(real.status.success(), "{real:?}");
        let after_real = node.rules();
        let ours: Vec<&str> = after_ours.lines().collect();
        let kept = match mode {
            Mode::Nftables => &[],
            _ => kept_by_the_real_one,
        };
        let (more, same): (Vec<&str>, Vec<&str>) =
            after_real.lines().partition(|line| !ours.contains(line));
        let of = |name: &&str, line: &&str| line.contains(*name);
        let all_kept = more
            .iter()
            .all(|line| kept.iter().any(|name| of(name, line)));
        let none_gone = kept
            .iter()
            .all(|name| more.iter().any(|line| of(name, line)));
        assert!(
            same == ours && all_kept && none_gone,
            "{mode:?}: ours:\n{after_ours}\nthe real one's:\n{after_real}"
        );
    }
}

/// kube-proxy fails there too: a chain that somebody jumps to cannot go.
#[test]
fn a_rule_of_somebody_elses_that_holds_a_chain_is_named() {
    let name = "a_rule_of_somebody_elses_that_holds_a_chain_is_named";
    if skip::without_root(name) || skip::without_tool(name, "iptables-nft") {
        return;
    }
    let world = World::builder().build().expect("build a world");
    let node = Node {
        world: &world,
        path: std::env::var_os("PATH").unwrap_or_default(),
    };
    let rules = "*nat\n:KUBE-SERVICES - [0:0]\n-A OUTPUT -d 192.0.2.9/32 -j KUBE-SERVICES\n\
                 -A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\nCOMMIT\n";
    node.feed("iptables-nft-restore", &["--noflush"], rules);
    let before = node.rules();
    let agent = agent_binary().expect("the agent's binary");
    let ours = node.run(&agent, &["kube-proxy", "--cleanup"]);
    let said = String::from_utf8_lossy(&ours.stderr);
    assert_eq!(ours.status.code(), Some(1), "{said}");
    assert!(
        said.contains("-A OUTPUT -d 192.0.2.9/32 -j KUBE-SERVICES"),
        "{said}"
    );
    assert_eq!(before, node.rules());

    // Nothing to remove it with: that is said, and nothing is touched.
    let bare = Node {
        world: &world,
        path: OsString::from("/nowhere"),
    };
    let ours = bare.run(&agent, &["kube-proxy", "--cleanup"]);
    let said = String::from_utf8_lossy(&ours.stderr);
    assert_eq!(ours.status.code(), Some(1), "{said}");
    assert!(
        said.contains("no iptables of that kind is in PATH"),
        "{said}"
    );
    assert_eq!(before, node.rules());
}

/// iptables-nft leaves a table out of what it shows, and says that all went well, where one rule in it
/// was made by nft with what iptables has no word for.
#[test]
fn a_table_that_iptables_cannot_show_is_named() {
    let name = "a_table_that_iptables_cannot_show_is_named";
    let tools = ["iptables-nft", "nft"];
    if skip::without_root(name) || tools.iter().any(|tool| skip::without_tool(name, tool)) {
        return;
    }
    let world = World::builder().build().expect("build a world");
    let node = Node {
        world: &world,
        path: std::env::var_os("PATH").unwrap_or_default(),
    };
    let rules = "*nat\n:KUBE-SERVICES - [0:0]\n-A OUTPUT -j KUBE-SERVICES\nCOMMIT\n";
    node.feed("iptables-nft-restore", &["--noflush"], rules);
    let of_nft = "add rule ip nat OUTPUT meta mark set numgen inc mod 2\n";
    node.feed("nft", &["-f", "-"], of_nft);
    let agent = agent_binary().expect("the agent's binary");
    let cleanup = || {
        let ours = node.run(&agent, &["kube-proxy", "--cleanup"]);
        let said = String::from_utf8_lossy(&ours.stderr).into_owned();
        (ours.status.code(), said)
    };
    let (code, said) = cleanup();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("`nft list table ip nat` shows them"),
        "{said}"
    );
    node.feed("nft", &["-f", "-"], "flush chain ip nat OUTPUT\n");
    let (code, said) = cleanup();
    assert_eq!(code, Some(0), "{said}");
}
