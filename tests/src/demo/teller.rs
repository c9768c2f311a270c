//! Tells what is seen at a node while a script plays, and keeps a row for each thing that is expected.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::signals;
use super::timeline::{Kind, Style, Timeline, plain, span};
use super::view::{self, Verdict, View, codes_line};
use crate::traffic::{Client, Ended, Tally};
use crate::watch::{Codes, Poll, Watch};
use crate::world::World;

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// Time beyond a limit, at least, to tell late from never.
const LATE: Duration = Duration::from_secs(4);
/// Over the columns of the table at the end.
const HEADING: &str =
    "   what happened                expected                                 took   allowed";

/// An expectation: the event, and in words what should follow.
pub(super) type Named<'a> = (&'a str, &'a str);
/// The same, and within how many seconds.
pub(super) type Wanted<'a> = (&'a str, &'a str, f64);

/// A row of the table at the end.
#[derive(Debug)]
struct Row {
    /// The event, what was expected, how long it took, and how long it may take.
    words: [String; 4],
    /// Not late, and not missed.
    sound: bool,
    /// The state that was seen instead.
    missed: Option<String>,
}

pub(super) struct Teller<'a> {
    // Dropped in this order: who asks, who dials.
    codes: Watch,
    verdicts: Poll<Verdict>,
    pub(super) clients: Vec<Client>,
    timeline: &'a mut Timeline,
    rows: Vec<Row>,
    /// Number of changes that were told.
    codes_told: usize,
    verdicts_told: usize,
    /// Time of the last act or fault, and connections that ended since then.
    began: Instant,
    ended: Vec<Ended>,
}

impl<'a> Teller<'a> {
    /// Looks at the node of a world from now on.
    pub(super) fn new(world: &World, timeline: &'a mut Timeline) -> Result<Self> {
        Ok(Self {
            codes: Watch::start(world, view::EVERY)?,
            verdicts: view::verdicts(world)?,
            clients: Vec::new(),
            timeline,
            rows: Vec::new(),
            codes_told: 0,
            verdicts_told: 0,
            began: Instant::now(),
            ended: Vec::new(),
        })
    }

    /// The demo does something good. The time to the next expected event is measured from here.
    pub(super) fn act(&mut self, text: &str) {
        self.begin(Kind::ACT, text);
    }

    /// The demo breaks something. The time to the next expected event is measured from here.
    pub(super) fn fault(&mut self, text: &str) {
        self.begin(Kind::FAULT, text);
    }

    fn begin(&mut self, kind: Kind, text: &str) {
        self.timeline.tell(kind, text);
        self.began = Instant::now();
    }

    pub(super) fn note(&mut self, text: &str) {
        self.timeline.tell(Kind::NOTE, text);
    }

    /// Something was seen, and these are the words of it.
    pub(super) fn seen(&mut self, text: &str, quotation: &str) {
        self.timeline.tell(Kind::SEEN, text);
        self.quote(quotation);
    }

    pub(super) fn quote(&mut self, text: &str) {
        self.timeline.quote(text);
    }

