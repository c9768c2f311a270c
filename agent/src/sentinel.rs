//! The sentinel's I/O: its devices, the frames it writes, and the thread that sends probes and
//! waits for them. What a probe brought is a [`ProbeTrace`](crate::domain::probe::ProbeTrace); what
//! that means is `domain`'s to say. It must not name `datapath`, `cluster` or `http`.

pub mod frame;
pub mod host;
pub mod prober;
