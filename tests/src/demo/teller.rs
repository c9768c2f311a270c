//! Prints what is observed on the node while a script runs, and collects a table row for each expected
//! result.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use super::timeline::{self, DIM, GREEN, Kind, RED, Timeline, paint};
use super::view::{self, Verdict, View, codes_line};
use crate::prelude::*;
use crate::traffic::{Ended, Tally};
use crate::watch::Poll;

/// Pause between two observations.
const PAUSE: Duration = Duration::from_millis(10);
/// Minimum extra time after a limit, to distinguish a late result from one that never comes.
const LATE: Duration = Duration::from_secs(4);
const HEADING: &str =
    "   what happened                expected                                 took   allowed";

/// An event and its expected result, as text.
pub(super) type Named<'a> = (&'a str, &'a str);
/// An event and its expected result, with a time limit in seconds.
pub(super) type Wanted<'a> = (&'a str, &'a str, f64);

pub(super) struct Teller<'a> {
    // Fields are dropped in this order: pollers, then clients.
    codes: Watch,
    verdicts: Poll<Verdict>,
    pub(super) clients: Vec<Client>,
    pub(super) timeline: &'a mut Timeline,
    /// Rows of the table at the end, and whether any expected result came late or never.
    rows: Vec<String>,
    late: bool,
    missed: bool,
    /// Numbers of changes of each kind that were printed.
    codes_told: usize,
    verdicts_told: usize,
    /// The agent's log, which exists only where the demo itself starts the agent, and the number of its lines
    /// that were read.
    log: PathBuf,
    log_read: usize,
    /// Time of the last act or fault, and the connections that ended after it.
    began: Instant,
    ended: Vec<Ended>,
}

impl<'a> Teller<'a> {
    /// Observes the node of a world from now on.
    pub(super) fn new(world: &World, timeline: &'a mut Timeline) -> Result<Self> {
        Ok(Self {
            codes: Watch::start(world, view::EVERY)?,
            verdicts: view::verdicts(world)?,
            clients: Vec::new(),
            timeline,
            rows: Vec::new(),
            late: false,
            missed: false,
            codes_told: 0,
            verdicts_told: 0,
            log: world.dir().join("agent.log"),
            log_read: 0,
            began: Instant::now(),
            ended: Vec::new(),
        })
    }

    /// Prints that the demo builds or repairs something. Time limits of the next results count from here.
    pub(super) fn act(&mut self, text: &str) {
        self.begin(timeline::ACT, text);
    }

    /// Prints that the demo breaks something. Time limits of the next results count from here.
    pub(super) fn fault(&mut self, text: &str) {
        self.begin(timeline::FAULT, text);
    }

    fn begin(&mut self, kind: Kind, text: &str) {
        self.quote_log();
        self.timeline.tell(kind, text);
        self.began = Instant::now();
    }

    pub(super) fn note(&mut self, text: &str) {
        self.timeline.tell(timeline::NOTE, text);
    }

    /// Waits for an expected result and prints changes meanwhile. Then adds a row and prints further changes
    /// for some seconds. Continues after a failure, because the later steps are still worth seeing.
    pub(super) fn expect(
        &mut self,
        (what, expected, limit): Wanted,
        wanted: impl Fn(&View) -> bool,
    ) -> Result<()> {
        let limit = Duration::from_secs_f64(limit);
        let patience = limit + LATE.max(limit / 2);
        let (view, took) = loop {
            let view = self.pump()?;
            let took = self.began.elapsed();
            if wanted(&view) {
                break (view, Some(took));
            } else if took > patience {
                break (view, None);
            }
        };
        let (shown, allowed) = (took.map_or("-".to_owned(), time), time(limit));
        let text = format!("{expected} after {shown} (allowed: {allowed})");
        let sound = took.is_some_and(|took| took <= limit);
        let missed = took.is_none().then(|| {
            let View { codes, verdict } = view;
            format!("{}   {}", codes_line(codes), verdict.line())
        });
        self.row((what, expected), [&shown, &allowed], sound, missed, &text);
        let (ok, failed) = self.felt();
        let ended = ok + failed;
        if let Some(share) = (ok * 100).checked_div(ended) {
            self.note(&format!(
                "clients: {share} % of {ended} connections answered since then"
            ));
        }
        self.linger(1)?;
        self.quote_log();
        Ok(())
    }

    /// Quotes the new warnings and errors of the agent's log. Omits their reasons, which are the verdict's.
    fn quote_log(&mut self) {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        for line in log.lines().skip(self.log_read) {
            let (_time, entry) = line.split_once(' ').unwrap_or_default();
            let entry = entry.trim_start();
            if entry.starts_with("WARN ") || entry.starts_with("ERROR ") {
                let (entry, _reason) = entry.split_once(" reason=").unwrap_or((entry, ""));
                self.timeline.quote(entry);
            }
        }
        self.log_read = log.lines().count();
    }

