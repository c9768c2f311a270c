//! The first file system of a machine: busybox, the tools that the namespace worlds run, a kernel's
//! modules, and the tests. It is all that a machine has, but for one with a whole Kubernetes, whose
//! programs are on a disk: no network but the way to an API server.
//!
//! Two archives, one behind the other, which the kernel unpacks in turn: what changes seldom, kept
//! under target/kernels, and the tests.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::package::Unpacked;
use super::userland::{Part, Userland};
use crate::image::Arch;
use crate::{host, run};

/// The first process.
const INIT: &str = include_str!("init.sh");
/// Programs of the guest. Busybox has the rest.
const TOOLS: [&str; 25] = [
    "sh",
    "cp",
    "bash",
    "ip",
    "tc",
    "nft",
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
    "iptables-legacy",
    "iptables-legacy-restore",
    "ip6tables-legacy",
    "ip6tables-legacy-restore",
    "xtables-legacy-multi",
    "iptables-nft",
    "iptables-nft-restore",
    "ip6tables-nft",
    "ip6tables-nft-restore",
    "conntrack",
    "setpriv",
    "ipset",
    "ipvsadm",
];
/// Modules by name; what they depend on comes with them. One that a kernel has built in, or not at
/// all, is none.
const MODULES: &str = "
    veth bridge br_netfilter dummy vxlan
    nf_conntrack nf_conntrack_netlink nf_nat
    ip_tables iptable_filter iptable_nat iptable_mangle iptable_raw
    ip6_tables ip6table_filter ip6table_nat ip6table_mangle ip6table_raw
    x_tables xt_nat xt_conntrack xt_comment xt_statistic xt_mark xt_MASQUERADE xt_addrtype
    xt_multiport xt_tcpudp xt_set xt_REDIRECT xt_recent xt_nfacct xt_physdev ipt_REJECT ip6t_REJECT
    nf_tables nft_nat nft_chain_nat nft_ct nft_masq nft_redir nft_compat nft_numgen nft_hash nft_limit
    nft_fib_inet nft_fib_ipv4 nft_fib_ipv6 nft_reject_inet nft_reject_ipv4 nft_reject_ipv6 nft_log
    ip_set ip_set_hash_ip ip_set_hash_ipport ip_set_hash_ipportip ip_set_hash_ipportnet
    ip_set_hash_net ip_set_bitmap_port
    ip_vs ip_vs_rr ip_vs_wrr ip_vs_sh xt_ipvs
    virtio_pci virtio_net virtio_blk overlay
    sch_ingress cls_bpf act_mirred cls_matchall cls_u32 act_gact
    tcp_diag inet_diag";

/// Size of a disk. Blocks that nobody writes take no space here.
const DISK: &str = "4G";

/// Installs the packages that machines of these architectures need on this one.
pub(crate) fn install_packages(arches: &[Arch]) -> Result<()> {
    host::install_world("the tests on other kernels")?;
    let emulators = arches.iter().map(|arch| match arch {
        Arch::Amd64 => ("qemu-system-x86_64", "qemu-system-x86"),
        Arch::Arm64 => ("qemu-system-aarch64", "qemu-system-arm"),
    });
    let programs = [
        ("busybox", "busybox-static"),
        ("cpio", "cpio"),
        ("depmod", "kmod"),
        ("ipset", "ipset"),
        ("ipvsadm", "ipvsadm"),
        ("xz", "xz-utils"),
        ("strip", "binutils"),
    ];
    let programs: Vec<_> = emulators.chain(programs).collect();
    host::install_programs("the tests on other kernels", &programs)
}

