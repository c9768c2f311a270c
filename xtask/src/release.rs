//! `cargo xtask release`: writes every file of a release below target/release-files. The workflow
//! publishes them (docs/internal/releasing.md).

pub(crate) mod dry_run;
pub(crate) mod plugin;

use std::fs::{self, DirEntry};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::image::{self, Arch, VERSION};
use crate::{run, setup_cluster};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Tag of the release: v and the version in Cargo.toml [default: none; the notes are those of
    /// unreleased changes]
    #[arg(long)]
    tag: Option<String>,
    /// GitHub repository that publishes the release, as Cargo.toml names it; its image is
    /// ghcr.io/OWNER/NAME
    #[arg(long, value_name = "OWNER/NAME", default_value = repository())]
    repository: String,
    /// Only push image and chart of this machine's architecture to a registry that runs meanwhile
    #[arg(long, conflicts_with = "tag")]
    dry_run: bool,
    /// Address at which that registry listens
    #[arg(long, value_name = "HOST:PORT", default_value = dry_run::ADDRESS, requires = "dry_run")]
    registry: String,
}

/// OWNER/NAME of the repository's address in Cargo.toml.
fn repository() -> &'static str {
    let address = env!("CARGO_PKG_REPOSITORY");
    address
        .strip_prefix("https://github.com/")
        .unwrap_or(address)
}

/// Writes the files of a release. The folder `files` is attached to the release on GitHub, and BuildKit
/// builds from the folder `image` (its file `created` has the image's time). notes.md is the release's
/// text.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.dry_run {
        let folder = dry_run::push(&args.registry)?;
        println!("ready: {}", folder.display());
        return Ok(());
    }
    let root = run::root();
    // The chart, the alerts and SECURITY.md name it too.
    ensure!(
        args.repository == repository(),
        "Cargo.toml names the repository {}, not {}: change `repository` there, and then each line that \
         `cargo xtask tidy` lists",
        repository(),
        args.repository
    );
    // Relative links do not work on the page of a release.
    let github = format!("https://github.com/{}", args.repository);
    let documents = format!("]({github}/blob/v{VERSION}/docs/");
    let notes = notes(args.tag.as_deref())?.replace("](docs/", &documents);
    let folder = root.join("target/release-files");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    let (files, context) = (folder.join("files"), folder.join("image"));
    for made in [&files, &context] {
        fs::create_dir_all(made).with_context(|| format!("make {}", made.display()))?;
    }
    fs::write(folder.join("notes.md"), notes)?;
    fs::write(context.join("created"), image::created())?;
    copy(&root.join("deploy/image/Dockerfile"), &context)?;
    for arch in [Arch::Amd64, Arch::Arm64] {
        let (program, sboms) = image::parts(arch)?;
        copy(&program, &context)?;
        let system = format!("linux-{}", arch.name());
        archive(&program, "pathproof", &image::licences(), &system, &files)?;
        for sbom in &sboms {
            copy(sbom, &files)?;
            attested(sbom, &context)?;
        }
    }
    plugin::write(&files)?;
    copy_all(&image::licences(), &context.join("licenses"))?;
    chart(&published(&args.repository), &files)?;
    let manifest = fs::read_to_string(root.join("deploy/krew/pathproof.yaml"))?;
    let manifest = krew(&manifest, &args.repository, &sums(&files)?)?;
    fs::write(files.join("pathproof.yaml"), manifest)?;
    let sums = sums(&files)?;
    fs::write(files.join("SHA256SUMS"), &sums)?;
    println!("{sums}\nready: {}", folder.display());
    Ok(())
}

fn copy(file: &Path, folder: &Path) -> Result<()> {
    let name = file.file_name().context("a path without a name")?;
    fs::copy(file, folder.join(name)).with_context(|| format!("copy {}", file.display()))?;
    Ok(())
}

/// Copies an SBOM to where the workflow attests it: amd64.cdx.json for pathproof-VERSION-linux-amd64.cdx.json.
fn attested(sbom: &Path, folder: &Path) -> Result<()> {
    let name = sbom.file_name().and_then(|name| name.to_str());
    let name = name.and_then(|name| name.strip_prefix(&format!("pathproof-{VERSION}-")));
    let name = name.context("an SBOM with another name")?;
    let to = folder.join(name.strip_prefix("linux-").unwrap_or(name));
    fs::copy(sbom, &to).with_context(|| format!("copy {}", sbom.display()))?;
    Ok(())
}

