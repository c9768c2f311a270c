//! Arbitrary answers of the kernel to a request for sockets. A listener has one address, or two if it
//! accepts both families.

use pathproof::datapath::listeners::socket;
use pathproof_wire::steer::{ANY_V4, ANY_V6};

use crate::netlink::{bodies, same};

/// Length of `struct inet_diag_msg`.
const MESSAGE: usize = 72;

pub(crate) fn check(datagram: &[u8]) -> bool {
    let (bodies, is_whole) = bodies(datagram);
    let mut found = 0;
    for body in &bodies {
        same(body, MESSAGE, socket);
        let Some(socket) = socket(body) else {
            continue;
        };
        assert!(body.len() >= MESSAGE, "{socket:?} in {}", body.len());
        let addresses: Vec<_> = socket.addresses().collect();
        assert!(
            addresses.len() == 1 || addresses == [ANY_V6, ANY_V4],
            "{socket:?} at {addresses:?}"
        );
        found += 1;
    }
    is_whole && found > 0
}
