use std::os::unix::fs::symlink;

use pathproof_facts::cluster::Change;
use pathproof_facts::view::ClusterView;

use super::*;
use crate::lifecycle::keep_little_memory;

/// A folder, its reader and the resulting view.
struct World {
    folder: tempfile::TempDir,
    manifests: Manifests,
    view: ClusterView,
    last: Update,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let manifests = Manifests::new(folder.path(), "here");
        Self {
            folder,
            manifests,
            view: ClusterView::new(),
            last: Update::default(),
        }
    }

    fn write(&self, name: &str, text: &str) {
        // Rename the file into place: the new inode shows the change even within one clock tick.
        let hidden = self.folder.path().join(".new");
        fs::write(&hidden, text).unwrap();
        fs::rename(hidden, self.folder.path().join(name)).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.folder.path().join(name)).unwrap();
    }

    /// Reads the folder, and returns the names of the known Services.
    fn services(&mut self) -> Vec<String> {
        self.last.changes.clear();
        if let Some(update) = self.manifests.refresh(true) {
            self.last = update;
        }
        self.view.apply(self.last.changes.clone());
        let known = self
            .view
            .states()
            .filter(|(_, state)| state.service.is_some());
        let mut names: Vec<String> = known.map(|(name, _)| name.name.to_string()).collect();
        names.sort();
        names
    }

    fn problems(&self) -> Vec<String> {
        let folder = format!("{}/", self.folder.path().display());
        self.last
            .problems
            .iter()
            .map(|problem| problem.to_string().replace(&folder, ""))
            .collect()
    }
}

fn service(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  clusterIP: 10.96.0.1\n"
    )
}

fn slice(name: &str, service: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: {name}
  labels:
    kubernetes.io/service-name: {service}
addressType: IPv4
endpoints:
- addresses:
  - 10.0.0.1
"
    )
}

#[test]
fn files_come_change_and_go() {
    let mut world = World::new();
    world.write("a.yaml", &format!("{}---\n{}", service("a"), service("b")));
    world.write("c.yml", &service("c"));
    world.write("ignored.txt", &service("d"));
    world.write(".hidden.yaml", &service("e"));
    fs::create_dir(world.folder.path().join("folder.yaml")).unwrap();
    assert_eq!(world.services(), ["a", "b", "c"]);
    assert_eq!(world.services(), ["a", "b", "c"]);
    assert_eq!(world.last.changes, []);
    world.write("a.yaml", &service("b"));
    assert_eq!(world.services(), ["b", "c"]);
    assert_eq!(
        world.last.changes,
        [Change::ServiceGone(
            pathproof_facts::cluster::ObjectName::new("default", "a")
        )]
    );
    world.remove("c.yml");
    assert_eq!(world.services(), ["b"]);
    world.write("b.json", r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"j"},"spec":{"clusterIP":"10.96.0.9"}}"#);
    assert_eq!(world.services(), ["b", "j"]);
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn ignored_objects_are_counted() {
    let mut world = World::new();
    let headless = service("h").replace("10.96.0.1", "None");
    let other = "apiVersion: v1\nkind: Node\nmetadata: {name: there}\n";
    let pods = "kind: Pod\napiVersion: v1\n---\nkind: Pod\napiVersion: v1\n";
    world.write("a.yaml", &[&*headless, other, pods].join("---\n"));
    world.write("b.yaml", pods);
    assert_eq!(world.services(), [""; 0]);
    // Four Pods.
    assert_eq!(world.last.ignored, 4);
    world.remove("b.yaml");
    world.services();
    assert_eq!(world.last.ignored, 2);
}

