//! Whether pathproof was tested on a kernel as old as this one.

/// Oldest series that pathproof was tested on (docs/internal/kernels.md). Older kernels are not refused,
/// since the programs may load there.
const OLDEST_TESTED: (u32, u32) = (6, 1);
const FILE: &str = "/proc/sys/kernel/osrelease";

/// The kernel's release if it is older than every tested one.
pub fn untested() -> Option<String> {
    let release = std::fs::read_to_string(FILE).ok()?;
    let release = release.trim();
    (series(release)? < OLDEST_TESTED).then(|| release.to_owned())
}

/// The first two numbers of a release such as `6.1.0-56-cloud-amd64`.
fn series(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("5.15.0-1051-aws", true)]
    #[case("6.0.19", true)]
    #[case("6.1.0-56-cloud-amd64", false)]
    #[case("6.12.117+deb12-cloud-arm64", false)]
    #[case("10.0-rc1", false)]
    fn series_are_compared_by_number(#[case] release: &str, #[case] older: bool) {
        assert_eq!(series(release).unwrap() < OLDEST_TESTED, older);
    }

    #[test]
    fn a_release_of_another_form_is_none() {
        assert_eq!(series("linux"), None);
        assert_eq!(series("6"), None);
    }
}
