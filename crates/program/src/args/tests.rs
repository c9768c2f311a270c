use clap::CommandFactory as _;

use super::*;

/// docs/configuration.md: its beginning, and the help of every command.
fn reference() -> String {
    let mut root = Args::command()
        .term_width(100)
        .mut_subcommands(|command| command.mut_args(|arg| arg.hide_env_values(true)));
    root.build();
    let mut page = include_str!("configuration.md.in").to_owned();
    for command in root.get_subcommands_mut() {
        page.push_str(&section(command));
        let inner = command.get_subcommands_mut();
        for inner in inner.filter(|one| one.get_name() != "help") {
            // Global options are in the section of the outer command.
            let hide = |arg: clap::Arg| match arg.is_global_set() {
                true => arg.hide(true),
                false => arg,
            };
            page.push_str(&section(&mut inner.clone().mut_args(hide)));
        }
    }
    page
}

fn section(command: &mut clap::Command) -> String {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let name = command.get_bin_name().unwrap_or_default();
    format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"))
}

/// PATHPROOF_BLESS rewrites the page, as `cargo xtask gen-docs` does.
#[test]
fn the_page_in_docs_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    if std::env::var_os("PATHPROOF_BLESS").is_some() {
        std::fs::write(path, reference()).unwrap();
    }
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
fn a_wrong_time_is_a_wrong_setting_and_its_form_is_shown() {
    let why = ["pathproof", "why", "--at", "yesterday"];
    let error = Args::try_parse_from(why).unwrap_err().to_string();
    assert!(
        error.contains("'yesterday' for '--at <TIME>': give a time"),
        "{error}"
    );
}

#[test]
fn the_definitions_are_sound() {
    Args::command().debug_assert();
}
