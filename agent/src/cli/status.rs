//! `pathproof status`.
