//! Promise: what the manual prints works as it is printed.
//!
//! `tests/manual.toml` says for each page with commands what it needs beforehand, what is made smaller, and which commands
//! are not run, with the reason. Each block runs in a shell, beside a demo, in folders of the test's own; that each command
//! line is one that the program takes is a test of the program itself (`args::printed_commands`).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::Deserialize;
use tympan_testkit::manual::{FencedBlock, parse_fenced_blocks, read_manual_pages};

use crate::program::{Demo, Running, free_address, require_lab_program, run_ok, tympan};

/// `tests/manual.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ManualPlan {
    page: Vec<PagePlan>,
}

/// What is done with the commands of a page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PagePlan {
    /// The page, from the project's folder.
    name: String,
    /// Where its commands run, from the test's folder; a folder of its own without this.
    folder: Option<String>,
    /// What a shell does before the first block.
    #[serde(default)]
    prepare: String,
    /// What stands in a block, and what is run in its place.
    #[serde(default)]
    replace: Vec<(String, String)>,
    /// The beginning of commands that are not run, and why.
    #[serde(default)]
    skip: Vec<(String, String)>,
    /// The beginning of commands that run until the page ends. The page goes on when they are ready, and the ports of the
    /// manual stand for addresses of its own.
    #[serde(default)]
    start: Vec<String>,
}

/// The addresses that the ports of the manual stand for.
#[derive(Clone, Copy)]
struct ManualAddresses {
    author: SocketAddr,
    publish: SocketAddr,
    dispatcher: SocketAddr,
}

/// A demo, a home of each role at rest, and what stands for the addresses and folders of the manual.
struct Workshop {
    demo: Demo,
    root: PathBuf,
    token: String,
}

impl Workshop {
    fn open(root: &Path) -> Self {
        require_lab_program();
        let home = root.join("tympan-demo");
        let [author, publish, dispatcher] = Demo::prepare(&home);
        for role in ["author", "publish"] {
            let copy = root.join("srv").join(role);
            std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
            let from = home.join(role);
            let copied = Command::new("cp").arg("-a").args([&from, &copy]).status().unwrap();
            assert!(copied.success());
        }
        std::fs::create_dir(root.join("bin")).unwrap();
        std::fs::write(root.join(".curlrc"), "fail\nsilent\nshow-error\n").unwrap();
        std::os::unix::fs::symlink(tympan().get_program(), root.join("bin/tympan")).unwrap();
        let demo = Demo::start_at(&home, author, publish, dispatcher);
        let author_home = home.join("author");
        let token = run_ok(&["user", "token", "admin", "--home", author_home.to_str().unwrap()])
            .trim()
            .to_owned();
        Self { demo, root: root.to_owned(), token }
    }

    /// Returns the addresses for a page: those of the demo, or unused ones if the page starts its own.
    fn addresses(&self, plan: &PagePlan) -> ManualAddresses {
        if plan.start.is_empty() {
            let Demo { author, publish, dispatcher, .. } = self.demo;
            return ManualAddresses { author, publish, dispatcher };
        }
        let [author, publish, dispatcher] = [(); 3].map(|()| free_address());
        ManualAddresses { author, publish, dispatcher }
    }

    /// Puts what is there in the place of what the manual names.
    fn localized(&self, script: &str, plan: &PagePlan, addresses: ManualAddresses) -> String {
        let root = self.root.to_str().unwrap();
        let mut script = script.to_owned();
        for (from, to) in &plan.replace {
            script = script.replace(from, to);
        }
        for folder in
            ["/srv/", "/backup/", "/copies/", "/etc/tympan", "/tmp/look", "/mnt/", "/var/www/"]
        {
            for before in [" ", "repo:", "=", "'", "\""] {
                script = script
                    .replace(&format!("{before}{folder}"), &format!("{before}{root}{folder}"));
            }
        }
        for (port, address) in [
            ("4502", addresses.author),
            ("4503", addresses.publish),
            ("8080", addresses.dispatcher),
        ] {
            for host in ["127.0.0.1", "localhost"] {
                script = script.replace(&format!("{host}:{port}"), &address.to_string());
            }
        }
        script
    }

