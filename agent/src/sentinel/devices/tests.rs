use super::*;

#[test]
fn hardware_addresses_are_local_unicast_and_differ() {
    let mut all: Vec<_> = Role::ALL.iter().map(|role| role.mac()).collect();
    all.extend(Role::NEAR.iter().map(|role| role.behind()));
    for mac in &all {
        assert_eq!(mac[0] & 0b11, 0b10, "locally administered, unicast");
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 6);
    assert_eq!(written(Role::ClientNear.mac()), "02:70:61:74:68:c0");
}

#[test]
fn the_two_ends_of_a_pair() {
    for role in Role::ALL {
        assert_eq!(role.peer().peer(), role);
        assert_ne!(role.is_near(), role.peer().is_near());
    }
    assert_eq!(Role::ClientNear.peer(), Role::ClientFar);
    assert_eq!(Role::ServerFar.name("pathproof"), "pathproof-s1");
}