    /// Waits for what is expected, telling what is seen meanwhile, notes a row, and lingers. Goes on
    /// after a disappointment: the later steps are worth seeing.
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
        let (shown, limit_shown) = (took.map_or("-".to_owned(), time), time(limit));
        let text = format!("{expected} after {shown} (allowed: {limit_shown})");
        let row = Row {
            words: [what, expected, &shown, &limit_shown].map(str::to_owned),
            sound: took.is_some_and(|took| took <= limit),
            missed: took.is_none().then(|| view.shown()),
        };
        self.row(row, &text);
        self.bar();
        self.linger(1)
    }

    /// Notes whether what was seen is as expected.
    pub(super) fn judge(&mut self, (what, expected): Named, sound: bool, seen: &str) {
        let row = Row {
            words: [what, expected, "-", "-"].map(str::to_owned),
            sound,
            missed: (!sound).then(|| seen.to_owned()),
        };
        self.row(row, &format!("{expected}: {seen}"));
    }

    /// Notes whether such codes were never seen since the last act or fault.
    pub(super) fn never(&mut self, row: Named, unwanted: impl Fn(Codes) -> bool) {
        let mut changes = self.codes.changes();
        changes.retain(|change| change.at > self.began && unwanted(change.codes));
        let seen = changes
            .first()
            .map(|change| plain(&codes_line(change.codes)));
        self.judge(row, seen.is_none(), &seen.unwrap_or("so it was".to_owned()));
    }

    /// Notes whether clients felt nothing since the last act or fault.
    pub(super) fn unharmed(&mut self, row: Named) {
        let (ok, failed) = self.felt();
        let seen = format!("{ok} answered, {failed} failed");
        self.judge(row, ok > 0 && failed == 0, &seen);
    }

    /// Connections that clients began since the last act or fault: how many were answered, and failed.
    fn felt(&mut self) -> (usize, usize) {
        let ended = self.clients.iter().flat_map(Client::take_ended);
        self.ended.extend(ended);
        self.ended.retain(|one| one.begun >= self.began);
        let ok = self.ended.iter().filter(|one| one.ok).count();
        (ok, self.ended.len() - ok)
    }

    /// Notes a row.
    fn row(&mut self, row: Row, text: &str) {
        match &row.missed {
            None if row.sound => self.timeline.tell(Kind::GOOD, text),
            None => self.timeline.tell(Kind::BAD, text),
            Some(seen) => {
                let text = format!("not seen: {}; seen: {seen}", row.words[1]);
                self.timeline.tell(Kind::BAD, &text);
            }
        }
        self.rows.push(row);
    }

    /// Tells how many connections were answered, where there are clients.
    fn bar(&mut self) {
        let (ok, failed) = self.felt();
        let ended = ok + failed;
        if let Some(share) = (ok * 100).checked_div(ended) {
            let filled = share / 5;
            let words = format!(" {share} % of {ended} connections answered since then");
            let bar = vec![
                span(Style::DIM, "clients "),
                span(Style::GOOD, "█".repeat(filled)),
                span(Style::BAD, "░".repeat(20 - filled)),
                span(Style::DIM, words),
            ];
            self.timeline.tell_at(Instant::now(), Kind::NOTE, bar);
        }
    }

    /// Goes on telling for so many seconds.
    pub(super) fn linger(&mut self, seconds: u64) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            self.pump()?;
        }
        Ok(())
    }

    /// Tells what has changed, and gives what is now.
    fn pump(&mut self) -> Result<View> {
        signals::check()?;
        let told = self.verdicts_told;
        let new = |changes: &[(Instant, Verdict)]| {
            let new = changes[told..].to_vec();
            (!new.is_empty()).then_some(new)
        };
        let verdicts = self.verdicts.wait(PAUSE, new).unwrap_or_default();
        let codes = self.codes.changes().split_off(self.codes_told);
        self.verdicts_told += verdicts.len();
        self.codes_told += codes.len();
        let codes = codes.iter().map(|one| (one.at, codes_line(one.codes), ""));
        let is_one = |one: &Verdict| !one.word("state").is_empty();
        let verdicts = verdicts
            .iter()
            .filter(|(_, one)| is_one(one))
            .map(|(at, one)| (*at, one.line(), one.word("reason")));
        let mut news: Vec<_> = codes.chain(verdicts).collect();
        news.sort_by_key(|(at, ..)| *at);
        for (at, line, reason) in news {
            self.timeline.tell_at(at, Kind::SEEN, line);
            self.timeline.quote(reason);
        }
        Ok(View {
            codes: self.codes.now(),
            verdict: self.verdicts.now().unwrap_or_default(),
        })
    }

    /// The table at the end. Gives whether everything happened, maybe late: on a busy machine that
    /// says nothing of the agent.
    pub(super) fn finish(self) -> bool {
        let Tally { started, ok, .. } = self.clients.iter().map(Client::tally).sum();
        let (timeline, rows) = (self.timeline, self.rows);
        timeline.title("Expected and observed results");
        timeline.print(vec![span(Style::DIM, HEADING)]);
        for row in &rows {
            let (mark, style) = match row.sound {
                true => (" ✔ ", Style::GOOD),
                false => (" ✘ ", Style::BAD),
            };
            let [what, expected, took, limit] = &row.words;
            let missed = row.missed.as_ref().map(|seen| format!("  seen: {seen}"));
            timeline.print(vec![
                span(style, mark),
                span(Style::PLAIN, format!("{what:28} {expected:36} ")),
                span(style, format!("{took:>8}")),
                span(Style::DIM, format!("  {limit:>8}")),
                span(Style::BAD, missed.unwrap_or_default()),
            ]);
        }
        let is_met = rows.iter().all(|row| row.missed.is_none());
        let words = match is_met {
            true if rows.iter().all(|row| row.sound) => "all results as expected",
            true => "all results as expected, some late",
            false => "NOT all results as expected",
        };
        timeline.title(&format!("{words} ({started} connections, {ok} answered)"));
        is_met
    }
}

/// As a person writes it.
pub(super) fn time(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}
