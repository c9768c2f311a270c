//! The shipped objects, rendered as users render them: the chart by helm, the folders by kubectl's
//! kustomize. Tests compare and inspect the resulting values.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::built;
use crate::built::versions::{HELM_4, KUBERNETES};
use crate::cluster::documents;
use crate::real_node;
use crate::skip::{self, Needed};

/// The four profiles, named like the chart's value and the overlays.
pub const PROFILES: [&str; 4] = ["beside-kube-proxy", "cilium", "rke1", "standalone"];

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// A program that renders or checks the shipped objects.
#[derive(Clone, Copy, Debug)]
pub enum Tool {
    Helm,
    /// Helm 4. [`Chart`] renders with [`Tool::Helm`].
    Helm4,
    Kubectl,
    Prometheus,
    Promtool,
}

impl Tool {
    /// Its file, as built by `cargo xtask setup-cluster --all`.
    pub fn find(self) -> Result<PathBuf> {
        if matches!(self, Self::Helm4) {
            let folder = built::folder(HELM_4.folder, HELM_4.version);
            let found = built::program(&folder, "helm");
            return found.context("helm 4 (run `cargo xtask setup-cluster --all`)");
        }
        real_node::find(&format!("{self:?}").to_lowercase())
    }

    pub fn installed(self) -> Needed {
        skip::needed(self.find().map(drop))
    }

    pub fn command(self) -> Result<Command> {
        self.find().map(Command::new)
    }
}

/// Registry of the image if a test does not set one. Without a registry the chart refuses its default image.
pub const REGISTRY: &str = "registry.example.com";

#[derive(Clone, Debug)]
pub struct Chart {
    release: &'static str,
    values: Value,
    /// Options of helm; if an option is repeated, the last one counts.
    options: Vec<&'static str>,
}

impl Default for Chart {
    fn default() -> Self {
        Self::with(Value::Null)
    }
}

impl Chart {
    /// A chart with these values over its defaults, in the release `pathproof`.
    pub fn with(values: Value) -> Self {
        Self {
            release: "pathproof",
            values,
            options: Vec::new(),
        }
    }

    pub fn release(self, release: &'static str) -> Self {
        Self { release, ..self }
    }

    pub fn option(mut self, name: &'static str, value: &'static str) -> Self {
        self.options.extend([name, value]);
        self
    }

    /// Renders for this release of Kubernetes.
    pub fn kubernetes(self, kubernetes: &'static str) -> Self {
        self.option("--kube-version", kubernetes)
    }

    /// The rendered objects.
    ///
    /// # Errors
    /// helm's message if it refuses the values.
    pub fn render(&self) -> Result<Vec<Value>> {
        documents(&self.run(&folder().join("chart"), &["template", self.release])?)
    }

    /// helm's findings in the chart.
    ///
    /// # Errors
    /// helm's message if there are any.
    pub fn lint(&self) -> Result<String> {
        self.run(&folder().join("chart"), &["lint", "--strict"])
    }

    /// The text that helm prints after an installation. Without a cluster helm renders only objects, so the text
    /// becomes a field of one, in a copy of the chart.
    ///
    /// # Errors
    /// helm's message if it refuses the values.
    pub fn notes(&self) -> Result<String> {
        let dir = tempfile::tempdir()?;
        let chart = dir.path().join("chart");
        said(
            Command::new("cp")
                .arg("-r")
                .arg(folder().join("chart"))
                .arg(&chart),
        )?;
        fs::rename(chart.join("templates/NOTES.txt"), chart.join("files/notes"))?;
        let object = r#"{{ dict "notes" (tpl (.Files.Get "files/notes") .) | toJson }}"#;
        fs::write(chart.join("templates/notes.yaml"), object)?;
        let only = ["--show-only", "templates/notes.yaml"];
        let text = self.run(&chart, &[&["template", self.release], &only[..]].concat())?;
        let notes = documents(&text)?[0]["notes"].as_str().map(str::to_owned);
        notes.context("no notes")
    }

    fn run(&self, chart: &Path, words: &[&str]) -> Result<String> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("values.json");
        let mut values = self.values.clone();
        if values["image"].is_null() && values["global"]["imageRegistry"].is_null() {
            values["image"] = json!({ "registry": REGISTRY });
        }
        fs::write(&file, values.to_string())?;
        let mut command = Tool::Helm.command()?;
        command
            .args(words)
            .arg(chart)
            .args(["--namespace", "pathproof", "--kube-version", KUBERNETES])
            .arg("--values")
            .arg(file)
            .args(&self.options)
            // Do not use the plugins, repositories and cluster that the user may have.
            .env_clear()
            .env("HOME", dir.path());
        said(&mut command)
    }
}

/// Objects of an overlay with components, combined as in a user's kustomization.
///
/// # Errors
/// kustomize's message.
pub fn overlay(profile: &str, components: &[&str]) -> Result<Vec<Value>> {
    let dir = overlay_folder(profile, components)?;
    let mut command = Tool::Kubectl.command()?;
    documents(&said(command.arg("kustomize").arg(dir.path()))?)
}

/// Writes a kustomization of an overlay with components into a new folder.
///
/// # Errors
/// The folder cannot be written.
pub fn overlay_folder(profile: &str, components: &[&str]) -> Result<TempDir> {
    // Resources outside of a kustomization's folder need relative paths.
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let dir = tempfile::tempdir_in(target)?;
    let component = |name: &&str| format!("../../deploy/components/{name}");
    let components: Vec<String> = components.iter().map(component).collect();
    let text = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [format!("../../deploy/overlays/{profile}")],
        "components": components,
    });
    fs::write(dir.path().join("kustomization.yaml"), text.to_string())?;
    Ok(dir)
}

/// Standard output of a command that succeeds.
///
/// # Errors
/// The command, its status and its output if it fails.
pub fn said(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let words = String::from_utf8_lossy(&output.stdout);
        bail!("{command:?}: {}: {errors}{words}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Kind, namespace and name of an object, which identify it.
pub fn identity(object: &Value) -> String {
    let paths = ["/kind", "/metadata/namespace", "/metadata/name"];
    let text = |path| object.pointer(path).and_then(Value::as_str);
    let [kind, namespace, name] = paths.map(|path| text(path).unwrap_or_default());
    format!("{kind} {namespace}/{name}")
}
