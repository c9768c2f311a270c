//! Measures a fault in two ways: by the connections that clients lost, and by the times of the agent's 503
//! and of the 200 after it. Prints the times, and asserts wide bounds, for busy machines.

use std::cell::Cell;

use node_tests::prelude::*;
use node_tests::traffic::Ended;

/// Additional time that a busy machine may need.
const SPARE: Duration = Duration::from_secs(8);
/// Promised time from the last failed connection to 200.
const BACK: Duration = Duration::from_secs(4);
/// Time until failed probes count: 10 s after the agent's start, plus a margin.
const SETTLED: Duration = Duration::from_secs(12);
/// Time after which every connection has ended: the clients' timeout plus a margin.
const ENDED: Duration = Duration::from_millis(1200);

pub(crate) struct Fault<'a> {
    scene: &'a Scene,
    watch: &'a Watch,
    since: Instant,
    /// Start of the last failed connection that has been read from the clients.
    last: Cell<Option<Instant>>,
}

/// Numbers of failed connections and of all connections, of pods and of outside clients.
#[derive(Debug, Default)]
pub(crate) struct Felt {
    pub(crate) pods: (usize, usize),
    pub(crate) outside: (usize, usize),
}

/// Waits until failed probes count, then starts to poll the agent.
pub(crate) fn settled(scene: &Scene) -> Watch {
    thread::sleep(SETTLED);
    scene.watch()
}

impl<'a> Fault<'a> {
    /// Injects the fault. Connections from before do not count.
    pub(crate) fn inject(scene: &'a Scene, watch: &'a Watch, inject: impl FnOnce(&Scene)) -> Self {
        assert_eq!(watch.now().healthz, 200, "before the fault");
        let since = Instant::now();
        inject(scene);
        Self {
            scene,
            watch,
            since,
            last: Cell::new(None),
        }
    }

    /// Waits for 503, at most for twice the promised time and a margin. Returns the connections until then.
    pub(crate) fn is_503_within(&self, promised: Duration) -> Felt {
        let seen = self
            .watch
            .wait(promised * 2 + SPARE, |codes| codes.healthz == 503);
        let at = seen.unwrap_or_else(|error| {
            let felt = self.felt(Instant::now());
            panic!("no 503: {error:#}: {felt:?}: {:#}", self.verdict())
        });
        let felt = self.felt(at);
        let verdict = self.verdict();
        eprintln!(
            "MEASURED {}: 503 after {:.2} s, promised {:.1} s; {} {}; {felt:?}",
            thread::current().name().unwrap_or_default(),
            (at - self.since).as_secs_f64(),
            promised.as_secs_f64(),
            verdict["state"],
            verdict["cause"],
        );
        felt
    }

    pub(crate) fn is_200_once(&self, mend: impl FnOnce(&Scene)) {
        mend(self.scene);
        let mended = Instant::now();
        let at = self
            .watch
            .wait(BACK * 2 + SPARE, |codes| codes.healthz == 200);
        let at = at.expect("200 again");
        self.ended();
        let after = |from: Instant| at.saturating_duration_since(from).as_secs_f64();
        eprintln!(
            "MEASURED {}: 200 after {:.2} s from the repair, {:.2?} s from the start of the last connection \
             that failed",
            thread::current().name().unwrap_or_default(),
            after(mended),
            self.last.get().map(after),
        );
    }

    /// Connections that started between the fault and `until`.
    pub(crate) fn felt(&self, until: Instant) -> Felt {
        let mut felt = Felt::default();
        for (outside, ended) in self.ended() {
            if ended.begun >= self.since && ended.begun < until {
                let groups = [&mut felt.pods, &mut felt.outside];
                let [pods, others] = groups;
                let (failed, all) = if outside { others } else { pods };
                *failed += usize::from(!ended.ok);
                *all += 1;
            }
        }
        felt
    }

    fn ended(&self) -> Vec<(bool, Ended)> {
        thread::sleep(ENDED);
        let clients = self.scene.clients.iter();
        let ended = clients.flat_map(|client| {
            let outside = client.plan.name.starts_with("outside");
            let ended = client.take_ended().into_iter();
            ended.map(move |ended| (outside, ended))
        });
        let ended: Vec<_> = ended.collect();
        let failed = ended.iter().filter(|(_, ended)| !ended.ok);
        let last = failed.map(|(_, ended)| ended.begun).max();
        self.last.set(self.last.get().max(last));
        ended
    }

    fn verdict(&self) -> serde_json::Value {
        self.scene.report()["verdict"].clone()
    }
}
