use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use flate2::read::GzDecoder;
use pathproof_facts::time::Mono;
use rstest::rstest;

use super::*;

fn wanted(file: PathBuf, force: bool) -> BundleArgs {
    BundleArgs {
        node: None,
        all: true,
        file,
        force,
    }
}

fn files(path: &Path) -> BTreeMap<String, String> {
    let mut tar = tar::Archive::new(GzDecoder::new(File::open(path).unwrap()));
    let entries = tar.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name, text)
    });
    entries.collect()
}

#[test]
fn a_bundle_says_what_it_has_and_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bundle");
    let mut bundle = Bundle::new(create(&wanted(path.clone(), false)).unwrap(), Wall(0));
    let mut add = |name: &str, part: Result<&str, &str>| {
        let part = part.map(|text| text.as_bytes().to_vec());
        bundle
            .add((name.to_owned(), part.map_err(str::to_owned)))
            .unwrap();
    };
    add("node-1/a/why.txt", Ok("from 10.0.0.1 to 10.0.0.2:80\n"));
    add("node-1/a/agent.log", Ok("again 10.0.0.1\n"));
    add("node-2/b/why.txt", Err("dial tcp 10.0.0.2:10250: no route"));
    add("node-1/a/last.pathproof", Ok("no recording"));
    let missing = bundle.finish().unwrap();

    let files = files(&path);
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["index.txt", "node-1/a/agent.log", "node-1/a/why.txt"]
    );
    assert_eq!(
        files["node-1/a/why.txt"],
        "from 198.18.0.1 to 198.18.0.2:80\n"
    );
    assert_eq!(files["node-1/a/agent.log"], "again 198.18.0.1\n");
    let index = &files["index.txt"];
    let why = "node-2/b/why.txt: dial tcp 198.18.0.2:10250: no route";
    assert!(index.contains(&format!("MISSING {why}\n")), "{index}");
    assert!(index.contains("node-1/a/agent.log: 17 bytes\n"), "{index}");
    assert_eq!(missing[0], why);
    assert!(
        missing[1].starts_with("node-1/a/last.pathproof: "),
        "{missing:?}"
    );
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_file_beyond_the_limit_of_all_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bundle");
    let mut bundle = Bundle::new(create(&wanted(path.clone(), false)).unwrap(), Wall(0));
    bundle.size = MAX_ALL - 4;
    for (name, text) in [("n/a/fits", "1234"), ("n/a/not", "5"), ("n/b/why.txt", "")] {
        bundle.add((name.to_owned(), Ok(text.into()))).unwrap();
    }
    let missing = bundle.finish().unwrap();
    assert_eq!(
        missing,
        [format!("n/a/not: {FULL}"), format!("n/b/why.txt: {FULL}")]
    );
    assert_eq!(files(&path)["n/a/fits"], "1234");
}

#[test]
fn a_file_is_replaced_only_if_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bundle");
    fs::write(&path, "mine").unwrap();
    let refused = create(&wanted(path.clone(), false))
        .unwrap_err()
        .to_string();
    assert!(refused.ends_with("exists: give another name with --file, or replace it with --force"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    create(&wanted(path.clone(), true)).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let nowhere = dir.path().join("none").join("bundle");
    let error = create(&wanted(nowhere, false)).unwrap_err();
    assert!(error.to_string().ends_with("cannot be written"), "{error}");
}

#[rstest]
#[case("a Bearer abc.def x", "a Bearer [token] x")]
#[case(
    "authorization: bearer abc\nnext",
    "authorization: bearer [token]\nnext"
)]
#[case("token=eyJhbGciOiJSUzI1NiJ9.e30.x, y", "token=[token], y")]
#[case(r#"{"a":"eyJh","b":1}"#, r#"{"a":"[token]","b":1}"#)]
#[case(
    r#"{"a":"Bearer  x.y\nb \"eyJh\""}"#,
    r#"{"a":"Bearer  [token]\nb \"[token]\""}"#
)]
#[case("{Token:eyJhb.e30.x by}", "{Token:[token] by}")]
#[case("key-data: LS0tLS1CRUdJTiBSU0E", "key-data: [token]")]
#[case("a\n-----BEGIN KEY-----\nMII\n-----END KEY-----\nb", "a\n[PEM]\nb")]
#[case("a -----BEGIN KEY-----\nMII", "a [PEM]")]
#[case("the keyJob=1, monkeyJs", "the keyJob=1, monkeyJs")]
#[case("the bearer's eye, and a bearer\n", "the bearer's eye, and a bearer\n")]
fn tokens_are_removed_and_other_words_are_not(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(without_tokens(text), expected);
}

/// A journal with one episode for each name.
fn journal(names: &[&str]) -> Vec<u8> {
    let mut journal = Journal::resume(None, "worker-1", "boot-1", Mono(0)).document();
    let episodes: Vec<Value> = names.iter().map(|name| episode(name)).collect();
    let mut value: Value = serde_json::from_str(&journal).unwrap();
    value["episodes"] = episodes.into();
    journal = json!([value]).to_string();
    journal.into_bytes()
}

fn episode(name: &str) -> Value {
    json!({
        "begin": "2026-11-23T04:05:06Z", "lasted_ns": 1, "end": "recovered", "cause": "lost",
        "answered": 200, "held": false, "recording": name, "failed": {}, "failed_others": 0,
        "failed_outside": 0,
    })
}

#[test]
fn the_last_recordings_of_a_journal_are_read_and_no_other_file_is_named() {
    let names: Vec<String> = (1..=8)
        .map(|day| format!("2026-11-0{day}T1.pathproof"))
        .collect();
    let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
    all.extend([
        &*names[7],
        "../../etc/x.pathproof",
        "state.json",
        "--redact",
    ]);
    assert_eq!(recordings(&journal(&all)), names[2..]);
    assert!(recordings(b"no journal").is_empty());
}

#[test]
fn what_a_command_prints_is_read_or_its_last_words_are() {
    let sh = |script: &str| output(Command::new("sh").args(["-c", script]));
    assert_eq!(sh("echo good; echo bad >&2"), Ok(b"good\n".to_vec()));
    let failed = sh("echo first >&2; echo last >&2; exit 3").unwrap_err();
    assert_eq!(failed, "last (exit status: 3)");
    let failed = sh("echo refused >&2; echo command terminated with exit code 1 >&2; exit 1");
    assert_eq!(failed.unwrap_err(), "refused (exit status: 1)");
    let large = sh(&format!("head -c {} /dev/zero", MAX_PART + 1)).unwrap_err();
    assert_eq!(large, "it is larger than 16 MiB");
    let missing = output(&mut Command::new("/no/such/kubectl")).unwrap_err();
    assert!(missing.starts_with("kubectl is not in PATH"), "{missing}");
}
