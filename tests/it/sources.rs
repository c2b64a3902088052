//! The traceability tables in `docs/sources`: their counts are true, and what they say can be shown quickly is shown.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::program::Demo;

/// One row: its id, its state, and the check of its last cell as command and expected text.
struct Row {
    id: String,
    state: String,
    check: Option<(String, String)>,
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
            assert_eq!(cells.len(), 6, "{id} has {} cells", cells.len());
            let check = cells[5].trim().strip_prefix('`').and_then(|check| check.strip_suffix('`'));
            let check = check
                .map(|check| check.split_once(" => ").unwrap_or_else(|| panic!("{id}: no ` => `")));
            Some(Row {
                id: id.to_owned(),
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
        for state in ["built", "planned", "does not apply"] {
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
fn what_can_be_shown_quickly_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let mut faults = Vec::new();
    let mut count = 0;
    for (name, text) in documents() {
        for row in rows_of(&text) {
            let Some((command, expected)) = row.check else { continue };
            assert_eq!(row.state, "built", "{name} {}: only what is built can be shown", row.id);
            count += 1;
            let output = Command::new("sh")
                .arg("-c")
                .arg(&command)
                .env("AUTHOR", format!("http://{}", demo.author))
                .env("PUBLISH", format!("http://{}", demo.publish))
                .env("DISPATCHER", format!("http://{}", demo.dispatcher))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let is_shown = said.to_ascii_lowercase().contains(&expected.to_ascii_lowercase());
            if !output.status.success() || !is_shown {
                let said: String = said.chars().take(400).collect();
                faults.push(format!(
                    "{name} {}: `{command}` did not say `{expected}`:\n{said}",
                    row.id
                ));
            }
        }
    }
    assert!(count > 20, "only {count} checks were found");
    assert!(faults.is_empty(), "{} of {count}:\n{}", faults.len(), faults.join("\n"));
}
