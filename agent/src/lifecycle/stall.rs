//! Whether the main loop hangs, as opposed to a pause of the whole process: after a pause, the thread that
//! answers may run before the main loop does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pathproof_facts::time::Mono;

use super::{Heartbeat, STALLED_AFTER};

/// If the answering thread does not run for longer than this, the whole process was paused.
const PAUSE: Duration = Duration::from_secs(2);

/// If the main loop hangs for longer than this, the agent ends. It is long, because the main loop may wait for the
/// kernel on a node where thousands of interfaces change.
const LOST: Duration = Duration::from_secs(60);

/// Clones share their state.
#[derive(Debug, Clone)]
pub struct Stall {
    heartbeat: Heartbeat,
    /// Last run of the answering thread.
    ran: Arc<AtomicU64>,
    /// End of the last pause.
    resumed: Arc<AtomicU64>,
}

impl Stall {
    pub fn new(heartbeat: Heartbeat, now: Mono) -> Self {
        let at = |at: Mono| Arc::new(AtomicU64::new(at.0));
        Self {
            heartbeat,
            ran: at(now),
            resumed: at(now),
        }
    }

    /// Records that the answering thread runs; called several times within `PAUSE`. Returns the length of
    /// the pause that has just ended, if there was one.
    pub fn run(&self, now: Mono) -> Option<Duration> {
        let gap = now.since(Mono(self.ran.swap(now.0, Ordering::Relaxed)));
        let paused = gap > PAUSE;
        if paused {
            self.resumed.store(now.0, Ordering::Relaxed);
        }
        paused.then_some(gap)
    }

    /// Time since the last turn of the main loop, if the loop hangs. Time in which the answering thread did
    /// not run either does not count.
    pub fn hangs_for(&self, now: Mono) -> Option<Duration> {
        if now.since(Mono(self.ran.load(Ordering::Relaxed))) > PAUSE {
            return None;
        }
        (self.still(now) > STALLED_AFTER).then(|| self.heartbeat.age(now.0))
    }

    /// Whether the agent should end, so that it is started again. Call it after [`Self::run`].
    pub fn is_lost(&self, now: Mono) -> bool {
        self.still(now) > LOST
    }

    /// Time for which the main loop did not turn although the process ran.
    fn still(&self, now: Mono) -> Duration {
        let resumed = Mono(self.resumed.load(Ordering::Relaxed));
        self.heartbeat.age(now.0).min(now.since(resumed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn second(n: u64) -> Mono {
        Mono(n * 1_000_000_000)
    }

    fn stall() -> (Heartbeat, Stall) {
        let heartbeat = Heartbeat::new(second(100).0);
        (heartbeat.clone(), Stall::new(heartbeat, second(100)))
    }

    #[test]
    fn a_loop_hangs_if_only_the_answering_thread_runs() {
        let (heartbeat, stall) = stall();
        for at in 101..=110 {
            assert_eq!(stall.run(second(at)), None);
            assert_eq!(stall.hangs_for(second(at)), None);
        }
        stall.run(second(111));
        assert_eq!(stall.hangs_for(second(111)), Some(Duration::from_secs(11)));
        heartbeat.beat(second(111).0);
        assert_eq!(stall.hangs_for(second(111)), None);
    }

    #[test]
    fn a_pause_of_the_process_is_no_stall() {
        let (_, stall) = stall();
        assert_eq!(stall.hangs_for(second(160)), None, "a request came first");
        assert_eq!(stall.run(second(160)), Some(Duration::from_secs(60)));
        assert_eq!(stall.hangs_for(second(160)), None);
        for at in 161..=170 {
            stall.run(second(at));
        }
        assert_eq!(stall.hangs_for(second(170)), None);
        stall.run(second(171));
        let hangs = stall.hangs_for(second(171));
        assert_eq!(hangs, Some(Duration::from_secs(71)), "it never came back");
        assert!(!stall.is_lost(second(171)), "the pause does not count");
    }

    #[test]
    fn an_agent_ends_after_its_loop_has_hung_for_a_minute() {
        let (heartbeat, stall) = stall();
        for at in 101..=160 {
            stall.run(second(at));
        }
        assert!(!stall.is_lost(second(160)));
        stall.run(second(161));
        assert!(stall.is_lost(second(161)));
        heartbeat.beat(second(161).0);
        assert!(!stall.is_lost(second(161)));
    }

    #[test]
    fn a_loop_that_is_not_supposed_to_run_does_not_hang() {
        let (heartbeat, stall) = stall();
        heartbeat.rest();
        for at in 101..=200 {
            stall.run(second(at));
        }
        assert_eq!(stall.hangs_for(second(200)), None);
        assert!(!stall.is_lost(second(200)));
    }
}
