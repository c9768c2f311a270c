//! Replaces the addresses in a recording for a bug report. Each address always becomes the same address of
//! a range reserved for documentation or benchmarks, so a replay yields the same verdicts.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::Value;

use super::{Lines, RecordingError};
use crate::Judge;
use crate::record::{CHUNK, compress};

/// The recording with its addresses replaced.
///
/// # Errors
/// The file is no recording, truncated or damaged.
pub fn redact(bytes: &[u8], addresses: &mut Pseudonyms) -> Result<Vec<u8>, RecordingError> {
    let mut lines = Lines::new(bytes);
    let (mut file, mut raw) = (Vec::new(), Vec::new());
    while let Some(text) = lines.text()? {
        let line = lines.line;
        let damaged = |source| RecordingError::Damaged { line, source };
        let mut value: Value = serde_json::from_slice(&text).map_err(damaged)?;
        addresses.replace(&mut value);
        if let Some(judge) = value.pointer_mut("/part/judge") {
            let mut held: Judge = serde_json::from_value(judge.take()).map_err(damaged)?;
            held.identify_again();
            *judge = serde_json::to_value(held).map_err(damaged)?;
        }
        raw.extend(value.to_string().into_bytes());
        raw.push(b'\n');
        if raw.len() >= CHUNK {
            file.extend(compress(&std::mem::take(&mut raw)));
        }
    }
    file.extend(compress(&raw));
    Ok(file)
}

/// What each address was replaced with: files that are redacted with the same one agree.
#[derive(Debug, Default)]
pub struct Pseudonyms {
    known: HashMap<IpAddr, IpAddr>,
}

impl Pseudonyms {
    fn replace(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.replaced(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.replace(value)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.replace(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Replaces every word that is an address, with or without a port or a prefix length.
    pub fn replaced(&mut self, text: &str) -> String {
        let is_part = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':');
        let (mut out, mut word) = (String::with_capacity(text.len()), String::new());
        for c in text.chars().chain(['\0']) {
            if is_part(c) {
                word.push(c);
                continue;
            }
            out.push_str(&self.word(&word));
            word.clear();
            if c != '\0' {
                out.push(c);
            }
        }
        out
    }

    fn word(&mut self, word: &str) -> String {
        // A dot or colon after an address belongs to the sentence around it.
        let bare = word.trim_end_matches(['.', ':']);
        let tail = &word[bare.len()..];
        if let Ok(address) = bare.parse::<IpAddr>() {
            return format!("{}{tail}", self.of(address));
        }
        match bare.rsplit_once(':') {
            Some((address, port)) if address.contains('.') => match address.parse::<Ipv4Addr>() {
                Ok(address) => format!("{}:{port}{tail}", self.of(address.into())),
                Err(_) => word.to_owned(),
            },
            _ => word.to_owned(),
        }
    }

    fn of(&mut self, address: IpAddr) -> IpAddr {
        if address.is_unspecified() || address.is_loopback() {
            return address;
        }
        let next = self.known.len() as u32 + 1;
        *self.known.entry(address).or_insert_with(|| match address {
            // 198.18.0.0/15 has 131,072 addresses. If there are more to replace, several share one.
            IpAddr::V4(_) => Ipv4Addr::from_bits(0xc612_0000 | (next & 0x1_ffff)).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(next)).into(),
        })
    }
}
