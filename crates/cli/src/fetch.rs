//! One GET over plain HTTP/1.0: the server closes after its answer, so no HTTP client is needed.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use pathproof_facts::text::visible;
use pathproof_judge::drain::Ask;
use pathproof_report::drain::DrainReport;
use pathproof_report::{Report, SCHEMA};
use serde_json::Value;
use thiserror::Error;

/// Timeouts for connecting, and for each read and write: a starved node answers late, and a person can
/// wait.
const CONNECT: Duration = Duration::from_secs(3);
const EXCHANGE: Duration = Duration::from_secs(5);
/// Maximum size of an answer: far more than a report of 150 Services and 4,096 interfaces.
const MAX_ANSWER: u64 = 16 * 1024 * 1024;

/// Reason why no report was received. The first field of each variant is the agent's address.
#[derive(Debug, Error)]
pub enum FetchError {
    #[error("--admin-address: {0:?} is not a HOST:PORT that can be reached")]
    Address(String, #[source] io::Error),
    /// Nothing listens at the address, or this client cannot reach it.
    #[error(
        "no agent answers at {0}: check that `pathproof run` is running, and give its \
         --admin-bind-address with --admin-address"
    )]
    Unreachable(String, #[source] io::Error),
    #[error("the agent at {0} did not answer")]
    Broken(String, #[source] io::Error),
    #[error(
        "the agent at {0} closed the connection unanswered: its --admin-allow-cidr may not include this machine"
    )]
    Denied(String),
    #[error(
        "the agent at {0} shows its verdict to its own node only: run this on the node, or use \
         `kubectl pathproof`"
    )]
    Elsewhere(String),
    /// The agent has no verdict yet. The second field is empty, or a comma and the parts that it waits for.
    #[error("the agent at {0} has no verdict yet{1}; try again in a moment")]
    TooEarly(String, String),
    /// Another server answers at the address. The second field is the first line of its answer.
    #[error(
        "the server at {0} is not a pathproof agent ({1}): give the agent's admin port with \
         --admin-address (default port 19256)"
    )]
    NotAnAgent(String, String),
    /// The report comes from an incompatible version. The second field is the report's schema, or
    /// `unknown`.
    #[error(
        "the agent at {0} has another version (its report has schema {1}, this binary reads \
         {SCHEMA}): use the agent's own binary, or `curl http://{0}/verdict`"
    )]
    Schema(String, String, #[source] serde_json::Error),
}

/// The report of `/verdict`, and the text that it was parsed from.
pub fn report(address: &str) -> Result<(Report, String), FetchError> {
    let body = body(address, &exchange(address, "/verdict")?)?;
    Ok((parse(address, &body)?, body))
}

/// The journal of `/episodes`.
pub(super) fn episodes(address: &str) -> Result<String, FetchError> {
    body(address, &exchange(address, "/episodes")?)
}

/// The answer of `/drainz` to a query.
pub(super) fn drain(address: &str, ask: &Ask) -> Result<DrainReport, FetchError> {
    let answer = exchange(address, &format!("/drainz?{}", ask.query()))?;
    let answer = Answer::of(address, &answer)?;
    match (answer.status, serde_json::from_slice(answer.body)) {
        (200 | 503, Ok(report)) => Ok(report),
        _ => Err(answer.unexpected()),
    }
}

pub(super) fn recording(address: &str) -> Result<Vec<u8>, FetchError> {
    let answer = exchange(address, "/recording")?;
    let answer = Answer::of(address, &answer)?;
    match answer.status {
        200 => Ok(answer.body.to_vec()),
        _ => Err(answer.unexpected()),
    }
}

/// The body of an answer of `/verdict` or `/episodes`.
pub fn body(address: &str, answer: &[u8]) -> Result<String, FetchError> {
    let answer = Answer::of(address, answer)?;
    match answer.status {
        200 if answer.body.starts_with(b"{") => Ok(answer.text()),
        _ => Err(answer.unexpected()),
    }
}

/// Parses the report in a body.
pub fn parse(address: &str, body: &str) -> Result<Report, FetchError> {
    serde_json::from_str(body).map_err(|source| {
        let document: Value = serde_json::from_str(body).unwrap_or_default();
        let schema = document.get("schema").map(Value::to_string);
        let schema = schema.unwrap_or_else(|| "unknown".to_owned());
        FetchError::Schema(address.to_owned(), schema, source)
    })
}

struct Answer<'a> {
    address: &'a str,
    status: u16,
    whole: &'a [u8],
    body: &'a [u8],
}

impl<'a> Answer<'a> {
    fn of(address: &'a str, whole: &'a [u8]) -> Result<Self, FetchError> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Response::new(&mut headers);
        match head.parse(whole) {
            Ok(httparse::Status::Complete(length)) => Ok(Self {
                address,
                status: head.code.unwrap_or_default(),
                whole,
                body: &whole[length..],
            }),
            _ => Err(not_an_agent(address, whole)),
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(self.body).into_owned()
    }

