use rstest::rstest;

use super::*;

#[rstest]
#[case("/healthz", "/healthz")]
#[case("/healthz?q=//x", "/healthz")]
#[case("/%68%65althz", "/healthz")]
#[case("/healthz/", "/healthz/")]
#[case("/%2fhealthz", "//healthz")]
#[case("/x/%2e%2e/healthz", "/x/../healthz")]
#[case("/a|b", "/a|b")]
fn a_path_is_unescaped(#[case] target: &str, #[case] unescaped: &str) {
    assert_eq!(path(&target.parse().unwrap()), unescaped.as_bytes());
}
