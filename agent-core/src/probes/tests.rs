//! What one probe means, and what is remembered of many.

mod ledger;
mod outcome;
mod suspicions;
pub(crate) mod traces;
