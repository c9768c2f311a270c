//! Reads files that other programs write, up to a size limit.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

pub(crate) fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    bounded(&File::open(path)?, limit)
}

/// Reads the whole text of a regular file. Links are followed; pipes and devices are refused without blocking.
///
/// # Errors
/// The path cannot be read, is another kind of file, has more than `limit` bytes, or is not UTF-8.
pub(crate) fn read_regular(path: &Path, limit: u64) -> io::Result<String> {
    let regular = |metadata: Metadata| match metadata.is_file() {
        true => Ok(metadata),
        false => {
            let error = "it is not a regular file: replace it by one";
            Err(io::Error::new(io::ErrorKind::InvalidInput, error))
        }
    };
    // Opening a device may have side effects, so check first. The file may be replaced before it is opened,
    // so check again.
    regular(fs::metadata(path)?)?;
    let mut options = File::options();
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let size = regular(file.metadata()?)?.len();
    if size > limit {
        return Err(too_large(size, limit));
    }
    String::from_utf8(bounded(&file, limit)?).map_err(io::Error::other)
}

fn bounded(mut file: &File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // Read one byte beyond the limit to detect a larger file: a file may grow, and some report no size.
    file.by_ref().take(limit + 1).read_to_end(&mut bytes)?;
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
    use std::os::unix::fs::symlink;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

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
        assert_eq!(read_regular(&path, MIB).unwrap().len() as u64, MIB);
        fs::write(&path, vec![b'a'; MIB as usize + 1]).unwrap();
        let said = read(&path, MIB).unwrap_err().to_string();
        assert!(said.contains("the limit of 1 MiB"), "{said}");
        let said = read_regular(&path, MIB).unwrap_err().to_string();
        assert!(said.contains("2 MiB or more"), "{said}");
    }

    /// Opening a pipe blocks until another process opens it for writing.
    #[test]
    fn pipes_and_devices_are_refused_at_once_and_links_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name ends with NUL and outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let link = dir.path().join("link");
        symlink("/dev/zero", &link).unwrap();
        for path in [pipe, link] {
            let (sender, refused) = mpsc::channel();
            thread::spawn(move || sender.send(read_regular(&path, MIB).map(drop)));
            let refused = refused.recv_timeout(Duration::from_secs(10));
            let error = refused.expect("at once").unwrap_err();
            assert_eq!(
                error.to_string(),
                "it is not a regular file: replace it by one"
            );
        }
        fs::write(dir.path().join("file"), "text").unwrap();
        let link = dir.path().join("another");
        symlink("file", &link).unwrap();
        assert_eq!(read_regular(&link, MIB).unwrap(), "text");
    }
}
