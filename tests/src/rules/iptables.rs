//! The rules as input of iptables-restore, with kube-proxy's chain names.

use super::chains::{ChainRule, Chains, Word};
use crate::world::Family;

/// Input that empties both tables.
pub(super) const REMOVE: &str = "*nat\nCOMMIT\n*filter\nCOMMIT\n";

/// Input that empties the chain of all Services, for use with `--noflush`.
pub(super) const FLUSH: &str = "*nat\n-F KUBE-SERVICES\nCOMMIT\n";

const NAT_HOOKS: &str = "\
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
";

const FILTER_HOOKS: &str = "\
-A INPUT -m conntrack --ctstate NEW -j KUBE-REFUSALS
-A FORWARD -m conntrack --ctstate NEW -j KUBE-REFUSALS
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-REFUSALS
";

/// Both complete tables; restore replaces each in one step.
pub(super) fn render(chains: &Chains) -> String {
    let family = chains.family;
    let names = chains.nat.keys();
    let names: String = names
        .map(|name| format!(":{} - [0:0]\n", long(name)))
        .collect();
    let nat = chains.nat.iter();
    let nat: String = nat
        .map(|(name, rules)| lines(family, name, rules))
        .collect();
    let refusals = lines(family, "refusals", &chains.refusals);
    format!(
        "*nat\n:KUBE-POSTROUTING - [0:0]\n{names}{NAT_HOOKS}{nat}COMMIT\n\
         *filter\n:KUBE-REFUSALS - [0:0]\n{FILTER_HOOKS}{refusals}COMMIT\n"
    )
}

/// A chain's name as kube-proxy writes it.
fn long(name: &str) -> String {
    format!("KUBE-{}", name.to_uppercase())
}

fn lines(family: Family, chain: &str, rules: &[ChainRule]) -> String {
    let chain = long(chain);
    let line = |rule: &ChainRule| {
        let words = rule.iter().map(|word| format!(" {}", text(family, word)));
        format!("-A {chain}{}\n", words.collect::<String>())
    };
    rules.iter().map(line).collect()
}

fn text(family: Family, word: &Word) -> String {
    match word {
        Word::To(address, protocol, port) => {
            let address = match (address, family) {
                (Some(address), _) => format!("-d {address}"),
                (None, Family::V4) => "! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL".to_owned(),
                (None, Family::V6) => "! -d ::1 -m addrtype --dst-type LOCAL".to_owned(),
            };
            format!("{address} -p {protocol} --dport {port}")
        }
        Word::From(range) => format!("-s {range}"),
        Word::NotFrom(range) => format!("! -s {range}"),
        Word::FromNode => "-m addrtype --src-type LOCAL".to_owned(),
        Word::Chance(left) => {
            let chance = 1.0 / *left as f64;
            format!("-m statistic --mode random --probability {chance:.10}")
        }
        Word::Masquerade => "-j MARK --or-mark 0x4000".to_owned(),
        Word::Goto(chain) => format!("-g {}", long(chain)),
        Word::Translate(protocol, to) => format!("-p {protocol} -j DNAT --to-destination {to}"),
        Word::Reject => match family {
            Family::V4 => "-j REJECT --reject-with icmp-port-unreachable".to_owned(),
            Family::V6 => "-j REJECT --reject-with icmp6-port-unreachable".to_owned(),
        },
        Word::Drop => "-j DROP".to_owned(),
    }
}
