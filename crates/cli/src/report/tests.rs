use std::net::TcpListener;

use clap::Parser as _;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::args::Line;
use crate::page::{assert_colours, assert_page, assert_text};

/// Two weeks of a node.
fn journal(node: &str, episodes: Value) -> Value {
    let days = (7..21).map(|day| (format!("2026-11-{day:02}"), json!(86_400_000_000_000_u64)));
    json!({
        "schema": SCHEMA,
        "node": node,
        "boot_id": "5f0d2c1e",
        "at": 7,
        "observed_ns": days.collect::<serde_json::Map<String, Value>>(),
        "episodes": episodes,
        "deleted": 0,
    })
}

fn episode(begin: &str, lasted_ms: u64, cause: &str, failed: Value) -> Value {
    json!({
        "begin": begin,
        "lasted_ns": lasted_ms * 1_000_000,
        "end": "recovered",
        "cause": cause,
        "answered": 200,
        "held": false,
        "recording": null,
        "failed": failed,
        "failed_others": 0,
        "failed_outside": 0,
    })
}

fn quiet() -> Vec<Value> {
    let nodes = ["worker-1", "worker-2", "worker-3"];
    nodes.map(|node| journal(node, json!([]))).to_vec()
}

/// A node without forwarding, and one whose rules were flushed and that was rebooted in its second episode.
fn faults() -> Vec<Value> {
    let served = json!({ "shop/web:http": 1_100, "shop/api": 103 });
    let mut off = episode("2026-11-12T09:30:00Z", 754_000, "forwarding_off", served);
    off["failed_outside"] = 1_100.into();
    off["recording"] = "2026-11-12T093000.512Z.pathproof".into();
    let mut flushed = episode(
        "2026-11-15T22:10:41Z",
        11_400,
        "leaked",
        json!({ "shop/web:http": 52 }),
    );
    flushed["failed_others"] = 6.into();
    flushed["failed_outside"] = 41.into();
    let mut rebooted = episode("2026-11-19T03:00:12Z", 32_000, "program_missing", json!({}));
    rebooted["end"] = "not_observed".into();
    vec![
        journal("worker-1", json!([])),
        journal("worker-2", json!([off])),
        journal("worker-3", json!([flushed, rebooted])),
    ]
}

const VERDICTS: &str = "worker-2 2026-11-12T09:35:00Z right somebody set ip_forward to 0 by hand
worker-3 2026-11-15T22:10:41Z wrong
worker-3 2026-11-15T22:10:41Z right flushed by another agent
";

fn audit<'a>(journals: &[Value], verdicts: &str, unread: &'a [String]) -> Audit<'a> {
    let document = Value::Array(journals.to_vec()).to_string();
    let journals = parse("x", document.as_bytes()).unwrap();
    Audit {
        journals: (journals.into_iter())
            .map(|journal| (journal.node.clone(), journal))
            .collect(),
        unread,
        verdicts: verdicts::parse(verdicts).unwrap(),
    }
}

/// Compares pages with crates/cli/testdata/report. PATHPROOF_BLESS rewrites them, to be reviewed.
#[rstest]
#[case("quiet", quiet(), "")]
#[case("audit", faults(), VERDICTS)]
fn pages(#[case] name: &str, #[case] journals: Vec<Value>, #[case] verdicts: &str) {
    let audit = audit(&journals, verdicts, &[]);
    assert_page("report", name, &audit.page(false));
    assert_text("report", &format!("{name}.html"), &html::page(&audit));
    assert_colours(&audit.page(true), &audit.page(false));
}

#[rstest]
#[case(
    "",
    "3 of 3 episodes not judged yet; so far 0 wrong in 1,008 node-hours, would have saved 0.0"
)]
#[case(
    "worker-3 2026-11-19T03:00:12Z wrong",
    "2 of 3 episodes not judged yet; so far 1 wrong in"
)]
#[case(
    VERDICTS,
    "1 of 3 episodes not judged yet; so far 0 wrong in 1,008 node-hours, would have saved 12.8"
)]
fn the_headline_counts_only_what_was_judged(#[case] verdicts: &str, #[case] expected: &str) {
    let audit = audit(&faults(), verdicts, &[]);
    let headline = audit.headline(&audit.rows());
    assert!(headline.starts_with(expected), "{headline}");
}

/// The page quotes the report; `...` marks omitted lines.
#[test]
fn the_rollout_quotes_what_is_printed() {
    let docs = include_str!("../../../../docs/rollout.md");
    let (_, quoted) = docs.split_once("report.html\n").expect("a quoted page");
    let (quoted, _) = quoted.split_once("```").expect("its end");
    let page = audit(&faults(), VERDICTS, &[]).page(false);
    for line in quoted.lines().filter(|line| *line != "...") {
        assert!(page.lines().any(|known| known == line), "{line}\n{page}");
    }
}

