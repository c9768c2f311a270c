use super::super::blobs::Blobs;
use super::super::facts::example;
use super::super::{layout as writing, pack};
use super::*;

/// A sound layout for loading, and the path of its manifest.
fn sound() -> (Files, String) {
    let mut blobs = Blobs::default();
    let image = pack::image(&mut blobs, &example(), Arch::Amd64, b"program").unwrap();
    let files = writing::loadable(blobs, &example(), &image).unwrap();
    (files, blobs::path(&image.manifest))
}

fn refusal(files: &Files) -> String {
    layout(files, &example()).unwrap_err().to_string()
}

#[test]
fn a_sound_image_gives_its_program() {
    let (files, _) = sound();
    let programs = layout(&files, &example()).unwrap();
    assert_eq!(programs, [(Arch::Amd64, b"program".to_vec())]);
}

#[test]
fn a_changed_blob_a_missing_one_and_one_too_many_are_found() {
    for (path, bytes) in sound().0 {
        if path.starts_with(FOLDER) {
            let (mut files, _) = sound();
            files.get_mut(&path).unwrap()[0] ^= 1;
            assert_eq!(refusal(&files), format!("{path} is not what its name says"));
            let (mut files, _) = sound();
            files.remove(&path);
            assert_eq!(refusal(&files), format!("there is no {path}"));
            assert!(!bytes.is_empty());
        }
    }
    let (mut files, _) = sound();
    let path = format!("{FOLDER}/{}", sha256(b"x"));
    files.insert(path.clone(), b"x".to_vec());
    assert_eq!(refusal(&files), format!("nothing names {path}"));
}

#[test]
fn facts_of_another_build_are_found() {
    let (files, _) = sound();
    let mut facts = example();
    facts.revision = Some("another".to_owned());
    let error = layout(&files, &facts).unwrap_err().to_string();
    assert_eq!(error, "its labels are not those of this build");
}

/// The smallest ELF header that [`is_static`] reads, with these program headers' types.
fn elf(kind: u16, machine: u16, segments: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
    bytes.resize(16, 0);
    bytes.extend(kind.to_le_bytes());
    bytes.extend(machine.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(64_u64.to_le_bytes());
    bytes.extend([0; 12]);
    for number in [64, 56, segments.len() as u16, 64, 0, 0] {
        bytes.extend(number.to_le_bytes());
    }
    for segment in segments {
        bytes.extend(segment.to_le_bytes());
        bytes.extend([0; 52]);
    }
    bytes
}

#[test]
fn a_program_that_wants_a_loader_or_is_for_another_machine_is_found() {
    let sound = elf(ET_DYN, EM_X86_64, &[1, PT_DYNAMIC]);
    is_static(Arch::Amd64, &sound).unwrap();
    for (program, says) in [
        (elf(ET_DYN, EM_X86_64, &[PT_INTERP]), "wants a loader"),
        (elf(2, EM_X86_64, &[1]), "not position-independent"),
        (elf(ET_DYN, EM_AARCH64, &[1]), "not for amd64"),
        (b"#!/bin/sh".to_vec(), "no ELF file"),
    ] {
        let error = is_static(Arch::Amd64, &program).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn the_tasks_own_program_is_not_static() {
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    assert!(is_static(Arch::here().unwrap(), &own).is_err());
}

#[test]
fn the_limit_is_met_and_not_more() {
    is_small(&vec![0; LIMIT]).unwrap();
    assert!(is_small(&vec![0; LIMIT + 1]).is_err());
}

#[test]
fn a_path_of_the_machine_is_found() {
    names_no_path(b"at /registry/src", &["/home/a"]).unwrap();
    assert!(names_no_path(b"at /home/a/src", &["/home/a"]).is_err());
}
