//! The two listeners and what they answer: `health` what load balancers and kubelet ask, `admin`
//! what people, Prometheus and `pathproof status` ask, `serve` the connections under both.
//!
//! Nothing here decides anything: answers and reports are computed ahead elsewhere and published;
//! no request changes state.

pub mod admin;
pub mod allow;
pub mod bind;
pub mod health;
pub mod serve;
