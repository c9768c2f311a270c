//! Programs and libraries of a machine: those of the host or, for another architecture, those of
//! Debian's packages, which are unpacked into target/kernels and never installed.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::debian::Apt;
use crate::image::Arch;
use crate::{host, run};

/// Debian's packages with the programs of a machine; their dependencies are fetched too.
const PACKAGES: [&str; 11] = [
    "bash",
    "busybox-static",
    "conntrack",
    "coreutils",
    "dash",
    "iproute2",
    "ipset",
    "iptables",
    "ipvsadm",
    "nftables",
    "util-linux",
];
/// Folders of programs and of libraries in packages.
const PROGRAMS: [&str; 4] = ["usr/sbin", "sbin", "usr/bin", "bin"];
const LIBRARIES: [&str; 2] = ["lib", "usr/lib"];

/// The programs of one architecture.
#[derive(Debug, Clone)]
pub(crate) struct Userland {
    arch: Arch,
    /// Folder of the unpacked packages; `/` for this machine's programs.
    root: PathBuf,
}

impl Userland {
    /// The programs of an architecture, fetched first if they are missing.
    pub(crate) fn ready(arch: Arch) -> Result<Self> {
        if arch.is_here() {
            let root = PathBuf::from("/");
            return Ok(Self { arch, root });
        }
        let folder = run::root().join(format!("target/kernels/userland-{}", arch.name()));
        let root = folder.join("root");
        let stamp = folder.join("packages");
        let wanted = PACKAGES.join(" ");
        if fs::read_to_string(&stamp).unwrap_or_default() != wanted {
            eprintln!("fetching Debian's programs for {}", arch.name());
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&root)?;
            Apt::of(arch)?.fetch_whole(&PACKAGES, &root)?;
            // Written last, so that an incomplete folder does not count.
            fs::write(stamp, wanted)?;
        }
        Ok(Self { arch, root })
    }

    pub(crate) fn program(&self, name: &str) -> Result<PathBuf> {
        if let (true, Some(found)) = (self.arch.is_here(), host::find(name)) {
            return Ok(found);
        }
        // Packages contain no link from `iptables` to `iptables-nft`; alternatives create it at
        // installation.
        let of_nft = name.replacen("tables", "tables-nft", 1);
        let mut files = [name, &of_nft].into_iter().flat_map(|name| {
            let folders = PROGRAMS.into_iter();
            folders.map(move |folder| self.root.join(folder).join(name))
        });
        // An absolute link would lead to this machine's program.
        let root = self.root.canonicalize()?;
        let is_there = |file: &PathBuf| {
            let real = file.canonicalize();
            real.is_ok_and(|real| real.is_file() && real.starts_with(&root))
        };
        let found = files.find(is_there);
        found.with_context(|| format!("there is no {name} below {}", root.display()))
    }

    /// Folders and files other than libraries that programs read, by their paths in the machine.
    pub(crate) fn data(&self) -> Vec<PathBuf> {
        let mut all = vec![
            self.extensions(),
            "/etc/iproute2".into(),
            "/etc/protocols".into(),
        ];
        all.retain(|inside| self.file_of(inside).exists());
        all
    }

    /// Folder of the extensions of iptables' tools, which need libraries too.
    pub(crate) fn extensions(&self) -> PathBuf {
        format!("/usr/lib/{}/xtables", self.arch.triplet()).into()
    }

    /// File on this machine for a path in the virtual machine.
    pub(crate) fn file_of(&self, inside: &Path) -> PathBuf {
        self.root.join(inside.strip_prefix("/").unwrap_or(inside))
    }

    /// Name of the program that strips debug information.
    pub(crate) fn strip(&self) -> String {
        format!("{}-strip", self.arch.triplet())
    }

    /// Libraries that the dynamic linker would load for a program, and the linker itself, by their
    /// paths in the machine. A static program has none. ldd is not used, because it would run the
    /// dynamic linker, which may be of another architecture.
    pub(crate) fn libraries(&self, program: &Path) -> Result<BTreeSet<PathBuf>> {
        let mut found = BTreeSet::new();
        let mut waiting = vec![program.to_owned()];
        while let Some(file) = waiting.pop() {
            for name in needed(&file)? {
                let inside = match name.starts_with('/') {
                    true => PathBuf::from(name),
                    false => self.library(&name)?,
                };
                if found.insert(inside.clone()) {
                    waiting.push(self.file_of(&inside));
                }
            }
        }
        Ok(found)
    }

    fn library(&self, name: &str) -> Result<PathBuf> {
        let triplet = self.arch.triplet();
        let paths = LIBRARIES.map(|folder| PathBuf::from(format!("/{folder}/{triplet}/{name}")));
        let found = paths.into_iter().find(|path| self.file_of(path).is_file());
        found.with_context(|| format!("there is no {name} below {}", self.root.display()))
    }
}

/// Names of the libraries that a file needs, and the path of its dynamic linker; none for a script.
fn needed(file: &Path) -> Result<Vec<String>> {
    let mut magic = Vec::new();
    let opened = fs::File::open(file).with_context(|| format!("open {}", file.display()))?;
    opened.take(4).read_to_end(&mut magic)?;
    if magic != b"\x7fELF" {
        return Ok(Vec::new());
    }
    let mut readelf = Command::new("readelf");
    readelf
        .args(["--wide", "--dynamic", "--segments"])
        .arg(file);
    let text = run::output(readelf.env("LC_ALL", "C"))?;
    Ok(names_of(&String::from_utf8_lossy(&text)))
}

/// The names in the output of readelf.
fn names_of(text: &str) -> Vec<String> {
    let marks = ["Shared library: [", "Requesting program interpreter: "];
    let name = |line: &str| {
        let (_, rest) = marks.iter().find_map(|mark| line.split_once(mark))?;
        rest.split(']').next().map(str::to_owned)
    };
    text.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_named_by_readelf() {
        let text = "  INTERP  0x238 0x1b 0x1b R 0x1\n      \
                    [Requesting program interpreter: /lib/ld-linux-aarch64.so.1]\n \
                    0x0000000000000001 (NEEDED)  Shared library: [libc.so.6]\n \
                    0x000000000000000e (SONAME)  Library soname: [libm.so.6]\n";
        assert_eq!(names_of(text), ["/lib/ld-linux-aarch64.so.1", "libc.so.6"]);
        assert!(names_of("There is no dynamic section in this file.\n").is_empty());
    }
}
