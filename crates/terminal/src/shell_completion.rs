//! Completions: scripts by which a shell completes the commands and options of a program.

use std::process::ExitCode;

use clap::ValueEnum;
use clap_complete::Shell;

use crate::{CommandOutcome, say};

/// A shell that completions are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompletionShell {
    /// bash, with its package of completions.
    Bash,
    /// zsh.
    Zsh,
    /// fish.
    Fish,
}

/// Prints the completions of the program with this definition.
///
/// # Errors
/// None today; the result is that of a command.
pub fn print_completions(definition: clap::Command, shell: CompletionShell) -> CommandOutcome {
    say!("{}", write_completions(definition, shell).trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Returns the completions of the program with this definition.
fn write_completions(mut definition: clap::Command, shell: CompletionShell) -> String {
    let program = definition.get_name().to_owned();
    let generator = match shell {
        CompletionShell::Bash => Shell::Bash,
        CompletionShell::Zsh => Shell::Zsh,
        CompletionShell::Fish => Shell::Fish,
    };
    // A pipe that is closed early would be a panic in the generator.
    let mut script = Vec::new();
    clap_complete::generate(generator, &mut definition, program, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    fn definition() -> Command {
        Command::new("tympan-sample")
            .about("A sample.")
            .subcommand(Command::new("gather").arg(Arg::new("deep").long("deep").help("All of it")))
    }

    #[test]
    fn each_shell_gets_the_commands_and_options() {
        for (shell, marks) in [
            (CompletionShell::Bash, ["complete -F", "gather", "--deep"]),
            (CompletionShell::Zsh, ["#compdef tympan-sample", "gather", "--deep"]),
            (CompletionShell::Fish, ["complete -c tympan-sample", "gather", "-l deep"]),
        ] {
            let script = write_completions(definition(), shell);
            for mark in marks {
                assert!(script.contains(mark), "{shell:?}: `{mark}` is missing:\n{script}");
            }
        }
    }
}
