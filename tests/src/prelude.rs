//! Imports that most tests use. Names that a test declares or imports itself take precedence.

pub use std::net::SocketAddr;
pub use std::thread;
pub use std::time::{Duration, Instant};

pub use rstest::rstest;
pub use serde_json::{Value, json};

pub use crate::cluster::Mode;
pub use crate::manifests::{AUTOSCALER_TAINT, Sentinel, Service};
pub use crate::needs;
pub use crate::rules::Backend;
pub use crate::scene::*;
pub use crate::skip::{self, Needed};
pub use crate::traffic::{Client, Plan, Server};
pub use crate::wait::{scaled, settle, settled};
pub use crate::watch::{Codes, Watch};
pub use crate::world::{Family, NODE_NAME, Namespace, Place, World, agent_binary};
