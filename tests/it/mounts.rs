//! Places with files that become assets: a mount and an import of a whole program, also one that is killed.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tympan_testkit::condition_wait::{wait_for, wait_until};

use crate::program::{Running, basic, free_address, post, run, run_ok};

/// An author with a folder of files beside it.
struct Author {
    running: Option<Running>,
    home: tempfile::TempDir,
    address: std::net::SocketAddr,
}

impl Author {
    fn new(settings: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("author")).unwrap();
        fs::create_dir_all(home.path().join("files")).unwrap();
        let folder = home.path().join("files");
        let settings = settings.replace("FILES", folder.to_str().unwrap());
        fs::write(home.path().join("author/tympan.toml"), settings).unwrap();
        let mut author = Self { running: None, home, address: free_address() };
        author.start();
        author
    }

    fn start(&mut self) {
        let home = self.home.path().join("author");
        let address = self.address.to_string();
        let arguments = ["author", "--home", home.to_str().unwrap(), "--listen", &address];
        self.running = Some(Running::start(&arguments));
    }

    fn kill(&mut self) {
        self.running.take().unwrap().kill();
    }

    fn files(&self) -> std::path::PathBuf {
        self.home.path().join("files")
    }

    fn password(&self) -> String {
        let file = self.home.path().join("author/initial-password");
        fs::read_to_string(file).unwrap().trim().to_owned()
    }

    fn token(&self) -> String {
        let home = self.home.path().join("author");
        run_ok(&["user", "token", "admin", "--home", home.to_str().unwrap()]).trim().to_owned()
    }

    /// Runs `tympan assets`.
    fn assets(&self, arguments: &[&str], token: &str) -> std::process::Output {
        let url = format!("http://{}", self.address);
        run(&[&["assets"][..], arguments, &["--url", &url, "--token", token]].concat())
    }

    /// Runs `tympan assets` until it says something.
    fn until(&self, arguments: &[&str], token: &str, expected: &str) -> String {
        wait_for(|| {
            let output = self.assets(arguments, token);
            let text = String::from_utf8(output.stdout).unwrap();
            if text.contains(expected) { Ok(text) } else { Err(text) }
        })
    }

    fn status_of(&self, path: &str) -> u16 {
        let headers = [("Authorization", basic("admin", &self.password()))];
        crate::program::ask(self.address, "GET", path, &headers, b"").unwrap().status
    }
}

/// Writes a file that has long been written.
fn old_file(folder: &Path, name: &str) {
    let file = folder.join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, name).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    fs::File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
}

const MOUNT: &str = "[mounts]\nperiod = \"1h\"\n[[mounts.mount]]\nname = \"press\"\nsource = \"FILES\"\n\
                     target = \"/content/dam/press\"\n";

#[test]
fn a_mount_is_followed_paused_and_reported() {
    let author = Author::new(MOUNT);
    let token = author.token();
    author.until(&["mount", "list"], &token, "0 added");
    old_file(&author.files(), "2024/a b.txt");
    let ran = author.assets(&["mount", "run", "press"], &token);
    assert!(ran.status.success(), "{ran:?}");
    let text = author.until(&["mount", "status", "press"], &token, "1 added");
    assert!(text.contains("/content/dam/press, every 3600 s"), "{text}");
    let data = "/content/dam/press/2024/a%20b.txt/jcr:content/renditions/original";
    assert_eq!(author.status_of(data), 200);
    assert!(author.assets(&["mount", "pause", "press"], &token).status.success());
    author.until(&["mount", "list"], &token, "paused");
    old_file(&author.files(), "c.txt");
    assert!(author.assets(&["mount", "resume", "press"], &token).status.success());
    author.until(&["mount", "list"], &token, "1 unchanged");
    assert_eq!(author.assets(&["mount", "run", "other"], &token).status.code(), Some(2));
    let jobs = format!("http://{}", author.address);
    let topics = run_ok(&["jobs", "topics", "--url", &jobs, "--token", &token]);
    assert!(topics.contains("dam/synchronize/press"), "{topics}");
}

