//! What answers at an agent's admin port, read: a report, or why there is none. The answer is one of
//! HTTP/1.0, which ends where the connection does.

use serde_json::Value;

use super::Report;

/// No report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPage {
    /// The agent has nothing to say yet. What it waits for, with a comma before.
    TooEarly(String),
    /// Something else answers there. Its first line.
    Stranger(String),
}

/// A report of a version that is too different.
#[derive(Debug)]
pub struct OtherSchema {
    /// Its schema, as far as it is known.
    pub theirs: String,
    /// Where reading failed.
    pub source: serde_json::Error,
}

/// Status and body of an answer.
///
/// # Errors
/// It is no answer of HTTP.
pub fn split(answer: &str) -> Result<(&str, &str), NoPage> {
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.") => {
            let status = head.split_ascii_whitespace().nth(1);
            Ok((status.unwrap_or_default(), body))
        }
        _ => Err(stranger(answer)),
    }
}

/// The body of an answer of `/verdict`.
///
/// # Errors
/// It is no report.
pub fn body(answer: &str) -> Result<&str, NoPage> {
    match split(answer)? {
        ("200", body) if body.starts_with('{') => Ok(body),
        (status, body) => Err(too_early(status, body).unwrap_or_else(|| stranger(answer))),
    }
}

/// Whether that is what an agent says before it has a verdict.
pub fn too_early(status: &str, body: &str) -> Option<NoPage> {
    if status != "503" || !body.starts_with('{') {
        return None;
    }
    let value: Value = serde_json::from_str(body).unwrap_or_default();
    let parts = value["pending"].as_array().into_iter().flatten();
    let parts: Vec<&str> = parts.filter_map(Value::as_str).collect();
    Some(NoPage::TooEarly(match parts.is_empty() {
        true => String::new(),
        false => format!(", it waits for: {}", parts.join(", ")),
    }))
}

/// Somebody who answers so.
pub fn stranger(answer: &str) -> NoPage {
    let line = answer.lines().next().unwrap_or_default();
    let printable = line.chars().filter(|c| !c.is_control());
    NoPage::Stranger(printable.take(60).collect())
}

/// The report in a body.
///
/// # Errors
/// It cannot be read by this version.
pub fn report(body: &str) -> Result<Report, OtherSchema> {
    serde_json::from_str(body).map_err(|source| {
        let theirs = serde_json::from_str::<Value>(body).ok();
        let theirs = theirs.and_then(|value| Some(value.get("schema")?.to_string()));
        OtherSchema {
            theirs: theirs.unwrap_or_else(|| "unknown".to_owned()),
            source,
        }
    })
}
