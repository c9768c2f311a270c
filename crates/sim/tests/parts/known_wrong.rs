//! Cells of the simulator's tables for which the verdict is wrong today. A cell is one use of a node with
//! one fault or innocent world. The list should become empty. The test fails if a listed cell is right, or
//! if a cell that is not listed is wrong.

/// Faults or worlds, each with the uses in which the verdict is wrong.
pub(crate) const KNOWN_WRONG: &[(&str, &[&str])] = &[
    // The host's successful connections are not observed, so the agent cannot know that they worked.
    ("rules of other Services gone", &["host network pods only"]),
];