    /// Runs a program with what the manual expects around it.
    fn command(&self, program: &str, folder: &Path) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .current_dir(folder)
            .env("PATH", format!("{}:{path}", self.root.join("bin").display()))
            .env("ROOT", &self.root)
            .env("PROJECT", env!("CARGO_MANIFEST_DIR"))
            // Where `curl` is told to fail with the server's answer.
            .env("HOME", &self.root)
            .env("PASSWORD", self.demo.password())
            .env("TOKEN", &self.token)
            .env("TYMPAN_LOG", "warn")
            .stdin(Stdio::null());
        command
    }

    /// Starts the command in a line, and waits until it is ready.
    fn start(&self, folder: &Path, line: &str) -> Running {
        let mut command = self.command("bash", folder);
        command.args(["-c", &format!("exec {line}")]).stderr(Stdio::piped());
        Running::start_command(command)
    }

    /// Runs a script in a shell that ends at the first failure; gives what it said if it failed.
    fn run(&self, folder: &Path, script: &str) -> Result<(), String> {
        // What fails is named by the command, not by a line of a script that nobody sees.
        let script = format!(
            "set -euo pipefail\ntrap 'echo \"failed with $?: $BASH_COMMAND\" >&2' ERR\n{script}"
        );
        let mut command = self.command("timeout", folder);
        let output = command.args(["120", "bash", "-c", &script]).output().unwrap();
        if output.status.success() {
            return Ok(());
        }
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        let lines: Vec<&str> = said.lines().collect();
        let end = lines.len().saturating_sub(12);
        Err(format!("{}\n    {}", output.status, lines[end..].join("\n    ")))
    }
}

/// Takes out the commands that are not run, each with the lines that go on with it; marks what had a reason.
fn without_skipped(text: &str, plan: &PagePlan, used: &mut [bool]) -> String {
    let mut left = String::new();
    let mut is_skipped = false;
    let mut goes_on = false;
    for line in text.lines() {
        if !goes_on {
            let reason = plan.skip.iter().position(|(start, _)| line.starts_with(start));
            is_skipped = reason.is_some();
            if let Some(reason) = reason {
                used[reason] = true;
            }
        }
        goes_on = line.ends_with('\\');
        if !is_skipped {
            left.push_str(line);
            left.push('\n');
        }
    }
    left
}

/// Returns what a shell runs of a block.
fn script_of(block: &FencedBlock) -> Option<String> {
    match block.language.as_str() {
        "sh" => Some(block.text.clone()),
        "console" => {
            let typed = block.text.lines().filter_map(|line| line.strip_prefix("$ "));
            Some(typed.map(|line| format!("{line}\n")).collect())
        }
        _ => None,
    }
}

#[test]
fn commands_of_the_manual_work_as_printed() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let plan = std::fs::read_to_string(project.join("tests/manual.toml")).unwrap();
    let plan: ManualPlan = toml::from_str(&plan).unwrap();
    let mut blocks: BTreeMap<String, Vec<(usize, String)>> = BTreeMap::new();
    for page in read_manual_pages(project) {
        let scripts = parse_fenced_blocks(&page.text);
        let scripts = scripts.iter().filter_map(|block| Some((block.line, script_of(block)?)));
        blocks.entry(page.path).or_default().extend(scripts);
    }
    blocks.retain(|_, scripts| !scripts.is_empty());
    let dir = tempfile::tempdir().unwrap();
    let workshop = Workshop::open(dir.path());
    let mut faults = Vec::new();
    for page in &plan.page {
        let Some(scripts) = blocks.remove(&page.name) else {
            faults.push(format!("{}: has no commands any more", page.name));
            continue;
        };
        let began = Instant::now();
        let own = || format!("work/{}", page.name.replace('/', "-"));
        let folder = dir.path().join(page.folder.clone().unwrap_or_else(own));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("token"), &workshop.token).unwrap();
        let addresses = workshop.addresses(page);
        let prepare = workshop.localized(&page.prepare, page, addresses);
        if let Err(said) = workshop.run(&folder, &prepare) {
            faults.push(format!("{}: its preparation ended with {said}", page.name));
            continue;
        }
        let mut used = vec![false; page.skip.len()];
        let mut running = Vec::new();
        for (line, script) in scripts {
            let script = without_skipped(&script, page, &mut used);
            let script = workshop.localized(&script, page, addresses);
            if page.start.iter().any(|start| script.starts_with(start)) {
                running.push(workshop.start(&folder, script.trim_end()));
            } else if let Err(said) = workshop.run(&folder, &script) {
                faults.push(format!("{}:{line}: ended with {said}", page.name));
            }
        }
        if running.len() != page.start.len() {
            faults.push(format!("{}: no block is one of the commands to start", page.name));
        }
        println!("{:6.1} s  {}", began.elapsed().as_secs_f64(), page.name);
        for ((start, reason), _) in page.skip.iter().zip(used).filter(|(_, is_used)| !is_used) {
            faults.push(format!("{}: no command begins with `{start}` ({reason})", page.name));
        }
    }
    faults.extend(blocks.keys().map(|name| format!("{name}: is not in tests/manual.toml")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
