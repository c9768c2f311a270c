//! `pathproof status`: fetches a running agent's report and shows it to a person, or passes it on
//! as JSON.

use std::io::{self, IsTerminal, Write as _};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;

use super::{Exit, colours, fetch};
use crate::args::{Output, StatusArgs};
use crate::causes::chain;
use agent_core::report::Report;

mod render;

pub use render::{View, render};

const REDRAW: Duration = Duration::from_secs(1);

/// Runs the command. `now` reads the wall clock.
pub fn run(said: &StatusArgs, now: fn() -> Timestamp) -> Exit {
    if said.watch {
        return watch(said, now);
    }
    let address = &said.admin.address;
    let fetched = fetch::fetch(address).and_then(|body| Ok((fetch::parse(address, &body)?, body)));
    match fetched {
        Ok((report, body)) => show(&body, &report, said.output, now),
        Err(error) => super::fail(&error),
    }
}

/// Prints the page of a report, or the text that it was read from.
fn show(body: &str, report: &Report, output: Output, now: fn() -> Timestamp) -> Exit {
    match output {
        Output::Json => super::print(body),
        Output::Text => {
            let view = View {
                colour: colours(),
                now: now(),
                previous: None,
            };
            super::print(&render(report, &view))
        }
    }
}

/// Until interrupted, or until nobody reads any more. An agent that is away is waited for.
fn watch(said: &StatusArgs, now: fn() -> Timestamp) -> Exit {
    let redraw = io::stdout().is_terminal() && said.output == Output::Text;
    let mut previous: Option<Report> = None;
    loop {
        let fetched = fetch::fetch(&said.admin.address)
            .and_then(|body| Ok((fetch::parse(&said.admin.address, &body)?, body)));
        let page = match fetched {
            Ok((_, body)) if said.output == Output::Json => body,
            Ok((report, _)) => {
                let view = View {
                    colour: colours(),
                    now: now(),
                    previous: previous.as_ref(),
                };
                let page = render(&report, &view);
                previous = Some(report);
                page
            }
            Err(error) => format!("pathproof: {}\n", chain(&error)),
        };
        if put(&page, redraw).is_err() {
            return Exit::Success;
        }
        thread::sleep(REDRAW);
    }
}

/// Over the last page, line by line, so that nothing flickers; or below it where that cannot be.
fn put(page: &str, redraw: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if redraw {
        let over = page.replace('\n', "\x1b[K\n");
        write!(out, "\x1b[H{over}\x1b[J")?;
    } else {
        out.write_all(page.as_bytes())?;
    }
    out.flush()
}

#[cfg(test)]
mod tests;
