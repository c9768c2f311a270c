//! What one probe means, and what is remembered of many.

mod ledger;
mod outcome;
pub(crate) mod traces;
