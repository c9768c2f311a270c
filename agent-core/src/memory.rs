//! What outlives the agent within one boot of the node, so that a restart changes no answer. The
//! shell writes it below /run, under the boot's id, and reads it back.

use serde::{Deserialize, Serialize};

use crate::damping::DampingMemory;
use crate::eligibility::Eligibility;
use crate::ledger::LedgerMemory;
use crate::time::Mono;
use crate::verdict::LastVerdict;

/// All that is remembered. Plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Proofs and runs of failures.
    pub ledger: LedgerMemory,
    /// What is being answered, and for how long it must be.
    pub damping: DampingMemory,
    /// The last verdict, in short.
    pub verdict: LastVerdict,
    /// What the last known Node object said.
    pub eligibility: Eligibility,
    /// When this was written; the boot's begin, where an older agent did not say so.
    #[serde(default)]
    pub written: Mono,
}
