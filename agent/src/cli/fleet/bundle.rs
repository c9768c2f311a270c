//! `kubectl pathproof bundle`: what agents know, as one file for a bug report. Addresses in it are replaced, each
//! always by the same one, so that its recordings still replay and its texts still agree with them.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use pathproof_facts::time::Wall;
use pathproof_node::replay::{Pseudonyms, redact};
use pathproof_report::episodes::Journal;
use serde_json::{Value, json};
use thiserror::Error;

use super::kubectl::{self, AT_ONCE, CONTAINER, KubectlError, agent_pods, in_pod};
use crate::args::{BundleArgs, FleetArgs};
use crate::causes::chain;
use crate::cli::Exit;
use crate::cluster::listed::PodSeen;

/// Time limit of one command in a pod. A node that is away would hold kubectl for minutes.
const PATIENCE: Duration = Duration::from_secs(40);
/// Maximum size of one file of the bundle.
const MAX_PART: u64 = 16 << 20;
/// Size of all files after which no further pods are read: what a tracker or a mail takes, once compressed.
const MAX_ALL: usize = 512 << 20;
/// Number of recordings that an agent keeps.
const RECORDINGS: usize = 6;
const FULL: &str = "the bundle is full: name this node to get its own";
const INDEX: &str = "\
What pathproof's agents knew, collected by `kubectl pathproof bundle`.

Addresses are replaced, each always by the same one; tokens are removed. Names of nodes, namespaces, Services and
pods are not replaced. `pathproof replay FILE` replays a recording.
";

#[derive(Debug, Error)]
pub(super) enum BundleError {
    #[error(transparent)]
    Kubectl(#[from] KubectlError),
    #[error("{} exists: give another name with --file, or replace it with --force", .0.display())]
    Exists(PathBuf),
    #[error("{} cannot be written", .0.display())]
    File(PathBuf, #[source] io::Error),
}

/// A file of the bundle, or the reason why it is missing.
type Part = (String, Result<Vec<u8>, String>);

pub(super) fn run(args: &FleetArgs, wanted: &BundleArgs, now: Wall) -> Result<Exit, BundleError> {
    let pods = agent_pods(args, wanted.node.as_deref())?;
    let failed = |source| BundleError::File(wanted.file.clone(), source);
    let mut bundle = Bundle::new(create(wanted)?, now);
    bundle
        .add(("versions.json".to_owned(), versions(args)))
        .map_err(failed)?;
    let mut read = 0;
    for chunk in pods.chunks(AT_ONCE) {
        if bundle.size > MAX_ALL {
            for pod in &pods[read..] {
                bundle
                    .add((pod.node.clone(), Err(FULL.to_owned())))
                    .map_err(failed)?;
            }
            break;
        }
        let parts: Vec<Vec<Part>> = thread::scope(|scope| {
            let start = |pod| scope.spawn(move || of_pod(args, pod));
            let started: Vec<_> = chunk.iter().map(start).collect();
            started
                .into_iter()
                .filter_map(|part| part.join().ok())
                .collect()
        });
        for part in parts.into_iter().flatten() {
            bundle.add(part).map_err(failed)?;
        }
        read += chunk.len();
        eprintln!("{read} of {} pods", pods.len());
    }
    let missing = bundle.finish().map_err(failed)?;
    eprintln!(
        "{}: look through it before you send it",
        wanted.file.display()
    );
    missing.iter().for_each(|line| eprintln!("missing: {line}"));
    Ok(match &*missing {
        [] => Exit::Success,
        _ => Exit::Failure,
    })
}

/// Creates the file, for its owner alone.
fn create(wanted: &BundleArgs) -> Result<File, BundleError> {
    let mut options = fs::OpenOptions::new();
    match wanted.force {
        true => options.write(true).create(true).truncate(true),
        false => options.write(true).create_new(true),
    };
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
        .open(&wanted.file)
        .map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => BundleError::Exists(wanted.file.clone()),
            _ => BundleError::File(wanted.file.clone(), source),
        })
}

/// Everything about one pod, in files below NODE/POD/.
fn of_pod(args: &FleetArgs, pod: &PodSeen) -> Vec<Part> {
    let name = |file: &str| format!("{}/{}/{file}", pod.node, pod.name);
    let run = |file: &str, words: &[&str]| {
        let mut command = in_pod(args, &pod.name, words[0]);
        (name(file), output(command.args(&words[1..])))
    };
    let logs = |file: &str, more: &[&str]| {
        let mut command = kubectl::kubectl("logs", &args.kubectl);
        command
            .arg(format!("--namespace={}", args.namespace))
            .arg(&pod.name);
        command
            .args(["--container", CONTAINER, "--timestamps"])
            .args(more);
        command.arg(format!("--limit-bytes={}", MAX_PART / 2));
        (name(file), output(&mut command))
    };
    let mut parts = vec![
        (name("node.json"), node(args, &pod.node)),
        logs("agent.log", &[]),
    ];
    // Most pods have no previous container: that is not missing.
    let previous = logs("agent.previous.log", &["--previous"]);
    parts.extend(Some(previous).filter(|(_, log)| log.is_ok()));
    if let Some(why) = &pod.waits {
        parts.push((
            name("verdict.json"),
            Err(format!("the pod does not run ({why})")),
        ));
        return parts;
    }
    parts.push(run("verdict.json", &["status", "--output=json"]));
    parts.push(run("why.txt", &["why"]));
    let journal = run("episodes.json", &["report", "--output=json"]);
    let recordings = journal.1.as_deref().map(recordings).unwrap_or_default();
    parts.push(journal);
    parts.push(run("last.pathproof", &["record", "--output=-"]));
    for kept in recordings {
        let word = format!("--kept={kept}");
        parts.push(run(&kept, &["record", &word, "--output=-"]));
    }
    parts
}

