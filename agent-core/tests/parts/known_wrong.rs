//! Cells that the judge gets wrong today: THE list to be emptied. A cell that is listed and right fails
//! the test, as does a cell that is wrong and not listed.

/// A fault or world, and the uses in which it is judged wrongly.
pub(crate) const KNOWN_WRONG: &[(&str, &[&str])] = &[
    // Its endpoints are on a single other node, which may be about to go.
    ("routes to remote pods gone", &["one pod, one Service"]),
    // Nobody sees the host's connections succeed, so none of them is known to have worked.
    ("rules of other Services gone", &["host network pods only"]),
];
