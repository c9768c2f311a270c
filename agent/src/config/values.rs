//! Parsers of option values. An error states what to give instead; clap adds the option and the value.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use jiff::SignedDuration;
use pathproof_facts::cluster::ObjectName;
use pathproof_facts::node_context::address;
use pathproof_facts::switches::{LabelTerm, NodeSelector};
use pathproof_judge::eligibility::key_problem;
use pathproof_shared::values::dns_name;
use pathproof_wire::service::{FAMILIES, Family};
use serde::de::{DeserializeOwned, IntoDeserializer as _};
use tracing_subscriber::filter::EnvFilter;

use crate::http::unmapped;

/// A value, or the word `none`. clap would make an option of type `Option` optional; it does not recognize
/// this alias.
pub(crate) type OrNone<T> = Option<T>;

const NONE: &str = "none";

/// Parses a value from its serde name.
pub(super) fn word<T: DeserializeOwned>(text: &str) -> Result<T, serde::de::value::Error> {
    T::deserialize(text.into_deserializer())
}

/// Parses a range or a single address. An empty text gives no range, so that an empty environment variable
/// adds no rule.
pub(super) fn range(text: &str) -> Result<Option<IpNet>, &'static str> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map(|range| Some(unmapped(range)))
        .map_err(|_| "give a CIDR such as 10.0.0.0/8 or 2001:db8::/32, or an IP")
}

/// A pattern for interface names; `None` if the text is empty.
pub(super) fn pattern(text: &str) -> Result<Option<Pattern>, &'static str> {
    let text = text.trim();
    (!text.is_empty()).then(|| Pattern::new(text)).transpose()
}

pub(crate) type PortRange = RangeInclusive<u16>;

/// `FIRST-LAST`, or `none`.
pub(super) fn port_range(text: &str) -> Result<OrNone<PortRange>, &'static str> {
    let text = text.trim();
    if text == NONE {
        return Ok(None);
    }
    let ends = text.split_once('-');
    let range = ends.and_then(|(first, last)| Some(first.parse().ok()?..=last.parse().ok()?));
    range
        .filter(|range: &PortRange| !range.is_empty() && *range.start() > 0)
        .map(Some)
        .ok_or("give FIRST-LAST, for example 30000-32767, or none")
}

/// Parses a number from 0 to 100, with or without `%`.
pub(super) fn percent(text: &str) -> Result<u32, &'static str> {
    let text = text.trim();
    let number = text.strip_suffix('%').unwrap_or(text).trim_end().parse();
    number
        .ok()
        .filter(|percent| *percent <= 100)
        .ok_or("give a percentage from 0 to 100, for example 20 or 20%")
}

/// `0`, or a duration of at most `most` minutes.
pub(super) fn minutes(
    most: u64,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| {
        let duration = match text.trim() {
            "0" => Some(Duration::ZERO),
            text => (text.parse::<SignedDuration>().ok())
                .and_then(|duration| Duration::try_from(duration).ok()),
        };
        duration
            .filter(|duration| *duration <= Duration::from_secs(most * 60))
            .ok_or_else(|| {
                format!(
                    "give a duration between 0 and {most}m with a unit, for example 10s, 1m30s or \
                     250ms"
                )
            })
    }
}

/// Key of a label, or `none`; an empty text, as of an empty environment variable, is none too.
pub(super) fn label(text: &str) -> Result<OrNone<Arc<str>>, &'static str> {
    match text.trim() {
        "" | NONE => Ok(None),
        text => key_problem(text).map_or_else(|| Ok(Some(text.into())), Err),
    }
}

/// The parts of a list with commas that are not empty.
fn listed(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split(',').map(str::trim);
    parts.filter(|part| !part.is_empty())
}

/// Parses terms of a selector of Nodes; an empty text selects all.
pub(super) fn selector(text: &str) -> Result<NodeSelector, &'static str> {
    let terms = listed(text).map(|term| {
        let (key, value, wanted) = match (term.split_once("!="), term.split_once('=')) {
            (Some((key, value)), _) => (key, Some(value), false),
            (None, Some((key, value))) => (key, Some(value.trim_start_matches('=')), true),
            (None, None) => match term.strip_prefix('!') {
                Some(key) => (key, None, false),
                None => (term, None, true),
            },
        };
        match key_problem(key.trim()) {
            Some(problem) => Err(problem),
            None => Ok(LabelTerm {
                mark: format!("label {}", key.trim()),
                value: value.map(|value| value.trim().to_owned()),
                wanted,
            }),
        }
    });
    terms.collect::<Result<_, _>>().map(NodeSelector)
}

