//! Arbitrary objects from an API server, one per line, become a view and a plan for the maps.

use pathproof::cluster::api::listed;
use pathproof_facts::time::Mono;
use pathproof_facts::view::ClusterView;
use pathproof_plan::Planner;

pub(crate) fn check(lines: &[u8]) -> bool {
    let Some(update) = listed("worker-1", lines) else {
        return false;
    };
    for problem in &update.problems {
        assert!(!problem.to_string().is_empty());
    }
    let understood = !update.changes.is_empty();
    let mut view = ClusterView::new();
    let mut planner = Planner::new();
    view.apply(update.changes);
    planner.adopt(&view, Default::default(), Mono(1));
    let again = listed("worker-1", lines).expect("as before");
    let applied = view.apply(again.changes);
    let plan = planner.plan(&view, &applied, Mono(2));
    assert_eq!(plan, [], "the same objects once more");
    understood
}
