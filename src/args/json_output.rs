//! Checks that every command that prints something to read prints it as JSON, too.

use std::collections::BTreeMap;

use clap::Command as Definition;

use super::TympanArgs;
use super::printed_commands::program_definition;

/// The commands without `--json`, and why.
const COMMANDS_WITHOUT_JSON: [(&str, &[&str]); 5] = [
    ("it runs until it is stopped", &["author", "demo", "lab load agent", "publish"]),
    (
        "it prints a file of another format, or one value",
        &[
            "completions",
            "dispatcher convert",
            "lab completions",
            "lab plan convert",
            "lab plan export",
            "lab plan record",
            "service print",
            "user token",
        ],
    ),
    ("its output is that of the program that it replaces", &["lab ab", "lab jmeter"]),
    ("the same, in its group", &["lab load ab", "lab load jmeter"]),
    (
        "it changes something, and says so in a line",
        &[
            "blobs forget",
            "blobs undelete",
            "repo branch create",
            "repo branch delete",
            "repo branch rename",
            "repo revert",
            "site new",
            "user add",
            "user delete",
            "user disable",
            "user enable",
            "user group add",
            "user group create",
            "user group delete",
            "user group remove",
            "user passwd",
            "user revoke",
        ],
    ),
];

/// Adds the commands below a command that have none below them, with whether they take `--json`.
fn collect_commands(definition: &Definition, above: &str, commands: &mut BTreeMap<String, bool>) {
    for command in definition.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("{above} {}", command.get_name()).trim_start().to_owned();
        if command.get_name() == "help" {
            continue;
        }
        if command.has_subcommands() {
            collect_commands(command, &name, commands);
        } else {
            let takes_json =
                command.get_arguments().any(|argument| argument.get_long() == Some("json"));
            commands.insert(name, takes_json);
        }
    }
}

#[test]
fn commands_that_print_something_to_read_take_json() {
    let mut definition = program_definition();
    // Passes global options down.
    definition.build();
    let mut commands = BTreeMap::new();
    collect_commands(&definition, "", &mut commands);
    let mut faults = Vec::new();
    for name in COMMANDS_WITHOUT_JSON.iter().flat_map(|(_, names)| *names) {
        match commands.remove(*name) {
            None => faults.push(format!("`{name}` is no command")),
            Some(true) => faults.push(format!("`{name}` takes --json, and is listed without")),
            Some(false) => {}
        }
    }
    let without = commands.iter().filter(|(_, takes_json)| !**takes_json);
    faults.extend(without.map(|(name, _)| format!("`{name}` does not take --json")));
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(commands.len() > 60, "{commands:?}");
}

#[test]
fn json_is_taken_before_and_after_the_command_of_a_group() {
    for line in [
        "tympan backup key -r V --json list",
        "tympan backup key -r V list --json",
        "tympan backup list -r V --json",
    ] {
        let words: Vec<_> = line.split(' ').map(Into::into).collect();
        assert!(TympanArgs::parse_line(&words).is_ok(), "{line}");
    }
}
