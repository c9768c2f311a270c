//! Addresses of the documentation that somebody who has only the program can reach. Every text for users that
//! points to a page gets its address here.

/// URL of a copy of docs/operations.md, when the program was built or when it runs.
pub const URL: &str = "PATHPROOF_DOCS_URL";
/// The page that the URL is of. The other pages are looked for beside it.
const PAGE: &str = "operations.md";

/// URL of a page or section of the docs, or its path in the source if no URL is configured.
pub fn address(section: &str) -> String {
    let now = std::env::var(URL).ok();
    let built = option_env!("PATHPROOF_DOCS_URL");
    address_below(now.as_deref().into_iter().chain(built), section)
}

fn address_below<'a>(mut bases: impl Iterator<Item = &'a str>, section: &str) -> String {
    let base = bases.find(|base| !base.is_empty());
    let found = base.zip(section.strip_prefix("docs/"));
    let found = found.and_then(|(base, section)| match section.strip_prefix(PAGE) {
        Some(anchor) => Some(format!("{base}{anchor}")),
        // A copy with another name, as in a wiki, does not tell where the other pages are.
        None => Some(format!("{}{section}", base.strip_suffix(PAGE)?)),
    });
    found.unwrap_or_else(|| format!("{section} of pathproof's source"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(&[], "docs/operations.md#udp", "docs/operations.md#udp of pathproof's source")]
    #[case(&["", "https://x/wiki"], "docs/operations.md#udp", "https://x/wiki#udp")]
    #[case(&["https://now", "https://built"], "docs/operations.md#udp", "https://now#udp")]
    #[case(&["https://x/operations.md"], "docs/cilium.md", "https://x/cilium.md")]
    #[case(&["https://x/wiki"], "docs/cilium.md", "docs/cilium.md of pathproof's source")]
    fn a_section_has_an_address_that_a_binary_alone_can_reach(
        #[case] bases: &[&str],
        #[case] section: &str,
        #[case] expected: &str,
    ) {
        let bases = bases.iter().copied();
        assert_eq!(address_below(bases, section), expected);
    }
}