/// An absolute path, or `none`.
pub(super) fn directory(text: &str) -> Result<OrNone<PathBuf>, &'static str> {
    match text.trim() {
        NONE => Ok(None),
        text if text.starts_with('/') => Ok(Some(text.into())),
        _ => Err("give an absolute path, one that begins with '/', or none"),
    }
}

pub(super) fn url(text: &str) -> Result<String, &'static str> {
    let uri: Option<hyper::Uri> = text.parse().ok();
    uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some())
        .map(|_| text.to_owned())
        .ok_or("it is not the URL of an API server: give http://HOST:PORT or https://HOST:PORT")
}

pub(super) fn log_filter(text: &str) -> Result<String, &'static str> {
    EnvFilter::builder()
        .parse(text)
        .map(|_| text.to_owned())
        .map_err(|_| {
            "give a level (error, warn, info, debug, trace) or directives, for example info,pathproof::datapath=debug"
        })
}

/// `NAMESPACE/NAME`.
pub(super) fn object_name(text: &str) -> Result<ObjectName, &'static str> {
    let parts = text.trim().split_once('/');
    let sound = |(namespace, name): &(&str, &str)| {
        [namespace, name].iter().all(|part| dns_name(part).is_ok())
    };
    let (namespace, name) = parts.filter(sound).ok_or("give NAMESPACE/NAME")?;
    Ok(ObjectName::new(namespace, name))
}

/// Maximum length of a prefix. An interface name has at most 15 bytes (IFNAMSIZ), and each of the four
/// devices has a suffix of 3 bytes, such as `-c0`.
const PREFIX_LEN: usize = 12;

/// Parses the prefix of the names of the sentinel's interfaces.
///
/// # Errors
/// The form of a prefix.
pub fn device_prefix(text: &str) -> Result<String, &'static str> {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let text = text.trim();
    // Refuse a leading '-': command-line tools would take the name for an option.
    let fits = (1..=PREFIX_LEN).contains(&text.len()) && !text.starts_with('-');
    let prefix = (fits && text.bytes().all(sound)).then(|| text.to_owned());
    prefix.ok_or("give 1 to 12 letters, digits, '-' or '_', not beginning with '-'")
}

/// One address of each family.
pub(super) fn pair(text: &str) -> Result<[IpAddr; FAMILIES], String> {
    match addresses(text)? {
        [Some(v4), Some(v6)] => Ok([v4, v6]),
        _ => Err("give one IPv4 and one IPv6 address".to_owned()),
    }
}

/// At most one address of each family.
pub(super) fn addresses(text: &str) -> Result<[Option<IpAddr>; FAMILIES], String> {
    let mut found = [None; FAMILIES];
    for part in listed(text) {
        let ip: IpAddr = (part.parse()).map_err(|_| format!("{part} is not an IP address"))?;
        if is_martian(ip) {
            return Err(format!(
                "packets to {part} are not forwarded: give a unicast address"
            ));
        }
        let place = &mut found[Family::of(&address(&ip)) as usize];
        if place.replace(ip).is_some() {
            return Err(format!(
                "{part} is a second address of its family: give one IPv4 and one IPv6 address"
            ));
        }
    }
    Ok(found)
}

/// Whether the kernel does not forward packets to this address.
fn is_martian(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => {
            let first = v4.octets()[0];
            first == 0 || first >= 224 || v4.is_loopback() || v4.is_link_local()
        }
        IpAddr::V6(v6) => {
            v6.is_unspecified()
                || v6.is_loopback()
                || v6.is_multicast()
                || v6.is_unicast_link_local()
                || v6.to_ipv4_mapped().is_some()
        }
    }
}

/// Longest name of an interface (IFNAMSIZ without the final NUL).
const MAX_NAME: usize = 15;

/// A pattern for interface names: `*` matches any characters, and `?` matches one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Box<str>);

impl Pattern {
    /// Parses a pattern that at least one interface name can match. The error is why none can.
    fn new(text: &str) -> Result<Self, &'static str> {
        if text.contains([' ', '/', ':']) {
            return Err("interface names cannot contain a space, '/' or ':'");
        }
        if text.contains(['[', ']', '{', '}', '!', '\\', '^', '$', '+', '|', '(', ')']) {
            return Err("only * (any characters) and ? (one character) are special");
        }
        if text.chars().filter(|c| *c != '*').count() > MAX_NAME {
            return Err("interface names have at most 15 characters");
        }
        Ok(Self(text.into()))
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        fits(self.0.as_bytes(), name.as_bytes())
    }
}

