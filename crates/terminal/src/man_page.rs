//! Man pages of a program: one for each of its commands.

use std::path::Path;
use std::process::ExitCode;

use clap_mangen::Man;

use crate::{CommandFault, CommandOutcome, say};

/// Writes the man pages of the program with this definition into a folder, which is created, and prints their number.
/// Hidden commands have none. The same program always writes the same bytes.
///
/// # Errors
/// If the folder cannot be written.
pub fn write_man_pages(definition: clap::Command, dir: &Path) -> CommandOutcome {
    let mut definition = definition.disable_help_subcommand(true);
    definition.build();
    let count = std::fs::create_dir_all(dir)
        .and_then(|()| write_pages_below(&definition, dir))
        .map_err(|error| {
            CommandFault::cannot_run(format!(
                "cannot write man pages into `{}`: {error}",
                dir.display()
            ))
        })?;
    say!("{count} man pages in {}", dir.display());
    Ok(ExitCode::SUCCESS)
}

fn write_pages_below(definition: &clap::Command, dir: &Path) -> std::io::Result<usize> {
    Man::new(definition.clone()).manual("Tympan").generate_to(dir)?;
    let below = definition.get_subcommands().filter(|command| !command.is_hide_set());
    below
        .map(|command| write_pages_below(command, dir))
        .sum::<std::io::Result<usize>>()
        .map(|n| n + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::{Arg, Command};

    use super::*;

    fn pages(dir: &Path) -> BTreeMap<String, String> {
        let definition = Command::new("tympan-sample")
            .version("1.2")
            .about("A sample.")
            .subcommand(Command::new("inner").hide(true))
            .subcommand(
                Command::new("gather")
                    .about("Gathers things.")
                    .subcommand(Command::new("all").arg(Arg::new("deep").long("deep"))),
            );
        write_man_pages(definition, dir).unwrap();
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
        let read = |entry: std::fs::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(entry.path()).unwrap())
        };
        entries.map(read).collect()
    }

    #[test]
    fn every_command_that_is_not_hidden_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let pages = pages(&dir.path().join("man1"));
        let names: Vec<&str> = pages.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["tympan-sample-gather-all.1", "tympan-sample-gather.1", "tympan-sample.1"]
        );
        assert!(pages["tympan-sample.1"].contains("A sample."));
        assert!(pages["tympan-sample-gather-all.1"].contains("\\-\\-deep"));
        let other = tempfile::tempdir().unwrap();
        assert_eq!(pages, self::pages(other.path()), "the same program writes the same pages");
    }
}
