//! Golden files of names and sentences, for the tests of all crates.

use serde::Serialize;

/// Compares `words` with a file of crates/report/testdata/words. With PATHPROOF_BLESS set it writes
/// the file instead, for review.
pub fn assert_words(name: &str, words: &str) {
    let path = format!(
        "{}/../report/testdata/words/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    if std::env::var_os("PATHPROOF_BLESS").is_some() {
        std::fs::write(&path, words).unwrap();
    }
    assert!(words.lines().all(|line| line.trim_end() == line), "{words}");
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    if words == expected {
        return;
    }
    let mut lines = words.lines().zip(expected.lines()).enumerate();
    let first = lines.find(|(_, (now, before))| now != before);
    let (line, (now, before)) = first.unwrap_or((
        words.lines().count().min(expected.lines().count()),
        ("one of them has more lines", ""),
    ));
    panic!(
        "line {} of {path} reads\n  {before}\nand is now\n  {now}\nIf it should be, run the test \
         with PATHPROOF_BLESS=1 and read what that changes",
        line + 1
    );
}

/// A name as JSON spells it.
pub fn in_json<T: Serialize>(value: T) -> String {
    let json = serde_json::to_value(value).unwrap();
    json.as_str().unwrap().to_owned()
}
