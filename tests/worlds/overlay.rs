//! An overlay, as flannel makes it ([`node_tests::tunnels`]).

use node_tests::rules::Backend;
use node_tests::tunnels::tunnels;

use crate::parts::healthy;

#[test]
fn the_way_by_a_tunnel_is_sound() {
    healthy(Backend::Nftables, |scene| {
        tunnels(&scene.world).expect("tunnels");
    });
}
