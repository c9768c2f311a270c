//! Flapping, damped.
