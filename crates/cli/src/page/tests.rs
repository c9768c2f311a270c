use super::*;

/// Asserts that a page equals its file in crates/cli/testdata, and that its lines fit a terminal, except for
/// commands. With PATHPROOF_BLESS set, the file is rewritten; review the difference.
pub(crate) fn assert_page(folder: &str, name: &str, page: &str) {
    assert_text(folder, name, page);
    let fits = |line: &str| line.chars().count() <= WIDTH || line.trim_start().starts_with("$ ");
    assert!(page.lines().all(fits), "{page}");
}

/// Like `assert_page`, for a page that may be wider than a terminal.
pub(crate) fn assert_text(folder: &str, name: &str, page: &str) {
    let path = format!(
        "{}/testdata/{folder}/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    if std::env::var_os("PATHPROOF_BLESS").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        page == expected,
        "{path} is not what is printed; look at it, and run the test with PATHPROOF_BLESS=1 if \
         it should be:\n{page}"
    );
    assert!(page.lines().all(|line| line.trim_end() == line), "{page}");
    assert_linked(page);
}

/// Asserts that every page of the docs is named by its address, which is in the source in tests.
fn assert_linked(page: &str) {
    let words: Vec<&str> = page.split_whitespace().collect();
    let text = words.join(" ");
    for rest in text.split("docs/").skip(1) {
        let after = rest.split_once(' ').unwrap_or_default().1;
        assert!(after.starts_with("of pathproof's source"), "docs/{rest}");
    }
}

/// Asserts that a page with colours has the same text as the plain page.
pub(crate) fn assert_colours(coloured: &str, plain: &str) {
    let mut read = String::new();
    for piece in coloured.split('\x1b') {
        let text = piece.split_once('m').filter(|_| piece.starts_with('['));
        read.push_str(text.map_or(piece, |(_, text)| text));
    }
    // With colour, the badge has blanks around it.
    let badge = plain.split("  ").next().unwrap();
    assert_eq!(read.replacen(&format!(" {badge} "), badge, 1), plain);
}

#[test]
fn numbers_and_names() {
    assert_eq!(grouped(0), "0");
    assert_eq!(grouped(999), "999");
    assert_eq!(grouped(1_234_567), "1,234,567");
    assert_eq!(counted(1, "file"), "1 file");
    assert_eq!(counted(1_000, "file"), "1,000 files");
}

#[test]
fn columns_count_what_is_visible() {
    let mut out = Text::new(true);
    out.put(Style::Bad, "ab")
        .to(5)
        .put(Style::Plain, "c")
        .line();
    assert_eq!(out.finish(), "\x1b[31mab\x1b[0m   c\n");
    let mut out = Text::new(false);
    out.put(Style::Bad, "ab")
        .right(Style::Plain, 8, "xyz")
        .line();
    assert_eq!(out.finish(), "ab   xyz\n");
}

#[test]
fn paragraphs_wrap_at_the_width() {
    let mut out = Text::new(false);
    out.put(Style::Plain, "  ")
        .wrapped(Style::Plain, 2, &"word ".repeat(40));
    let text = out.finish();
    assert!(
        text.lines()
            .all(|line| line.starts_with("  word") && line.len() <= WIDTH)
    );
    assert_eq!(text.lines().count(), 3);
}
