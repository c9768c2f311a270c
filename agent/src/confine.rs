//! Privileges that the agent and the rotator keep, according to their configuration. The rest is
//! dropped (docs/internal/design/shell.md#privileges).

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use caps::Capability;
use pathproof_report::HardeningReport;

use crate::cluster::api::client::{files, folders};
use crate::config::{ApiArgs, Config, Source, Switch};
use crate::datapath::pins::{self, Pins};
use crate::hardening::{self, Loader, Needs, SYSTEM, can_without};

/// Reason why file access cannot be restricted if the kubeconfig names a program.
const PROGRAM: &str = "the kubeconfig runs a credential plugin, which may need any file";

/// Report of dropped privileges, and a loader of BPF programs that works only once.
pub struct Confined {
    pub report: HardeningReport,
    pub loader: Loader,
}

/// Permanently drops the privileges that the agent does not need. Call it before there are threads.
/// A privilege that cannot be dropped is reported, and is not an error.
pub fn confine(config: &Config) -> Confined {
    if config.process.hardening == Switch::Off {
        tracing::warn!("--hardening=off: the agent keeps all its privileges");
        return Confined {
            report: HardeningReport::default(),
            loader: Loader::default(),
        };
    }
    let (needs, kept) = of_agent(config);
    give_up(&needs, kept)
}

/// [`confine`] for the rotator, which needs no capability.
pub fn confine_rotator(api: &ApiArgs) {
    let mut needs = Needs::default();
    let named = of_api(&mut needs, api);
    let kept = search(&mut needs, &named);
    give_up(&needs, kept);
}

/// A capability that is kept, in a sentence.
type Kept = Option<&'static str>;

fn give_up(needs: &Needs, kept: Kept) -> Confined {
    let (mut report, loader) = hardening::confine(needs);
    report.missing.extend(kept.map(str::to_owned));
    let kept = report.capabilities.join(", ");
    tracing::info!(kept, "dropped unneeded privileges");
    for missing in &report.missing {
        tracing::warn!(%missing, "some unneeded privileges could not be dropped");
    }
    Confined { report, loader }
}

fn of_agent(config: &Config) -> (Needs, Kept) {
    let mut needs = Needs {
        loading: vec![Capability::CAP_BPF, Capability::CAP_PERFMON],
        capabilities: vec![Capability::CAP_NET_ADMIN],
        ..Needs::default()
    };
    if config.sentinel.is_some() {
        // The sentinel's devices may be recreated at any time, and its packet sockets are then opened again.
        needs.capabilities.push(Capability::CAP_NET_RAW);
    }
    let named = match &config.source {
        Source::Folder(folder) => of_folder(&mut needs, folder),
        Source::Api { api, .. } => of_api(&mut needs, api),
    };
    // A Landlock rule needs an existing path. If a folder cannot be created, the code that writes there
    // reports why.
    if let Some(dir) = &config.kept.pin_dir
        && Pins::make_root(dir).is_ok()
    {
        needs.written.push(dir.clone());
        // The agent restores removed pins together with their folder, even after another file system was
        // mounted in its place. A rule for the folder does not cover that file system, so the folder above
        // the mount point gets a rule too.
        let folders = [dir.parent(), pins::above_mount(dir)].into_iter();
        needs.made.extend(folders.flatten().map(Path::to_owned));
    }
    let state = config.kept.state_dir.as_deref();
    for dir in state.into_iter().chain(config.kept.journal_folder()) {
        let _ = crate::files::make_private(dir);
        needs.written.push(dir.to_owned());
    }
    let kept = search(&mut needs, &named);
    (needs, kept)
}

/// Adds the manifests folder's parent, because the folder may be replaced by one of the same name. Also adds
/// the folders that its links lead into.
fn of_folder(needs: &mut Needs, folder: &Path) -> Vec<PathBuf> {
    needs.read.extend(folders(folder));
    // Manifests in subfolders are not read.
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut named: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    let links = named.iter().filter(|path| path.is_symlink());
    needs.read.extend(links.flat_map(|link| folders(link)));
    named.push(folder.to_owned());
    named
}

/// Adds the needs of requests to an API server, including host name lookups.
fn of_api(needs: &mut Needs, api: &ApiArgs) -> Vec<PathBuf> {
    let files = files(api.kubeconfig.as_deref());
    needs.read.extend(SYSTEM.map(PathBuf::from));
    needs
        .read
        .extend(files.paths.iter().flat_map(|path| folders(path)));
    needs.programs = files.runs_a_program.then_some(PROGRAM);
    files.paths
}

/// Root can read other users' files only with CAP_DAC_READ_SEARCH. It is kept if a configured file
/// belongs to another user.
fn search(needs: &mut Needs, named: &[PathBuf]) -> Kept {
    let can_read = || named.iter().all(|path| can_open(path));
    let past = [
        Capability::CAP_DAC_OVERRIDE,
        Capability::CAP_DAC_READ_SEARCH,
    ];
    if !can_read() || can_without(&past, can_read) {
        return None;
    }
    needs.capabilities.push(Capability::CAP_DAC_READ_SEARCH);
    Some(
        "CAP_DAC_READ_SEARCH is kept: another user owns files that the agent reads; change their \
         owner to root, or make them readable for all",
    )
}

/// Whether this process may open the path; yes if it is missing, a pipe, or a device.
fn can_open(path: &Path) -> bool {
    let denied = |error: std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    match path.is_dir() {
        true => !fs::read_dir(path).is_err_and(denied),
        false => !path.is_file() || !File::open(path).is_err_and(denied),
    }
}
