//! A kernel from Debian's packages, unpacked into target/kernels and never installed.
//!
//! It is the package that Debian's list currently names. An unpacked kernel is kept until its
//! folder is removed, so that a machine keeps the same kernel.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::debian::Apt;
use crate::image::Arch::{self, Amd64, Arm64};
use crate::run;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// Name on the command line and the page.
    pub(crate) name: &'static str,
    pub(crate) arch: Arch,
    /// Package that depends on the newest kernel of this series.
    meta: &'static str,
}

const fn kernel(name: &'static str, arch: Arch, meta: &'static str) -> Kernel {
    Kernel { name, arch, meta }
}

/// Debian 12 has two series of kernels. Its cloud kernels only lack drivers, and have a quarter of the
/// size.
const KERNELS: [Kernel; 6] = [
    kernel("6.1-cloud", Amd64, "linux-image-cloud-amd64"),
    kernel("6.12-cloud", Amd64, "linux-image-6.12-cloud-amd64"),
    kernel("6.1-cloud-arm64", Arm64, "linux-image-cloud-arm64"),
    kernel("6.12-cloud-arm64", Arm64, "linux-image-6.12-cloud-arm64"),
    kernel("6.1", Amd64, "linux-image-amd64"),
    kernel("6.12", Amd64, "linux-image-6.12-amd64"),
];
/// Kernels to test by default.
const USUAL: [&str; 3] = ["6.1-cloud", "6.12-cloud", "6.12-cloud-arm64"];

/// Kernels with these names, or the default ones.
pub(crate) fn chosen(names: &[String]) -> Result<Vec<Kernel>> {
    let names: Vec<&str> = match names {
        [] => USUAL.to_vec(),
        names => names.iter().map(String::as_str).collect(),
    };
    let one = |name| {
        let found = KERNELS.into_iter().find(|kernel| kernel.name == name);
        found.with_context(|| {
            let known: Vec<&str> = KERNELS.iter().map(|kernel| kernel.name).collect();
            format!("there is no kernel {name}; there are {}", known.join(", "))
        })
    };
    names.into_iter().map(one).collect()
}

/// A kernel on this machine's disk.
#[derive(Debug, Clone)]
pub(crate) struct Unpacked {
    pub(crate) kernel: Kernel,
    /// Package of the kernel, such as `linux-image-6.1.0-56-cloud-amd64`.
    pub(crate) package: String,
    /// Version of the package, such as `6.1.181-1`.
    pub(crate) version: String,
    /// Folder of all files of this kernel.
    pub(crate) folder: PathBuf,
    /// Release, as uname prints it.
    pub(crate) release: String,
}

impl Unpacked {
    pub(crate) fn image(&self) -> PathBuf {
        self.root().join(format!("boot/vmlinuz-{}", self.release))
    }

    /// Folder that holds the package's `lib/modules`.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.join("root")
    }
}

impl Kernel {
    /// The kernel, fetched first if it is missing.
    pub(crate) fn ready(self) -> Result<Unpacked> {
        let folder = run::root().join("target/kernels").join(self.name);
        if !folder.join("package").is_file() {
            self.unpack(&folder)
                .with_context(|| format!("fetch the kernel {}", self.name))?;
        }
        let text = fs::read_to_string(folder.join("package"))?;
        let name = text.trim().strip_prefix("linux-image-");
        let (release, version) = name
            .and_then(|name| name.split_once(' '))
            .with_context(|| format!("{} names no kernel; remove it", folder.display()))?;
        Ok(Unpacked {
            kernel: self,
            package: format!("linux-image-{release}"),
            version: version.to_owned(),
            release: release.to_owned(),
            folder,
        })
    }

    fn unpack(self, folder: &Path) -> Result<()> {
        let apt = Apt::of(self.arch)?;
        let package = apt.with_lists(|| self.package(&apt))?;
        eprintln!("fetching {package} into target/kernels");
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder)?;
        let version = apt.fetch(&package, folder, &folder.join("root"))?;
        // Written last, so that an incomplete folder does not count as a kernel.
        fs::write(folder.join("package"), format!("{package} {version}\n"))?;
        Ok(())
    }

    /// Package that the series' package depends on.
    fn package(self, apt: &Apt) -> Result<String> {
        let output = run::output(apt.command("apt-cache").args(["depends", self.meta]))?;
        let text = String::from_utf8_lossy(&output);
        image_of(&text).with_context(|| format!("Debian's {} names no kernel", self.meta))
    }
}

/// The kernel's package in a list of dependencies.
fn image_of(depends: &str) -> Option<String> {
    let lines = depends.lines().map(str::trim);
    let mut names = lines.filter_map(|line| line.strip_prefix("Depends: "));
    let is_image = |name: &&str| {
        let release = name.strip_prefix("linux-image-").unwrap_or_default();
        release.starts_with(|c: char| c.is_ascii_digit())
    };
    names.find(is_image).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_what_its_series_depends_on() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n  \
                    Suggests: linux-image-9.9\n";
        assert_eq!(
            image_of(text).as_deref(),
            Some("linux-image-6.1.0-56-cloud-amd64")
        );
        assert_eq!(
            image_of("linux-image-x\n  Depends: linux-image-cloud\n"),
            None
        );
        assert_eq!(image_of(""), None);
    }

    #[test]
    fn unknown_kernels_are_refused_with_the_known_ones() {
        let usual = chosen(&[]).unwrap();
        assert_eq!(usual.len(), 3);
        let error = chosen(&["5.4".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("6.12-cloud"), "{error}");
        assert_eq!(chosen(&["6.1".to_owned()]).unwrap()[0].name, "6.1");
    }
}
