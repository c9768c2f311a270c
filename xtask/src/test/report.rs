//! The report at the end of a test run, and the sum of its steps.

use super::Step;
use crate::host;
use crate::tally::Counted;

pub(super) fn report(steps: &[Step]) -> Counted {
    let mut sum = Counted::default();
    println!();
    for line in steps.iter().flat_map(|step| &step.counted.skipped) {
        println!("SKIPPED  {line}");
    }
    let skipped = |step: &Step| !step.counted.skipped.is_empty();
    if steps.iter().any(skipped) && !host::is_root() {
        println!("SKIPPED tests run as root: sudo -E env \"PATH=$PATH\" cargo xtask test");
    }
    for step in steps {
        let (name, counted) = (step.name, &step.counted);
        println!(
            "{name:<33} {:>7.1} s   {}",
            step.took.as_secs_f64(),
            counted.tally
        );
        sum.tally += counted.tally;
        sum.skipped.extend_from_slice(&counted.skipped);
        sum.unsteady.extend_from_slice(&counted.unsteady);
        sum.panics.extend_from_slice(&counted.panics);
        sum.times.extend_from_slice(&counted.times);
    }
    sum
}
