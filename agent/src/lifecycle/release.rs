//! Whether pathproof was tested on a kernel as old as this one.

use pathproof_shared::versions::is_older;

/// Oldest kernel that pathproof was tested on (docs/internal/kernels.md). Older kernels are not refused,
/// since the programs may load there.
const OLDEST_TESTED: &str = "6.1";
const FILE: &str = "/proc/sys/kernel/osrelease";

/// The kernel's release if it is older than every tested one.
pub fn untested() -> Option<String> {
    let release = std::fs::read_to_string(FILE).ok()?;
    let release = release.trim();
    is_older(release, OLDEST_TESTED).then(|| release.to_owned())
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
    #[case::no_version("linux", false)]
    fn versions_are_compared_by_number(#[case] release: &str, #[case] older: bool) {
        assert_eq!(is_older(release, OLDEST_TESTED), older);
    }
}
