//! The rules as an nftables script: one table `kube-proxy` for each family, with kube-proxy's names and
//! layout.

use super::chains::{ChainRule, Chains, SERVICES, Word};
use crate::world::Family;

const HOOKS: &str = "
  chain prerouting { type nat hook prerouting priority dstnat; jump services; }
  chain output { type nat hook output priority -100; jump services; }
  chain postrouting {
    type nat hook postrouting priority srcnat;
    meta mark & 0x4000 == 0x4000 meta mark set meta mark ^ 0x4000 masquerade fully-random
  }
  chain filter-input { type filter hook input priority filter; ct state new jump refusals; }
  chain filter-forward { type filter hook forward priority filter; ct state new jump refusals; }
  chain filter-output { type filter hook output priority filter; ct state new jump refusals; }
";

fn ip(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

pub(super) fn flush(family: Family) -> String {
    format!("flush chain {} kube-proxy {SERVICES}\n", ip(family))
}

pub(super) fn remove(family: Family) -> String {
    let ip = ip(family);
    format!("table {ip} kube-proxy {{}}\ndelete table {ip} kube-proxy\n")
}

/// The complete table, which replaces an existing one.
pub(super) fn render(chains: &Chains) -> String {
    let ip = ip(chains.family);
    let line = |rule: &ChainRule| {
        let words: Vec<String> = rule.iter().map(|word| text(ip, word)).collect();
        format!("    {}\n", words.join(" "))
    };
    let chain = |name: &str, rules: &[ChainRule]| {
        let lines: String = rules.iter().map(line).collect();
        format!("  chain {name} {{\n{lines}  }}\n")
    };
    let nat = chains.nat.iter().map(|(name, rules)| chain(name, rules));
    let nat: String = nat.collect();
    let refusals = chain("refusals", &chains.refusals);
    let remove = remove(chains.family);
    format!("{remove}table {ip} kube-proxy {{\n{nat}{refusals}{HOOKS}}}\n")
}

fn text(ip: &str, word: &Word) -> String {
    match word {
        Word::To(address, protocol, port) => {
            let address = match address {
                Some(address) => format!("{ip} daddr {address}"),
                None if ip == "ip" => "fib daddr type local ip daddr != 127.0.0.0/8".to_owned(),
                None => "fib daddr type local ip6 daddr != ::1".to_owned(),
            };
            format!("{address} {protocol} dport {port}")
        }
        Word::From(range) => format!("{ip} saddr {range}"),
        Word::NotFrom(range) => format!("{ip} saddr != {range}"),
        Word::FromNode => "fib saddr type local".to_owned(),
        Word::Chance(left) => format!("numgen random mod {left} 0"),
        Word::Masquerade => "meta mark set meta mark | 0x4000".to_owned(),
        Word::Goto(chain) => format!("goto {chain}"),
        Word::Translate(protocol, to) => format!("meta l4proto {protocol} dnat to {to}"),
        Word::Reject => "reject".to_owned(),
        Word::Drop => "drop".to_owned(),
    }
}
