//! Whether the node may be sent new connections: KEP-3836, from the Node object alone. The
//! datapath's health is another input; the two meet in `answer` only.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whether the node is being removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Eligibility {
    /// Known, not deleted, no terminating taint.
    Eligible,
    /// `metadata.deletionTimestamp` is set.
    Deleting,
    /// A terminating taint is there.
    Tainted {
        /// Key of the first one.
        taint: String,
    },
    /// No Node object was seen in this boot.
    NeverSeen,
}

impl fmt::Display for Eligibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Eligibility::Eligible => f.write_str("the node is not being removed"),
            Eligibility::Deleting => f.write_str("the Node object is being deleted"),
            Eligibility::Tainted { taint } => {
                write!(f, "the node is about to be removed: taint {taint}")
            }
            Eligibility::NeverSeen => f.write_str("the Node object was not seen yet"),
        }
    }
}
