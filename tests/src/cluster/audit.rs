//! Requests of one user as the API server received them: its audit log.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::{Value, json};

/// Text of a policy that records each request of one user once, when it arrives: a watch is
/// recorded when it begins, and not when it ends.
pub(super) fn policy(user: &str) -> String {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
        "rules": [{ "level": "Metadata", "users": [user] }, { "level": "None" }],
    })
    .to_string()
}

/// A request that the API server received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Time of its arrival.
    pub at: Timestamp,
    /// The server's word for it, such as `watch`.
    pub verb: String,
    /// Such as `services`, or `pods/status`; empty where the path names none.
    pub resource: String,
    /// Path and parameters.
    pub uri: String,
}

impl Request {
    /// Whether the answer contains every object: a list, or a watch that begins with one.
    pub fn is_list(&self) -> bool {
        self.verb == "list" || self.uri.contains("sendInitialEvents=true")
    }
}

/// Requests of an audit log, in the order of their arrival.
pub(super) fn read(file: &Path) -> Result<Vec<Request>> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    // The server may be in the middle of the last line.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut requests: Vec<Request> = whole.lines().map(request).collect::<Result<_>>()?;
    requests.sort_by_key(|request| request.at);
    Ok(requests)
}

fn request(line: &str) -> Result<Request> {
    let event: Value = serde_json::from_str(line).with_context(|| format!("no event: {line}"))?;
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    let mut resource = word(&object["resource"]);
    if let Some(part) = object["subresource"].as_str() {
        resource = format!("{resource}/{part}");
    }
    Ok(Request {
        at: word(&event["requestReceivedTimestamp"])
            .parse()
            .with_context(|| format!("no time: {line}"))?,
        verb: word(&event["verb"]),
        resource,
        uri: word(&event["requestURI"]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_not_whole_waits() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("audit.log");
        let line = |verb: &str, uri: &str| {
            json!({
                "verb": verb,
                "requestURI": uri,
                "objectRef": { "resource": "services" },
                "requestReceivedTimestamp": "2026-11-23T10:00:00.000001Z",
            })
            .to_string()
        };
        let streamed = "/api/v1/services?watch=true&sendInitialEvents=true";
        let text = format!(
            "{}\n{}\n{}\n{{\"verb\":\"li",
            line("watch", "/api/v1/services?watch=true"),
            line("watch", streamed),
            line("list", "/api/v1/services"),
        );
        fs::write(&file, text).expect("write");
        let requests = read(&file).expect("an audit log");
        let lists: Vec<bool> = requests.iter().map(Request::is_list).collect();
        assert_eq!(lists, [false, true, true]);
        assert_eq!(requests[0].resource, "services");
    }
}