#[test]
fn without_mounts_there_is_no_work() {
    let author = Author::new("");
    let token = author.token();
    let list = author.assets(&["mount", "list", "--json"], &token);
    assert_eq!(String::from_utf8(list.stdout).unwrap().trim(), r#"{"mounts":[],"faults":[]}"#);
    let url = format!("http://{}", author.address);
    let topics = run_ok(&["jobs", "topics", "--url", &url, "--token", &token]);
    assert!(!topics.contains("dam/synchronize"), "{topics}");
}

#[test]
fn only_administrators_look_after_mounts() {
    let author = Author::new(MOUNT);
    let home = author.home.path().join("author");
    let home = home.to_str().unwrap();
    let headers = [
        ("Authorization", basic("admin", &author.password())),
        ("Content-Type", "application/json".to_owned()),
    ];
    let bob = br#"{"name":"bob","password":"a long password of bob"}"#;
    let added = crate::program::ask(author.address, "POST", "/api/v1/users", &headers, bob);
    assert_eq!(added.unwrap().status, 201);
    let token = run_ok(&["user", "token", "bob", "--home", home]);
    for arguments in [
        &["mount", "list"][..],
        &["mount", "run", "press"],
        &["import", "/etc", "/content/dam/x"],
        &["write-back", "on"],
    ] {
        let output = author.assets(arguments, token.trim());
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("403"), "{arguments:?}: {text}");
    }
}

#[test]
fn an_import_goes_on_after_a_kill() {
    const FILES: usize = 500;
    let mut author = Author::new("[[mounts.location]]\nurl = \"FILES\"\n");
    for number in 0..FILES {
        old_file(&author.files(), &format!("{}/{number}.txt", number / 100));
    }
    let (token, source) = (author.token(), author.files());
    let source = source.to_str().unwrap().to_owned();
    let import = ["import", source.as_str(), "/content/dam/press"];
    let begun = author.assets(&[&import[..], &["--no-wait"]].concat(), &token);
    assert!(begun.status.success(), "{begun:?}");
    // In the middle, as far as a test can tell: some are there.
    wait_until("assets are there", || author.status_of("/content/dam/press.json") == 200);
    author.kill();
    author.start();
    let ended = author.assets(&import, &token);
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{ended:?}");
    assert!(text.contains("0 skipped"), "{text}");
    // Once more finds all of them, and reads none.
    let ended = author.assets(&import, &token);
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(
        text.contains(&format!("0 files imported, {FILES} already present, 0 skipped, 0 bytes")),
        "{text}"
    );
    let refused = author.assets(&["import", "/etc", "/content/dam/etc"], &token);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("is not in any location"), "{text}");
}

#[test]
fn duplicates_are_named_on_upload_and_listed() {
    let author = Author::new("");
    let password = author.password();
    let upload = |name: &str| {
        let body = format!(
            "--x\r\nContent-Disposition: form-data; name=\":operation\"\r\n\r\ncreateasset\r\n--x\r\n\
             Content-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\nsame bytes\r\n--x--\r\n"
        );
        let headers = [
            ("Authorization", basic("admin", &password)),
            ("Accept", "application/json".to_owned()),
            ("Content-Type", "multipart/form-data; boundary=x".to_owned()),
        ];
        let path = "/content/dam";
        let answer =
            crate::program::ask(author.address, "POST", path, &headers, body.as_bytes()).unwrap();
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.text()
    };
    let pid = "com.day.cq.dam.core.impl.servlet.CreateAssetServlet";
    let form = format!(":name={pid}&jcr:primaryType=sling:OsgiConfig&detect_duplicate=true");
    post(author.address, &password, "/content/dam", "jcr:primaryType=sling:Folder");
    assert!(!upload("first.txt").contains("duplicate"));
    let configured = post(author.address, &password, "/apps/system/config/*", &form).status;
    assert!(configured < 300, "{configured}");
    // Until the first is processed and the configuration is seen.
    let mut number = 0;
    let answer = wait_for(|| {
        number += 1;
        // Some are named, the first ones by name.
        let answer = upload(&format!("later-{number}.txt"));
        if answer.contains("/content/dam/first.txt") { Ok(answer) } else { Err(answer) }
    });
    assert!(answer.contains("duplicate"), "{answer}");
    let listed = author.assets(&["duplicates"], &author.token());
    let text = String::from_utf8(listed.stdout).unwrap();
    assert!(text.contains("10 bytes each:") && text.contains("/content/dam/first.txt"), "{text}");
}
