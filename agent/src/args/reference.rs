//! docs/configuration.md, written from the definitions of the command line.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command, CommandFactory};

use super::Args;

const HEAD: &str = "\
<!-- Written by `cargo xtask gen-docs` from agent/src/args.rs. Do not edit. -->
# Configuration

Every option of `pathproof run` can also be set by the variable beside it; the command line wins.
A list is separated by commas, on the command line and in a variable; on the command line an option
may also be repeated.

An unsound setting ends the agent at once with exit code 64 and a sentence that names the setting
and the remedy; missing permissions end it with 77.
";

const NODE_NAME: &str = "
## The node's name

The first of these that is not empty: `--node-name`, `PATHPROOF_NODE_NAME`, `NODE_NAME` (as a
DaemonSet sets it from `spec.nodeName`), the host's name in lower case.
";

/// The page.
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    let root = Args::command();
    for command in root
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        page.push_str(&section(command, command.get_name()));
        for inner in command
            .get_subcommands()
            .filter(|inner| !inner.is_hide_set())
        {
            let name = format!("{} {}", command.get_name(), inner.get_name());
            page.push_str(&section(inner, &name));
        }
    }
    page.push_str(NODE_NAME);
    page
}

fn section(command: &Command, name: &str) -> String {
    let mut text = format!("\n## pathproof {name}\n\n");
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        text,
        "{}.",
        command.get_about().cloned().unwrap_or_default()
    );
    let mut heading = None;
    // Words beside options are another program's.
    for arg in command.get_arguments().filter(|arg| !arg.is_positional()) {
        if arg.get_help_heading() != heading {
            heading = arg.get_help_heading();
            let _ = writeln!(text, "\n### {}", heading.unwrap_or_default());
        }
        text.push_str(&option(arg));
    }
    text
}

fn option(arg: &Arg) -> String {
    let mut text = match arg.get_long() {
        Some(long) => format!("\n#### `--{long}"),
        None => "\n#### `".to_owned(),
    };
    if matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) {
        let names = arg.get_value_names().unwrap_or_default();
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        let apart = if arg.is_positional() { "" } else { " " };
        let _ = write!(text, "{apart}{}", names.join(" "));
    }
    text.push_str("`\n\n");
    let help = arg
        .get_long_help()
        .or(arg.get_help())
        .cloned()
        .unwrap_or_default()
        .to_string();
    for (index, paragraph) in help.split("\n\n").enumerate() {
        let end = if paragraph.ends_with('.') { "" } else { "." };
        let _ = writeln!(
            text,
            "{}{paragraph}{end}",
            if index > 0 { "\n" } else { "" }
        );
    }
    for value in arg
        .get_possible_values()
        .iter()
        .filter(|_| arg.get_action().takes_values())
    {
        let meaning = value.get_help().cloned().unwrap_or_default();
        let _ = writeln!(
            text,
            "{}- `{}`: {meaning}.",
            if_first(&text),
            value.get_name()
        );
    }
    let defaults: Vec<_> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    let mut facts = Vec::new();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        facts.push(format!("Default: `{}`.", defaults.join(",")));
    }
    if let Some(variable) = arg.get_env() {
        facts.push(format!("Variable: `{}`.", variable.to_string_lossy()));
    }
    if !facts.is_empty() {
        let _ = writeln!(text, "\n{}", facts.join(" "));
    }
    text
}

/// An empty line before the first item of a list.
fn if_first(text: &str) -> &'static str {
    let last = text.trim_end().rsplit('\n').next().unwrap_or_default();
    if last.starts_with("- ") { "" } else { "\n" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            checked_in == reference(),
            "docs/configuration.md is not what args.rs says: run `cargo xtask gen-docs`"
        );
    }

    #[test]
    fn every_option_of_run_has_its_variable() {
        let root = Args::command();
        let run = root.find_subcommand("run").unwrap();
        for arg in run.get_arguments() {
            let long = arg.get_long().unwrap();
            let expected = format!("PATHPROOF_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(
                arg.get_env().unwrap().to_string_lossy(),
                expected,
                "--{long}"
            );
        }
    }

    #[test]
    fn the_definitions_are_sound() {
        Args::command().debug_assert();
    }
}
