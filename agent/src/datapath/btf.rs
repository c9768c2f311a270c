//! The part of the kernel's types (BTF) that is needed to read dropped packets: offsets of three
//! fields of `struct sk_buff`, and names of `enum skb_drop_reason`.
//!
//! A separate reader, because aya's keeps every kernel type in memory. The format is described in
//! Documentation/bpf/btf.rst.

use std::collections::BTreeMap;

use pathproof_wire::dropped::SkbLayout;
use thiserror::Error;

use crate::netlink::word;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum BtfError {
    #[error("the kernel's types (BTF) cannot be read")]
    Malformed,
    #[error("the kernel's types (BTF) have no {0}")]
    Missing(&'static str),
    #[error("this kernel has no drop reasons: they need Linux 5.17")]
    NoReasons,
}

/// The types that the program and the report need.
#[derive(Debug, PartialEq, Eq)]
pub struct Types {
    /// Offsets at which the program finds a packet.
    pub layout: SkbLayout,
    /// Names of reasons, without their common prefix.
    pub reasons: BTreeMap<u32, String>,
}

/// Finds the offsets and the names of reasons in the kernel's BTF, the content of /sys/kernel/btf/vmlinux.
pub fn read(bytes: &[u8]) -> Result<Types, BtfError> {
    let btf = Btf::index(bytes).ok_or(BtfError::Malformed)?;
    let reasons = btf.find(ENUM, "skb_drop_reason");
    let reasons = btf.reasons(reasons.ok_or(BtfError::NoReasons)?);
    let skb = btf.find(STRUCT, "sk_buff");
    let skb = skb.ok_or(BtfError::Missing("struct sk_buff"))?;
    let field = |name| {
        let mut left = MEMBERS;
        let found = btf.field(skb, name, 0, &mut left);
        found.ok_or(BtfError::Missing(name))
    };
    Ok(Types {
        layout: SkbLayout {
            head: field("head")?,
            network_header: field("network_header")?,
            inner_network_header: field("inner_network_header")?,
            padding: 0,
        },
        reasons,
    })
}

const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;

/// Maximum nesting of anonymous structs and unions.
const DEPTH: usize = 4;
/// Maximum number of members to visit for a field. Malformed types can contain themselves many times.
const MEMBERS: u32 = 4_096;
/// Maximum length of a name in bytes.
const NAME: usize = 64;
const PREFIX: &str = "SKB_DROP_REASON_";
/// Enum values that are limits, not reasons.
const NO_REASONS: [&str; 2] = ["MAX", "SUBSYS_MASK"];

struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Offset of each type; the first has the id 1.
    starts: Vec<u32>,
}

/// Header of a type.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    length: usize,
    /// The words of member offsets also contain sizes of bit fields.
    has_sizes: bool,
    /// Offset of the members or values.
    at: usize,
}

impl<'a> Btf<'a> {
    fn index(bytes: &'a [u8]) -> Option<Self> {
        const MAGIC: u32 = 0xeb9f;
        if word(bytes, 0)? & 0xffff != MAGIC {
            return None;
        }
        let number = |at| Some(word(bytes, at)? as usize);
        let body = bytes.get(number(4)?..)?;
        let part = |at, length| {
            let begin = number(at)?;
            body.get(begin..begin.checked_add(number(length)?)?)
        };
        let mut btf = Self {
            types: part(8, 12)?,
            strings: part(16, 20)?,
            starts: Vec::new(),
        };
        let mut at = 0;
        while at < btf.types.len() {
            btf.starts.push(at as u32);
            let head = btf.head(at)?;
            at = head.at + size(head.kind, head.length)?;
        }
        Some(btf)
    }

    fn head(&self, at: usize) -> Option<Type> {
        let info = word(self.types, at + 4)?;
        Some(Type {
            name: word(self.types, at)?,
            kind: info >> 24 & 0x1f,
            length: (info & 0xffff) as usize,
            has_sizes: info >> 31 == 1,
            at: at + 12,
        })
    }

    /// The first type with this kind and name that has members or values.
    fn find(&self, kind: u32, name: &str) -> Option<Type> {
        let types = self.starts.iter().filter_map(|at| self.head(*at as usize));
        let mut named = types.filter(|head| head.kind == kind && head.length > 0);
        named.find(|head| self.string(head.name) == Some(name))
    }

    fn string(&self, at: u32) -> Option<&'a str> {
        let rest = self.strings.get(at as usize..)?;
        let rest = &rest[..rest.len().min(NAME + 1)];
        let end = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    }

    /// Offset of a field in bytes, including fields of nested anonymous structs and unions. `left` is the
    /// number of members that may still be visited.
    fn field(&self, parent: Type, name: &str, depth: usize, left: &mut u32) -> Option<u32> {
        (0..parent.length).find_map(|index| {
            *left = left.checked_sub(1)?;
            let at = parent.at + index * 12;
            let named = self.string(word(self.types, at)?)?;
            let offset = word(self.types, at + 8)?;
            let bits = if parent.has_sizes {
                offset & 0xff_ffff
            } else {
                offset
            };
            if named == name {
                return Some(bits / 8);
            }
            let inner = self.anonymous(named, word(self.types, at + 4)?);
            let inner = inner.filter(|_| depth < DEPTH)?;
            let inner = self.field(inner, name, depth + 1, left)?;
            inner.checked_add(bits / 8)
        })
    }

    /// The struct or union of a member without a name.
    fn anonymous(&self, name: &str, id: u32) -> Option<Type> {
        let start = self.starts.get((id as usize).checked_sub(1)?)?;
        let head = self.head(*start as usize)?;
        (name.is_empty() && [STRUCT, UNION].contains(&head.kind)).then_some(head)
    }

    fn reasons(&self, list: Type) -> BTreeMap<u32, String> {
        let value = |index| {
            let at = list.at + index * 8;
            let name = self.string(word(self.types, at)?)?;
            let is_plain =
                |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
            let name = name.strip_prefix(PREFIX)?;
            if NO_REASONS.contains(&name) {
                return None;
            }
            let value = word(self.types, at + 4)?;
            name.bytes().all(is_plain).then(|| (value, name.to_owned()))
        };
        (0..list.length).filter_map(value).collect()
    }
}

/// Number of bytes after the header of a type.
fn size(kind: u32, length: usize) -> Option<usize> {
    Some(match kind {
        // Integers, variables and tags of declarations.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        STRUCT | UNION => length * 12,
        ENUM => length * 8,
        // Pointers, forward declarations, names, qualifiers, functions, floats and tags of types.
        2 | 7..=12 | 16 | 18 => 0,
        // Parameters of functions.
        13 => length * 8,
        // Sections of data, and enums of 64 bits.
        15 | 19 => length * 12,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
