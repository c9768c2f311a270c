//! Keeps the Node's condition as the reports say.

use super::node::{NodeApi, Words};
use super::outcome::Outcomes;
use super::{Clocks, Published, Reports, Settings, newest, wait};
use agent_core::condition::{Schedule, Standing, Written, message};
use agent_core::report::Report;

/// Until no more reports come.
pub(super) async fn run(
    settings: &Settings,
    node: &NodeApi,
    found: Option<Written>,
    mut reports: Reports,
    outcomes: &Outcomes,
    clocks: Clocks,
) {
    let mut schedule = Schedule::new(&settings.node, settings.pace, found, (clocks.mono)());
    loop {
        let newest = newest(&mut reports);
        let now = (clocks.mono)();
        if let Some((report, standing)) = &newest {
            if let Some(uid) = &report.node_uid {
                schedule.of(uid);
            }
            schedule.observe(*standing, now, (clocks.wall)());
        }
        let due = schedule.due();
        match newest {
            Some((report, standing)) if due.is_some_and(|due| due <= now) => {
                write(node, &mut schedule, &report, standing, outcomes, clocks).await;
            }
            _ => {
                if !wait(&mut reports, due, now).await {
                    return;
                }
            }
        }
    }
}

async fn write(
    node: &NodeApi,
    schedule: &mut Schedule,
    report: &Report,
    standing: Standing,
    outcomes: &Outcomes,
    clocks: Clocks,
) {
    let wall = (clocks.wall)();
    let transition = schedule.transition().unwrap_or(wall);
    let words = Words {
        status: standing.status,
        reason: standing.reason,
        message: message(&report.verdict, standing, report.agent.enforcement),
        heartbeat: wall,
        transition,
    };
    let result = node.write(&words).await;
    let now = (clocks.mono)();
    match &result {
        Ok(()) => schedule.wrote(standing, transition, now),
        Err(fault) => schedule.failed(fault.refusal(), now),
    }
    outcomes.note(Published::Condition, &report.node, result);
}
