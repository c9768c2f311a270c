//! Makes text of external origin safe for a terminal or a log: names of objects, interfaces and programs,
//! responses of servers, content of files.
//!
//! The outputs and the function that cleans each:
//!
//! | output | function |
//! |---|---|
//! | pages: `status`, `why`, `check`, `report`, `fleet`, `preflight`, `drain`, `replay` | [`styled`]; [`visible`] for a piece |
//! | the HTML file of `report` | its function `escaped`, which begins with [`styled`] |
//! | `--output json`, `/verdict`, `/episodes` and `/drainz`, which people read with curl | [`json`] |
//! | the line on standard error by which a command fails | [`visible`] |
//! | lines of the log | [`styled`] or [`visible`]; [`json`] if the log is JSON |
//! | message of the Node's condition, note of Events | [`visible`] |
//!
//! Not cleaned: `/metrics`, which programs read; files of recordings; and arguments that clap quotes
//! in its messages.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character steers a terminal, changes the order of its neighbours, or is invisible: control
/// characters, direction marks, zero-width characters, and U+FFFD, which replaces bytes that are not UTF-8.
/// Letters of any script are not hidden.
pub fn is_hidden(sign: char) -> bool {
    match sign {
        '\u{fffd}' => true,
        _ if sign.is_ascii() => sign.is_ascii_control(),
        _ => {
            // `escape_debug` escapes what is not printable. It also escapes a combining mark at the
            // beginning of a text, so a letter comes first.
            let mut after_letter = [b'a'; 5];
            let length = sign.encode_utf8(&mut after_letter[1..]).len();
            let text = std::str::from_utf8(&after_letter[..=length]);
            text.is_ok_and(|text| text.escape_debug().nth(2).is_some())
        }
    }
}

/// One line, with hidden characters escaped as in source code: `\u{202e}`, `\n`.
pub fn visible(text: &str) -> Cow<'_, str> {
    replaced(text, is_hidden, |sign, into| {
        into.extend(sign.escape_default())
    })
}

/// Several lines, with hidden characters escaped. Line breaks are kept; with `colours`, colour codes too.
pub fn styled(text: &str, colours: bool) -> String {
    let mut clean = String::with_capacity(text.len());
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            clean.push('\n');
        }
        for (index, piece) in line.split('\x1b').enumerate() {
            let (colour, rest) = match index {
                0 => ("", piece),
                _ => piece.split_at(if colours { colour(piece) } else { 0 }),
            };
            match (index, colour) {
                (0, _) => {}
                (_, "") => clean.push_str(&visible("\x1b")),
                _ => clean.extend(["\x1b", colour]),
            }
            clean.push_str(&visible(rest));
        }
    }
    clean
}

/// Length of a colour code such as `[1;31m`, which follows the escape character; zero if there is none.
fn colour(piece: &str) -> usize {
    let Some(numbers) = piece.strip_prefix('[') else {
        return 0;
    };
    let end = numbers.find(|sign: char| !sign.is_ascii_digit() && sign != ';');
    match end {
        Some(end) if numbers[end..].starts_with('m') => end + 2,
        _ => 0,
    }
}

/// An equivalent JSON document, with hidden characters escaped as in JSON: `\u202e`. Line breaks stay. Tabs
/// and carriage returns become spaces, because they move a terminal's cursor.
pub fn json(document: &str) -> Cow<'_, str> {
    let hidden = |sign| is_hidden(sign) && sign != '\n';
    replaced(document, hidden, |sign, into| match sign {
        '\r' | '\t' => into.push(' '),
        _ => {
            for unit in sign.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(into, "\\u{unit:04x}");
            }
        }
    })
}

fn replaced(
    text: &str,
    hidden: impl Fn(char) -> bool,
    replace: impl Fn(char, &mut String),
) -> Cow<'_, str> {
    if !text.contains(&hidden) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 8);
    for sign in text.chars() {
        match hidden(sign) {
            true => replace(sign, &mut clean),
            false => clean.push(sign),
        }
    }
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::escape("\x1b[2J", r"\u{1b}[2J")]
    #[case::one_byte_escape("\u{9b}2J", r"\u{9b}2J")]
    #[case::delete("a\x7f", r"a\u{7f}")]
    #[case::a_forged_line("ok\nWARN forged", r"ok\nWARN forged")]
    #[case::over_the_line("ok\rno", r"ok\rno")]
    #[case::right_to_left("eth0\u{202e}", r"eth0\u{202e}")]
    #[case::isolate("\u{2066}x\u{2069}", r"\u{2066}x\u{2069}")]
    #[case::without_width("a\u{200b}b\u{feff}", r"a\u{200b}b\u{feff}")]
    #[case::line_of_unicode("a\u{2028}b", r"a\u{2028}b")]
    #[case::tag("a\u{e0041}", r"a\u{e0041}")]
    #[case::no_text("\u{fffd}", r"\u{fffd}")]
    fn hidden_characters_are_escaped(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(visible(text), expected);
    }

    /// Negative controls.
    #[rstest]
    #[case("default/web: 3 of 5 connections \"failed\" 'x' \\u{202e}")]
    #[case("Knoten-Süd, größer, 16 MiB …")]
    #[case("узел-1 ノード一 노드 節点 κόμβος עברית العربية")]
    // Combining marks, decomposed and Indic.
    #[case("e\u{301}te\u{301} नोड กลุ่ม")]
    #[case("🚦")]
    fn text_of_any_script_stays(#[case] text: &str) {
        assert_eq!(visible(text), text);
        assert_eq!(json(text), text);
        assert_eq!(styled(text, true), text);
    }

    #[rstest]
    #[case(
        "\x1b[1;31mBROKEN\x1b[0m  node\n",
        true,
        "\x1b[1;31mBROKEN\x1b[0m  node\n"
    )]
    #[case("\x1b[1mno\x1b[0m\n", false, "\\u{1b}[1mno\\u{1b}[0m\n")]
    #[case(
        "\x1b[2Jx\x1b]0;t\x07\x1b",
        true,
        "\\u{1b}[2Jx\\u{1b}]0;t\\u{7}\\u{1b}"
    )]
    #[case("\x1b[31", true, "\\u{1b}[31")]
    fn a_page_keeps_its_colours_and_lines(
        #[case] page: &str,
        #[case] colours: bool,
        #[case] expected: &str,
    ) {
        assert_eq!(styled(page, colours), expected);
    }

    #[test]
    fn escaping_json_keeps_its_meaning() {
        let value = serde_json::json!({"a\u{202e}": ["\u{e0041}\u{9b}\x7f\t", "\u{fffd}"]});
        let text = serde_json::to_string_pretty(&value).unwrap();
        let clean = json(&text);
        assert!(clean.contains(r"a\u202e") && clean.contains(r"\udb40\udc41\u009b\u007f\t"));
        assert!(!clean.chars().any(|sign| is_hidden(sign) && sign != '\n'));
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&clean).unwrap(),
            value
        );
        assert_eq!(json("{\r\t}\n"), "{  }\n");
    }

    proptest! {
        #[test]
        fn escaping_twice_changes_nothing(text in any::<String>()) {
            let once = visible(&text);
            prop_assert!(!once.contains(is_hidden));
            prop_assert_eq!(&visible(&once), &once);
            prop_assert_eq!(styled(&once, false), once);
        }
    }
}
