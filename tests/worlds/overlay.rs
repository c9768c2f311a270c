//! An overlay like flannel's, from [`node_tests::tunnels`].

use node_tests::rules::Backend;
use node_tests::tunnels::tunnels;

use crate::parts::healthy;

#[test]
fn connections_through_a_tunnel_are_proven() {
    healthy(Backend::Nftables, |scene| {
        tunnels(&scene.world).expect("tunnels");
    });
}
