//! stub
use agent_core::sim::cells::*;
#[test]
#[ignore]
fn timing() {
    let n: usize = std::env::var("N")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(20);
    for cell in fault_cells().chain(world_cells()).step_by(n) {
        let began = std::time::Instant::now();
        let outcome = play(&cell, 1);
        println!(
            "{:?} {} / {} / {}: {:?}",
            began.elapsed(),
            cell.used.name,
            cell.happening(),
            cell.families.name,
            outcome
        );
    }
}
