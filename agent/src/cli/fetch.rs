//! One GET over plain HTTP/1.0: the server closes after its answer, so no client is needed.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use thiserror::Error;

use agent_core::drain::Ask;
use agent_core::report::drain::DrainReport;
use agent_core::report::page::{self, NoPage, OtherSchema};
use agent_core::report::{Report, SCHEMA};

/// How long is waited for an agent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For the connection.
    pub(super) connect: Duration,
    /// For each piece of the answer.
    pub(super) read: Duration,
}

/// Of commands that people wait for.
const PATIENT: Patience = Patience {
    connect: Duration::from_secs(3),
    read: Duration::from_secs(5),
};
/// Far more than a report of 150 Services and 4,096 interfaces.
const MAX_ANSWER: u64 = 16 * 1024 * 1024;

/// A report that could not be had.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The address means nothing.
    #[error("--admin-address: {address:?} is no HOST:PORT that can be reached")]
    Address {
        /// What was said.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody listens, or not to us.
    #[error(
        "no agent answers at {address}: is `pathproof run` running there? Where its --admin-bind-address is another, give that with --admin-address"
    )]
    Unreachable {
        /// Where.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the agent at {address} did not answer")]
    Broken {
        /// Where.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// It hung up on us.
    #[error(
        "the agent at {address} closed the connection unanswered: its --admin-allow-cidr may not include this machine"
    )]
    Denied {
        /// Where.
        address: String,
    },
    /// It has nothing to say yet.
    #[error("the agent at {address} has no verdict yet{waiting}; try again in a moment")]
    TooEarly {
        /// Where.
        address: String,
        /// What it waits for, with a comma before.
        waiting: String,
    },
    /// Something else answers there.
    #[error(
        "what answers at {address} is no pathproof agent ({answer}): give its admin port with --admin-address (port 19256 unless changed)"
    )]
    Stranger {
        /// Where.
        address: String,
        /// Its first line.
        answer: String,
    },
    /// Written by a version that is too different.
    #[error(
        "the report of the agent at {address} cannot be read by this version of pathproof (schema {theirs}, ours is {SCHEMA}): use the agent's own binary, or --output json with `curl http://{address}/verdict`"
    )]
    Schema {
        /// Where.
        address: String,
        /// Its schema, as far as it is known.
        theirs: String,
        /// Where reading failed.
        source: serde_json::Error,
    },
}

impl FetchError {
    fn of(address: &str, why: NoPage) -> Self {
        let address = address.to_owned();
        match why {
            NoPage::TooEarly(waiting) => FetchError::TooEarly { address, waiting },
            NoPage::Stranger(answer) => FetchError::Stranger { address, answer },
        }
    }
}

/// The body of `/verdict`.
pub(super) fn fetch(address: &str) -> Result<String, FetchError> {
    fetch_within(address, PATIENT)
}

/// The same, in less time.
pub(super) fn fetch_within(address: &str, patience: Patience) -> Result<String, FetchError> {
    let answer = get(address, "/verdict", patience)?;
    let body = page::body(&answer).map_err(|why| FetchError::of(address, why))?;
    Ok(body.to_owned())
}

/// The answer of `/drainz` to a question, and its body.
pub(super) fn drain(address: &str, ask: &Ask) -> Result<(DrainReport, String), FetchError> {
    let answer = get(address, &format!("/drainz?{}", ask.query()), PATIENT)?;
    let none = |why| FetchError::of(address, why);
    let (status, body) = page::split(&answer).map_err(none)?;
    match (status, serde_json::from_str(body)) {
        ("200" | "503", Ok(report)) => Ok((report, body.to_owned())),
        _ => {
            let why = page::too_early(status, body);
            Err(none(why.unwrap_or_else(|| page::stranger(&answer))))
        }
    }
}

/// The recording of a running agent.
pub(super) fn recording(address: &str) -> Result<Vec<u8>, FetchError> {
    let answer = exchange(address, "/recording", PATIENT)?;
    let end = (answer.windows(4)).position(|bytes| bytes == b"\r\n\r\n");
    let head = String::from_utf8_lossy(&answer[..end.unwrap_or(answer.len())]).into_owned();
    match (page::split(&format!("{head}\r\n\r\n")), end) {
        (Ok(("200", _)), Some(end)) => Ok(answer[end + 4..].to_vec()),
        _ => Err(FetchError::of(address, page::stranger(&head))),
    }
}