/// Names of the recordings in a journal, as agents name them: no other name becomes a word or a file.
fn recordings(journal: &[u8]) -> Vec<String> {
    let journals: Vec<Journal> = serde_json::from_slice(journal).unwrap_or_default();
    let episodes = journals.into_iter().flat_map(|journal| journal.episodes);
    let mut names: Vec<String> = episodes.filter_map(|episode| episode.recording).collect();
    let is_usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    names.retain(|name| name.ends_with(".pathproof") && name.chars().all(is_usual));
    names.sort();
    names.dedup();
    names.split_off(names.len().saturating_sub(RECORDINGS))
}

/// The parts of a Node that explain a verdict. Labels and annotations may say more than a bug report should.
fn node(args: &FleetArgs, name: &str) -> Result<Vec<u8>, String> {
    let mut command = kubectl::kubectl("get", &args.kubectl);
    command.args(["nodes", "--output=json"]);
    let list = output(command.arg(format!("--field-selector=metadata.name={name}")))?;
    let list: Value = serde_json::from_slice(&list).map_err(|error| error.to_string())?;
    let node = &list["items"][0];
    let kept = json!({
        "spec": { "podCIDRs": node["spec"]["podCIDRs"], "taints": node["spec"]["taints"] },
        "status": { "conditions": node["status"]["conditions"], "nodeInfo": node["status"]["nodeInfo"] },
    });
    serde_json::to_vec_pretty(&kept).map_err(|error| error.to_string())
}

fn versions(args: &FleetArgs) -> Result<Vec<u8>, String> {
    output(kubectl::kubectl("version", &args.kubectl).arg("--output=json"))
}

/// Returns what the command prints, or the last line of its errors.
fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| chain(&kubectl::not_started(error)))?;
    let (sender, receiver) = mpsc::channel();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::spawn(move || {
        let words = thread::spawn(move || read(stderr));
        let printed = read(stdout);
        let _ = sender.send(
            printed.and_then(|printed| Ok((printed, words.join().unwrap_or(Ok(Vec::new()))?))),
        );
    });
    let printed = receiver.recv_timeout(PATIENCE);
    if printed.is_err() {
        // That it has ended meanwhile is no error.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    match printed {
        Ok(Ok((printed, _))) if status.success() => Ok(printed),
        Ok(Ok((_, words))) => {
            let words = String::from_utf8_lossy(&words);
            let last = words.lines().last().unwrap_or_default();
            Err(format!("{last} ({status})"))
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

fn read(from: Option<impl io::Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(MAX_PART).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// The file while it is written.
struct Bundle {
    tar: tar::Builder<GzEncoder<File>>,
    addresses: Pseudonyms,
    written: Wall,
    /// Bytes of all files so far.
    size: usize,
    index: String,
    missing: Vec<String>,
}

impl Bundle {
    fn new(file: File, written: Wall) -> Self {
        Self {
            tar: tar::Builder::new(GzEncoder::new(file, Compression::default())),
            addresses: Pseudonyms::default(),
            written,
            size: 0,
            index: format!("{INDEX}\nwritten {}\n\n", written.timestamp()),
            missing: Vec::new(),
        }
    }

    fn add(&mut self, (name, bytes): Part) -> io::Result<()> {
        let redacted = bytes.and_then(|bytes| self.redacted(&name, &bytes));
        match redacted {
            Ok(bytes) => {
                self.index
                    .push_str(&format!("{name}: {} bytes\n", bytes.len()));
                self.append(&name, &bytes)
            }
            Err(why) => {
                let line = self
                    .addresses
                    .replaced(&without_tokens(&format!("{name}: {why}")));
                self.index.push_str(&format!("MISSING {line}\n"));
                self.missing.push(line);
                Ok(())
            }
        }
    }

    fn redacted(&mut self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, String> {
        if name.ends_with(".pathproof") {
            return redact(bytes, &mut self.addresses).map_err(|error| chain(&error));
        }
        let text = without_tokens(&String::from_utf8_lossy(bytes));
        Ok(self.addresses.replaced(&text).into_bytes())
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.size += bytes.len();
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(self.written.timestamp().as_second()).unwrap_or_default());
        self.tar.append_data(&mut header, name, bytes)
    }

    /// Writes the index. Returns what is missing.
    fn finish(mut self) -> io::Result<Vec<String>> {
        let index = std::mem::take(&mut self.index);
        self.append("index.txt", index.as_bytes())?;
        self.tar.into_inner()?.finish()?.sync_all()?;
        Ok(self.missing)
    }
}

/// Replaces JSON Web Tokens, which begin with a JSON object in Base64, and words after `Bearer`.
fn without_tokens(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut bearer = false;
    for word in text.split_inclusive([' ', '"', '\'', '\n', ',', '=']) {
        let bare = word.trim_end_matches([' ', '"', '\'', '\n', ',', '=']);
        if !bare.is_empty() && (bearer || bare.starts_with("eyJ")) {
            out.push_str("[token]");
            out.push_str(&word[bare.len()..]);
        } else {
            out.push_str(word);
        }
        bearer = word.eq_ignore_ascii_case("bearer ");
    }
    out
}

#[cfg(test)]
mod tests;
