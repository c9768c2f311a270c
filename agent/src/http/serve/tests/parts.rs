//! Tests that need no socket.

use rstest::rstest;

use super::super::*;

#[test]
fn the_least_recently_used_makes_room() {
    let crowd = LruConnections::new(2);
    let (first, mut first_taken, _) = crowd.enter();
    let (_second, mut second_taken, _) = crowd.enter();
    first.use_now();
    let (third, mut third_taken, made_room) = crowd.enter();
    assert!(made_room);
    let kept = Err(oneshot::error::TryRecvError::Empty);
    assert_ne!(second_taken.try_recv(), kept);
    assert_eq!(
        (first_taken.try_recv(), third_taken.try_recv()),
        (kept.clone(), kept)
    );
    drop(third);
    assert_eq!(crowd.lock().by_use.len(), 1);
}

/// Its answer may be on the way when the place is revoked.
#[test]
fn a_request_after_the_place_was_given_away_is_known() {
    let crowd = LruConnections::new(1);
    let (first, ..) = crowd.enter();
    first.use_now();
    assert!(!first.used_late.load(Relaxed));
    let (second, ..) = crowd.enter();
    first.use_now();
    second.use_now();
    assert!(first.used_late.load(Relaxed) && !second.used_late.load(Relaxed));
}

#[test]
fn a_place_is_given_back() {
    let crowd = LruConnections::new(1);
    drop(crowd.enter());
    assert!(!crowd.enter().2);
}

#[rstest]
#[case::nothing_but_a_letter("G", false)]
#[case::a_line("GET /healthz HTTP/1.1\r\n", false)]
#[case::a_header("GET /healthz HTTP/1.1\r\nHost: x\r\n", false)]
#[case::whole("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", true)]
#[case::whole_and_more("GET / HTTP/1.1\r\n\r\nGET", true)]
#[case::bare_newlines("GET / HTTP/1.1\n\n", true)]
#[case::tls("\x16\x03\x01\x02", true)]
#[case::another_version("GET / HTTP/3.0", true)]
fn requests_are_complete_or_invalid(#[case] seen: &str, #[case] ready: bool) {
    assert_eq!(is_ready(seen.as_bytes(), seen.len()), ready);
}

#[test]
fn a_long_header_is_read() {
    let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(PEEKED));
    assert!(is_ready(&long.as_bytes()[..PEEKED], PEEKED));
    let many = format!("GET / HTTP/1.1\r\n{}", "A: b\r\n".repeat(HEADERS + 1));
    assert!(is_ready(many.as_bytes(), many.len()));
    // A PROXY protocol header before the request takes part of the space in the socket.
    assert!(is_ready(b"GET / HTTP/1.1\r\nX: ", PEEKED));
}

#[test]
fn times_differ_by_at_most_half() {
    let longest = Duration::from_secs(60);
    assert_eq!(spread(longest, 64), longest);
    let shortest = (0..u16::MAX).map(|port| spread(longest, port)).min();
    assert!(shortest >= Some(longest / 2) && shortest < Some(longest * 3 / 5));
}

#[test]
fn requests_are_counted_by_seconds() {
    let burst = Burst::default();
    let at = |ms: u64| burst.count(Mono(ms * 1_000_000));
    assert_eq!([at(1_000), at(1_500), at(1_999)], [1, 2, 3]);
    assert_eq!([at(2_000), at(2_001)], [1, 2]);
    assert_eq!(at(9_000), 1);
}
