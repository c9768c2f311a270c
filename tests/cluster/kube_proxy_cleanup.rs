//! `--cleanup` of the rules of a real kube-proxy in each of its modes, compared with the real `kube-proxy
//! --cleanup`. The rules of other programs must stay byte for byte.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};

use node_tests::cluster::{KubeProxy, Servers};
use node_tests::prelude::*;

use crate::scene::{PATIENCE, Scene};

/// Rules of kubelet, of a container engine and of administrators. Some names begin like kube-proxy's.
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
/// Other programs' tables of nftables.
const OTHER_TABLES: &str = "\
table inet kube-proxy {
chain services { meta mark 0x7 accept; }
}
table ip kube-proxy-of-others {
chain services { meta mark 0x7 accept; }
}
";

/// The node, with a `PATH` that contains the tools of one mode.
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

    /// All rules of iptables and nftables in both families, without counters.
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
        // Leave out the tables of iptables-nft, which were saved above.
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

/// Whether the line certainly belongs to kube-proxy.
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

/// Runs kube-proxy in this mode until it has written its rules.
fn leave_rules(scene: &Scene, programs: &Servers, mode: Mode) {
    let config = scene.control.proxy_kubeconfig(scene.far());
    let proxy = KubeProxy::start(&scene.world, programs, mode, &config).expect("a kube-proxy");
    // Wait for both Services in both families: /healthz answers 200 earlier.
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
fn the_cleanup_leaves_the_same_rules_as_the_real_one() {
    for mode in Mode::ALL.into_iter().chain([Mode::IptablesLegacy]) {
        needs!(skip::tool(mode.tool()));
    }
    let modes = [Mode::Nftables, Mode::Iptables, Mode::IptablesLegacy];
    let scene = needs!(Scene::bare(modes[0]));
    clean(scene, &modes, &[]);
}

/// Runs the agent's cleanup and the real one, each after kube-proxy, in each of these modes. Both must leave
/// the same rules, except that the real one also keeps these chains of iptables.
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
            // kube-proxy also creates this chain, which belongs to kubelet, and does not remove it.
            assert!(
                after_ours.contains("-A INPUT -j KUBE-FIREWALL\n"),
                "{after_ours}"
            );
        }
        assert!(after_ours.contains("table inet kube-proxy"), "{after_ours}");
        assert!(after_ours.contains("kube-proxy-of-others"), "{after_ours}");
        // A second run finds nothing, which is no error.
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

/// A chain cannot be deleted while another program's rule jumps to it. As with kube-proxy, the rule is named.
#[test]
fn a_foreign_rule_that_uses_a_chain_is_named() {
    needs!(skip::root());
    needs!(skip::tool("iptables-nft"));
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

    // Without the tools, the command reports that they are missing, and changes nothing.
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

/// If a table has an nft rule that iptables cannot express, iptables-nft silently omits the table. The
/// cleanup names it.
#[test]
fn a_table_that_iptables_cannot_show_is_named() {
    needs!(skip::root());
    needs!(skip::tool("iptables-nft"));
    needs!(skip::tool("nft"));
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