/// Everything but the tests, as an archive; made anew where the kernel or this file changed.
pub(crate) fn base(kernel: &Unpacked, userland: &Userland) -> Result<PathBuf> {
    let archive = kernel.folder.join("base.cpio");
    let stamp = kernel.folder.join("base.stamp");
    let wanted = stamp_of(kernel);
    if archive.is_file() && fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(archive);
    }
    let scratch = tempfile::tempdir_in(&kernel.folder)?;
    let tree = Tree::new(scratch.path(), userland);
    for folder in [
        "proc", "sys", "dev", "tmp", "run", "root", "etc", "var/lib", "var/log", "bin",
    ] {
        fs::create_dir_all(scratch.path().join(folder))?;
    }
    tree.file("init", INIT.as_bytes(), true)?;
    tree.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", false)?;
    tree.file("etc/hosts", b"127.0.0.1 localhost\n", false)?;
    tree.file("etc/resolv.conf", b"", false)?;
    tree.put(&userland.program("busybox")?, "bin/busybox")?;
    for tool in TOOLS {
        tree.program(&userland.program(tool)?, &format!("usr/sbin/{tool}"))?;
    }
    for shell in ["sh", "bash"] {
        symlink(
            format!("/usr/sbin/{shell}"),
            scratch.path().join("bin").join(shell),
        )?;
    }
    for Part { inside, file } in userland.data() {
        tree.folder(&file, &inside)?;
    }
    let extensions = userland.extensions();
    tree.libraries_of_folder(&tree.inside(&extensions))?;
    modules(kernel, &tree)?;
    tree.pack(&archive)?;
    fs::write(stamp, wanted)?;
    Ok(archive)
}

/// Sources of the archive, as text.
fn stamp_of(kernel: &Unpacked) -> String {
    let Unpacked {
        package, version, ..
    } = kernel;
    let sources = [include_str!("initramfs.rs"), include_str!("userland.rs")];
    [INIT, sources[0], sources[1], package, version].concat()
}

fn found(program: &str) -> Result<PathBuf> {
    host::find(program).with_context(|| format!("there is no {program} on this machine"))
}

/// Copies the modules and what they depend on, unpacked: the guest's modprobe reads no xz.
fn modules(kernel: &Unpacked, tree: &Tree<'_>) -> Result<()> {
    let (root, release) = (kernel.root(), kernel.release.as_str());
    let tool = |name: &str| -> Result<Command> { Ok(Command::new(found(name)?)) };
    run::run_quietly(tool("depmod")?.arg("-b").arg(&root).arg(release))?;
    let mut files = BTreeSet::new();
    for module in MODULES.split_whitespace() {
        // Built in, or not of this kernel: refused, or a line of another word.
        let output = tool("modprobe")?
            .arg("-d")
            .arg(&root)
            .args(["-S", release, "--show-depends", module])
            .stderr(Stdio::null())
            .output()?;
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        files.extend(lines.lines().filter_map(|line| {
            let file = line.strip_prefix("insmod ")?.split_whitespace().next()?;
            Some(PathBuf::from(file))
        }));
    }
    let folder = PathBuf::from("lib/modules").join(release);
    for file in &files {
        let inside = file.strip_prefix(&root).unwrap_or(file);
        let copy = tree.put(file, inside)?;
        if copy.extension().is_some_and(|kind| kind == "xz") {
            run::run_quietly(tool("xz")?.arg("--decompress").arg(&copy))?;
        }
    }
    for list in [
        "modules.builtin",
        "modules.builtin.modinfo",
        "modules.order",
    ] {
        tree.put(&root.join(&folder).join(list), folder.join(list))?;
    }
    run::run_quietly(tool("depmod")?.arg("-b").arg(&tree.root).arg(release))
}

/// A folder that becomes an archive.
pub(crate) struct Tree<'a> {
    root: PathBuf,
    /// Origin of the libraries that programs need.
    pub(crate) userland: &'a Userland,
}

impl<'a> Tree<'a> {
    pub(crate) fn new(root: &Path, userland: &'a Userland) -> Self {
        Self {
            root: root.to_owned(),
            userland,
        }
    }