#[test]
fn a_broken_file_keeps_its_objects() {
    let mut world = World::new();
    world.write("a.yaml", &format!("{}---\n{}", service("a"), service("b")));
    assert_eq!(world.services(), ["a", "b"]);
    world.write(
        "a.yaml",
        &format!(
            "{}---\nkind: Service\n  name: [\n---\n{}",
            service("a"),
            service("c")
        ),
    );
    assert_eq!(world.services(), ["a", "b", "c"]);
    let problems = world.problems();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with("a.yaml:9:"), "{problems:?}");
    assert!(problems[0].contains(": cannot be parsed: "), "{problems:?}");
    assert_eq!(world.services(), ["a", "b", "c"]);
    assert_eq!(world.problems(), problems);
    world.write("a.yaml", &service("c"));
    assert_eq!(world.services(), ["c"]);
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn an_invalid_object_keeps_its_facts() {
    let mut world = World::new();
    world.write("a.yaml", &format!("{}---\n{}", service("a"), service("b")));
    world.services();
    let before = world
        .view
        .state(&pathproof_facts::cluster::ObjectName::new("default", "a"))
        .cloned();
    let invalid = service("a").replace("10.96.0.1", "10.96.0");
    world.write("a.yaml", &invalid);
    assert_eq!(world.services(), ["a"]);
    let now = world
        .view
        .state(&pathproof_facts::cluster::ObjectName::new("default", "a"))
        .cloned();
    assert_eq!(now, before);
    let words = "a.yaml: Service default/a: spec.clusterIPs[0] is \"10.96.0\": must be an IP \
                 address; its last good version stays in use";
    assert_eq!(world.problems(), [words]);
}

#[test]
fn a_service_that_becomes_headless_is_gone_at_once() {
    let mut world = World::new();
    world.write("a.yaml", &service("a"));
    world.services();
    let headless = service("a").replace("10.96.0.1", "None");
    world.write("a.yaml", &format!("{headless}---\nkind: [\n"));
    assert_eq!(world.services(), [""; 0]);
}

