//! Evidence, gathered.
