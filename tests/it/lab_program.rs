//! Promise: `tympan lab` is the program `tympan-lab` beside it, in help, in errors and in exit codes.

use std::process::{Command, Output};

use crate::program::{require_lab_program, run, tympan};

/// Returns the exit code, and what the program printed on both streams.
fn told(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    (output.status.code(), text.concat())
}

#[test]
fn help_names_the_commands_of_the_lab_as_they_are_typed() {
    require_lab_program();
    for (arguments, expected) in [
        (&["lab", "get", "--help"][..], "Usage: tympan lab get "),
        (&["lab", "help", "get"], "Usage: tympan lab get "),
        (&["help", "lab", "get"], "Usage: tympan lab get "),
        (&["lab", "load", "get", "--help"], "Usage: tympan lab load get "),
        (&["lab", "slo", "--help"], "Usage: tympan lab page slo "),
        (&["help", "lab", "slo"], "Usage: tympan lab page slo "),
        (&["lab", "page", "--help"], "Usage: tympan lab page <COMMAND>"),
        (&["help", "lab"], "Usage: tympan lab <COMMAND>"),
        (&["lab", "--help"], "Usage: tympan lab <COMMAND>"),
    ] {
        let (code, text) = told(&run(arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}

#[test]
fn wrong_words_of_the_lab_are_refused_by_name() {
    require_lab_program();
    for (arguments, expected) in [
        (
            &["lab", "jmeter", "-n", "--no-such-option"][..],
            &["--no-such-option", "tympan lab jmeter"][..],
        ),
        (&["lab", "no-such-command"], &["no-such-command", "tympan lab"]),
        (&["lab", "load", "no-such-command"], &["no-such-command", "tympan lab load"]),
        (&["lab", "slo"], &["tympan lab page slo"]),
    ] {
        let (code, text) = told(&run(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {text}");
        for part in expected {
            assert!(text.contains(part), "{arguments:?}: {text}");
        }
    }
}

#[test]
fn a_program_without_the_lab_beside_it_says_how_to_build_it() {
    let program = tympan().get_program().to_owned();
    let folder = std::path::Path::new(&program).parent().unwrap();
    // A hard link needs the file system of the program.
    let dir = tempfile::tempdir_in(folder).unwrap();
    let alone = dir.path().join("tympan");
    std::fs::hard_link(&program, &alone).unwrap();
    for arguments in
        [&["lab", "get", "http://127.0.0.1:1/"][..], &["lab", "--help"], &["help", "lab"]]
    {
        let (code, text) = told(&Command::new(&alone).args(arguments).output().unwrap());
        assert_eq!(code, Some(3), "{arguments:?}: {text}");
        assert!(text.contains("`tympan-lab` is not installed beside"), "{arguments:?}: {text}");
        assert!(text.contains("`cargo build --release`"), "{arguments:?}: {text}");
    }
}
