//! Checks that the program accepts every command that the manual, the help and the program's own messages print.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Command as Definition, CommandFactory};
use tympan_testkit::manual::{
    ShellCommand, collect_files, find_inline_commands, parse_block_commands, parse_fenced_blocks,
    parse_shell_commands, read_manual_pages,
};

use super::{TympanArgs, obnam};

/// Returns all commands and options of the program; those of `tympan lab` are the ones of the program `tympan-lab`.
pub(super) fn program_definition() -> Definition {
    TympanArgs::command().mut_subcommand("lab", |_| tympan_lab::command_definition().name("lab"))
}

/// Returns the reason why the program rejects a complete command line, or `None` if it accepts it.
fn command_line_fault(words: &[String]) -> Option<String> {
    if let Some(fault) = parse_fault(words) {
        return fault;
    }
    if words.iter().any(|argument| argument == "…") {
        return Some("`…` is a placeholder that cannot be typed".to_owned());
    }
    // A second command follows `--`: a complete one, or one of a journal without `tympan lab`.
    let (_, behind) = words.split_at(words.iter().position(|argument| argument == "--")? + 1);
    let is_journal = words.get(3).is_some_and(|argument| argument == "journal");
    let inner: Vec<String> = if is_journal {
        ["tympan", "lab"].map(str::to_owned).into_iter().chain(behind.iter().cloned()).collect()
    } else {
        // A placeholder that stands for a value.
        let filled = |argument: &String| {
            if argument.starts_with('{') { "1".to_owned() } else { argument.clone() }
        };
        behind.iter().map(filled).collect()
    };
    (inner.first().is_some_and(|argument| argument == "tympan"))
        .then(|| command_line_fault(&inner))
        .flatten()
}

/// Returns `None` if a program takes a command line, otherwise the reason why not, if it is one: help is none.
fn parse_fault(words: &[String]) -> Option<Option<String>> {
    let error = match words.split_first() {
        Some((_, lab)) if lab.first().is_some_and(|command| command == "lab") => {
            tympan_lab::command_definition().try_get_matches_from(lab).err()?
        }
        _ => {
            let line: Vec<OsString> = words.iter().map(OsString::from).collect();
            TympanArgs::parse_line(&line).err()?
        }
    };
    let is_help = error.exit_code() == 0;
    Some((!is_help).then(|| error.to_string().lines().take(3).collect::<Vec<_>>().join(" ")))
}

/// Returns the part of a command in running text, which may omit arguments, that the program does not know.
fn command_fragment_fault(definition: &Definition, words: &[String]) -> Option<String> {
    let mut at = definition;
    let mut known_options: BTreeSet<String> = long_option_names(at);
    // True if the next word may name a command, and if it may be the value of an option.
    let (mut is_open, mut may_be_value) = (true, false);
    // The words after `…` were left out.
    for argument in
        words.iter().skip(1).take_while(|argument| !matches!(argument.as_str(), "--" | "…"))
    {
        if let Some(option) = argument.strip_prefix("--") {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if !known_options.contains(name)
                && !matches!(name, "help" | "version")
                && !name.contains('{')
            {
                return Some(format!("`{}` has no option `--{name}`", at.get_name()));
            }
            may_be_value = value.is_empty();
            continue;
        }
        if argument.starts_with('-') || std::mem::take(&mut may_be_value) {
            may_be_value = argument.starts_with('-');
            continue;
        }
        if let Some(below) = at.find_subcommand(argument).filter(|_| is_open) {
            at = below;
            known_options.extend(long_option_names(at));
            continue;
        }
        let is_word = argument.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-');
        let takes_words = !at.has_subcommands() || at.get_positionals().next().is_some();
        if is_open && is_word && !takes_words {
            return Some(format!("`{}` has no command `{argument}`", at.get_name()));
        }
        is_open = false;
    }
    None
}

/// Returns the long names of a command's options.
fn long_option_names(definition: &Definition) -> BTreeSet<String> {
    let named = definition.get_arguments().filter(|argument| argument.get_long().is_some());
    let names = named.flat_map(|argument| {
        argument.get_long().into_iter().chain(argument.get_all_aliases().unwrap_or_default())
    });
    names.map(str::to_owned).collect()
}

