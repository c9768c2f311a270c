//! A minimal HTTP/1.1 client that opens a connection for each request. It uses no library, because the tests
//! check exact bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::SockRef;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// Header lines as received, without line ends.
    pub headers: Vec<String>,
    pub body: String,
}

impl Response {
    /// A header's value; the name's case is ignored.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// GETs `path` within `timeout`, from the calling thread's namespace.
pub fn get(address: SocketAddr, path: &str, timeout: Duration) -> Result<Response> {
    request(address, "GET", path, timeout)
}

/// Sends a request of any method, without a body.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    timeout: Duration,
) -> Result<Response> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)
        .with_context(|| format!("connect to {address}"))?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    // Close with a reset: TIME_WAIT entries of a poller would fill conntrack.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    // Send it as one segment: a second one would wait for the delayed ACK of the first (Nagle), for 40 ms.
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    let read = stream.read_to_string(&mut text);
    read.with_context(|| format!("read {path} of {address}"))?;
    let parts = text.split_once("\r\n\r\n");
    let (head, body) = parts.context("an answer with a head")?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let mut response = Response {
        status: status.context("a status line")?.parse()?,
        headers: lines.map(str::to_owned).collect(),
        body: body.to_owned(),
    };
    let encoding = response.header("transfer-encoding").unwrap_or_default();
    if encoding.eq_ignore_ascii_case("chunked") {
        response.body = unchunk(body).context("a chunked body")?;
    }
    Ok(response)
}

fn unchunk(mut body: &str) -> Option<String> {
    let mut whole = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n")?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        if size == 0 {
            return Some(whole);
        }
        whole.push_str(rest.get(..size)?);
        body = rest.get(size + 2..)?;
    }
}
