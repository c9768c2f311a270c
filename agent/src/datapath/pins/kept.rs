//! Pins of a running agent. They are restored if somebody removes them, unmounts their file system or
//! mounts another one over it. Programs and maps work without pins, so nothing is detached while the
//! folder is gone. A link that cannot be pinned although the folder exists is attached again.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::{fs, io};

use aya::maps::MapData;
use pathproof_shared::causes::chain;
use pathproof_wire::abi::map;

use super::{Pins, PinsError, entries, failed};

const GAP: &str = "a restart would leave a gap in observation";

/// The folder of pins, and the maps to pin there again.
pub(in crate::datapath) struct KeptPins {
    pub(in crate::datapath) pins: Pins,
    maps: Vec<(&'static str, MapData)>,
    /// Folders that have had this agent's pins, by device and inode. There can be several: if a file system
    /// was mounted over a folder and is unmounted again, the earlier folder is back.
    own: BTreeSet<(u64, u64)>,
    pub(in crate::datapath) problem: Option<String>,
}

impl KeptPins {
    /// Opens the maps that are pinned.
    pub(in crate::datapath) fn new(pins: Pins) -> Self {
        let open = |name| Some((name, MapData::from_pin(pins.map(name)).ok()?));
        let maps = map::PINNED.into_iter().filter_map(open).collect();
        let own = identity(&pins).into_iter().collect();
        Self {
            pins,
            maps,
            own,
            problem: None,
        }
    }

    /// Creates missing folders and pins of maps. Returns whether links can be pinned.
    pub(in crate::datapath) fn restore(&mut self) -> bool {
        let problem = self.restore_maps().err().map(|error| chain(&error));
        if problem != self.problem {
            match &problem {
                Some(why) => tracing::warn!(%why, "BPF links and maps are not pinned: {GAP}"),
                None => tracing::info!("BPF links and maps are pinned again"),
            }
        }
        self.problem = problem;
        self.problem.is_none()
    }

    fn restore_maps(&mut self) -> Result<(), PinsError> {
        let pins = &self.pins;
        if !identity(pins).is_some_and(|id| self.own.contains(&id)) {
            let mut folders = entries(&pins.version);
            if folders.any(|folder| entries(&folder).next().is_some()) {
                let path = pins.version.clone();
                return Err(PinsError::Others { path });
            }
            Pins::make_root(&pins.root)?;
        }
        pins.make_folders()?;
        self.own.extend(identity(pins));
        for (name, map) in &self.maps {
            let path = pins.map(name);
            if !path.exists() {
                let pinned = map.pin(&path).map_err(io::Error::other);
                pinned.map_err(failed("pin", &path))?;
            }
        }
        Ok(())
    }
}

/// Device and inode of the folder of this layout version.
fn identity(pins: &Pins) -> Option<(u64, u64)> {
    let folder = fs::metadata(&pins.version).ok()?;
    Some((folder.dev(), folder.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs::rename;

    use super::*;

    /// An agent and its successor share one folder of pins. But a file system that is mounted over the folder
    /// may hold pins of an earlier agent.
    #[test]
    fn pins_of_another_agent_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (root, aside) = (dir.path().join("pins"), dir.path().join("aside"));
        let pins = Pins {
            version: root.join("v0"),
            root: root.clone(),
            found: false,
        };
        pins.make_folders().unwrap();
        let mut kept = KeptPins::new(pins.clone());
        fs::write(pins.link(3, "ingress"), "").unwrap();
        assert!(kept.restore(), "{:?}", kept.problem);

        rename(&root, &aside).unwrap();
        pins.make_folders().unwrap();
        fs::write(pins.link(4, "ingress"), "").unwrap();
        assert!(!kept.restore());
        let problem = kept.problem.as_deref().unwrap();
        assert!(problem.contains("another agent"), "{problem}");

        fs::remove_dir_all(&root).unwrap();
        rename(&aside, &root).unwrap();
        assert!(kept.restore(), "{:?}", kept.problem);
    }
}