/// A node that really answered 503 saved its connections already, and the fleet brake holds back in enforce too.
#[rstest]
#[case::enforced("answered", json!(503))]
#[case::braked("held", json!(true))]
fn what_enforcing_does_not_change_is_not_counted_as_saved(
    #[case] field: &str,
    #[case] value: Value,
) {
    let mut journals = faults();
    journals[1]["episodes"][0][field] = value;
    let judged = format!("{VERDICTS}worker-3 2026-11-19T03:00:12Z right\n");
    let audit = audit(&journals, &judged, &[]);
    let headline = audit.headline(&audit.rows());
    let expected = "0 wrong in 1,008 node-hours, would have saved 0.7 node-minutes and 41 failed \
                    connections of clients outside";
    assert_eq!(headline, expected);
}

/// The first episode may have lasted until the second in which the next one begins.
#[test]
fn a_verdict_with_the_time_of_a_begin_is_on_that_episode_alone() {
    let one = |begin: &str| episode(begin, 4_000, "leaked", json!({}));
    let both = json!([one("2026-11-12T09:30:00Z"), one("2026-11-12T09:30:05Z")]);
    let judged = |verdict: &str| {
        let audit = audit(&[journal("worker-1", both.clone())], verdict, &[]);
        let rows = audit.rows();
        rows.iter().map(|row| row.judged).collect::<Vec<_>>()
    };
    let exact = judged("worker-1 2026-11-12T09:30:05Z wrong");
    assert_eq!(exact, [Judged::Unknown, Judged::Wrong]);
    let within = judged("worker-1 2026-11-12T09:30:04Z wrong");
    assert_eq!(within, [Judged::Wrong, Judged::Unknown]);
}

#[test]
fn missing_journals_and_deleted_episodes_are_shown() {
    let mut journals = quiet();
    journals[0]["deleted"] = 12.into();
    let unread = ["worker-9: exit status: 1".to_owned()];
    let page = audit(&journals, "", &unread).page(false);
    for line in [
        "not read        worker-9: exit status: 1.",
        "not shown       12 earlier ones of worker-1; it keeps 200",
    ] {
        assert!(page.lines().any(|shown| shown == line), "{line}\n{page}");
    }
}

#[test]
fn names_of_others_become_no_markup_and_steer_no_terminal() {
    let script = "<script>alert('x')</script>\u{1b}[2J";
    let services = json!({ "shop/\"><img src=x>": 3 });
    let mut evil = episode("2026-11-12T09:30:00Z", 1_000, "</title><b>&", services);
    evil["recording"] = script.into();
    let audit = audit(&[journal(script, json!([evil]))], "", &[]);
    let page = html::page(&audit);
    let known = [
        "!doctype", "html", "meta", "title", "/title", "style", "/style", "h1", "/h1", "svg",
        "line", "text", "/text", "rect", "/rect", "/svg", "pre", "/pre", "/html",
    ];
    for tag in page.split('<').skip(1) {
        let name = tag.split([' ', '>']).next().unwrap();
        assert!(known.contains(&name), "<{name}> is in\n{page}");
    }
    assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;\\u{1b}[2J"));
    assert!(!audit.page(false).contains('\u{1b}'));
}

#[rstest]
#[case("{", "x: not a journal that this version reads")]
#[case("{\"schema\":1}", "missing field")]
#[case("[]\n[]", "trailing characters")]
fn a_file_that_is_no_journal_is_named(#[case] text: &str, #[case] expected: &str) {
    let error = parse("x", text.as_bytes()).unwrap_err();
    let said = pathproof_shared::causes::chain(&error);
    assert!(said.starts_with("x: ") && said.contains(expected), "{said}");
}

#[test]
fn journals_are_read_from_files_and_an_error_names_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let run = |words: &[&str]| {
        let words = [&["report"][..], words].concat();
        let Line::<ReportArgs> { args } = Line::try_parse_from(words).unwrap();
        let shown = gather(&args).and_then(|journals| show(journals, &[], &args.page, args.output));
        shown.map_err(|error| pathproof_shared::causes::chain(&error))
    };
    let (one, all) = (path("one.json"), path("all.json"));
    fs::write(&one, quiet()[0].to_string()).unwrap();
    fs::write(&all, Value::Array(faults()).to_string()).unwrap();
    let (judged, html) = (path("verdicts"), path("page.html"));
    fs::write(&judged, VERDICTS).unwrap();
    let words = ["--from", &one, &all, "--verdicts", &judged, "--html", &html];
    assert_eq!(run(&words), Ok(Exit::Success));
    let page = fs::read_to_string(&html).unwrap();
    assert!(page.contains("REPORT  3 nodes"), "{page}");

    fs::write(&judged, "\nworker-1 today right\n").unwrap();
    let why = run(&["--from", &one, "--verdicts", &judged]).unwrap_err();
    assert!(
        why.starts_with(&format!("{judged}:2: \"today\": give a time")),
        "{why}"
    );
    let missing = path("missing");
    let why = run(&["--from", &missing]).unwrap_err();
    assert!(
        why.starts_with(&missing) && why.contains("No such file"),
        "{why}"
    );
    let mut later = quiet()[0].clone();
    later["schema"] = (SCHEMA + 1).into();
    fs::write(&one, later.to_string()).unwrap();
    let why = run(&["--from", &one]).unwrap_err();
    assert!(why.contains("it has another schema"), "{why}");
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let why = run(&["--admin-address", &port.to_string()]).unwrap_err();
    assert!(why.contains("no agent answers at"), "{why}");
}