/// Whether a name matches a pattern. It tries every split of the name at each star, since names are short.
/// Adjacent stars count as one.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest @ [b'*', ..])), _) => fits(rest, name),
        (Some((b'*', rest)), rest_of_name) => {
            fits(rest, name) || rest_of_name.is_some_and(|(_, name)| fits(pattern, name))
        }
        (Some((want, pattern)), Some((got, name))) => {
            (*want == b'?' || want == got) && fits(pattern, name)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("eth0", "eth0", true)]
    #[case("eth0", "eth01", false)]
    #[case("eth*", "eth0", true)]
    #[case("eth*", "eth", true)]
    #[case("eth**", "eth0", true)]
    #[case("**0", "eth0", true)]
    #[case("*", "", true)]
    #[case("?", "", false)]
    #[case("*.100", "bond0.100", true)]
    #[case("cali*?", "cali", false)]
    #[case("a*b*c", "aXbYbZc", true)]
    #[case("a*b*c", "aXcYb", false)]
    #[case("lxc????", "lxc1234", true)]
    #[case("*a*a*a*a*a*a*a*", "aaaaaaaaaaaaaab", true)]
    fn stands_for(#[case] pattern: &str, #[case] name: &str, #[case] expected: bool) {
        assert_eq!(Pattern::new(pattern).unwrap().matches(name), expected);
    }

    #[rstest]
    #[case("30000-32767", Some(30_000..=32_767))]
    #[case(" 1-65535", Some(1..=65_535))]
    #[case("8080-8080", Some(8_080..=8_080))]
    #[case("none", None)]
    fn ranges_of_ports(#[case] text: &str, #[case] expected: OrNone<PortRange>) {
        assert_eq!(port_range(text), Ok(expected));
    }

    #[rstest]
    #[case("")]
    #[case("30000")]
    #[case("0-100")]
    #[case("32767-30000")]
    #[case("30000-65536")]
    #[case("30000-32767-")]
    fn no_ranges_of_ports(#[case] text: &str) {
        assert!(port_range(text).is_err());
    }

    #[rstest]
    #[case("", &[])]
    #[case("pool=canary", &[("label pool", Some("canary"), true)])]
    #[case(
        " a.example/b == c, !d ,e!=f,g",
        &[
            ("label a.example/b", Some("c"), true),
            ("label d", None, false),
            ("label e", Some("f"), false),
            ("label g", None, true),
        ]
    )]
    fn selectors_of_nodes(#[case] text: &str, #[case] expected: &[(&str, Option<&str>, bool)]) {
        let NodeSelector(terms) = selector(text).unwrap();
        let terms = terms.iter();
        let found = terms.map(|term| (&*term.mark, term.value.as_deref(), term.wanted));
        assert!(found.eq(expected.iter().copied()));
    }

    #[rstest]
    #[case("pool in (a, b)")]
    #[case("=canary")]
    #[case("a/b/c=d")]
    fn no_selectors_of_nodes(#[case] text: &str) {
        assert!(selector(text).is_err());
    }

    #[rstest]
    #[case("20", Some(20))]
    #[case(" 20 % ", Some(20))]
    #[case("100%", Some(100))]
    #[case("0", Some(0))]
    #[case("101", None)]
    #[case("20%%", None)]
    #[case("-1", None)]
    #[case("", None)]
    fn percentages_with_and_without_the_sign(#[case] text: &str, #[case] expected: Option<u32>) {
        assert_eq!(percent(text).ok(), expected);
    }

    #[rstest]
    #[case("eth 0")]
    #[case("eth[0-9]")]
    #[case("a/b")]
    #[case("sixteencharacter")]
    fn patterns_that_match_no_name_are_refused(#[case] text: &str) {
        assert!(Pattern::new(text).is_err());
    }

    proptest! {
        #[test]
        fn names_match_themselves_and_wildcards(name in "[a-z0-9.@-]{1,15}", cut in 0usize..15) {
            let cut = cut.min(name.len());
            prop_assert!(Pattern::new(&name).unwrap().matches(&name));
            let starred = format!("{}*{}", &name[..cut], &name[cut..]);
            prop_assert!(Pattern::new(&starred).unwrap().matches(&name));
            let prefix = format!("{}*", &name[..cut]);
            prop_assert!(Pattern::new(&prefix).unwrap().matches(&name));
        }
    }
}
