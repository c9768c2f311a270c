use super::*;

/// `struct sk_buff` and `enum skb_drop_reason` of Linux 6.18 with the types inside them, cut out of
/// /sys/kernel/btf/vmlinux, without the types of other members.
const SAMPLE: &[u8] = include_bytes!("../../../testdata/btf/linux-6.18.btf");

#[test]
fn a_real_kernels_types_are_read() {
    let types = read(SAMPLE).unwrap();
    let layout = types.layout;
    assert_eq!(
        (layout.network_header, layout.inner_network_header),
        (180, 172)
    );
    assert_eq!(layout.head, 192);
    let name = |value| types.reasons.get(&value).map(String::as_str);
    assert_eq!(name(2), Some("NOT_SPECIFIED"));
    assert!(types.reasons.values().any(|name| name == "NETFILTER_DROP"));
    assert!(types.reasons.len() > 100, "{:?}", types.reasons);
    assert!(!types.reasons.values().any(|name| name == "MAX"));
}

/// The file comes from the kernel, but a malformed one must not stop the main loop, which reads it.
#[test]
fn damaged_types_are_refused() {
    for length in 0..SAMPLE.len() {
        let _ = read(&SAMPLE[..length]);
    }
    assert_eq!(read(&SAMPLE[..100]), Err(BtfError::Malformed));
    assert_eq!(read(b""), Err(BtfError::Malformed));
    for at in 0..SAMPLE.len() {
        for value in [0, 1, 4, 0x7f, 0xff] {
            let mut damaged = SAMPLE.to_vec();
            damaged[at] = value;
            let _ = read(&damaged);
        }
    }
}

/// A `struct sk_buff` with all fields after a member without a name. That member's type has `width` members
/// without a name, and each of them has the same type again.
fn nested(width: u32) -> Vec<u8> {
    let names = "\0skb_drop_reason\0SKB_DROP_REASON_A\0sk_buff\0head\0network_header\0inner_network_header\0";
    let at = |name: &str| names.find(&format!("\0{name}\0")).unwrap() as u32 + 1;
    let (list, value) = (at("skb_drop_reason"), at("SKB_DROP_REASON_A"));
    let mut types = vec![list, ENUM << 24 | 1, 4, value, 2];
    types.extend([at("sk_buff"), STRUCT << 24 | 4, 256, 0, 3, 0]);
    for name in ["head", "network_header", "inner_network_header"] {
        types.extend([at(name), 1, 64]);
    }
    types.extend([0, STRUCT << 24 | width, 256]);
    types.extend((0..width).flat_map(|_| [0, 3, 0]));
    let length = 4 * types.len() as u32;
    let header = [0x1_eb9f, 24, 0, length, length, names.len() as u32];
    let words = header.into_iter().chain(types).flat_map(u32::to_ne_bytes);
    words.chain(names.bytes()).collect()
}

/// With thousands of members, following each of them would keep the main loop busy for hours.
#[test]
fn types_that_contain_themselves_are_followed_for_a_while() {
    assert_eq!(read(&nested(2)).unwrap().layout.head, 8);
    assert_eq!(read(&nested(16)), Err(BtfError::Missing("head")));
}

#[test]
fn a_kernel_without_reasons_is_named() {
    let mut old = SAMPLE.to_vec();
    let name = b"skb_drop_reason\0";
    let at = old.windows(name.len()).position(|part| part == name);
    old[at.unwrap()] = b'x';
    assert_eq!(read(&old), Err(BtfError::NoReasons));
}

/// Uses the kernel that runs the tests.
#[test]
fn this_kernels_types_are_read() {
    let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        return eprintln!("SKIPPED: it needs a kernel with CONFIG_DEBUG_INFO_BTF");
    };
    match read(&bytes) {
        Err(BtfError::NoReasons) => eprintln!("SKIPPED: it needs Linux 5.17"),
        types => assert!(types.unwrap().layout.head > 0),
    }
}
