//! Parsers of option values that several commands have. An error states what to give instead.

use pathproof_facts::time::Wall;
use pathproof_judge::eligibility::is_dns_name;

/// Parses a time in the form in which [`Wall`] is printed.
///
/// # Errors
/// The form of a time.
pub fn time(text: &str) -> Result<Wall, &'static str> {
    Wall::parse(text.trim()).ok_or("give a time with its zone, for example 2026-11-23T04:05:06Z")
}

/// Parses the name of a Kubernetes object (RFC 1123 subdomain).
///
/// # Errors
/// The form of a name.
pub fn dns_name(text: &str) -> Result<String, &'static str> {
    let name = is_dns_name(text).then(|| text.to_owned());
    name.ok_or("give at most 253 lower-case letters, digits, '-' and '.'")
}
