//! The judgement: a pure function of the evidence, the inputs beside it, and now.
//!
//! [`verdict()`] decides; [`report`] holds what it says. Reading changes nothing, and the same inputs
//! always give the same verdict. Statuses are not decided here (`answer`), nor is flapping
//! (`damping`).

pub mod report;

pub use report::{
    Cause, Coverage, FamilyVerdict, Loss, PathState, PathView, ServiceTrouble, State, Verdict, Why,
};
