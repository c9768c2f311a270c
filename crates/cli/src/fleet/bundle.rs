//! `kubectl pathproof bundle`: what agents know, as one file for a bug report. Addresses in it are replaced, each
//! always by the same one, so that its recordings still replay and its texts still agree with them.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::panic::resume_unwind;
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
use pathproof_shared::causes::chain;
use pathproof_shared::listed::PodSeen;
use serde_json::{Value, json};
use thiserror::Error;

use super::kubectl::{self, AT_ONCE, CONTAINER, KubectlError, agent_pods, in_pod};
use crate::Exit;
use crate::args::{BundleArgs, FleetArgs};

/// Time limit of one command in a pod. A node that is away would hold kubectl for minutes.
const PATIENCE: Duration = Duration::from_secs(40);
const NO_ANSWER: &str = "no answer within 40 s";
/// Why the other commands of a pod are not run.
const AWAY: &str = "not tried, because the node does not answer";
/// Folder of pods that run on no node yet.
const NOWHERE: &str = "not-scheduled";
/// Number of lines of a log, the last ones. A limit of bytes alone would keep the first ones.
const LINES: &str = "--tail=10000";
/// Maximum size of one file of the bundle.
const MAX_PART: u64 = 16 << 20;
/// Maximum size of all files: compressed, a tracker or a mail takes it.
const MAX_ALL: usize = 512 << 20;
/// Number of recordings that an agent keeps.
const RECORDINGS: usize = 6;
const FULL: &str = "the bundle is full: name this node to get its own";
const INDEX: &str = "\
What pathproof's agents knew, collected by `kubectl pathproof bundle`.

Addresses are replaced, each always by the same one. Words that look like tokens, keys or certificates are removed:
look for others before you send it. Names of nodes, namespaces, Services and pods are not replaced: some clouds name
nodes by their addresses.
`pathproof replay FILE` replays a recording.
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
        if bundle.is_full {
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
                .map(|part| part.join().unwrap_or_else(|panic| resume_unwind(panic)))
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
    let opened = options.open(&wanted.file).and_then(|file| {
        // The mode above applies to a new file only. A device keeps its own.
        #[cfg(unix)]
        if file.metadata()?.is_file() {
            file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        }
        Ok(file)
    });
    opened.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => BundleError::Exists(wanted.file.clone()),
        _ => BundleError::File(wanted.file.clone(), source),
    })
}

/// Everything about one pod, in files below NODE/POD/. If the node does not answer a command, the others are
/// not run: each would wait for the same time.
fn of_pod(args: &FleetArgs, pod: &PodSeen) -> Vec<Part> {
    let folder = match &*pod.node {
        "" => NOWHERE,
        node => node,
    };
    let name = |file: &str| format!("{folder}/{}/{file}", pod.name);
    let mut parts = Vec::new();
    if folder == NOWHERE {
        parts.push((name("agent.log"), Err(waits(pod))));
        return parts;
    }
    parts.push((name("node.json"), node(args, &pod.node)));
    let mut away = false;
    let mut read = |file: &str, mut command: Command| {
        let printed = match away {
            true => Err(AWAY.to_owned()),
            false => output(&mut command),
        };
        away |= printed.as_ref().is_err_and(|why| is_away(why));
        (name(file), printed)
    };
    parts.push(read("agent.log", logs(args, pod, &[])));
    // Most pods have no previous container: that is not missing.
    let previous = read("agent.previous.log", logs(args, pod, &["--previous"]));
    parts.extend(Some(previous).filter(|(_, log)| log.is_ok()));
    if pod.waits.is_some() {
        parts.push((name("verdict.json"), Err(waits(pod))));
        return parts;
    }
    let run = |words: &[&str]| {
        let mut command = in_pod(args, &pod.name, words[0]);
        command.args(&words[1..]);
        command
    };
    parts.push(read("verdict.json", run(&["status", "--output=json"])));
    parts.push(read("why.txt", run(&["why"])));
    let journal = read("episodes.json", run(&["report", "--output=json"]));
    let recordings = journal.1.as_deref().map(recordings).unwrap_or_default();
    parts.push(journal);
    parts.push(read("last.pathproof", run(&["record", "--output=-"])));
    for kept in recordings {
        let word = format!("--kept={kept}");
        parts.push(read(&kept, run(&["record", &word, "--output=-"])));
    }
    parts
}

