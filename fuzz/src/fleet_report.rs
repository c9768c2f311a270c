//! An arbitrary annotation in place of the rotator's count of nodes. It is refused with an error text, or
//! read as a count of which no more nodes fail than exist. A report is the same after it is written and read.

use pathproof_facts::fleet_report::FleetReport;

pub(crate) fn check(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let report = match FleetReport::parse(&text) {
        Ok(report) => report,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let count = report.count();
    assert!(count.unsound <= count.nodes, "{count:?}");
    let again = FleetReport::parse(&report.text()).expect("a written report is read");
    assert_eq!(again, report);
    true
}
