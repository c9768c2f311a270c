//! Programs and libraries of a machine: those of the machine that tests, or for another architecture
//! those of Debian's packages, unpacked into target/kernels and never installed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::debian::Apt;
use crate::image::Arch;
use crate::{host, run};

/// Debian's packages with the programs of a machine. What they depend on comes with them.
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
    /// Folder that packages were unpacked into; none for this machine's own programs.
    root: Option<PathBuf>,
}

/// A file of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Absolute path in the machine.
    pub(crate) inside: PathBuf,
    /// The file here.
    pub(crate) file: PathBuf,
}

impl Userland {
    /// The programs of an architecture, fetched first if they are not there.
    pub(crate) fn ready(arch: Arch) -> Result<Self> {
        if Arch::here()? == arch {
            return Ok(Self { arch, root: None });
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
            // Last: half of them is none.
            fs::write(stamp, wanted)?;
        }
        let root = Some(root);
        Ok(Self { arch, root })
    }

    /// Debian's name of the folders of this architecture's libraries.
    fn triplet(&self) -> &'static str {
        match self.arch {
            Arch::Amd64 => "x86_64-linux-gnu",
            Arch::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// The file of a program.
    pub(crate) fn program(&self, name: &str) -> Result<PathBuf> {
        let Some(root) = &self.root else {
            let found = host::find(name);
            return found.with_context(|| format!("there is no {name} on this machine"));
        };
        // Packages have no link from `iptables` to `iptables-nft`: the machine's alternatives do.
        let of_nft = name.replacen("tables", "tables-nft", 1);
        let mut files = [name, &of_nft].into_iter().flat_map(|name| {
            let folders = PROGRAMS.into_iter();
            folders.map(move |folder| root.join(folder).join(name))
        });
        // An absolute link leads to this machine's own program.
        let root = root.canonicalize()?;
        let is_there = |file: &PathBuf| {
            let real = file.canonicalize();
            real.is_ok_and(|real| real.is_file() && real.starts_with(&root))
        };
        let found = files.find(is_there);
        found.with_context(|| format!("there is no {name} in Debian's packages"))
    }

    /// Folders and files that programs read beside their libraries.
    pub(crate) fn data(&self) -> Vec<Part> {
        let extensions = self.extensions();
        let all = [extensions, "/etc/iproute2".into(), "/etc/protocols".into()];
        let part = |inside: PathBuf| Part {
            file: self.file_of(&inside),
            inside,
        };
        let parts = all.into_iter().map(part);
        parts.filter(|part| part.file.exists()).collect()
    }

    /// Folder of the extensions of iptables' tools, which need libraries as well.
    pub(crate) fn extensions(&self) -> PathBuf {
        format!("/usr/lib/{}/xtables", self.triplet()).into()
    }

    fn file_of(&self, inside: &Path) -> PathBuf {
        match &self.root {
            Some(root) => root.join(inside.strip_prefix("/").unwrap_or(inside)),
            None => inside.to_owned(),
        }
    }

    /// The program that removes what only a debugger reads.
    pub(crate) fn strip(&self) -> String {
        match self.root {
            Some(_) => format!("{}-strip", self.triplet()),
            None => "strip".to_owned(),
        }
    }

    /// Libraries that the dynamic linker would load for a program, and itself; none for a static one.
    pub(crate) fn libraries(&self, program: &Path) -> Result<Vec<Part>> {
        let Some(root) = &self.root else {
            let part = |file: PathBuf| Part {
                inside: file.clone(),
                file,
            };
            return Ok(by_ldd(program)?.into_iter().map(part).collect());
        };
        // ldd would have to run the dynamic linker of the other architecture.
        let mut parts = Vec::new();
        let mut seen = BTreeSet::new();
        let mut waiting = vec![program.to_owned()];
        while let Some(file) = waiting.pop() {
            for name in needed(&file)? {
                if !seen.insert(name.clone()) {
                    continue;
                }
                let inside = match name.starts_with('/') {
                    true => PathBuf::from(&name),
                    false => self.library(root, &name)?,
                };
                let file = self.file_of(&inside);
                waiting.push(file.clone());
                parts.push(Part { inside, file });
            }
        }
        Ok(parts)
    }

    /// Path of a library in the machine.
    fn library(&self, root: &Path, name: &str) -> Result<PathBuf> {
        let triplet = self.triplet();
        let mut paths = LIBRARIES.map(|folder| PathBuf::from(format!("{folder}/{triplet}/{name}")));
        let found = paths.iter_mut().find(|path| root.join(path).is_file());
        let found = found.with_context(|| format!("there is no {name} in Debian's packages"))?;
        Ok(Path::new("/").join(found))
    }
}

/// Names of the libraries that a file asks for, and the path of the dynamic linker.
fn needed(file: &Path) -> Result<Vec<String>> {
    let mut readelf = Command::new("readelf");
    readelf.env("LC_ALL", "C");
    readelf
        .args(["--wide", "--dynamic", "--segments"])
        .arg(file);
    let text = run::output(&mut readelf)?;
    Ok(names_of(&String::from_utf8_lossy(&text)))
}

/// The names in what readelf prints.
fn names_of(text: &str) -> Vec<String> {
    let marks = ["Shared library: [", "Requesting program interpreter: "];
    let name = |line: &str| {
        let (_, rest) = marks.iter().find_map(|mark| line.split_once(mark))?;
        rest.split(']').next().map(str::to_owned)
    };
    text.lines().filter_map(name).collect()
}

/// The libraries of a program of this machine.
fn by_ldd(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("cannot start ldd")?;
    Ok(paths_of(&String::from_utf8_lossy(&output.stdout)))
}

/// The paths in what ldd prints.
fn paths_of(text: &str) -> Vec<PathBuf> {
    let words = text.lines().filter_map(|line| {
        let line = line.split(" => ").last()?.trim();
        line.split(" (").next()
    });
    words
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_the_paths_that_ldd_prints() {
        let text = "\tlinux-vdso.so.1 (0x7ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f1)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x7f2)\n";
        assert_eq!(
            paths_of(text),
            [
                PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6"),
                PathBuf::from("/lib64/ld-linux-x86-64.so.2"),
            ]
        );
        assert!(paths_of("\tnot a dynamic executable\n").is_empty());
    }

    #[test]
    fn another_architectures_libraries_are_named_by_readelf() {
        let text = "  INTERP  0x238 0x1b 0x1b R 0x1\n      \
                    [Requesting program interpreter: /lib/ld-linux-aarch64.so.1]\n \
                    0x0000000000000001 (NEEDED)  Shared library: [libc.so.6]\n \
                    0x000000000000000e (SONAME)  Library soname: [libm.so.6]\n";
        assert_eq!(names_of(text), ["/lib/ld-linux-aarch64.so.1", "libc.so.6"]);
        assert!(names_of("There is no dynamic section in this file.\n").is_empty());
    }
}
