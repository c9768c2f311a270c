//! Imitates the HTTP server of Go 1.26, which kube-proxy 1.36 is built with: its refusals of requests, and its
//! order of headers.
//!
//! hyper parses the requests, and refuses some that Go answers: docs/health-endpoints.md lists them.

use axum::http::header::{CONNECTION, CONTENT_LENGTH, DATE, EXPECT, HOST};
use axum::http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version};
use axum::response::{IntoResponse as _, Response};
use jiff::fmt::rfc2822::DateTimePrinter;
use pathproof_facts::time::Wall;

/// Answers that Go's server gives before it calls a handler.
pub(super) fn before_handlers<B>(request: &Request<B>) -> Option<Response> {
    let (method, path) = (request.method(), request.uri().path());
    let header = |name| request.headers().get_all(name).iter();
    let host = header(HOST).next();
    let is_host = |host: &HeaderValue| host.as_bytes().iter().all(|byte| is_in_hosts(*byte));
    let is_connect = method == Method::CONNECT;
    let reason = if unescape(path).is_none()
        || path.is_empty() && !is_connect
        || header(HOST).count() > 1
    {
        ""
    } else if host.is_none() && request.version() == Version::HTTP_11 && !is_connect {
        ": missing required Host header"
    } else if !host.is_none_or(is_host) {
        ": malformed Host header"
    } else if path == "*" && method == Method::OPTIONS {
        return Some(StatusCode::OK.into_response());
    } else if header(EXPECT).any(|value| !value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        return Some((StatusCode::EXPECTATION_FAILED, CLOSE).into_response());
    } else {
        return None;
    };
    let body = format!("400 Bad Request{reason}");
    Some((StatusCode::BAD_REQUEST, CLOSE, body).into_response())
}

pub(super) const CLOSE: [(HeaderName, &str); 1] = [(CONNECTION, "close")];

/// Whether a Host header may contain this byte (`httpguts.ValidHostHeader`).
fn is_in_hosts(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(&byte)
}

/// Puts Date before Content-Length, as Go does. Without this, hyper would add Date behind the
/// Content-Length that axum has set.
pub(super) fn with_date(mut answer: Response, now: Wall) -> Response {
    let headers = answer.headers_mut();
    let length = headers.remove(CONTENT_LENGTH);
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&now.timestamp());
    if let Some(date) = date.ok().and_then(|date| date.try_into().ok()) {
        headers.insert(DATE, date);
    }
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, length);
    }
    answer
}

/// Path by which `http.ServeMux` selects a handler.
pub(super) fn path(uri: &Uri) -> Vec<u8> {
    unescape(uri.path()).unwrap_or_default()
}

/// `None` if a percent sign is not followed by two hexadecimal digits.
fn unescape(path: &str) -> Option<Vec<u8>> {
    let mut bytes = path.bytes();
    let mut plain = Vec::with_capacity(path.len());
    while let Some(byte) = bytes.next() {
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        plain.push(match byte {
            b'%' => u8::try_from(digit()? * 16 + digit()?).ok()?,
            byte => byte,
        });
    }
    Some(plain)
}

#[cfg(test)]
mod tests;
