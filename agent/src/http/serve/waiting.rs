//! Connections whose first request has not come whole yet. What they sent stays in the socket: such a
//! connection holds no buffer, so thousands of silent or slow ones can be kept instead of being closed,
//! and do not come back in front of the probes.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes of a first header that may lie in the socket; one that is longer is read.
const LYING: usize = 1024;

/// Headers of a request that is looked at here; one with more is read.
const HEADERS: usize = 32;

/// What has come so far.
enum Come {
    /// Nothing, or the beginning of a request.
    Part,
    /// A whole header, or what can never be one: to be answered.
    Enough,
}

/// Completes when there is something to answer. An error is the end of the connection.
pub(super) async fn something_to_answer(stream: &TcpStream) -> io::Result<()> {
    loop {
        let ready = stream.ready(Interest::READABLE).await?;
        match stream.try_io(Interest::READABLE, || look(stream)) {
            Ok(()) => return Ok(()),
            // Who says no more has asked nothing.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if ready.is_read_closed() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// `WouldBlock` until there is more.
fn look(stream: &TcpStream) -> io::Result<()> {
    let mut lying = [MaybeUninit::uninit(); LYING];
    let seen = SockRef::from(stream).peek(&mut lying)?;
    if seen == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: the kernel has written that many bytes.
    let seen = unsafe { lying[..seen].assume_init_ref() };
    match come(seen) {
        Come::Enough => Ok(()),
        Come::Part => Err(io::ErrorKind::WouldBlock.into()),
    }
}

fn come(seen: &[u8]) -> Come {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(seen) {
        Ok(httparse::Status::Partial) if seen.len() < LYING => Come::Part,
        // What is wrong with it is said by who answers.
        _ => Come::Enough,
    }
}

/// `longest` for some, down to half of it for others, by their ports: who came together is not closed
/// together, and does not come back together.
pub(super) fn spread(longest: Duration, port: u16) -> Duration {
    longest - longest / 2 * u32::from(port % 64) / 64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::nothing_but_a_letter("G", false)]
    #[case::a_line("GET /healthz HTTP/1.1\r\n", false)]
    #[case::a_header("GET /healthz HTTP/1.1\r\nHost: x\r\n", false)]
    #[case::whole("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", true)]
    #[case::whole_and_more("GET / HTTP/1.1\r\n\r\nGET", true)]
    #[case::bare_newlines("GET / HTTP/1.1\n\n", true)]
    #[case::tls("\x16\x03\x01\x02", true)]
    #[case::another_version("GET / HTTP/3.0", true)]
    fn what_is_to_be_answered(#[case] seen: &str, #[case] enough: bool) {
        assert_eq!(matches!(come(seen.as_bytes()), Come::Enough), enough);
    }

    #[test]
    fn a_long_header_is_read() {
        let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(LYING));
        assert!(matches!(come(&long.as_bytes()[..LYING]), Come::Enough));
        let many = format!("GET / HTTP/1.1\r\n{}", "A: b\r\n".repeat(HEADERS + 1));
        assert!(matches!(come(many.as_bytes()), Come::Enough));
    }

    #[test]
    fn times_differ_by_at_most_half() {
        let longest = Duration::from_secs(60);
        assert_eq!(spread(longest, 64), longest);
        let shortest = (0..u16::MAX).map(|port| spread(longest, port)).min();
        assert!(shortest >= Some(longest / 2) && shortest < Some(longest * 3 / 5));
    }
}
