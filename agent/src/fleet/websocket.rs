//! As much of WebSockets (RFC 6455) as one request through a port-forward takes, without I/O: the
//! handshake's headers and their check, frames out and frames in.
//!
//! Nothing is negotiated but the subprotocol, messages are binary, and what comes is bounded.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use thiserror::Error;

/// What every server appends to the key (RFC 6455, 1.3).
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The longest frame that is taken in.
const MAX_FRAME: usize = 16 * 1024 * 1024;

/// What is no WebSocket as it was asked for.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum WebSocketError {
    /// The handshake's answer lacks something.
    #[error("its answer is no WebSocket of the protocol that was asked for: {0}")]
    Handshake(HeaderName),
    /// A frame that no server sends.
    #[error("it sent a broken frame: {0}")]
    Frame(&'static str),
    /// No random numbers.
    #[error("the system has no random numbers")]
    Random,
}

/// A handshake under way.
#[derive(Debug)]
pub(super) struct Handshake {
    key: String,
    protocol: &'static str,
}

impl Handshake {
    /// For a subprotocol.
    pub(super) fn new(protocol: &'static str) -> Result<Self, WebSocketError> {
        let key = STANDARD.encode(random::<16>()?);
        Ok(Self { key, protocol })
    }

    /// What the request says.
    pub(super) fn headers(&self) -> Result<[(HeaderName, HeaderValue); 5], WebSocketError> {
        let key = HeaderValue::from_str(&self.key);
        Ok([
            (CONNECTION, HeaderValue::from_static("Upgrade")),
            (UPGRADE, HeaderValue::from_static("websocket")),
            (SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13")),
            (
                SEC_WEBSOCKET_KEY,
                key.map_err(|_| WebSocketError::Handshake(SEC_WEBSOCKET_KEY))?,
            ),
            (
                SEC_WEBSOCKET_PROTOCOL,
                HeaderValue::from_static(self.protocol),
            ),
        ])
    }

    /// Whether an answer of 101 is the one to this request.
    pub(super) fn check(&self, answer: &HeaderMap) -> Result<(), WebSocketError> {
        let said = |name: &HeaderName| answer.get(name).and_then(|value| value.to_str().ok());
        let accept = accept(&self.key);
        for (name, wanted) in [
            (UPGRADE, "websocket"),
            (CONNECTION, "upgrade"),
            (SEC_WEBSOCKET_PROTOCOL, self.protocol),
        ] {
            if !said(&name).is_some_and(|value| value.eq_ignore_ascii_case(wanted)) {
                return Err(WebSocketError::Handshake(name));
            }
        }
        match said(&SEC_WEBSOCKET_ACCEPT) {
            Some(value) if value == accept => Ok(()),
            _ => Err(WebSocketError::Handshake(SEC_WEBSOCKET_ACCEPT)),
        }
    }
}

/// What a server answers to a key.
pub(super) fn accept(key: &str) -> String {
    let text = format!("{key}{MAGIC}");
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

fn random<const N: usize>() -> Result<[u8; N], WebSocketError> {
    let mut bytes = [0; N];
    let random = SystemRandom::new();
    random
        .fill(&mut bytes)
        .map_err(|_| WebSocketError::Random)?;
    Ok(bytes)
}

/// One binary message as a client sends it: whole, and masked.
pub(super) fn message(payload: &[u8]) -> Result<Vec<u8>, WebSocketError> {
    let mask = random::<4>()?;
    let mut frame = vec![0x80 | BINARY];
    match payload.len() {
        length @ 0..126 => frame.push(0x80 | length as u8),
        length @ 126..65_536 => {
            frame.push(0x80 | 126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(mask);
    let masked = payload.iter().zip(mask.iter().cycle());
    frame.extend(masked.map(|(byte, mask)| byte ^ mask));
    Ok(frame)
}

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

/// What a server said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// A message, whole.
    Message(Vec<u8>),
    /// It says no more.
    Close,
}

/// Bytes in, messages out.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    bytes: Vec<u8>,
    /// The beginning of a message that comes in several frames.
    begun: Option<Vec<u8>>,
}

impl Decoder {
    /// More bytes came.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, where it is there whole.
    pub(super) fn next(&mut self) -> Result<Option<Incoming>, WebSocketError> {
        loop {
            let Some((kind, last, payload)) = self.frame()? else {
                return Ok(None);
            };
            match kind {
                CLOSE => return Ok(Some(Incoming::Close)),
                // One request is over before a server minds that pings go unanswered.
                PING | PONG => {}
                TEXT | BINARY if self.begun.is_some() => {
                    return Err(WebSocketError::Frame("a message within a message"));
                }
                CONTINUATION if self.begun.is_none() => {
                    return Err(WebSocketError::Frame("the rest of no message"));
                }
                TEXT | BINARY | CONTINUATION => {
                    let mut message = self.begun.take().unwrap_or_default();
                    message.extend(payload);
                    if message.len() > MAX_FRAME {
                        return Err(WebSocketError::Frame("too long"));
                    }
                    if last {
                        return Ok(Some(Incoming::Message(message)));
                    }
                    self.begun = Some(message);
                }
                _ => return Err(WebSocketError::Frame("of an unknown kind")),
            }
        }
    }

    /// Kind, whether it is the last of its message, payload.
    fn frame(&mut self) -> Result<Option<(u8, bool, Vec<u8>)>, WebSocketError> {
        let [first, second, rest @ ..] = self.bytes.as_slice() else {
            return Ok(None);
        };
        if first & 0x70 != 0 {
            return Err(WebSocketError::Frame("of an extension"));
        }
        if second & 0x80 != 0 {
            return Err(WebSocketError::Frame("masked, as only clients do"));
        }
        let length = match second & 0x7f {
            126 => number(rest, 2),
            127 => number(rest, 8),
            length => Some((usize::from(length), 0)),
        };
        let Some((length, more)) = length else {
            return Ok(None);
        };
        if length > MAX_FRAME {
            return Err(WebSocketError::Frame("too long"));
        }
        let head = 2 + more;
        let (kind, last) = (first & 0x0f, first & 0x80 != 0);
        if self.bytes.len() < head + length {
            return Ok(None);
        }
        let payload = self.bytes.drain(..head + length).skip(head).collect();
        Ok(Some((kind, last, payload)))
    }
}

/// A length in so many bytes, and how many these are; nothing before they are there.
fn number(bytes: &[u8], width: usize) -> Option<(usize, usize)> {
    let bytes = bytes.get(..width)?;
    let number = bytes
        .iter()
        .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    Some((usize::try_from(number).unwrap_or(usize::MAX), width))
}

#[cfg(test)]
mod tests;