#[test]
fn the_first_file_keeps_an_object_and_the_second_follows() {
    let mut world = World::new();
    world.write("a.yaml", &service("x"));
    world.write("b.yaml", &format!("{}---\n{}", service("y"), service("x")));
    assert_eq!(world.services(), ["x", "y"]);
    let words = "b.yaml: Service default/x is also defined in a.yaml, which is used";
    assert_eq!(world.problems(), [words]);
    world.write("a.yaml", &service("z"));
    assert_eq!(world.services(), ["x", "y", "z"]);
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn of_the_same_object_twice_in_a_file_the_first_counts() {
    let mut world = World::new();
    let second = service("a").replace("10.96.0.1", "10.96.0.2");
    world.write("a.yaml", &format!("{}---\n{second}", service("a")));
    assert_eq!(world.services(), ["a"]);
    let words = "a.yaml: Service default/a is also defined in a.yaml, which is used";
    assert_eq!(world.problems(), [words]);
}

#[test]
fn a_renamed_file_changes_nothing() {
    let mut world = World::new();
    world.write(
        "b.yaml",
        &format!("{}---\n{}", service("a"), slice("a-1", "a")),
    );
    world.services();
    fs::rename(
        world.folder.path().join("b.yaml"),
        world.folder.path().join("a.yaml"),
    )
    .unwrap();
    assert_eq!(world.manifests.refresh(true), None);
}

#[test]
fn a_slice_may_move_to_another_service() {
    let mut world = World::new();
    world.write("a.yaml", &slice("s", "a"));
    world.services();
    world.write("a.yaml", &slice("s", "b"));
    world.services();
    let names: Vec<String> = world
        .view
        .states()
        .map(|(name, _)| name.to_string())
        .collect();
    assert_eq!(names, ["default/b"]);
}

#[test]
fn only_a_changed_file_is_read_again() {
    let mut world = World::new();
    for name in ["a", "b", "c"] {
        world.write(&format!("{name}.yaml"), &service(name));
    }
    assert_eq!(world.services(), ["a", "b", "c"]);
    let last_read = |world: &World| world.manifests.store.place.clone();
    assert!(last_read(&world).ends_with("/c.yaml"));
    world.write("a.yaml", &service("d"));
    assert_eq!(world.services(), ["b", "c", "d"]);
    assert!(last_read(&world).ends_with("/a.yaml"));
    world.write("a.yaml", &service("c"));
    assert_eq!(world.services(), ["b", "c"]);
    let words = "c.yaml: Service default/c is also defined in a.yaml, which is used";
    assert_eq!(world.problems(), [words]);
    world.write("a.yaml", &service("d"));
    assert_eq!(world.services(), ["b", "c", "d"]);
    assert_eq!(world.problems(), [""; 0]);
    world.remove("b.yaml");
    assert_eq!(world.services(), ["c", "d"]);
}

#[test]
fn a_mounted_config_map_is_swapped_whole() {
    let mut world = World::new();
    let path = |name: &str| world.folder.path().join(name);
    for (folder, name) in [("..one", "a"), ("..two", "b")] {
        fs::create_dir(path(folder)).unwrap();
        fs::write(path(folder).join("x.yaml"), service(name)).unwrap();
    }
    symlink("..one", path("..data")).unwrap();
    symlink("..data/x.yaml", path("x.yaml")).unwrap();
    symlink("..two", path("..data_tmp")).unwrap();
    let swap = (path("..data_tmp"), path("..data"));
    assert_eq!(world.services(), ["a"]);
    fs::rename(swap.0, swap.1).unwrap();
    assert_eq!(world.services(), ["b"]);
}

#[test]
fn a_folder_that_is_gone_keeps_the_view() {
    let mut world = World::new();
    world.write("a.yaml", &service("a"));
    world.services();
    let aside = world.folder.path().with_extension("aside");
    fs::rename(world.folder.path(), &aside).unwrap();
    assert_eq!(world.services(), ["a"]);
    assert!(
        world.last.problems[0]
            .to_string()
            .ends_with("its last good content stays in use")
    );
    fs::rename(&aside, world.folder.path()).unwrap();
    assert_eq!(world.services(), ["a"]);
    assert_eq!(world.problems(), [""; 0]);
}

/// An empty view would remove everything that the previous agent installed.
#[test]
fn a_folder_that_was_never_read_makes_no_view() {
    let mut world = World::new();
    world.manifests.most = 1;
    world.write("a.yaml", &service("a"));
    world.write("b.yaml", &service("b"));
    assert_eq!(world.services(), [""; 0]);
    assert_eq!(world.last.changes, []);
    assert_eq!(world.problems().len(), 1);
    world.remove("b.yaml");
    assert_eq!(world.services(), ["a"]);
    assert_eq!(world.last.changes.last(), Some(&Change::Synced));
    assert_eq!(world.problems(), [""; 0]);
}

/// A writer that was not seen to finish may still be writing.
#[test]
fn a_file_is_read_once_it_stays_as_it_is() {
    let mut world = World::new();
    world.write("a.yaml", &service("a"));
    assert_eq!(world.services(), ["a"]);
    world.write("a.yaml", "");
    assert_eq!(world.manifests.refresh(false), None);
    world.write("a.yaml", &service("b"));
    assert_eq!(world.manifests.refresh(false), None);
    let update = world.manifests.refresh(false).unwrap();
    assert_eq!(update.changes.len(), 2, "{update:?}");
    assert_eq!(world.manifests.refresh(false), None);
}

#[test]
fn text_that_is_not_utf8_is_a_problem_of_its_file() {
    let mut world = World::new();
    fs::write(world.folder.path().join("a.yaml"), [0xff, 0xfe]).unwrap();
    world.write("b.yaml", &service("b"));
    assert_eq!(world.services(), ["b"]);
    assert!(
        world.problems()[0].starts_with("a.yaml: cannot be read ("),
        "{:?}",
        world.problems()
    );
}

/// The agent must not open them: a reader of a pipe waits for a writer, and opening may act on a device.
#[test]
fn a_pipe_a_socket_and_a_device_are_skipped() {
    let mut world = World::new();
    let path = |name: &str| world.folder.path().join(name);
    nix::unistd::mkfifo(&path("pipe.yaml"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path("socket.yaml")).unwrap();
    symlink("/dev/zero", path("device.json")).unwrap();
    fs::create_dir(path("folder.yaml")).unwrap();
    world.write("a.yaml", &service("a"));
    assert_eq!(world.services(), ["a"]);
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let mut world = World::new();
    world.write("a.yaml", &service("a"));
    assert_eq!(world.services(), ["a"]);
    let file = fs::File::create(world.folder.path().join("a.yaml")).unwrap();
    file.set_len(MAX_FILE + 1).unwrap();
    assert_eq!(world.services(), ["a"]);
    let words = "a.yaml: cannot be read (it is larger than the limit of 64 MiB (65 MiB or more)): \
                 split it into several files; its last good content, if any, stays in use";
    assert_eq!(world.problems(), [words]);
}

#[test]
fn a_folder_that_holds_too_much_keeps_its_last_view() {
    let mut world = World::new();
    world.manifests.most = 5;
    world.write("a.yaml", &service("a"));
    assert_eq!(world.services(), ["a"]);
    // Four more are within the limit.
    for name in ["b", "c", "d", "e"] {
        world.write(&format!("{name}.yaml"), &service(name));
    }
    assert_eq!(world.services(), ["a"], "some may still be written");
    assert_eq!(world.services(), ["a", "b", "c", "d", "e"]);
    world.write("f.yaml", &service("f"));
    world.remove("b.yaml");
    world.write("g.yaml", &service("g"));
    assert_eq!(world.services(), ["a", "b", "c", "d", "e"]);
    let said = &world.problems()[0];
    assert!(said.contains("more than 5 manifests or 256 MiB"), "{said}");
    world.remove("f.yaml");
    world.remove("g.yaml");
    for name in ["a", "c", "d", "e"] {
        let file = fs::File::create(world.folder.path().join(format!("{name}.yaml"))).unwrap();
        file.set_len(MAX_FILE).unwrap();
    }
    world.write("f.yaml", &service("f"));
    world.services();
    let said = &world.problems()[0];
    assert!(said.contains("more than 5 manifests or 256 MiB"), "{said}");
}

/// The agent's Node is called `here`.
#[test]
fn a_missing_node_is_reported_unless_a_file_is_broken() {
    let node =
        |name: &str| format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n---\n");
    let mut world = World::new();
    for (text, is_missing) in [
        (String::new(), true),
        (node("there"), true),
        (node("there") + &node("here"), false),
        (node("there"), true),
        ("kind: [".to_owned(), false),
    ] {
        world.write("a.yaml", &format!("{}{text}", service("a") + "---\n"));
        world.services();
        assert_eq!(world.last.missing_node.is_some(), is_missing, "{text}");
    }
    world.write("a.yaml", &service("a"));
    world.write("b.yaml", &node("here"));
    world.services();
    assert_eq!(world.last.missing_node, None, "it is in another file");
}

/// A slice of 65,535 ports is refused. It is read in a separate process, in which memory is measured.
#[cfg(target_env = "gnu")]
#[test]
fn memory_of_a_large_file_is_returned() {
    const NAME: &str = "cluster::manifests::tests::memory_of_a_large_file_is_returned";
    const ALONE: &str = "PATHPROOF_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command.args(["--exact", NAME]).env(ALONE, "1").output();
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        return assert!(text.contains("1 passed"), "{text}");
    }
    let held = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let mut lines = status.lines();
        let line = lines.find(|line| line.starts_with("RssAnon")).unwrap();
        let kib = line.split_whitespace().nth(1).unwrap();
        kib.parse::<u64>().unwrap()
    };
    keep_little_memory();
    // After an allocation of this size, as for the eBPF object, glibc would keep twice as much free memory.
    drop(std::hint::black_box(vec![1_u8; 31 << 20]));
    let mut world = World::new();
    let ports = (1..=65_535).map(|port| format!("- {{name: p{port}, port: {port}}}\n"));
    let ports: String = ports.collect();
    world.write("a.yaml", &format!("{}ports:\n{ports}", slice("a", "web")));
    let before = held();
    assert_eq!(world.services(), [""; 0]);
    let words = "a.yaml: EndpointSlice default/a: ports has 65535 entries, and Kubernetes allows 20000: \
                 divide them among several slices; its last good version stays in use";
    assert_eq!(world.problems(), [words]);
    let kept = held().saturating_sub(before);
    assert!(kept < 10 << 10, "{kept} KiB");
}
