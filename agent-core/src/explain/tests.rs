//! Every sentence of `explain`, as agent-core/testdata/words has it.

mod findings;
mod lanes;
mod remedies;
mod stages;
