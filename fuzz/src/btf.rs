//! Arbitrary kernel types (BTF) are refused, or give names of drop reasons that are safe in reports. Each
//! name needs a value in the file, so the number of names is limited.

use pathproof::datapath::btf::read;

/// Length of a value of an enum.
const VALUE: usize = 8;
/// Maximum length of a name.
const NAME: usize = 64;

pub(crate) fn check(bytes: &[u8]) -> bool {
    let types = match read(bytes) {
        Ok(types) => types,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let (names, length) = (types.reasons.len(), bytes.len());
    assert!(names * VALUE <= length, "{names} names of {length} bytes");
    let is_plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    for name in types.reasons.values() {
        assert!(name.len() <= NAME && name.bytes().all(is_plain), "{name:?}");
    }
    true
}
