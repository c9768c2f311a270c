//! One setting each: text in, value out, or an error that names the option.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use jiff::SignedDuration;

use super::{ConfigError, Pattern};
use crate::http::bind::BindAddress;
use crate::http::{AllowList, unmapped};
use agent_core::drain::ProbeRanges;

/// `IP:PORT`, `IP`, `[IP]`, `:PORT` or `[IP]:PORT`; without a port it is `port`. `none` is nowhere.
pub(super) fn bind_address(
    option: &'static str,
    value: &str,
    port: u16,
) -> Result<Option<BindAddress>, ConfigError> {
    let text = value.trim();
    if text == "none" {
        return Ok(None);
    }
    let address = text
        .parse::<SocketAddr>()
        .ok()
        .or_else(|| {
            bracketed(text)
                .parse::<IpAddr>()
                .ok()
                .map(|ip| SocketAddr::new(ip, port))
        })
        .map(BindAddress::from)
        .or_else(|| {
            text.strip_prefix(':')?
                .parse()
                .ok()
                .map(BindAddress::Everywhere)
        });
    address.map(Some).ok_or_else(|| ConfigError::Address {
        option,
        value: value.to_owned(),
        example: format!("0.0.0.0:{port}"),
    })
}

fn bracketed(text: &str) -> &str {
    text.strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(text)
}

pub(super) fn allow_list(
    option: &'static str,
    values: &[String],
) -> Result<AllowList, ConfigError> {
    ranges(option, values).map(AllowList::new)
}

/// Where load balancers probe from.
pub(super) fn probe_ranges(
    option: &'static str,
    values: &[String],
) -> Result<ProbeRanges, ConfigError> {
    let ranges = ranges(option, values)?;
    Ok(ProbeRanges::new(ranges.into_iter().map(unmapped)))
}

/// Ranges or single addresses; empty entries are left out, so that an empty variable is no rule.
fn ranges(option: &'static str, values: &[String]) -> Result<Vec<IpNet>, ConfigError> {
    entries(values)
        .map(|text| {
            text.parse::<IpNet>()
                .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
                .map_err(|_| ConfigError::Cidr {
                    option,
                    value: text.to_owned(),
                })
        })
        .collect()
}

pub(super) fn patterns(
    option: &'static str,
    values: &[String],
) -> Result<Vec<Pattern>, ConfigError> {
    entries(values)
        .map(|text| {
            Pattern::new(text).map_err(|reason| ConfigError::Pattern {
                option,
                value: text.to_owned(),
                reason,
            })
        })
        .collect()
}

/// `0` or a duration of at most `most`, which is given in words as well.
pub(super) fn duration(
    option: &'static str,
    value: &str,
    (most, in_words): (Duration, &'static str),
) -> Result<Duration, ConfigError> {
    let text = value.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    text.parse::<SignedDuration>()
        .ok()
        .and_then(|span| Duration::try_from(span).ok())
        .filter(|duration| *duration <= most)
        .ok_or_else(|| ConfigError::Duration {
            option,
            value: value.to_owned(),
            max: in_words,
        })
}

/// An absolute path, or `none`.
pub(super) fn directory(option: &'static str, value: &str) -> Result<Option<PathBuf>, ConfigError> {
    match value.trim() {
        "none" => Ok(None),
        text if text.starts_with('/') => Ok(Some(text.into())),
        _ => Err(ConfigError::RelativePath {
            option,
            value: value.to_owned(),
        }),
    }
}

/// A name that a Node can have (RFC 1123 subdomain).
pub(super) fn node_name(value: &str) -> Result<(), ConfigError> {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    if value.len() <= 253 && value.split('.').all(label) {
        Ok(())
    } else {
        Err(ConfigError::NodeName {
            value: value.to_owned(),
        })
    }
}

pub(super) fn entries(values: &[String]) -> impl Iterator<Item = &str> {
    values
        .iter()
        .map(|value| value.trim())
        .filter(|value| !value.is_empty())
}
