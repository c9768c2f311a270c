//! Versions by number.

/// Whether a version is older than a limit such as `6.1`; `false` for a version without numbers.
pub fn is_older(version: &str, limit: &str) -> bool {
    let own = numbers(version);
    !own.is_empty() && own < numbers(limit)
}

/// The first three numbers of a version such as `6.1.0-56-cloud-amd64`.
pub fn numbers(version: &str) -> Vec<u32> {
    let parts = version.split(|c: char| !c.is_ascii_digit());
    let numbers = parts.filter_map(|part| part.parse().ok());
    numbers.take(3).collect()
}
