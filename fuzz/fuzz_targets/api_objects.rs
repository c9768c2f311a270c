//! Whatever an API server may send: objects, one to a line, become a view and a plan for the maps.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pathproof::cluster::api::listed;
use pathproof::domain::plan::Planner;
use pathproof::domain::time::Mono;
use pathproof::domain::view::ClusterView;

fuzz_target!(|lines: &[u8]| {
    let Some(update) = listed("worker-1", lines) else {
        return;
    };
    for problem in &update.problems {
        assert!(!problem.to_string().is_empty());
    }
    let mut view = ClusterView::new();
    let mut planner = Planner::new();
    view.apply(update.changes);
    planner.adopt(&view, Default::default(), Mono(1));
    // The same objects again change nothing, and all of them can go.
    let again = listed("worker-1", lines).expect("as before");
    let applied = view.apply(again.changes);
    planner.plan(&view, &applied, Mono(2));
});
