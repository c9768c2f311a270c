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

/// Maps each address to its replacement. Share one between files in which an address should stay the same.
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
        let is_letter = |c: char| c.is_alphabetic() || c == '_';
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(begin) = rest.find(is_part) {
            let (before, from) = rest.split_at(begin);
            let end = from.find(|c: char| !is_part(c)).unwrap_or(from.len());
            let (word, after) = from.split_at(end);
            // In JSON, a letter before an address may be the end of an escape, as in `\nfd00::1`.
            let is_escape = before.len() > 1 && before.as_bytes()[before.len() - 2] == b'\\';
            let (begins, ends) = (before.ends_with(is_letter), after.starts_with(is_letter));
            out.push_str(before);
            out.push_str(&self.word(word, begins && !is_escape, ends));
            rest = after;
        }
        out + rest
    }

    /// `begins` and `ends`: whether a letter precedes or follows the word.
    fn word(&mut self, word: &str, begins: bool, ends: bool) -> String {
        // A dot or colon after an address belongs to the sentence around it.
        let bare = word.trim_end_matches(['.', ':']);
        let tail = &word[bare.len()..];
        if let Some(replaced) = self.address(bare, begins || ends) {
            return format!("{replaced}{tail}");
        }
        match bare.split_once(':') {
            // The end of a name and an address, as in `Address:10.0.0.1`.
            Some((name, rest)) if !rest.starts_with(':') => {
                format!("{name}:{}{tail}", self.word(rest, false, ends))
            }
            _ => word.to_owned(),
        }
    }

    /// `in_name`: whether a letter is beside the text. A part of a module's name in a log, such as `f::a` of
    /// `pathproof::app`, would be an IPv6 address otherwise.
    fn address(&mut self, text: &str, in_name: bool) -> Option<String> {
        match text.parse::<IpAddr>() {
            Ok(address) if text.contains('.') || !in_name => Some(self.of(address).to_string()),
            _ => {
                let (address, port) = text.rsplit_once(':')?;
                let address: Ipv4Addr = address.parse().ok()?;
                Some(format!("{}:{port}", self.of(address.into())))
            }
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("to 10.0.0.1.", "to 198.18.0.1.")]
    #[case("10.0.0.1:80: refused", "198.18.0.1:80: refused")]
    #[case("10.0.0.1:53->10.0.0.1:80", "198.18.0.1:53->198.18.0.1:80")]
    #[case("{Address:10.0.0.1}", "{Address:198.18.0.1}")]
    #[case("src:10.0.0.1:80", "src:198.18.0.1:80")]
    #[case("[fd00::7]:80 fd00::7/64", "[2001:db8::1]:80 2001:db8::1/64")]
    #[case("id:fd00::7, at:fd00::7", "id:2001:db8::1, at:2001:db8::1")]
    #[case(r"a\nfd00::7\n10.0.0.1", r"a\n2001:db8::1\n198.18.0.2")]
    fn every_address_in_a_text_is_replaced(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(Pseudonyms::default().replaced(text), expected);
    }

    /// Negative controls.
    #[rstest]
    #[case("2026-11-23T04:05:06.7Z INFO pathproof::app::agent: shop/web:http")]
    #[case("rotate::feed, std::fmt, a::b_c")]
    #[case("02:42:ac:11:00:02 on 127.0.0.1:19256, Linux 6.1.0, sha256:abcdef")]
    fn text_without_an_address_stays(#[case] text: &str) {
        assert_eq!(Pseudonyms::default().replaced(text), text);
    }
}
