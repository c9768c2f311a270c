//! What is wrong with a source of the view, in words for a person.

use std::fmt;
use std::path::PathBuf;

use crate::cluster::convert::Invalid;
use crate::cluster::yaml::Place;

/// Something in a source that could not be taken as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// File, or the folder itself; of an API server, those words.
    pub path: PathBuf,
    /// Where in the file; `None` where the whole file is meant.
    pub place: Option<Place>,
    /// What is wrong.
    pub reason: Reason,
}

impl Problem {
    /// Of the API server.
    pub fn of_api(reason: Reason) -> Self {
        Self {
            path: PathBuf::from("API server"),
            place: None,
            reason,
        }
    }
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
    /// The API server does not answer.
    #[error("cannot be reached ({error}); what it said before stays")]
    Away {
        /// What stands in the way.
        error: String,
    },
    /// The API server lets nobody of that name watch.
    #[error(
        "does not let the agent watch {resource} ({error}); what it said before stays; grant get, list and watch on them"
    )]
    Forbidden {
        /// What is watched.
        resource: &'static str,
        /// Its words.
        error: String,
    },
    /// The API server answers with an error.
    #[error("cannot tell of {resource} ({error}); what it said before stays")]
    Unserved {
        /// What is watched.
        resource: &'static str,
        /// Its words.
        error: String,
    },
    /// An object that is not of its kind.
    #[error("{kind} {name} is not understood: {error}; what the object said before stays")]
    Unreadable {
        /// Kind of the object.
        kind: &'static str,
        /// Its name, with the namespace where it has one.
        name: String,
        /// The parser's words.
        error: String,
    },
    /// More of the same.
    #[error("{count} more objects have something wrong")]
    More {
        /// How many.
        count: usize,
    },
}

impl Reason {
    /// Whether the source itself does not tell what happens: what it said before may be old by now.
    pub fn is_silence(&self) -> bool {
        matches!(
            self,
            Self::Folder { .. }
                | Self::Away { .. }
                | Self::Forbidden { .. }
                | Self::Unserved { .. }
        )
    }
}
