//! Cells that the verdict gets wrong today, a list that should become empty. The test fails for a listed
//! cell that is right, and for a wrong cell that is not listed.

/// Faults or worlds, each with the uses in which the verdict is wrong.
pub(crate) const KNOWN_WRONG: &[(&str, &[&str])] = &[
    // The host's successful connections are not observed, so the agent cannot know that they worked.
    ("rules of other Services gone", &["host network pods only"]),
];