fn project_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_command_line_of_the_manual_is_taken() {
    let mut faults = Vec::new();
    let mut lines = 0;
    for page in read_manual_pages(project_dir()) {
        for block in parse_fenced_blocks(&page.text) {
            for ShellCommand { line, words } in parse_block_commands(&block) {
                if words.first().is_none_or(|program| program != "tympan") {
                    continue;
                }
                lines += 1;
                if let Some(fault) = command_line_fault(&words) {
                    faults.push(format!("{}:{}: {fault}", page.path, block.line + 1 + line));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(lines > 100, "{lines} command lines were found");
}

#[test]
fn every_block_with_commands_says_so() {
    let is_command = |line: &str| {
        let line = line.strip_prefix("$ ").unwrap_or(line);
        ["tympan ", "curl ", "printf ", "scripts/"].iter().any(|start| line.starts_with(start))
    };
    let mut unmarked = Vec::new();
    for page in read_manual_pages(project_dir()) {
        for block in parse_fenced_blocks(&page.text) {
            let is_marked = matches!(block.language.as_str(), "sh" | "console" | "text");
            if !is_marked && block.text.lines().any(is_command) {
                unmarked.push(format!("{}:{}", page.path, block.line));
            }
        }
    }
    assert!(unmarked.is_empty(), "not marked as `sh` or `console`: {}", unmarked.join(", "));
}

#[test]
fn every_command_in_a_sentence_of_the_manual_is_known() {
    let definition = program_definition();
    let mut faults = Vec::new();
    for page in read_manual_pages(project_dir()) {
        faults.extend(inline_command_faults(&definition, &page.path, &page.text));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_command_that_a_message_names_is_known() {
    let definition = program_definition();
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in ["src", "crates", "lab"] {
        collect_files(&project_dir().join(folder), "rs", &mut files);
    }
    let mut faults = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source file is readable");
        // A literal continues on the next line, and so does a comment.
        let joined: Vec<&str> = text.lines().map(str::trim_start).collect();
        let joined =
            joined.join("\n").replace("\\\n", "").replace("\n/// ", "\n").replace("\n//! ", "\n");
        faults.extend(inline_command_faults(&definition, &file.display().to_string(), &joined));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn inline_command_faults(definition: &Definition, name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (line, code) in find_inline_commands(text, "tympan") {
        for command in parse_shell_commands(&code) {
            let words: Vec<OsString> = command.words.iter().map(OsString::from).collect();
            let words: Vec<String> = obnam::reorder_obnam_line::<TympanArgs>(&words)
                .unwrap_or(words)
                .iter()
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect();
            let is_ours = words.first().is_some_and(|program| program == "tympan");
            if let Some(fault) =
                is_ours.then(|| command_fragment_fault(definition, &words)).flatten()
            {
                faults.push(format!("{name}:{line}: `{code}`: {fault}"));
            }
        }
    }
    faults
}

#[test]
fn every_example_of_the_help_is_taken() {
    let mut faults = Vec::new();
    let mut examples = 0;
    let mut waiting = vec![(program_definition(), "tympan".to_owned())];
    while let Some((definition, name)) = waiting.pop() {
        let help = definition.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines() {
            let line = line.trim_start();
            let line =
                line.strip_prefix("Example: ").or(line.strip_prefix("Examples: ")).unwrap_or(line);
            // A remark is separated by several spaces.
            let line = line.split_once("   ").map_or(line, |(example, _)| example);
            for ShellCommand { words, .. } in parse_shell_commands(line) {
                if words.first().is_none_or(|program| program != "tympan") {
                    continue;
                }
                examples += 1;
                if let Some(fault) = command_line_fault(&words) {
                    faults.push(format!("{name}: `{line}`: {fault}"));
                }
            }
        }
        for below in definition.get_subcommands() {
            waiting.push((below.clone(), format!("{name} {}", below.get_name())));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(examples > 50, "{examples} examples were found");
}

/// Option names that another word replaced in all commands.
const RETIRED_OPTIONS: [&str; 13] = [
    "for",
    "hold",
    "span",
    "concurrency",
    "threads",
    "patience",
    "most",
    "samples",
    "every",
    "resp",
    "password",
    "token",
    "output",
];

#[test]
fn one_thing_has_one_option_name_in_all_commands() {
    let mut faults = Vec::new();
    let mut waiting = vec![program_definition()];
    while let Some(definition) = waiting.pop() {
        for argument in definition.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let name = argument.get_long().unwrap_or_default();
            if RETIRED_OPTIONS.contains(&name) {
                faults.push(format!("`{}` has the option `--{name}`", definition.get_name()));
            }
        }
        waiting.extend(definition.get_subcommands().cloned());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn unknown_words_are_found() {
    let definition = program_definition();
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for (line, is_known) in [
        ("tympan user token", true),
        ("tympan repo gc --dry-run", true),
        ("tympan jobs run maintenance/garbage", true),
        ("tympan backup repair -r VAULT", true),
        ("tympan repo branch", true),
        ("tympan repos", false),
        ("tympan repo clean", false),
        ("tympan repo gc --dry", false),
        ("tympan lab nothing", false),
    ] {
        assert_eq!(command_fragment_fault(&definition, &words(line)).is_none(), is_known, "{line}");
    }
    for (line, is_taken) in [
        ("tympan user token admin --home DIR", true),
        ("tympan lab tune journal add what -- get http://127.0.0.1/ -c 2 -n 4", true),
        ("tympan lab tune journal add what -- gets http://127.0.0.1/", false),
        ("tympan lab nothing", false),
        ("tympan jobs list …", false),
        ("tympan repo gc --home", false),
    ] {
        assert_eq!(command_line_fault(&words(line)).is_none(), is_taken, "{line}");
    }
}
