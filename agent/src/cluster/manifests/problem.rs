//! What is wrong with a folder, in words for a person.

use std::fmt;
use std::path::PathBuf;

use crate::cluster::convert::Invalid;
use crate::cluster::yaml::Place;

/// Something in a folder that could not be taken as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// File, or the folder itself.
    pub path: PathBuf,
    /// Where in the file; `None` where the whole file is meant.
    pub place: Option<Place>,
    /// What is wrong.
    pub reason: Reason,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match self.place {
            Some(Place {
                line, column: 0, ..
            }) => write!(f, ":{line}")?,
            Some(Place { line, column, .. }) => write!(f, ":{line}:{column}")?,
            None => {}
        }
        write!(f, ": {}", self.reason)
    }
}

/// What is wrong with a file or an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The folder cannot be listed.
    #[error("the folder cannot be read ({error}); its last view stays")]
    Folder {
        /// What the kernel said.
        error: String,
    },
    /// The file cannot be read.
    #[error("cannot be read ({error}); what it said before stays")]
    File {
        /// What the kernel said.
        error: String,
    },
    /// The text is not YAML, or not an object of its kind.
    #[error("document {document} is not understood: {reason}; what the file said before stays")]
    Syntax {
        /// Document in the file, from 1.
        document: u32,
        /// The parser's words.
        reason: String,
    },
    /// A value that no such object may have.
    #[error("{0}; what the object said before stays")]
    Invalid(#[from] Invalid),
    /// The object stands elsewhere already.
    #[error("{kind} {name} stands in {first} already; that one counts")]
    Duplicate {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Where it stood first: a file, or a line of the same file.
        first: String,
    },
}
