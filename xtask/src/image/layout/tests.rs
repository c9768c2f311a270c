use super::super::facts::example;
use super::super::program::Arch;
use super::*;
use serde_json::Value;

/// Images of these architectures, each with an SBOM.
fn packed(arches: &[Arch]) -> (Blobs, Vec<Image>, Vec<Descriptor>) {
    let (mut blobs, mut images, mut sboms) = (Blobs::default(), Vec::new(), Vec::new());
    for arch in arches {
        let program = format!("program for {}", arch.name());
        let image = pack::image(&mut blobs, &example(), *arch, program.as_bytes()).unwrap();
        let document = format!("[{:?}]", arch.name()).into_bytes();
        sboms.push(pack::sbom(&mut blobs, &example(), &image.manifest, document).unwrap());
        images.push(image);
    }
    (blobs, images, sboms)
}

fn document(files: &Files, path: &str) -> Value {
    serde_json::from_slice(&files[path]).unwrap()
}

#[test]
fn one_image_needs_no_index_of_its_own() {
    let (blobs, images, sboms) = packed(&[Arch::Amd64]);
    let (files, target) = folder(blobs, &example(), &images, sboms).unwrap();
    assert_eq!(target.digest(), images[0].manifest.digest());
    let index = document(&files, INDEX);
    let [image, sbom] = index["manifests"].as_array().unwrap().as_slice() else {
        panic!("an image and its SBOM: {index}");
    };
    assert_eq!(image["platform"]["architecture"], "amd64");
    assert_eq!(image["annotations"][ANNOTATION_REF_NAME], "1.2.3");
    assert_eq!(sbom["artifactType"], "application/vnd.cyclonedx+json");
    assert_eq!(sbom["annotations"], Value::Null);
    assert_eq!(document(&files, MARKER)["imageLayoutVersion"], "1.0.0");
}

#[test]
fn the_name_stands_for_both_architectures_where_both_were_built() {
    let (blobs, images, sboms) = packed(&[Arch::Amd64, Arch::Arm64]);
    let (files, target) = folder(blobs, &example(), &images, sboms).unwrap();
    let index = document(&files, INDEX);
    assert_eq!(index["manifests"].as_array().unwrap().len(), 3);
    let digest = target.digest().to_string();
    assert_eq!(index["manifests"][0]["digest"], digest);
    let both = document(&files, &blobs::path(&target));
    let platforms: Vec<&Value> = (0..2)
        .map(|n| &both["manifests"][n]["platform"]["architecture"])
        .collect();
    assert_eq!(platforms, ["amd64", "arm64"]);
}

#[test]
fn docker_and_containerd_read_the_same_blobs_under_the_same_name() {
    let (blobs, images, _) = packed(&[Arch::Amd64]);
    let files = loadable(blobs, &example(), &images[0]).unwrap();
    let docker = &document(&files, DOCKER)[0];
    let index = document(&files, INDEX);
    let manifest = document(&files, &blobs::path(&images[0].manifest));
    let path = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap();
        format!("blobs/{}", digest.replace(':', "/"))
    };
    assert_eq!(docker["Config"], path(&manifest["config"]));
    assert_eq!(docker["Layers"][0], path(&manifest["layers"][0]));
    assert!(files.contains_key(docker["Config"].as_str().unwrap()));
    assert_eq!(docker["RepoTags"][0], "pathproof:1.2.3");
    let name = &index["manifests"][0]["annotations"][CONTAINERD_NAME];
    assert_eq!(*name, "docker.io/library/pathproof:1.2.3");
}

#[test]
fn a_tar_file_has_fixed_modes_owners_and_times_and_the_same_bytes_twice() {
    let (blobs, images, _) = packed(&[Arch::Amd64]);
    let files = loadable(blobs, &example(), &images[0]).unwrap();
    let bytes = tar(&files, example().created).unwrap();
    assert_eq!(tar(&files, example().created).unwrap(), bytes);
    for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header();
        let wanted = match header.entry_type() {
            tar::EntryType::Directory => 0o755,
            _ => 0o644,
        };
        assert_eq!(header.mode().unwrap(), wanted);
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
        assert_eq!(header.mtime().unwrap(), 1_700_000_000);
    }
    assert_eq!(untar(&bytes).unwrap(), files);
}

#[test]
fn a_folder_holds_what_was_written_last_and_nothing_older() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("oci");
    let (blobs, images, _) = packed(&[Arch::Amd64]);
    let old = loadable(blobs, &example(), &images[0]).unwrap();
    write_folder(&old, &to).unwrap();
    let (blobs, images, _) = packed(&[Arch::Arm64]);
    let new = loadable(blobs, &example(), &images[0]).unwrap();
    write_folder(&new, &to).unwrap();
    assert_eq!(read_folder(&to).unwrap(), new);
}
