//! The commands in README, quickstart and install, and the list of the tests or tasks that run each of
//! them. `cargo xtask tidy` refuses a command that is not on the list; `cargo xtask newcomer` runs
//! README's.

use crate::run;

/// Pages whose commands must be on the list.
pub(crate) const PAGES: [&str; 3] = ["README.md", "docs/quickstart.md", "docs/install.md"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// `cargo xtask newcomer`, exactly as README writes it.
    Newcomer,
    /// This function, possibly in another form: `path/of/file.rs::name`.
    By(&'static str),
    /// Nothing; the list gives the reason.
    Nowhere,
}

/// Prefixes of commands. The first matching entry counts.
pub(crate) fn list() -> impl Iterator<Item = (&'static str, Run)> {
    run::rows(include_str!("commands.txt")).map(|row| match row[..] {
        [begin, "newcomer"] => (begin, Run::Newcomer),
        [begin, "by", function] => (begin, Run::By(function)),
        [begin, "nowhere", _why] => (begin, Run::Nowhere),
        _ => panic!("commands.txt: {row:?} does not say what runs it"),
    })
}

pub(crate) fn known(command: &str) -> Option<(&'static str, Run)> {
    list().find(|(begin, _)| command.starts_with(begin))
}

/// Commands in a page's fenced shell blocks, with their line numbers. Continued lines are joined, and
/// comments are cut off. In a block with prompts, lines without a prompt are output.
pub(crate) fn of_page(text: &str) -> Vec<(usize, String)> {
    let mut commands: Vec<(usize, String)> = Vec::new();
    let (mut shell, mut fenced, mut continued) = (false, false, false);
    let mut prompts = false;
    for (number, line) in text.lines().enumerate() {
        if let Some(language) = line.strip_prefix("```") {
            fenced = !fenced;
            shell = fenced && matches!(language, "" | "console" | "sh");
            prompts = false;
            continue;
        }
        if !shell {
            continue;
        }
        let typed = line.strip_prefix("$ ");
        prompts |= typed.is_some();
        if prompts && typed.is_none() && !continued {
            continue;
        }
        let line = typed.unwrap_or(line);
        let line = line.split(" # ").next().unwrap_or_default().trim();
        let (line, more) = match line.strip_suffix('\\') {
            Some(line) => (line.trim_end(), true),
            None => (line, false),
        };
        match commands.last_mut().filter(|_| continued) {
            Some((_, command)) => *command = format!("{command} {line}"),
            None if line.is_empty() || line.starts_with('#') => {}
            None => commands.push((number + 1, line.to_owned())),
        }
        continued = more;
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_as_they_are_typed() {
        let page = "cargo none\n```console\n$ one two\noutput\n$ three \\\n  four\n```\n```yaml\na: b\n```\n\
                    ```\n# note\nfive      # why\nsix\n```\n";
        let found = of_page(page);
        let found: Vec<(usize, &str)> = found.iter().map(|(at, c)| (*at, &**c)).collect();
        let wanted = [(3, "one two"), (5, "three four"), (13, "five"), (14, "six")];
        assert_eq!(found, wanted);
    }
}