fn waits(pod: &PodSeen) -> String {
    let why = pod.waits.as_deref().unwrap_or_default();
    format!("the pod does not run ({why})")
}

/// Whether a command failed because the node does not answer kubectl, or the API server.
fn is_away(why: &str) -> bool {
    why == NO_ANSWER || why.contains("timeout") || why.contains("no route to host")
}

fn logs(args: &FleetArgs, pod: &PodSeen, more: &[&str]) -> Command {
    let mut command = kubectl::kubectl("logs", &args.kubectl);
    command
        .arg(format!("--namespace={}", args.namespace))
        .arg(&pod.name)
        .args(["--container", CONTAINER, "--timestamps", LINES])
        .arg(format!("--limit-bytes={}", MAX_PART / 2))
        .args(more);
    command
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
            // kubectl adds a line of its own to what the command said.
            let mut lines = words.lines().rev();
            let last = lines.find(|line| !line.starts_with("command terminated"));
            let last = last.unwrap_or("it said nothing");
            Err(format!("{last} ({status})"))
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(NO_ANSWER.to_owned()),
    }
}

fn read(from: Option<impl io::Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(MAX_PART + 1).read_to_end(&mut bytes)?;
    }
    match bytes.len() as u64 > MAX_PART {
        true => Err(io::Error::other("it is larger than 16 MiB")),
        false => Ok(bytes),
    }
}

/// The file while it is written.
struct Bundle {
    tar: tar::Builder<GzEncoder<File>>,
    addresses: Pseudonyms,
    written: Wall,
    /// Bytes of all files so far.
    size: usize,
    /// A file did not fit any more.
    is_full: bool,
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
            is_full: false,
            index: format!("{INDEX}\nwritten {}\n\n", written.timestamp()),
            missing: Vec::new(),
        }
    }

    fn add(&mut self, (name, bytes): Part) -> io::Result<()> {
        let redacted = bytes.and_then(|bytes| {
            self.is_full |= self.size + bytes.len() > MAX_ALL;
            match self.is_full {
                true => Err(FULL.to_owned()),
                false => self.redacted(&name, &bytes),
            }
        });
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

/// Replaces what gives access: PEM blocks, JSON Web Tokens, keys and certificates in Base64, and words after
/// `Bearer`.
fn without_tokens(text: &str) -> String {
    let ends = [' ', '"', '\'', '\n', ',', '=', '\\'];
    let mut out = String::with_capacity(text.len());
    let mut bearer = false;
    for word in without_pem(text).split_inclusive(ends) {
        let bare = word.trim_end_matches(ends);
        if bare.is_empty() {
            out.push_str(word);
            continue;
        }
        match bearer.then_some(0).or_else(|| secret(bare)) {
            Some(at) => {
                out.push_str(&word[..at]);
                out.push_str("[token]");
                out.push_str(&word[bare.len()..]);
            }
            None => out.push_str(word),
        }
        bearer = word.eq_ignore_ascii_case("bearer ");
    }
    out
}

/// Where a JSON object or a PEM block begins in Base64.
fn secret(word: &str) -> Option<usize> {
    let begins = ["eyJ", "LS0tLS1CRUdJTi"].into_iter();
    let found = begins.flat_map(|begin| word.match_indices(begin));
    let is_whole = |at: &usize| !word[..*at].ends_with(|c: char| c.is_ascii_alphanumeric());
    found.map(|(at, _)| at).filter(is_whole).min()
}

/// Replaces keys and certificates. A block without an end, as in a log that was cut, reaches to the end of the
/// text.
fn without_pem(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, block)) = rest.split_once("-----BEGIN ") {
        out.push_str(before);
        out.push_str("[PEM]");
        let end = block.split_once("-----END ");
        rest = end
            .and_then(|(_, end)| end.split_once("-----"))
            .map_or("", |(_, rest)| rest);
    }
    out + rest
}

#[cfg(test)]
mod tests;