    fn unexpected(&self) -> FetchError {
        let document = serde_json::from_slice::<Value>(self.body).unwrap_or_default();
        match self.status {
            403 if document["error"].is_string() => FetchError::Elsewhere(self.address.to_owned()),
            503 if document.is_object() => {
                let pending = document["pending"].as_array().into_iter().flatten();
                let pending: Vec<&str> = pending.filter_map(Value::as_str).collect();
                let waits = match &*pending {
                    [] => String::new(),
                    parts => format!(", waiting for: {}", parts.join(", ")),
                };
                FetchError::TooEarly(self.address.to_owned(), waits)
            }
            _ => not_an_agent(self.address, self.whole),
        }
    }
}

fn not_an_agent(address: &str, answer: &[u8]) -> FetchError {
    let text = String::from_utf8_lossy(answer);
    let line = text.lines().next().unwrap_or_default();
    let begins: String = line.chars().take(60).collect();
    FetchError::NotAnAgent(address.to_owned(), visible(&begins).into_owned())
}

fn exchange(address: &str, page: &str) -> Result<Vec<u8>, FetchError> {
    let broken = |source| FetchError::Broken(address.to_owned(), source);
    let mut stream = connect(address)?;
    stream.set_read_timeout(Some(EXCHANGE)).map_err(broken)?;
    stream.set_write_timeout(Some(EXCHANGE)).map_err(broken)?;
    let request =
        format!("GET {page} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n\r\n");
    let mut answer = Vec::new();
    let exchanged = stream
        .write_all(request.as_bytes())
        .and_then(|()| stream.take(MAX_ANSWER).read_to_end(&mut answer));
    match exchanged {
        // A reset is no error: a server that closes with unread bytes causes one after its answer.
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => Err(broken(error)),
        _ if answer.is_empty() => Err(FetchError::Denied(address.to_owned())),
        _ => Ok(answer),
    }
}

fn connect(address: &str) -> Result<TcpStream, FetchError> {
    let unknown = |source| FetchError::Address(address.to_owned(), source);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for candidate in address.to_socket_addrs().map_err(unknown)? {
        match TcpStream::connect_timeout(&candidate, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(FetchError::Unreachable(address.to_owned(), last))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use rstest::rstest;

    use super::*;

    /// The result of `report` against a server that sends this answer, then closes.
    fn against(answer: &'static [u8]) -> Result<String, FetchError> {
        against_by(answer, |address| report(address).map(|(_, body)| body))
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
        let body = body("x:1", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
        assert_eq!(body, "{}");
    }

    #[rstest]
    #[case(b"", "--admin-allow-cidr")]
    #[case(
        b"HTTP/1.1 404 Not Found\r\n\r\nno",
        "not a pathproof agent (HTTP/1.1 404 Not Found)"
    )]
    #[case(b"HTTP/1.1 200 OK\r\n\r\n<html>", "not a pathproof agent")]
    #[case(b"SSH-2.0-x\r\n", "not a pathproof agent (SSH-2.0-x)")]
    #[case(
        b"\x1b[2J\xe2\x80\xae\r\n",
        r"not a pathproof agent (\u{1b}[2J\u{202e})"
    )]
    #[case(
        b"HTTP/1.1 503 x\r\n\r\n{\"pending\":[\"cluster view\"]}",
        "no verdict yet, waiting for: cluster view"
    )]
    fn what_else_may_answer(#[case] answer: &'static [u8], #[case] expected: &str) {
        let message = against(answer).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }

    #[rstest]
    #[case(
        b"HTTP/1.0 404 Not Found\r\n\r\n404 page not found\n",
        "not a pathproof agent"
    )]
    #[case(b"HTTP/1.1 200 OK\r\n\r\n{}", "not a pathproof agent")]
    #[case(
        b"HTTP/1.1 503 x\r\n\r\n{\"pending\":[\"interfaces\"]}",
        "no verdict yet, waiting for: interfaces"
    )]
    fn other_answers_than_drainz_are_errors(#[case] answer: &'static [u8], #[case] expected: &str) {
        let ask = Ask::default();
        let result = against_by(answer, |address| drain(address, &ask));
        let message = result.unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }

    #[test]
    fn an_unreachable_agent_is_reported() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let message = report(&address).unwrap_err().to_string();
        assert!(
            message.contains("check that `pathproof run` is running"),
            "{message}"
        );
        let message = report("nonsense").unwrap_err().to_string();
        assert!(message.starts_with("--admin-address"), "{message}");
    }

    #[test]
    fn another_schema_is_reported() {
        let message = parse("x:1", "{\"schema\":7}").unwrap_err().to_string();
        assert!(
            message.contains("schema 7, this binary reads 1"),
            "{message}"
        );
    }
}
