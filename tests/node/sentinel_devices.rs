//! The sentinel's devices on a real kernel: made, adopted, damaged, repaired, removed, and nothing
//! else on the node changed by any of it.

use std::future::Future;

use agent_common::service::Family;
use node_tests::skip;
use node_tests::world::World;
use pathproof::sentinel::devices::{
    Damage, DeviceError, Role, SentinelDevices, Settings, ensure, remove, verify,
};

/// A node without pods.
struct Node {
    world: World,
    settings: Settings,
}

impl Node {
    fn new(test: &str) -> Option<Self> {
        if skip::without_root(test) {
            return None;
        }
        let world = World::builder().build().expect("build a world");
        let settings = Settings::default();
        Some(Self { world, settings })
    }

    /// Runs on a thread inside the node.
    fn run<T: Send, F: Future<Output = T>>(&self, work: impl FnOnce() -> F + Send) -> T {
        self.world.node.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(work())
        })
    }

    fn try_ensure(&self) -> Result<SentinelDevices, DeviceError> {
        self.run(|| ensure(&self.settings, &Family::ALL))
    }

    fn ensure(&self) -> SentinelDevices {
        self.try_ensure().expect("the sentinel's devices")
    }

    fn verify(&self, devices: &SentinelDevices) -> Vec<Damage> {
        self.run(|| verify(devices, &self.settings))
    }

    fn remove(&self) -> usize {
        self.run(|| remove(&self.settings))
            .expect("remove the devices")
    }

    fn ip(&self, words: &str) -> String {
        self.world.node.ip(words).expect("ip")
    }
}

#[test]
fn made_and_made_again() {
    let Some(node) = Node::new("made_and_made_again") else {
        return;
    };
    let devices = node.ensure();
    println!("{devices:#?}");
    println!("{}", node.ip("-d link"));
    println!("{}", node.ip("route show table all"));
    println!("{}", node.ip("-6 route show table all"));
    println!("{}", node.ip("neigh"));
    println!("{:#?}", node.verify(&devices));
    assert_eq!(node.ensure(), devices);
    assert_eq!(node.remove(), 4);
    assert_eq!(node.remove(), 0);
    let _ = Role::ALL;
}
