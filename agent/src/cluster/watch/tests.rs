use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use pathproof_facts::cluster::Change;
use pathproof_facts::view::ClusterView;
use tokio::time::timeout;

use super::*;

/// A followed folder, and the resulting view.
struct World {
    path: PathBuf,
    updates: mpsc::Receiver<Update>,
    view: ClusterView,
    problems: Vec<String>,
    _parent: tempfile::TempDir,
}

fn node(taint: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: here\nspec:\n  taints:\n  - key: {taint}\n    effect: NoSchedule\n"
    )
}

impl World {
    async fn new() -> Self {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("manifests");
        fs::create_dir(&path).unwrap();
        Self::at(parent, path).await
    }

    async fn at(parent: tempfile::TempDir, path: PathBuf) -> Self {
        fs::write(path.join("node.yaml"), node("first")).unwrap();
        let updates = follow(&path, "here");
        let view = ClusterView::new();
        let mut world = Self {
            path,
            updates,
            view,
            problems: vec![],
            _parent: parent,
        };
        let first = world.updates.recv().await.unwrap();
        assert_eq!(first.changes.last(), Some(&Change::Synced));
        world.take(first);
        assert!(world.view.is_synced());
        world
    }

    fn take(&mut self, update: Update) {
        self.view.apply(update.changes);
        self.problems = update.problems.iter().map(ToString::to_string).collect();
    }

    fn taint(&self) -> &str {
        self.view
            .node()
            .and_then(|node| node.taints.first())
            .map_or("", |taint| taint)
    }

    /// Waits until the view fits; a minute is for very busy machines.
    async fn until(&mut self, fits: impl Fn(&World) -> bool) {
        while !fits(self) {
            let update = timeout(Duration::from_secs(60), self.updates.recv()).await;
            self.take(
                update
                    .expect("no update came")
                    .expect("the folder is no longer followed"),
            );
        }
    }
}

#[tokio::test]
async fn a_file_written_in_place_is_noticed() {
    let mut world = World::new().await;
    for taint in ["second", "third"] {
        fs::write(world.path.join("node.yaml"), node(taint)).unwrap();
        world.until(|world| world.taint() == taint).await;
    }
}

#[tokio::test]
async fn a_file_renamed_into_place_is_noticed() {
    let mut world = World::new().await;
    fs::write(world.path.join(".new"), node("second")).unwrap();
    fs::rename(world.path.join(".new"), world.path.join("node.yaml")).unwrap();
    world.until(|world| world.taint() == "second").await;
    fs::remove_file(world.path.join("node.yaml")).unwrap();
    world.until(|world| world.view.node().is_none()).await;
}

#[tokio::test]
async fn a_file_that_is_never_closed_is_read_in_the_end() {
    use std::io::Write;
    let mut world = World::new().await;
    let mut file = fs::File::create(world.path.join("node.yaml")).unwrap();
    file.write_all(node("second").as_bytes()).unwrap();
    world.until(|world| world.taint() == "second").await;
    drop(file);
}

#[tokio::test]
async fn a_swapped_link_is_noticed() {
    use std::os::unix::fs::symlink;
    let mut world = World::new().await;
    let path = |name: &str| world.path.join(name);
    fs::remove_file(path("node.yaml")).unwrap();
    for (folder, taint) in [("..1", "one"), ("..2", "two")] {
        fs::create_dir(path(folder)).unwrap();
        fs::write(path(folder).join("node.yaml"), node(taint)).unwrap();
    }
    symlink("..1", path("..data")).unwrap();
    symlink("..data/node.yaml", path("node.yaml")).unwrap();
    let (from, to) = (path("..tmp"), path("..data"));
    world.until(|world| world.taint() == "one").await;
    symlink("..2", &from).unwrap();
    fs::rename(from, to).unwrap();
    world.until(|world| world.taint() == "two").await;
}

/// The kernel does not notify a watch when a link in the folder's path changes.
#[tokio::test]
async fn a_folder_is_watched_where_a_link_in_its_path_leads() {
    use std::os::unix::fs::symlink;
    let parent = tempfile::tempdir().unwrap();
    let path = |name: &str| parent.path().join(name);
    for release in ["one", "two"] {
        fs::create_dir(path(release)).unwrap();
    }
    symlink("one", path("current")).unwrap();
    symlink("two", path("next")).unwrap();
    let (from, to) = (path("next"), path("current"));
    let two = path("two").join("node.yaml");
    let mut world = World::at(parent, to.clone()).await;
    fs::rename(from, to).unwrap();
    fs::write(two, node("second")).unwrap();
    world.until(|world| world.taint() == "second").await;
}

#[tokio::test]
async fn a_recreated_folder_is_followed_again() {
    let mut world = World::new().await;
    fs::remove_dir_all(&world.path).unwrap();
    world
        .until(|world| {
            world
                .problems
                .iter()
                .any(|p| p.contains("last good content stays"))
        })
        .await;
    fs::create_dir(&world.path).unwrap();
    fs::write(world.path.join("node.yaml"), node("second")).unwrap();
    world
        .until(|world| world.taint() == "second" && world.problems.is_empty())
        .await;
    fs::write(world.path.join("node.yaml"), node("third")).unwrap();
    world.until(|world| world.taint() == "third").await;
}

#[tokio::test]
async fn a_broken_file_is_reported_until_it_is_fixed() {
    let mut world = World::new().await;
    fs::write(world.path.join("node.yaml"), "kind: [").unwrap();
    world.until(|world| !world.problems.is_empty()).await;
    assert_eq!(world.taint(), "first");
    fs::write(world.path.join("node.yaml"), node("first")).unwrap();
    world.until(|world| world.problems.is_empty()).await;
}