/// The report in a body.
pub(super) fn parse(address: &str, body: &str) -> Result<Report, FetchError> {
    page::report(body).map_err(|OtherSchema { theirs, source }| FetchError::Schema {
        address: address.to_owned(),
        theirs,
        source,
    })
}

fn get(address: &str, page: &str, patience: Patience) -> Result<String, FetchError> {
    let answer = exchange(address, page, patience)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn exchange(address: &str, page: &str, patience: Patience) -> Result<Vec<u8>, FetchError> {
    let broken = |source| FetchError::Broken {
        address: address.to_owned(),
        source,
    };
    let mut stream = connect(address, patience.connect)?;
    let wait = Some(patience.read);
    stream.set_read_timeout(wait).map_err(broken)?;
    stream.set_write_timeout(wait).map_err(broken)?;
    let request =
        format!("GET {page} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n\r\n");
    let mut answer = Vec::new();
    let exchanged = stream
        .write_all(request.as_bytes())
        .and_then(|()| stream.take(MAX_ANSWER).read_to_end(&mut answer));
    match exchanged {
        // Hanging up on unread bytes is a reset.
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => Err(broken(error)),
        _ if answer.is_empty() => Err(FetchError::Denied {
            address: address.to_owned(),
        }),
        _ => Ok(answer),
    }
}

fn connect(address: &str, wait: Duration) -> Result<TcpStream, FetchError> {
    let unknown = |source| FetchError::Address {
        address: address.to_owned(),
        source,
    };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for candidate in address.to_socket_addrs().map_err(unknown)? {
        match TcpStream::connect_timeout(&candidate, wait) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(FetchError::Unreachable {
        address: address.to_owned(),
        source: last,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::net::TcpListener;
    use std::thread;

    /// What `fetch` makes of a server that answers so, then closes.
    fn against(answer: &'static [u8]) -> Result<String, FetchError> {
        against_by(answer, fetch)
    }

    fn against_by<T>(answer: &'static [u8], ask: impl FnOnce(&str) -> T) -> T {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            while !seen.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                seen.push(byte[0]);
            }
            stream.write_all(answer).unwrap();
        });
        let result = ask(&address);
        server.join().unwrap();
        result
    }

    #[test]
    fn a_body_is_fetched() {
        let body = against(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
        assert_eq!(body, "{}");
    }

    #[rstest]
    #[case(b"", "--admin-allow-cidr")]
    #[case(
        b"HTTP/1.1 404 Not Found\r\n\r\nno",
        "no pathproof agent (HTTP/1.1 404 Not Found)"
    )]
    #[case(b"HTTP/1.1 200 OK\r\n\r\n<html>", "no pathproof agent")]
    #[case(b"SSH-2.0-x\r\n", "no pathproof agent (SSH-2.0-x)")]
    #[case(
        b"HTTP/1.1 503 x\r\n\r\n{\"pending\":[\"cluster view\"]}",
        "no verdict yet, it waits for: cluster view"
    )]
    fn what_else_may_answer(#[case] answer: &'static [u8], #[case] expected: &str) {
        let message = against(answer).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }

    #[rstest]
    #[case(
        b"HTTP/1.0 404 Not Found\r\n\r\n404 page not found\n",
        "no pathproof agent"
    )]
    #[case(b"HTTP/1.1 200 OK\r\n\r\n{}", "no pathproof agent")]
    #[case(
        b"HTTP/1.1 503 x\r\n\r\n{\"pending\":[\"interfaces\"]}",
        "no verdict yet, it waits for: interfaces"
    )]
    fn what_is_no_answer_of_drainz(#[case] answer: &'static [u8], #[case] expected: &str) {
        let ask = Ask::default();
        let result = against_by(answer, |address| drain(address, &ask));
        let message = result.unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }

    #[test]
    fn nobody_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let message = fetch(&address).unwrap_err().to_string();
        assert!(message.contains("is `pathproof run` running"), "{message}");
        let message = fetch("nonsense").unwrap_err().to_string();
        assert!(message.starts_with("--admin-address"), "{message}");
    }

    #[test]
    fn another_schema_is_said() {
        let message = parse("x:1", "{\"schema\":7}").unwrap_err().to_string();
        assert!(message.contains("schema 7, ours is 1"), "{message}");
    }
}
