//! The traceability tables in `docs/sources`: their counts are true, the commands and tests that they name are there, and
//! what they say can be shown quickly is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::program::{Demo, require_lab_program, run_ok, tympan};

/// The verdicts of rows.
const VERDICTS: [&str; 5] = ["works", "partly", "differs", "missing", "does not apply"];

/// The beginnings of commands that a reader can run.
const RUNNABLE_PREFIXES: [&str; 7] =
    ["tympan ", "curl ", "make bench ROWS=", "cargo test -p ", "scripts/", "ls ", "tail "];

/// One row: its id, what shows it, its verdict, and its check as command and expected text.
struct Row {
    id: String,
    shown_by: String,
    state: String,
    check: Option<(String, String)>,
}

impl Row {
    /// Returns true if there is something to show.
    fn is_there(&self) -> bool {
        !matches!(self.state.as_str(), "missing" | "does not apply")
    }

    /// Returns true if a command shows it.
    fn is_runnable(&self) -> bool {
        code_of(&self.shown_by)
            .any(|code| RUNNABLE_PREFIXES.iter().any(|prefix| code.starts_with(prefix)))
    }
}

/// Reads the rows of a table whose first cell is an id such as `A-017`.
fn rows_of(text: &str) -> Vec<Row> {
    text.lines()
        .filter_map(|line| {
            let inner = line.strip_prefix('|')?.strip_suffix('|')?;
            let cells: Vec<&str> = split_cells(inner);
            let id = cells.first()?.trim();
            let is_id =
                id.len() >= 4 && id.as_bytes()[0].is_ascii_uppercase() && id.as_bytes()[1] == b'-';
            if !is_id {
                return None;
            }
            assert_eq!(cells.len(), 5, "{id} has {} cells", cells.len());
            let mut checks = code_of(cells[3]).filter_map(|code| code.split_once(" => "));
            let check = checks.next();
            assert!(checks.next().is_none(), "{id} has two checks");
            Some(Row {
                id: id.to_owned(),
                shown_by: cells[3].trim().to_owned(),
                state: cells[4].trim().to_owned(),
                check: check.map(|(command, expected)| (command.to_owned(), expected.to_owned())),
            })
        })
        .collect()
}

