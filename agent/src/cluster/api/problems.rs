//! Texts of problems with the API server.

use std::time::Duration;

use kube::core::Status;

use crate::cluster::Problem;

/// Advice for status 401.
pub(super) const IDENTITY: &str = "check the token or certificate of the kubeconfig or service account, its \
     expiry, and the node's clock";

/// The API server's message, with advice if it rejected the credentials.
pub(crate) fn with_advice(status: &Status) -> String {
    match status.code {
        401 => format!("{}; {IDENTITY}", status.message),
        _ => status.message.clone(),
    }
}

/// The problem of a server that cannot be reached. Its text stays the same as long as the cause is the same.
pub(super) fn away(why: &str) -> Problem {
    let why = one_line(why);
    Problem::silence(format!(
        "API server: cannot be reached ({why}); the last known objects stay in use"
    ))
}

pub(super) fn no_answer(patience: Duration) -> Problem {
    away(&format!("no answer within {} s", patience.as_secs_f32()))
}

pub(super) fn unserved(resource: &str, why: &str) -> Problem {
    Problem::silence(format!(
        "API server: cannot return {resource} ({why}); the last known objects stay in use"
    ))
}

pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
