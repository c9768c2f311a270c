//! Why a resource cannot be followed, in words that stay the same while the cause does.

use std::time::Duration;

use crate::cluster::api::client::root_cause;
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

pub(super) fn away(error: &kube::Error) -> Reason {
    Reason::Away {
        error: one_line(&root_cause(error), 0),
    }
}

pub(super) fn one_line(text: &str, code: u16) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match (text.is_empty(), code) {
        (true, code) => format!("status {code}"),
        (false, _) => text,
    }
}