fn copy_all(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    let mut entries = fs::read_dir(from).with_context(|| format!("list {}", from.display()))?;
    entries.try_for_each(|entry| copy(&entry?.path(), to))
}

/// The changelog's section of the release; without a tag, the unreleased one.
fn notes(tag: Option<&str>) -> Result<String> {
    let changelog = fs::read_to_string(run::root().join("CHANGELOG.md"))?;
    match tag {
        Some(tag) if tag.strip_prefix('v') == Some(VERSION) => section(&changelog, VERSION),
        Some(tag) => bail!("the tag {tag} is not v{VERSION}, after the version in Cargo.toml"),
        None => section(&changelog, "Unreleased").or_else(|_| section(&changelog, VERSION)),
    }
}

/// The text below a heading of the changelog, without the heading.
fn section(changelog: &str, name: &str) -> Result<String> {
    // "## 0.2.0 - 2026-01-31" or "## [0.2.0]": the name is the first word.
    let is_it = |section: &&str| {
        let mut words = section.split(['[', ']', ' ', '\n']);
        words.find(|word| !word.is_empty()) == Some(name)
    };
    let section = changelog.split("\n## ").skip(1).find(is_it);
    let text = section.and_then(|section| section.split_once('\n'));
    let text = text.map_or("", |(_, text)| text.trim());
    ensure!(
        text.lines().any(|line| line.starts_with("- ")),
        "CHANGELOG.md has no entry below `## {name}`: add the version and date to the section of \
         the release"
    );
    Ok(text.to_owned() + "\n")
}

/// Packs a program under this name with the licences, with the same bytes each time.
fn archive(program: &Path, name: &str, licences: &Path, system: &str, files: &Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    copy_all(licences, &folder.path().join("licenses"))?;
    fs::copy(program, folder.path().join(name))?;
    let mut tar = Command::new("tar");
    tar.args("--create --sort=name --format=ustar --numeric-owner --owner=0 --group=0".split(' '))
        .arg("--mode=u+w,a+rX,go-w")
        .arg(format!("--mtime=@{}", image::created()))
        .args(["--use-compress-program", "gzip -9 --no-name", "--file"])
        .arg(files.join(format!("pathproof-{VERSION}-{system}.tar.gz")))
        .arg("--directory")
        .arg(folder.path())
        .args(["licenses", name]);
    run::run_quietly(&mut tar)
}

/// Packs the chart, which installs the image of this release by default.
fn chart(image: &str, files: &Path) -> Result<()> {
    let sources = tempfile::tempdir()?;
    image::copy_sources(sources.path())?;
    let chart = sources.path().join("deploy/chart");
    for (name, from, to) in images(image) {
        let file = chart.join(name);
        let text = once(&fs::read_to_string(&file)?, &from, &to);
        fs::write(&file, text.with_context(|| format!("deploy/chart/{name}"))?)?;
    }
    let mut package = Command::new(setup_cluster::chart_tools()?);
    package.arg("package").arg(chart).arg("--destination");
    run::run(package.arg(files))
}

/// The image of a repository, without a tag.
fn published(repository: &str) -> String {
    format!("ghcr.io/{}", repository.to_lowercase())
}

