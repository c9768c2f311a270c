//! Runs commands of the agent's binary on the node, and checks their output.

use std::process::Command;

use node_tests::world::{World, agent_binary, clean};
use serde_json::Value;

/// A command of the binary, without settings from the test's environment.
pub(crate) fn pathproof(world: &World, args: &[&str]) -> Command {
    let binary = agent_binary().expect("the agent's binary");
    let mut command = world.node.command(binary);
    clean(&mut command);
    command.args(args);
    command
}

/// Runs a command, which must exit with this code. Returns standard output, and the output of both streams.
#[track_caller]
fn run(mut command: Command, code: i32) -> (String, String) {
    let output = command.output().expect("run the command");
    let [said, more] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let all = format!("{said}{more}");
    assert_eq!(output.status.code(), Some(code), "{all}");
    (said, all)
}

/// Standard output and standard error of a command, which must exit with this code.
#[track_caller]
pub(crate) fn told(command: Command, code: i32) -> String {
    run(command, code).1
}

#[track_caller]
pub(crate) fn object(command: Command) -> Value {
    let (said, all) = run(command, 0);
    serde_json::from_str(&said).unwrap_or_else(|_| panic!("no JSON: {all}"))
}

#[track_caller]
pub(crate) fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in\n{text}");
    }
}
