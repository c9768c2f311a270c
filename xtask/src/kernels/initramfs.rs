//! The first file system of a machine: busybox, the tools of the namespace worlds, a kernel's modules, and
//! the tests. A machine has no other files, and no network except to an API server. Only a machine with a
//! whole Kubernetes has more programs, on a disk.
//!
//! It consists of two concatenated archives, which the kernel unpacks in turn: one of the kernel,
//! and one of the tests, which are the same for all kernels of an architecture.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::control_plane::ControlPlane;
use super::package::Unpacked;
use super::userland::Userland;
use crate::image::Arch;
use crate::{host, run};

/// The first process.
const INIT: &str = include_str!("init.sh");
/// Programs of the guest; busybox provides the others.
const TOOLS: &str = "
    sh cp bash ip tc nft conntrack setpriv ipset ipvsadm
    iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore
    iptables-legacy iptables-legacy-restore ip6tables-legacy ip6tables-legacy-restore xtables-legacy-multi
    iptables-nft iptables-nft-restore ip6tables-nft ip6tables-nft-restore";
/// Names of modules, whose dependencies are copied too. A module that a kernel has built in, or
/// does not have, is skipped.
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

/// Size of a disk. Unwritten blocks take no space on the host.
const DISK: &str = "4G";

/// Installs the packages that this machine needs for machines of these architectures.
pub(crate) fn install_packages(arches: &BTreeSet<Arch>) -> Result<()> {
    host::install_world("the tests on other kernels")?;
    let mut programs = vec![
        ("busybox", "busybox-static"),
        ("cpio", "cpio"),
        ("depmod", "kmod"),
        ("ipset", "ipset"),
        ("ipvsadm", "ipvsadm"),
        ("xz", "xz-utils"),
        ("strip", "binutils"),
    ];
    programs.extend(arches.iter().map(|arch| match arch {
        Arch::Amd64 => ("qemu-system-x86_64", "qemu-system-x86"),
        Arch::Arm64 => ("qemu-system-aarch64", "qemu-system-arm"),
    }));
    host::install_programs("the tests on other kernels", &programs)
}

/// Packs everything except the programs under test, with a list of jobs, into an archive.
pub(crate) fn base(
    kernel: &Unpacked,
    userland: &Userland,
    jobs: &str,
    control_plane: Option<&ControlPlane>,
) -> Result<PathBuf> {
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
    for tool in TOOLS.split_whitespace() {
        tree.program(&userland.program(tool)?, &format!("usr/sbin/{tool}"))?;
    }
    for shell in ["sh", "bash"] {
        let link = scratch.path().join("bin").join(shell);
        symlink(format!("/usr/sbin/{shell}"), link)?;
    }
    for inside in userland.data() {
        tree.folder(&userland.file_of(&inside), &inside)?;
    }
    let extensions = fs::read_dir(tree.inside(&userland.extensions()));
    for extension in extensions.into_iter().flatten() {
        tree.libraries_of(&extension?.path())?;
    }
    modules(kernel, &tree)?;
    tree.file("tests/jobs", jobs.as_bytes(), false)?;
    if let Some(control_plane) = control_plane {
        tree.file("tests/ca.crt", &fs::read(&control_plane.ca)?, false)?;
    }
    let archive = kernel.folder.join("base.cpio");
    tree.pack(&archive)?;
    Ok(archive)
}

fn found(program: &str) -> Result<PathBuf> {
    host::find(program).with_context(|| format!("there is no {program} on this machine"))
}

/// Copies the modules and their dependencies, decompressed: the guest's modprobe cannot read xz.
fn modules(kernel: &Unpacked, tree: &Tree<'_>) -> Result<()> {
    let (root, release) = (kernel.root(), kernel.release.as_str());
    let tool = |name: &str| -> Result<Command> { Ok(Command::new(found(name)?)) };
    run::run_quietly(tool("depmod")?.arg("-b").arg(&root).arg(release))?;
    let mut files = BTreeSet::new();
    for module in MODULES.split_whitespace() {
        // If the module is built in or missing, modprobe fails or prints another kind of line.
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
    for list in ["builtin", "builtin.modinfo", "order"] {
        let list = format!("modules.{list}");
        tree.put(&root.join(&folder).join(&list), folder.join(&list))?;
    }
    run::run_quietly(tool("depmod")?.arg("-b").arg(&tree.root).arg(release))
}

/// A folder that becomes an archive.
pub(crate) struct Tree<'a> {
    root: PathBuf,
    /// Source of the libraries that programs need.
    pub(crate) userland: &'a Userland,
}

impl<'a> Tree<'a> {
    pub(crate) fn new(root: &Path, userland: &'a Userland) -> Self {
        Self {
            root: root.to_owned(),
            userland,
        }
    }

    /// Path here for a path in the machine.
    fn inside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Path here for a path in the machine, after its folder is created.
    fn place(&self, path: &Path) -> Result<PathBuf> {
        let place = self.inside(path);
        fs::create_dir_all(place.parent().context("a file in a folder")?)?;
        Ok(place)
    }

    pub(crate) fn file(&self, to: &str, text: &[u8], runs: bool) -> Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let to = self.place(Path::new(to))?;
        fs::write(&to, text)?;
        let mode = if runs { 0o755 } else { 0o644 };
        Ok(fs::set_permissions(&to, fs::Permissions::from_mode(mode))?)
    }

    /// Copies a file, following links; returns the copy.
    fn put(&self, from: &Path, to: impl AsRef<Path>) -> Result<PathBuf> {
        let to = self.place(to.as_ref())?;
        fs::copy(from, &to).with_context(|| format!("copy {}", from.display()))?;
        Ok(to)
    }

    /// Copies a program and its libraries.
    pub(crate) fn program(&self, from: &Path, to: &str) -> Result<PathBuf> {
        self.libraries_of(from)?;
        self.put(from, to)
    }

    fn libraries_of(&self, program: &Path) -> Result<()> {
        for inside in self.userland.libraries(program)? {
            if !self.inside(&inside).exists() {
                self.put(&self.userland.file_of(&inside), &inside)?;
            }
        }
        Ok(())
    }

    /// [`Self::program`] without debug information, which is most of a test program.
    pub(crate) fn stripped(&self, from: &Path, to: &str) -> Result<()> {
        let copy = self.program(from, to)?;
        let strip = found(&self.userland.strip())?;
        run::run_quietly(Command::new(strip).arg("--strip-debug").arg(copy))
    }

    /// Copies a file, or a folder with its content.
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

    /// Writes a disk with the content of the folder, and free space for the machine.
    pub(crate) fn disk(&self, file: &Path) -> Result<()> {
        let _ = fs::remove_file(file);
        let mut make = Command::new(found("mkfs.ext4")?);
        make.args(["-q", "-O", "^has_journal", "-d"]);
        run::run_quietly(make.arg(&self.root).arg(file).arg(DISK))
    }

    /// Writes the archive atomically.
    pub(crate) fn pack(&self, archive: &Path) -> Result<()> {
        let half = archive.with_extension("half");
        // Folders come before their content.
        let pack =
            "find . -mindepth 1 | LC_ALL=C sort | cpio --create --format=newc --quiet --owner=0:0";
        run::run_quietly(
            Command::new("bash")
                .args(["-o", "pipefail", "-c", pack])
                .current_dir(&self.root)
                .stdout(fs::File::create(&half)?),
        )?;
        Ok(fs::rename(half, archive)?)
    }
}
