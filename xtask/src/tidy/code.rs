//! Extracts code from Rust text: comments, strings and character literals become spaces.
//!
//! It is not a parser. Line numbers stay the same, so that findings are correct.

/// Blanks comments, strings and characters; line ends stay.
pub(super) fn only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => line_end(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'*') => comment_end(bytes, at),
            b'"' => string_end(bytes, at + 1),
            b'r' if !is_word(bytes, at.wrapping_sub(1)) => raw_string_end(bytes, at),
            b'\'' => char_end(bytes, at),
            _ => at,
        };
        blank(&mut out[at..end]);
        at = end.max(at + 1);
    }
    // Only whole literals and comments were blanked, so the rest is still UTF-8.
    String::from_utf8(out).unwrap_or_default()
}

fn blank(part: &mut [u8]) {
    for byte in part.iter_mut().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
}

fn is_word(bytes: &[u8], at: usize) -> bool {
    let byte = bytes.get(at);
    byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    let line = bytes[at..].iter().take_while(|byte| **byte != b'\n');
    at + line.count()
}

fn comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < bytes.len() {
        match &bytes[at..bytes.len().min(at + 2)] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of `r"..."` or `r#"..."#`; the start itself if it is an ordinary name.
fn raw_string_end(bytes: &[u8], start: usize) -> usize {
    let after = &bytes[start + 1..];
    let hashes = after.iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(start + 1 + hashes) != Some(&b'"') {
        return start;
    }
    let close = format!("\"{}", "#".repeat(hashes)).into_bytes();
    let body = start + 2 + hashes;
    let found = bytes[body..].windows(close.len()).position(|w| w == close);
    found.map_or(bytes.len(), |n| body + n + close.len())
}

/// The end of a character; the start itself if it is a lifetime.
fn char_end(bytes: &[u8], start: usize) -> usize {
    if bytes.get(start + 1) == Some(&b'\\') {
        let rest = bytes[start + 3..].iter().position(|b| *b == b'\'');
        return rest.map_or(start, |n| start + 4 + n);
    }
    // One character of up to four bytes, then a quote.
    let close = (2..=5).find(|n| bytes.get(start + n) == Some(&b'\''));
    let is_one = |n: &usize| {
        let inside = std::str::from_utf8(&bytes[start + 1..start + n]);
        inside.is_ok_and(|text| text.chars().count() == 1)
    };
    close.filter(is_one).map_or(start, |n| start + n + 1)
}

/// Lines (from 1) that contain `needle` as whole words; its ends may also be punctuation.
pub(super) fn lines_with(code: &str, needle: &str) -> Vec<usize> {
    let bytes = code.as_bytes();
    // Whether a position is inside a word.
    let inside = |at: usize| is_word(bytes, at.wrapping_sub(1)) && is_word(bytes, at);
    let found = code.match_indices(needle).map(|(at, _)| at);
    let whole = found.filter(|at| !inside(*at) && !inside(at + needle.len()));
    let mut lines: Vec<usize> = whole.map(|at| line_of(code, at)).collect();
    lines.dedup();
    lines
}

/// Line (from 1) of a position.
pub(super) fn line_of(code: &str, at: usize) -> usize {
    1 + code[..at].matches('\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_code_is_blank_and_lines_stay() {
        for (text, code) in [
            ("a // tokio\nb", "a\nb"),
            ("a /* x /* y */ tokio */ b", "a b"),
            ("a \"tokio \\\" tokio\" b", "a b"),
            ("a r#\"tokio \" tokio\"# b", "a b"),
            ("a b\"tokio\" c", "a b c"),
            ("let c = '\"'; tokio", "let c = ; tokio"),
            ("let c = '\\''; tokio", "let c = ; tokio"),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("for r in x", "for r in x"),
            ("'é' tokio", "tokio"),
        ] {
            let words = |s: &str| s.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            let found = only(text);
            assert_eq!(words(&found), words(code), "{text}");
            assert_eq!(found.lines().count(), text.lines().count(), "{text}");
        }
    }

    #[test]
    fn only_whole_words_count() {
        assert_eq!(lines_with("kube_x\nkube::y\nxkube\nkube", "kube"), [2, 4]);
        assert_eq!(lines_with("std::fs::read\nstd::fsx", "std::fs"), [1]);
        assert_eq!(lines_with("x.todo!()\ntodo!(y)", "todo!("), [1, 2]);
    }
}
