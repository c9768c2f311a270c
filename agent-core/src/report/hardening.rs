//! What the agent has given up (docs/capabilities.md).

use serde::{Deserialize, Serialize};

/// What is in force in every thread of the agent, once the programs are loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardeningReport {
    /// Whether anything was to be given up (--hardening).
    pub wanted: bool,
    /// Capabilities that are left, sorted; empty where `wanted` is false, for none was looked for.
    pub capabilities: Vec<String>,
    /// Whether starting a program can bring new rights no more.
    pub no_new_privs: bool,
    /// Filters of system calls that stand, a container runtime's among them.
    pub seccomp_filters: u32,
    /// Whether files are confined.
    pub files: FilesReport,
    /// What was to be given up and could not be, in a sentence each, with the reason.
    pub missing: Vec<String>,
}

/// What Landlock holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilesReport {
    /// Nothing.
    #[default]
    Open,
    /// Writing: what is read lies right below the root.
    WritesConfined,
    /// Reading and writing.
    Confined,
}
