//! Promise: what a build needs and does not have is named in one sentence before it begins.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// A machine of stubs: a folder with the only programs that there are.
struct StubMachine {
    dir: tempfile::TempDir,
}

impl StubMachine {
    /// Has all that a build needs, as a user that may install nothing.
    fn complete() -> Self {
        let machine = Self { dir: tempfile::tempdir().unwrap() };
        for tool in ["bash", "env", "dirname", "sed", "awk", "tr", "cat"] {
            machine.link(tool);
        }
        for tool in ["cargo", "cc", "cmake", "nasm", "npm", "pkg-config"] {
            machine.add(tool, "");
        }
        machine.add("node", "echo v20.19.0");
        machine.add("rustc", "echo host: x86_64-unknown-linux-gnu");
        machine.add("id", "echo 1000");
        machine.add("df", "echo head; echo disk 1 1 99999999 1 /");
        machine
    }

    /// Adds a program of the system.
    fn link(&self, tool: &str) {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
        let path = String::from_utf8(found.unwrap().stdout).unwrap();
        std::os::unix::fs::symlink(path.trim(), self.dir.path().join(tool)).unwrap();
    }

    fn add(&self, tool: &str, script: &str) {
        let file = self.dir.path().join(tool);
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn remove(&self, tool: &str) {
        std::fs::remove_file(self.dir.path().join(tool)).unwrap();
    }

    /// Runs a script of the project.
    fn run_script(&self, script: &str, arguments: &[&str]) -> Output {
        Command::new("bash")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script))
            .args(arguments)
            .env_clear()
            .env("PATH", self.dir.path())
            .env("CARGO_TARGET_DIR", self.dir.path().join("target"))
            .output()
            .unwrap()
    }

    /// Returns the exit code, and the lines that it wrote.
    fn said(&self, purpose: &str) -> (Option<i32>, Vec<String>) {
        lines_of(&self.run_script("setup.sh", &[purpose]))
    }
}

fn lines_of(output: &Output) -> (Option<i32>, Vec<String>) {
    let text = [&output.stdout[..], &output.stderr].concat();
    let lines = String::from_utf8(text).unwrap().lines().map(str::to_owned).collect();
    (output.status.code(), lines)
}

#[test]
fn a_complete_machine_is_not_bothered() {
    assert_eq!(StubMachine::complete().said("demo"), (Some(0), vec![]));
}

#[test]
fn an_old_node_is_named_with_the_version_that_is_needed() {
    for (version, is_enough) in [
        ("v18.19.0", false),
        ("v20.18.3", false),
        ("v20.19.0", true),
        ("v21.7.0", false),
        ("v22.11.0", false),
        ("v22.12.0", true),
        ("v24.0.1", true),
        ("nonsense", false),
    ] {
        let machine = StubMachine::complete();
        machine.add("node", &format!("echo {version}"));
        let (code, lines) = machine.said("demo");
        assert_eq!((code, lines.is_empty()), (Some(0), is_enough), "{version}: {lines:?}");
        if !is_enough {
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(
                lines[0].contains("Node.js 20.19") && lines[0].contains("notice page"),
                "{lines:?}"
            );
        }
        // Nothing of the interface could be tested with it.
        let (code, lines) = machine.said("test");
        if !is_enough {
            assert_eq!((code, lines.len()), (Some(1), 1), "{version}: {lines:?}");
        }
    }
}

#[test]
fn missing_tools_are_listed_with_their_reasons() {
    let machine = StubMachine::complete();
    machine.remove("cmake");
    let (code, lines) = machine.said("demo");
    assert_eq!(code, Some(1));
    assert!(lines.iter().any(|line| line.contains("cmake") && line.contains("JPEG")), "{lines:?}");
    assert!(lines.last().unwrap().ends_with("apt-get install cmake"), "{lines:?}");
    machine.remove("cargo");
    let (code, lines) = machine.said("demo");
    assert_eq!((code, lines.len()), (Some(1), 1), "{lines:?}");
    assert!(lines[0].contains("rustup"), "{lines:?}");
}

#[test]
fn a_full_disk_and_a_missing_network_are_found_first() {
    let machine = StubMachine::complete();
    machine.add("df", "echo head; echo disk 1 1 2097152 1 /");
    let (code, lines) = machine.said("demo");
    assert_eq!((code, lines.len()), (Some(1), 1), "{lines:?}");
    assert!(lines[0].contains("2 GiB free, and the build needs 5"), "{lines:?}");
    let machine = StubMachine::complete();
    machine.add("cargo", "echo 'error: no route to host' >&2; exit 101");
    let (code, lines) = machine.said("demo");
    assert_eq!((code, lines.len()), (Some(1), 1), "{lines:?}");
    assert!(
        lines[0].contains("cannot be downloaded (error: no route to host)")
            && lines[0].contains("HTTPS_PROXY"),
        "{lines:?}"
    );
}

/// A build that stopped in the middle left its folder, and may need nearly all of the space again.
#[test]
fn a_full_disk_is_also_found_after_an_earlier_build() {
    let machine = StubMachine::complete();
    std::fs::create_dir(machine.dir.path().join("target")).unwrap();
    machine.add("df", "echo head; echo disk 1 1 1048575 1 /");
    let (code, lines) = machine.said("demo");
    assert_eq!((code, lines.len()), (Some(1), 1), "{lines:?}");
    assert!(lines[0].contains("0 GiB free, and the build needs 1"), "{lines:?}");
    machine.add("df", "echo head; echo disk 1 1 1048576 1 /");
    assert_eq!(machine.said("demo"), (Some(0), vec![]));
}

#[test]
fn packages_of_the_interface_that_cannot_be_downloaded_are_named_in_one_sentence() {
    let machine = StubMachine::complete();
    for tool in ["mktemp", "head", "rm"] {
        machine.link(tool);
    }
    machine.add(
        "npm",
        "echo 'npm error code EAI_AGAIN' >&2; \
         echo 'npm error request to https://example.org/a failed, reason: getaddrinfo EAI_AGAIN' >&2; exit 1",
    );
    let (code, lines) = lines_of(&machine.run_script("ui_packages.sh", &[]));
    assert_eq!((code, lines.len()), (Some(1), 1), "{lines:?}");
    assert!(lines[0].contains("cannot be downloaded (getaddrinfo EAI_AGAIN)"), "{lines:?}");
    machine.add("npm", "echo 'npm error code EACCES' >&2; exit 1");
    let (code, lines) = lines_of(&machine.run_script("ui_packages.sh", &[]));
    assert_eq!((code, lines.len()), (Some(1), 2), "{lines:?}");
    assert!(lines[0].contains("EACCES") && lines[1].contains("see above"), "{lines:?}");
}
