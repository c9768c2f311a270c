//! Why a resource cannot be followed, in words that stay the same while the cause does.

use std::error::Error as _;
use std::time::Duration;

use crate::cluster::manifests::Reason;

pub(super) fn silent(reply: Duration) -> Reason {
    Reason::Away {
        error: format!("no answer within {} s", reply.as_secs_f32()),
    }
}

pub(super) fn short_lived() -> Reason {
    Reason::Away {
        error: "it ends every watch at once".to_owned(),
    }
}

pub(super) fn mute(resource: &'static str) -> Reason {
    Reason::Unserved {
        resource,
        error: "nothing comes on a watch, not even bookmarks".to_owned(),
    }
}

/// The cause at the bottom says most, and is the same the next time.
pub(super) fn away(error: &kube::Error) -> Reason {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = cause.to_string();
        source = cause.source();
    }
    Reason::Away {
        error: one_line(&text, 0),
    }
}

pub(super) fn one_line(text: &str, code: u16) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match (text.is_empty(), code) {
        (true, code) => format!("status {code}"),
        (false, _) => text,
    }
}
