//! Outcome of one probe, and the memory of many.

mod ledger;
mod outcome;
mod owners;
mod suspicions;