/// Splits at bars that stand neither in code nor behind a backslash.
fn split_cells(line: &str) -> Vec<&str> {
    let (mut cells, mut start, mut is_code, mut is_escaped) = (Vec::new(), 0, false, false);
    for (at, character) in line.char_indices() {
        match character {
            '`' => is_code = !is_code,
            '|' if !is_code && !is_escaped => {
                cells.push(&line[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        is_escaped = character == '\\';
    }
    cells.push(&line[start..]);
    cells
}

/// Returns what stands in backticks.
fn code_of(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The names of all functions in Rust files that are tests, and more.
fn functions(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let found = text.lines().filter_map(|line| line.split_once("fn ")?.1.split_once('('));
            names.extend(found.map(|(name, _)| name.to_owned()));
        }
    }
}

/// What the program says about its commands, each asked once.
#[derive(Default)]
struct Manual(BTreeMap<Vec<String>, String>);

impl Manual {
    fn of(&mut self, command: &[String]) -> &str {
        self.0.entry(command.to_vec()).or_insert_with(|| {
            let mut words: Vec<&str> = command.iter().map(String::as_str).collect();
            words.push("--help");
            run_ok(&words)
        })
    }

    /// Returns what of a command line is not in the manual.
    fn fault(&mut self, line: &str) -> Option<String> {
        // What is quoted is one word, whatever it holds.
        let bare = line.split(['\'', '"']).step_by(2).collect::<Vec<_>>().join("QUOTED");
        let words: Vec<&str> = bare.split_whitespace().skip(1).collect();
        let mut command: Vec<String> = Vec::new();
        let mut options = self.of(&command).to_owned();
        for word in &words {
            let is_command = |line: &str| line.split_whitespace().next() == Some(word);
            let text = self.of(&command).to_owned();
            let commands = text.split_once("\nCommands:\n").map_or("", |(_, rest)| {
                rest.split_once("\n\n").map_or(rest, |(commands, _)| commands)
            });
            if !commands.lines().any(is_command) {
                let usage =
                    text.lines().find(|line| line.starts_with("Usage:")).unwrap_or_default();
                let needs_one =
                    !commands.is_empty() && usage.ends_with("<COMMAND>") && !word.starts_with('-');
                if needs_one {
                    return Some(format!("`{line}`: there is no command `{word}`"));
                }
                break;
            }
            command.push((*word).to_owned());
            options.push_str(self.of(&command));
        }
        let known: BTreeSet<&str> =
            options.split(|char: char| !(char.is_ascii_alphanumeric() || char == '-')).collect();
        let own = words.iter().take_while(|word| **word != "--");
        let names = own.filter(|word| word.starts_with("--"));
        let mut names = names.map(|word| word.split('=').next().unwrap_or_default());
        let unknown = names.find(|name| !known.contains(name));
        unknown.map(|name| format!("`{line}`: there is no option `{name}`"))
    }
}

fn documents() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/sources");
    let names = [
        "aem-performance",
        "refetching-flush",
        "obnam-tuning",
        "composite-store",
        "opencms-tuning",
    ];
    let read = |name: &str| {
        (name.to_owned(), std::fs::read_to_string(folder.join(format!("{name}.md"))).unwrap())
    };
    names.into_iter().map(read).collect()
}

#[test]
fn the_counts_at_the_head_are_those_of_the_rows() {
    for (name, text) in documents() {
        let mut states: BTreeMap<String, usize> = BTreeMap::new();
        for (at, row) in rows_of(&text).iter().enumerate() {
            assert!(
                row.id.ends_with(&format!("{:03}", at + 1)),
                "{name}: {} breaks the numbering",
                row.id
            );
            *states.entry(row.state.clone()).or_default() += 1;
        }
        for state in VERDICTS {
            let count = states.remove(state).unwrap_or(0);
            let said = text.lines().find_map(|line| {
                let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
                (cells.next()? == state).then(|| cells.next()?.parse::<usize>().ok())?
            });
            assert_eq!(said, Some(count), "{name}: rows that are {state}");
        }
        assert!(states.is_empty(), "{name}: unknown states {states:?}");
    }
}

#[test]
fn what_a_row_names_is_there() {
    let mut names = BTreeSet::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["crates", "lab", "src", "tests"] {
        functions(&root.join(folder), &mut names);
    }
    let bench = std::fs::read_to_string(root.join("bench/src/row/mod.rs")).unwrap();
    let mut manual = Manual::default();
    let mut faults = Vec::new();
    let (mut tests, mut commands) = (0, 0);
    for (name, text) in documents() {
        for row in rows_of(&text).into_iter().filter(Row::is_there) {
            if row.state == "works" && !row.is_runnable() {
                faults.push(format!("{name} {}: no command to run", row.id));
            }
            for code in code_of(&row.shown_by) {
                let code = code.split_once(" => ").map_or(code, |(command, _)| command);
                let is_name = code.contains('_')
                    && code.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
                // `cargo test -p CRATE --test it MODULE::NAME` ends with the name of a test.
                let test = match code.strip_prefix("cargo test -p ") {
                    Some(words) => words.rsplit([' ', ':']).next(),
                    None => is_name.then_some(code),
                };
                if let Some(test) = test {
                    tests += 1;
                    if !names.contains(test) {
                        faults.push(format!("{name} {}: there is no test `{test}`", row.id));
                    }
                } else if code.starts_with("tympan ") {
                    commands += 1;
                    faults.extend(
                        manual.fault(code).map(|fault| format!("{name} {}: {fault}", row.id)),
                    );
                } else if let Some(rows) = code.strip_prefix("make bench ROWS=") {
                    let is_missing = |row: &&str| !bench.contains(&format!("name: \"{row}\""));
                    faults.extend(
                        rows.split(',')
                            .filter(is_missing)
                            .map(|missing| format!("{name} {}: there is no row {missing}", row.id)),
                    );
                } else if let Some(script) = code.strip_prefix("scripts/") {
                    let file = script.split_whitespace().next().unwrap_or_default();
                    if !root.join("scripts").join(file).is_file() {
                        faults.push(format!("{name} {}: there is no `scripts/{file}`", row.id));
                    }
                }
            }
        }
    }
    assert!(tests > 200 && commands > 200, "{tests} tests and {commands} commands were found");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    let mut known = |line: &str| manual.fault(line).is_none();
    assert!(known("tympan lab load run plan.toml --users=5 -- --nothing"));
    assert!(!known("tympan lab walk plan.toml") && !known("tympan lab load run plan.toml --walk"));
}

#[test]
fn what_can_be_shown_quickly_is_shown() {
    require_lab_program();
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let author = dir.path().join("author");
    let token = run_ok(&["user", "token", "admin", "--home", author.to_str().unwrap()]);
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, &token).unwrap();
    // Checks call the program by its name.
    let program = Path::new(tympan().get_program()).parent().unwrap().to_owned();
    let mut places = vec![program];
    places.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let path = std::env::join_paths(places).unwrap();
    let mut faults = Vec::new();
    let mut count = 0;
    for (name, text) in documents() {
        for row in rows_of(&text) {
            assert!(
                row.check.is_none() || row.is_there(),
                "{name} {}: only what is there can be shown",
                row.id
            );
            let Some((command, expected)) = row.check else { continue };
            assert!(
                command.starts_with("curl ") || command.starts_with("tympan "),
                "{name} {}: `{command}` is neither curl nor tympan",
                row.id
            );
            count += 1;
            let show = || {
                let output = Command::new("sh")
                    .arg("-c")
                    .arg(&command)
                    .env("PATH", &path)
                    .env("TOKEN", token.trim())
                    .env("TOKEN_FILE", &token_file)
                    .env("AUTHOR", format!("http://{}", demo.author))
                    .env("PUBLISH", format!("http://{}", demo.publish))
                    .env("DISPATCHER", format!("http://{}", demo.dispatcher))
                    .output()
                    .unwrap();
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                let is_shown = said.to_ascii_lowercase().contains(&expected.to_ascii_lowercase());
                (output.status.success() && is_shown, said)
            };
            // A page is sent before it is stored, so that the next command may come too early once.
            let (mut is_shown, mut said) = show();
            if !is_shown {
                (is_shown, said) = show();
            }
            if !is_shown {
                let said: String = said.chars().take(400).collect();
                faults.push(format!(
                    "{name} {}: `{command}` did not say `{expected}`:\n{said}",
                    row.id
                ));
            }
        }
    }
    assert!(count > 80, "only {count} checks were found");
    assert!(faults.is_empty(), "{} of {count}:\n{}", faults.len(), faults.join("\n"));
}