    pub(super) fn add_row(&mut self, row: Named, sound: bool, seen: &str) {
        let text = format!("{}: {seen}", row.1);
        let missed = (!sound).then(|| seen.to_owned());
        self.row(row, ["-", "-"], sound, missed, &text);
    }

    /// Adds a row that is good if no such codes were seen since the last act or fault.
    pub(super) fn never(&mut self, row: Named, unwanted: impl Fn(Codes) -> bool) {
        let mut changes = self.codes.changes();
        changes.retain(|change| change.at > self.began && unwanted(change.codes));
        let seen = changes.first().map(|change| codes_line(change.codes));
        self.add_row(row, seen.is_none(), &seen.unwrap_or("so it was".to_owned()));
    }

    /// Adds a row that is good if no client failed since the last act or fault.
    pub(super) fn unharmed(&mut self, row: Named) {
        let (ok, failed) = self.felt();
        let seen = format!("{ok} answered, {failed} failed");
        self.add_row(row, ok > 0 && failed == 0, &seen);
    }

    /// Counts of the connections that clients began since the last act or fault: answered and failed.
    fn felt(&mut self) -> (usize, usize) {
        let ended = self.clients.iter().flat_map(Client::take_ended);
        self.ended.extend(ended);
        self.ended.retain(|one| one.begun >= self.began);
        let ok = self.ended.iter().filter(|one| one.ok).count();
        (ok, self.ended.len() - ok)
    }

    /// Adds a row, with the actual time and the time limit.
    fn row(
        &mut self,
        (what, expected): Named,
        [took, limit]: [&str; 2],
        sound: bool,
        missed: Option<String>,
        text: &str,
    ) {
        let seen = missed.as_ref().map(|seen| format!("seen: {seen}"));
        let text = match &seen {
            None => text.to_owned(),
            Some(seen) => format!("not seen: {expected}; {seen}"),
        };
        let (kind, code) = match sound {
            true => (timeline::GOOD, GREEN),
            false => (timeline::BAD, RED),
        };
        self.timeline.tell(kind, &text);
        let mark = paint(code, kind[0]);
        let took = paint(code, &format!("{took:>8}"));
        let seen = seen.unwrap_or_default();
        self.late |= !sound;
        self.missed |= missed.is_some();
        self.rows.push(format!(
            " {mark}{what:28} {expected:36} {took}  {limit:>8}  {seen}"
        ));
    }

    /// Continues to print changes for this many seconds.
    pub(super) fn linger(&mut self, seconds: u64) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            self.pump()?;
        }
        Ok(())
    }

    /// Prints new changes and returns the current state.
    fn pump(&mut self) -> Result<View> {
        super::check_signals()?;
        let told = self.verdicts_told;
        let new = |all: &[_]| (all.len() > told).then(|| all[told..].to_vec());
        let verdicts = self.verdicts.wait(PAUSE, new).unwrap_or_default();
        let codes = self.codes.changes().split_off(self.codes_told);
        self.verdicts_told += verdicts.len();
        self.codes_told += codes.len();
        let codes = codes.iter().map(|one| (one.at, codes_line(one.codes), ""));
        let verdicts = verdicts
            .iter()
            .filter(|(_, one)| !one.word("state").is_empty())
            .map(|(at, one)| (*at, one.line(), one.word("reason")));
        let mut news: Vec<_> = codes.chain(verdicts).collect();
        news.sort_by_key(|(at, ..)| *at);
        for (at, line, reason) in news {
            self.timeline.tell_at(at, timeline::SEEN, &line);
            self.timeline.quote(reason);
        }
        Ok(View {
            codes: self.codes.now(),
            verdict: self.verdicts.now().unwrap_or_default(),
        })
    }

    /// Prints the table. Returns whether all results came. Late ones count as well: on a busy machine,
    /// lateness is not the agent's fault.
    pub(super) fn finish(self) -> bool {
        let Tally { started, ok, .. } = self.clients.iter().map(Client::tally).sum();
        let (timeline, rows) = (self.timeline, self.rows);
        timeline.title("Expected and observed results");
        timeline.print(&paint(DIM, HEADING));
        rows.iter().for_each(|row| timeline.print(row));
        let words = match (self.missed, self.late) {
            (true, _) => "NOT all results as expected",
            (false, true) => "all results as expected, some late",
            (false, false) => "all results as expected",
        };
        timeline.title(&format!("{words} ({started} connections, {ok} answered)"));
        !self.missed
    }
}

/// A duration as short text.
pub(super) fn time(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}
