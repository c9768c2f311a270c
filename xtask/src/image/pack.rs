//! One program packed as an image of one layer, and its SBOM as an artifact that refers to it.
//!
//! Pure: the same facts and the same program give the same bytes.

use std::io::Write as _;

use anyhow::Result;
use flate2::{Compression, GzBuilder};
use jiff::Timestamp;
use oci_spec::image::{
    ConfigBuilder, Descriptor, HistoryBuilder, ImageConfigurationBuilder, ImageManifestBuilder,
    MediaType, Os, PlatformBuilder, RootFsBuilder,
};

use super::blobs::{Blobs, sha256};
use super::facts::Facts;
use super::program::Arch;

/// The one file of the image, and its entry point.
pub(crate) const PROGRAM: &str = "/pathproof";
/// So that `kubectl exec POD -- pathproof status` finds the program: there is no other.
pub(crate) const ENVIRONMENT: &str = "PATH=/";
/// What an SBOM is: CycloneDX as JSON (its registered media type).
const SBOM: &str = "application/vnd.cyclonedx+json";

/// What names an image of one architecture.
#[derive(Debug, Clone)]
pub(super) struct Image {
    /// Its manifest, with the platform.
    pub(super) manifest: Descriptor,
    /// Its configuration, for docker's manifest.
    pub(super) config: Descriptor,
    /// Its only layer.
    pub(super) layer: Descriptor,
}

/// Packs the program for an architecture.
pub(super) fn image(blobs: &mut Blobs, facts: &Facts, arch: Arch, program: &[u8]) -> Result<Image> {
    let tar = layer(program, facts.created)?;
    let diff = format!("sha256:{}", sha256(&tar));
    let layer = blobs.add(MediaType::ImageLayerGzip, gzip(&tar)?)?;
    let config = ImageConfigurationBuilder::default()
        .created(facts.created.to_string())
        .architecture(arch.oci())
        .os(Os::Linux)
        .config(
            ConfigBuilder::default()
                .entrypoint(vec![PROGRAM.to_owned()])
                .env(vec![ENVIRONMENT.to_owned()])
                .working_dir("/")
                .labels(facts.labels())
                .build()?,
        )
        .rootfs(RootFsBuilder::default().diff_ids(vec![diff]).build()?)
        .history(vec![
            HistoryBuilder::default()
                .created(facts.created.to_string())
                .created_by(format!("cargo xtask image: COPY pathproof {PROGRAM}"))
                .build()?,
        ])
        .build()?;
    let config = blobs.add_json(MediaType::ImageConfig, &config)?;
    let manifest = ImageManifestBuilder::default()
        .schema_version(2_u32)
        .media_type(MediaType::ImageManifest)
        .config(config.clone())
        .layers(vec![layer.clone()])
        .annotations(facts.labels())
        .build()?;
    let mut manifest = blobs.add_json(MediaType::ImageManifest, &manifest)?;
    let platform = PlatformBuilder::default()
        .architecture(arch.oci())
        .os(Os::Linux)
        .build()?;
    manifest.set_platform(Some(platform));
    Ok(Image {
        manifest,
        config,
        layer,
    })
}

/// Packs an SBOM as an artifact whose subject is the image (image-spec 1.1: registries list it
/// among the image's referrers).
pub(super) fn sbom(
    blobs: &mut Blobs,
    facts: &Facts,
    image: &Descriptor,
    document: Vec<u8>,
) -> Result<Descriptor> {
    let kind = MediaType::from(SBOM);
    let config = blobs.add(MediaType::EmptyJSON, b"{}".to_vec())?;
    let document = blobs.add(kind.clone(), document)?;
    let mut subject = image.clone();
    subject.set_platform(None);
    let manifest = ImageManifestBuilder::default()
        .schema_version(2_u32)
        .media_type(MediaType::ImageManifest)
        .artifact_type(kind.clone())
        .config(config)
        .layers(vec![document])
        .subject(subject)
        .annotations([(
            oci_spec::image::ANNOTATION_CREATED.to_owned(),
            facts.created.to_string(),
        )])
        .build()?;
    let mut manifest = blobs.add_json(MediaType::ImageManifest, &manifest)?;
    manifest.set_artifact_type(Some(kind));
    Ok(manifest)
}

/// A tar file with the program alone: root's, executable, of the commit's time.
fn layer(program: &[u8], created: Timestamp) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = header(program.len(), 0o755, created);
    tar.append_data(&mut header, PROGRAM.trim_start_matches('/'), program)?;
    Ok(tar.into_inner()?)
}

/// A tar header for a file of root's.
pub(super) fn header(size: usize, mode: u32, created: Timestamp) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(size as u64);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(created.as_second().try_into().unwrap_or(0));
    header
}

/// Compressed with a header that names neither time nor machine (255: unknown, RFC 1952).
fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let header = GzBuilder::new().mtime(0).operating_system(255);
    let mut gzip = header.write(Vec::new(), Compression::best());
    gzip.write_all(bytes)?;
    Ok(gzip.finish()?)
}

#[cfg(test)]
mod tests {
    use super::super::facts::example;
    use super::*;

    #[test]
    fn the_layer_is_one_executable_of_roots_with_the_commits_time() {
        let bytes = layer(b"program", example().created).unwrap();
        let mut tar = tar::Archive::new(bytes.as_slice());
        let seen: Vec<_> = tar
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                let path = entry.path().unwrap().display().to_string();
                let owner = (header.uid().unwrap(), header.gid().unwrap());
                (path, header.mode().unwrap(), owner, header.mtime().unwrap())
            })
            .collect();
        assert_eq!(
            seen,
            [("pathproof".to_owned(), 0o755, (0, 0), 1_700_000_000)]
        );
    }

    #[test]
    fn the_same_program_gives_the_same_bytes() {
        let pack = |program: &[u8]| {
            let mut blobs = Blobs::default();
            let image = image(&mut blobs, &example(), Arch::Arm64, program).unwrap();
            sbom(&mut blobs, &example(), &image.manifest, b"{}".to_vec()).unwrap();
            blobs.into_files()
        };
        let first = pack(b"program");
        // Layer, configuration, manifest; and of the SBOM its manifest, which shares `{}` here.
        assert_eq!(first.len(), 5);
        assert_eq!(pack(b"program"), first);
        assert_ne!(pack(b"another"), first);
    }

    #[test]
    fn an_sbom_refers_to_its_image() {
        let mut blobs = Blobs::default();
        let image = image(&mut blobs, &example(), Arch::Amd64, b"program").unwrap();
        let sbom = sbom(&mut blobs, &example(), &image.manifest, b"[]".to_vec()).unwrap();
        let files = blobs.into_files();
        let manifest = &files[&super::super::blobs::path(&sbom)];
        let manifest: serde_json::Value = serde_json::from_slice(manifest).unwrap();
        let digest = image.manifest.digest().to_string();
        assert_eq!(manifest["subject"]["digest"], digest);
        assert_eq!(manifest["artifactType"], SBOM);
        assert_eq!(manifest["layers"][0]["mediaType"], SBOM);
    }
}
