//! The repository's files for the rules: paths with `/`, and text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::run;

/// Paths of the files that git tracks, or would track; target/ is excluded.
pub(crate) fn tracked(root: &Path) -> Result<Vec<String>> {
    let mut git = run::git(root);
    git.args("ls-files -z --cached --others --exclude-standard".split(' '));
    let list = run::output(&mut git).context("git cannot list the repository's files")?;
    Ok(String::from_utf8(list)?
        .split_terminator('\0')
        // Deleted files may still be in git's index.
        .filter(|path| root.join(path).is_file())
        .map(str::to_owned)
        .collect())
}

#[derive(Debug, Default)]
pub(super) struct Tree {
    texts: BTreeMap<String, String>,
    paths: BTreeSet<String>,
}

impl Tree {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut tree = Tree::default();
        for path in tracked(root)? {
            let bytes =
                fs::read(root.join(&path)).with_context(|| format!("cannot read {path}"))?;
            tree.add(&path, bytes);
        }
        Ok(tree)
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Tree::default();
        for (path, text) in files {
            tree.add(path, text.as_bytes().to_vec());
        }
        tree
    }

    fn add(&mut self, path: &str, bytes: Vec<u8>) {
        for (slash, _) in path.match_indices('/') {
            self.paths.insert(path[..slash].to_owned());
        }
        self.paths.insert(path.to_owned());
        if let Ok(text) = String::from_utf8(bytes) {
            self.texts.insert(path.to_owned(), text);
        }
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        path.is_empty() || self.paths.contains(path)
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Text files with this suffix, sorted by path.
    pub(super) fn ending(&self, suffix: &'static str) -> impl Iterator<Item = (&str, &str)> {
        let texts = self.texts.iter();
        let texts = texts.filter(move |(path, _)| path.ends_with(suffix));
        texts.map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(String::as_str)
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }
}
