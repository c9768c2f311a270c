//! Environment variables with the prefix of pathproof's settings.

use clap::CommandFactory as _;
use pathproof_shared::docs;

use super::Args;

const PREFIX: &str = "PATHPROOF_";

/// Returns the first of these variables that has the prefix but is not a setting of any command:
/// the operator would wrongly expect an effect.
///
/// Variables that kubelet sets for the Services of a pod's namespace, such as
/// `PATHPROOF_SENTINEL_SERVICE_HOST`, are ignored.
pub fn misspelt(names: impl IntoIterator<Item = String>) -> Option<String> {
    let command = Args::command();
    let settings = command
        .get_subcommands()
        .flat_map(|one| one.get_arguments());
    let settings: Vec<&str> = settings.filter_map(|arg| arg.get_env()?.to_str()).collect();
    // Only builds with debug assertions read the others.
    let without_option = |name: &str| {
        name == docs::URL
            || (cfg!(debug_assertions)
                && ["PATHPROOF_TEST_SETTLED_MS", "PATHPROOF_TEST_BOOT_MS"].contains(&name))
    };
    names.into_iter().find(|name| {
        name.starts_with(PREFIX)
            && !settings.contains(&&**name)
            && !is_of_a_service(name)
            && !without_option(name)
    })
}

fn is_of_a_service(name: &str) -> bool {
    let mut ports = name.match_indices("_PORT_");
    let numbered = |(at, found): (usize, &str)| {
        name[at + found.len()..].starts_with(|first: char| first.is_ascii_digit())
    };
    name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || ports.any(numbered)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::misspelt("PATHPROOF_ENFORCE", true)]
    #[case::removed("PATHPROOF_PORT_TAKEOVERS", true)]
    #[case::a_setting("PATHPROOF_ENFORCEMENT", false)]
    #[case::of_printed_links("PATHPROOF_DOCS_URL", false)]
    #[case::of_the_rotator("PATHPROOF_INTERVAL", false)]
    #[case::of_a_service("PATHPROOF_SENTINEL_SERVICE_HOST", false)]
    #[case::of_its_port("PATHPROOF_SENTINEL_SERVICE_PORT_HTTP", false)]
    #[case::as_docker_had_it("PATHPROOF_ECHO_PORT_19257_TCP_ADDR", false)]
    #[case::of_a_service_named_port("PATHPROOF_PORT_MAP_PORT_80_TCP_ADDR", false)]
    #[case::another_program("ENFORCE", false)]
    fn variables(#[case] name: &str, #[case] expected: bool) {
        let found = misspelt(["HOME".to_owned(), name.to_owned()]);
        assert_eq!(found.as_deref(), expected.then_some(name));
    }
}
