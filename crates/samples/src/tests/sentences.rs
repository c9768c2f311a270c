//! Every sentence of `explain`, compared with crates/report/testdata/words.

mod chains;
mod findings;
mod lanes;
mod remedies;
mod stages;
