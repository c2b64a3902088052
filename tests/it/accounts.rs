//! Promise: `tympan user` manages the accounts of a home at rest and of a running instance with the same commands, and
//! prints the same.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::program::{Running, ask, basic, free_address, run_ok, tympan};

/// The password of the users that the tests add.
const PASSWORD: &str = "a long password";

/// A running author.
struct Author {
    address: SocketAddr,
    password: String,
    _running: Running,
}

impl Author {
    fn start(home: &Path) -> Self {
        let address = free_address();
        let listen = address.to_string();
        let running =
            Running::start(&["author", "--home", home.to_str().unwrap(), "--listen", &listen]);
        let password = std::fs::read_to_string(home.join("initial-password")).unwrap();
        Self { address, password: password.trim().to_owned(), _running: running }
    }

    fn add_user(&self, name: &str) {
        let headers = [
            ("Authorization", basic("admin", &self.password)),
            ("Content-Type", "application/json".to_owned()),
        ];
        let body = json!({ "name": name, "password": PASSWORD, "groups": [] }).to_string();
        let response =
            ask(self.address, "POST", "/api/v1/users", &headers, body.as_bytes()).unwrap();
        assert!(response.status < 300, "{} {}", response.status, response.text());
    }
}

/// Runs `tympan user` with a password on standard input.
fn user(words: &str, location: &[&str]) -> Output {
    let mut command = tympan();
    command.arg("user").args(words.split(' ')).args(location);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that takes no password may have ended.
    writeln!(child.stdin.take().unwrap(), "{PASSWORD}").ok();
    child.wait_with_output().unwrap()
}

fn user_ok(words: &str, location: &[&str]) -> String {
    let output = user(words, location);
    assert!(output.status.success(), "{words}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn copy_folder(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}

#[test]
fn user_commands_print_the_same_for_a_home_and_for_its_instance() {
    let dir = tempfile::tempdir().unwrap();
    let (running, stopped) = (dir.path().join("running"), dir.path().join("stopped"));
    drop(Author::start(&running));
    copy_folder(&running, &stopped);
    let author = Author::start(&running);
    let url = format!("http://{}", author.address);
    let login = format!("admin:{}", author.password);
    let token_file = dir.path().join("token");
    let token = run_ok(&["user", "token", "admin", "--home", running.to_str().unwrap()]);
    std::fs::write(&token_file, token).unwrap();
    let home = ["--home", stopped.to_str().unwrap()];
    let by_login = ["--url", &url, "--login", &login];
    let by_token = ["--url", &url, "--token-file", token_file.to_str().unwrap()];

    for (number, words) in [
        "add ann --group content-authors",
        "list",
        "list --json",
        "group create translators",
        "group add translators ann",
        "group list",
        "group list --json",
        "why ann /content --privilege jcr:read --privilege jcr:write",
        "why ann /content --privilege jcr:read --json",
        "passwd ann",
        "disable ann --reason left",
        "list",
        "enable ann",
        "group remove translators ann",
        "group delete translators",
        "group list",
        "delete ann",
        "list",
    ]
    .into_iter()
    .enumerate()
    {
        let remote = if number % 2 == 0 { by_login } else { by_token };
        assert_eq!(user_ok(words, &home), user_ok(words, &remote), "{words}");
    }

    // Tokens are managed in the home also while the instance runs.
    author.add_user("cleo");
    let open_home = ["--home", running.to_str().unwrap()];
    for (maker, lister) in [(&by_login[..], &open_home[..]), (&open_home, &by_token)] {
        let made = user_ok("token cleo --expires 30d --scope read", maker);
        std::fs::write(dir.path().join("token-of-cleo"), made).unwrap();
        let token_of_cleo = dir.path().join("token-of-cleo");
        let as_cleo = ["--url", &url, "--token-file", token_of_cleo.to_str().unwrap()];
        assert_eq!(user_ok("list", &as_cleo), "");
        for words in ["tokens", "tokens cleo", "tokens cleo --json", "tokens eve"] {
            assert_eq!(user_ok(words, maker), user_ok(words, lister), "{words}");
        }
        assert_eq!(user_ok("tokens cleo", &as_cleo), user_ok("tokens cleo", lister));
        let listed = user_ok("tokens cleo --json", lister);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let revoke = format!("revoke {}", listed[0]["id"].as_str().unwrap());
        assert_eq!(user_ok(&revoke, maker), "");
        for location in [maker, lister] {
            assert_eq!(user(&revoke, location).status.code(), Some(2), "{location:?}");
        }
        assert_eq!(user("list", &as_cleo).status.code(), Some(2));
    }
    for words in ["token nobody", "token cleo --expires 0s", "token cleo --expires soon"] {
        assert_eq!(user(words, &by_login).status.code(), Some(2), "{words}");
    }
    user_ok("delete cleo", &by_login);

    // A user changes its own password with the present one, which is part of the login.
    author.add_user("bob");
    let login_of_bob = format!("bob:{PASSWORD}");
    let as_bob = ["--url", &url, "--login", &login_of_bob];
    user_ok("passwd bob", &as_bob);

    // Users without the privilege change nothing, and refusals name no one that they may not see.
    for words in [
        "add eve",
        "group create mine",
        "disable admin",
        "delete admin",
        "passwd admin",
        "token bob",
        "tokens",
    ] {
        let output = user(words, &as_bob);
        assert_eq!(output.status.code(), Some(2), "{words}: {output:?}");
    }
    assert!(!user_ok("list", &as_bob).contains("admin"));
    assert_eq!(user_ok("list", &by_login), "admin\nbob\n");
    let nobody = ["--url", &url];
    assert_eq!(user("list", &nobody).status.code(), Some(2));

    // The home of a running instance is managed by its address.
    for words in ["list", "add eve", "group list"] {
        let output = user(words, &["--home", running.to_str().unwrap()]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{words}: {message}");
        assert!(message.contains("--url"), "{words}: {message}");
    }
}
