//! The PROXY protocol's header ([versions 1 and 2]) before a request. A load balancer that sends it
//! to a Service's ports may also send it before health checks ([kubernetes #121819]).
//!
//! The header's content is not used: access depends on the source of the connection itself.
//!
//! [versions 1 and 2]: https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt
//! [kubernetes #121819]: https://github.com/kubernetes/kubernetes/issues/121819

/// Start of a version 1 header, which is one line.
const LINE: &[u8] = b"PROXY ";
/// Maximum length of a version 1 header, including its CRLF.
const LONGEST_LINE: usize = 107;
/// Start of a version 2 header.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2 before addresses: signature, version and command, family, length.
const FIXED: usize = 16;
/// Longest accepted header. Addresses take at most 216 bytes, and the fields after them a few bytes each.
pub(super) const LONGEST: usize = 536;

/// PROXY header at the beginning of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// No header, or an unknown one.
    No,
    /// Bytes that may be the beginning of a header.
    Partial,
    Whole(usize),
}

pub(super) fn header(seen: &[u8]) -> Header {
    let begins = |with: &[u8]| {
        let both = seen.len().min(with.len());
        seen[..both] == with[..both]
    };
    if begins(LINE) {
        line(seen)
    } else if begins(SIGNATURE) {
        binary(seen)
    } else {
        Header::No
    }
}

fn line(seen: &[u8]) -> Header {
    let most = &seen[..seen.len().min(LONGEST_LINE)];
    match most.windows(2).position(|pair| pair == b"\r\n") {
        Some(at) => Header::Whole(at + 2),
        None if most.len() == LONGEST_LINE => Header::No,
        None => Header::Partial,
    }
}

fn binary(seen: &[u8]) -> Header {
    let Some(fixed) = seen.first_chunk::<FIXED>() else {
        return Header::Partial;
    };
    let whole = FIXED + usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    match (fixed[12] >> 4, whole) {
        (2, ..=LONGEST) if seen.len() >= whole => Header::Whole(whole),
        (2, ..=LONGEST) => Header::Partial,
        _ => Header::No,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const V1: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.10 40000 10256\r\n";

    fn v2(addresses: usize) -> Vec<u8> {
        let length = (addresses as u16).to_be_bytes();
        let head = [SIGNATURE, &[0x21, 0x11], &length].concat();
        [head, vec![7; addresses]].concat()
    }

    #[rstest]
    #[case::v1(V1.to_vec())]
    #[case::v1_unknown(b"PROXY UNKNOWN\r\n".to_vec())]
    #[case::v2(v2(12))]
    #[case::v2_v6(v2(36))]
    #[case::v2_local(v2(0))]
    #[case::v2_with_notes(v2(LONGEST - FIXED))]
    fn a_header_ends_where_the_request_begins(#[case] bytes: Vec<u8>) {
        for length in 0..bytes.len() {
            assert_eq!(header(&bytes[..length]), Header::Partial, "{length}");
        }
        let followed = [&bytes[..], b"GET / HTTP/1.1\r\n"].concat();
        assert_eq!(header(&followed), Header::Whole(bytes.len()));
    }

    #[rstest]
    #[case::a_request(b"GET /healthz HTTP/1.1\r\n".to_vec())]
    #[case::nearly(b"PROXYING\r\n".to_vec())]
    #[case::an_endless_line([LINE, &[b'x'; 200]].concat())]
    #[case::another_version([SIGNATURE, &[0x31, 0x11, 0, 12], &[0; 12]].concat())]
    #[case::too_long(v2(LONGEST - FIXED + 1))]
    fn other_bytes_are_no_header(#[case] bytes: Vec<u8>) {
        assert_eq!(header(&bytes), Header::No);
    }

    proptest! {
        #[test]
        fn no_header_is_longer_than_the_input(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
            for start in [&b""[..], LINE, SIGNATURE] {
                let seen = [start, &bytes].concat();
                if let Header::Whole(length) = header(&seen) {
                    prop_assert!(length <= seen.len() && length <= LONGEST);
                }
            }
        }
    }
}