    /// Where a path of the machine is here.
    fn inside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Writes a file of its own.
    pub(crate) fn file(&self, to: &str, text: &[u8], runs: bool) -> Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let to = self.root.join(to);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&to, text)?;
        let mode = if runs { 0o755 } else { 0o644 };
        Ok(fs::set_permissions(&to, fs::Permissions::from_mode(mode))?)
    }

    /// Copies a file, through links; gives the copy.
    fn put(&self, from: &Path, to: impl AsRef<Path>) -> Result<PathBuf> {
        let to = self.inside(to.as_ref());
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::copy(from, &to).with_context(|| format!("copy {}", from.display()))?;
        Ok(to)
    }

    /// Copies a program and the libraries that it needs.
    pub(crate) fn program(&self, from: &Path, to: &str) -> Result<PathBuf> {
        self.libraries_of(from)?;
        self.put(from, to)
    }

    fn libraries_of(&self, program: &Path) -> Result<()> {
        for Part { inside, file } in self.userland.libraries(program)? {
            if !self.inside(&inside).exists() {
                self.put(&file, &inside)?;
            }
        }
        Ok(())
    }

    /// The same without what only a debugger reads, which is most of a test's program.
    pub(crate) fn stripped(&self, from: &Path, to: &str) -> Result<()> {
        let copy = self.program(from, to)?;
        let strip = found(&self.userland.strip())?;
        run::run_quietly(Command::new(strip).arg("--strip-debug").arg(copy))
    }

    /// Copies a file or a folder with all that is in it.
    pub(crate) fn folder(&self, from: &Path, to: &Path) -> Result<()> {
        if from.is_file() {
            return self.put(from, to).map(drop);
        }
        for entry in fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
            let entry = entry?;
            self.folder(&entry.path(), &to.join(entry.file_name()))?;
        }
        Ok(())
    }

    fn libraries_of_folder(&self, folder: &Path) -> Result<()> {
        let Ok(entries) = fs::read_dir(folder) else {
            return Ok(());
        };
        for entry in entries {
            self.libraries_of(&entry?.path())?;
        }
        Ok(())
    }

    /// Writes a disk with all of it, and space for what a machine writes.
    pub(crate) fn disk(&self, file: &Path) -> Result<()> {
        let _ = fs::remove_file(file);
        let mut make = Command::new(found("mkfs.ext4")?);
        make.args(["-q", "-O", "^has_journal", "-d"]);
        run::run_quietly(make.arg(&self.root).arg(file).arg(DISK))
    }

    /// Writes the archive, whole or not at all.
    pub(crate) fn pack(&self, archive: &Path) -> Result<()> {
        let half = archive.with_extension("half");
        let mut names = Vec::new();
        list(&self.root, Path::new(""), &mut names)?;
        let mut cpio = Command::new(found("cpio")?)
            .current_dir(&self.root)
            .args(["--create", "--format=newc", "--quiet", "--owner=0:0"])
            .stdin(Stdio::piped())
            .stdout(fs::File::create(&half)?)
            .spawn()
            .context("start cpio")?;
        let mut input = cpio.stdin.take().context("a piped child has an input")?;
        for name in names {
            writeln!(input, "{}", name.display())?;
        }
        drop(input);
        let status = cpio.wait()?;
        if !status.success() {
            bail!("cpio failed ({status})");
        }
        Ok(fs::rename(half, archive)?)
    }
}

/// Every name below a folder, folders before what is in them.
fn list(root: &Path, below: &Path, names: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries = fs::read_dir(root.join(below))?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = below.join(entry.file_name());
        names.push(name.clone());
        if entry.file_type()?.is_dir() {
            list(root, &name, names)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_what_is_in_them() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("b/c")).unwrap();
        fs::write(folder.path().join("b/c/d"), "").unwrap();
        fs::write(folder.path().join("a"), "").unwrap();
        let mut names = Vec::new();
        list(folder.path(), Path::new(""), &mut names).unwrap();
        let names: Vec<_> = names.iter().map(|name| name.to_str().unwrap()).collect();
        assert_eq!(names, ["a", "b", "b/c", "b/c/d"]);
    }
}