/// Files of the chart, their text about the image, and its replacement in a release.
fn images(image: &str) -> [(&'static str, String, String); 2] {
    let value = |name: &str| format!("\n  repository: {name}\n");
    let annotation = |name: &str| format!("      image: {name}:{VERSION}\n");
    [
        ("values.yaml", value("pathproof"), value(image)),
        ("Chart.yaml", annotation("pathproof"), annotation(image)),
    ]
}

/// Replaces a text that must occur exactly once.
fn once(text: &str, from: &str, to: &str) -> Result<String> {
    let found = text.matches(from).count();
    ensure!(
        found == 1,
        "{from:?} is there {found} times, not once; a release has {to:?} there"
    );
    Ok(text.replace(from, to))
}

/// The manifest for krew, with the hashes of the archives.
fn krew(template: &str, repository: &str, sums: &str) -> Result<String> {
    let mut text = template
        .replace("<VERSION>", VERSION)
        .replace("<REPOSITORY>", repository);
    for (sum, file) in sums.lines().filter_map(|line| line.split_once("  ")) {
        let platform = file.strip_prefix(&format!("pathproof-{VERSION}-"));
        if let Some(platform) = platform.and_then(|rest| rest.strip_suffix(".tar.gz")) {
            text = text.replace(&format!("<SHA256 {platform}>"), sum);
        }
    }
    ensure!(
        !text.contains('<'),
        "deploy/krew/pathproof.yaml names a file that the release does not have:\n{text}"
    );
    Ok(text)
}

/// Output of `sha256sum` for the files of a folder.
fn sums(files: &Path) -> Result<String> {
    let entries = fs::read_dir(files)?.collect::<Result<Vec<_>, _>>()?;
    let mut names: Vec<_> = entries.iter().map(DirEntry::file_name).collect();
    names.sort();
    let mut command = Command::new("sha256sum");
    let sums = run::output(command.current_dir(files).args(names))?;
    Ok(String::from_utf8(sums)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_one_section_of_the_changelog() {
        let log = "# Changelog\n\n## Unreleased\n\n## 1.10.0 - 2026-01-02\n### Added\n- a\n\n## [1.1.0]\n- b\n";
        assert_eq!(section(log, "1.10.0").unwrap(), "### Added\n- a\n");
        assert_eq!(section(log, "1.1.0").unwrap(), "- b\n");
        for missing in ["Unreleased", "1.1", "2.0.0"] {
            assert!(section(log, missing).is_err(), "{missing}");
        }
    }

    #[test]
    fn a_tag_is_the_version() {
        notes(None).unwrap();
        for tag in [VERSION, "v99.0.0"] {
            let error = notes(Some(tag)).unwrap_err().to_string();
            assert!(error.contains(&format!("is not v{VERSION}")), "{error}");
        }
    }

    /// Archives of a program, each built twice, and the files made from them.
    #[test]
    fn files_of_a_release_fit_together() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for folder in &folders {
            let program = folder.path().join("program");
            fs::write(&program, "#!/bin/sh\n").unwrap();
            let files = folder.path().join("files");
            fs::create_dir(&files).unwrap();
            let licences = folder.path().join("licenses");
            fs::create_dir(&licences).unwrap();
            fs::write(licences.join("NOTICE"), "theirs\n").unwrap();
            let systems = plugin::SYSTEMS.map(|system| (system.name, system.program));
            let linux = ["linux-amd64", "linux-arm64"].map(|name| (name, "pathproof"));
            for (system, name) in linux.into_iter().chain(systems) {
                archive(&program, name, &licences, system, &files).unwrap();
            }
        }
        let [first, second] = folders
            .each_ref()
            .map(|f| sums(&f.path().join("files")).unwrap());
        assert_eq!(first, second);

        let template = fs::read_to_string(run::root().join("deploy/krew/pathproof.yaml")).unwrap();
        let manifest = krew(&template, "me/mine", &first).unwrap();
        let (hash, _) = first.split_once(' ').unwrap();
        assert!(
            manifest.contains(&format!("sha256: {hash}\n")),
            "{manifest}"
        );
        let (one_only, _) = first.split_once('\n').unwrap();
        assert!(krew(&template, "me/mine", one_only).is_err());
    }

    #[test]
    fn the_workflow_attests_the_sboms_that_a_release_has() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["linux-amd64", "linux-arm64", "ebpf"] {
            let sbom = format!("pathproof-{VERSION}-{name}.cdx.json");
            let sbom = folder.path().join(sbom);
            fs::write(&sbom, "{}").unwrap();
            attested(&sbom, folder.path()).unwrap();
        }
        let file = run::root().join(".github/workflows/release.yml");
        let text = fs::read_to_string(file).unwrap();
        let paths = text.split("predicate-path: image/").skip(1);
        let names: Vec<&str> = paths.filter_map(|rest| rest.lines().next()).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        for name in names {
            assert!(folder.path().join(name).is_file(), "{name}");
        }
    }

    #[test]
    fn the_chart_says_in_two_places_which_image() {
        for (name, from, to) in images(&published("Me/Mine")) {
            let text = fs::read_to_string(run::root().join("deploy/chart").join(name)).unwrap();
            let said = once(&text, &from, &to).unwrap();
            assert!(said.contains("ghcr.io/me/mine"), "{said}");
            assert!(once(&said, &from, &to).is_err());
        }
        assert!(once("a a", "a", "c").is_err());
    }
}
