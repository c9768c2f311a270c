//! Tests that need what this machine or user lacks say so loudly and pass; they never fail for it.

/// Whether the test must be skipped: it needs root (namespaces, rules, eBPF) and there is none.
/// Says so on stderr. Use as `if skip::without_root("name") { return; }`.
pub fn without_root(test: &str) -> bool {
    if is_root() {
        return false;
    }
    eprintln!("SKIPPED: {test} needs root (run `cargo xtask test` with sudo)");
    true
}

/// Whether the test must be skipped for want of a tool in PATH, such as `nft`.
pub fn without_tool(test: &str, tool: &str) -> bool {
    if crate::world::tool(tool).is_some() {
        return false;
    }
    eprintln!("SKIPPED: {test} needs {tool}, which is not in PATH");
    true
}

/// Whether this process runs as uid 0.
pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
