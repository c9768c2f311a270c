//! Reads files that other programs write, up to a size limit.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Reads a file of at most `limit` bytes.
///
/// # Errors
/// The file cannot be read, or is larger.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    if size > limit {
        return Err(too_large(size, limit));
    }
    let mut bytes = Vec::new();
    // Read one byte beyond the limit to detect a larger file: a file may grow, and some report no size.
    file.take(limit + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(too_large(bytes.len() as u64, limit)),
        false => Ok(bytes),
    }
}

fn too_large(size: u64, limit: u64) -> io::Error {
    let (size, limit) = (size.div_ceil(1 << 20), limit >> 20);
    let error = format!("it is larger than the limit of {limit} MiB ({size} MiB or more)");
    io::Error::new(io::ErrorKind::FileTooLarge, error)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_limit_applies_to_files_without_a_size() {
        let zeros = read(Path::new("/dev/zero"), MIB).unwrap_err();
        assert_eq!(zeros.kind(), io::ErrorKind::FileTooLarge);
        assert!(read(Path::new("/proc/self/status"), MIB).unwrap().len() > 100);
    }

    #[test]
    fn a_file_of_the_limit_is_read_and_one_more_byte_is_too_much() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, vec![b'a'; MIB as usize]).unwrap();
        assert_eq!(read(&path, MIB).unwrap().len() as u64, MIB);
        fs::write(&path, vec![b'a'; MIB as usize + 1]).unwrap();
        let said = read(&path, MIB).unwrap_err().to_string();
        assert!(said.contains("the limit of 1 MiB"), "{said}");
        assert!(said.contains("2 MiB or more"), "{said}");
    }
}
