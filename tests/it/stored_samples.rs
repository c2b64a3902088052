//! Homes, a cache and a vault that earlier programs wrote: every later program opens them.
//!
//! `tests/samples/README.md` says what is in the archives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tympan_testkit::condition_wait::wait_until;

use crate::program::{Demo, Running, ask, basic, free_address, get, tympan};

const ADMIN_PASSWORD: &str = "sample-admin-password";
const NOISE: &str =
    "author/blobs/71/19/7119c84ffbc929a6ef52e83cf617c583976952d559f358e6f8eede66fac8fd36";
/// The page as the cache of the sample holds it.
const NEWS: &str =
    "<!DOCTYPE html>\n<html><head><title>News äöü</title></head><body><p>third</p></body></html>";

/// An unpacked archive.
struct Sample {
    dir: tempfile::TempDir,
}

impl Sample {
    fn unpack() -> Self {
        let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/homes-v1.tar.zst");
        let dir = tempfile::tempdir().unwrap();
        let tar = dir.path().join("sample.tar");
        zstd::stream::copy_decode(
            fs::File::open(archive).unwrap(),
            fs::File::create(&tar).unwrap(),
        )
        .unwrap();
        let mut unpack = Command::new("tar");
        unpack.arg("-xf").arg(&tar).arg("-C").arg(dir.path());
        assert!(unpack.status().unwrap().success());
        fs::remove_file(tar).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text_path(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Points the dispatcher to the unpacked cache and to a publisher.
    fn aim_dispatcher(&self, publish_port: u16) {
        let file = self.path("dispatcher/dispatcher.any");
        let config = fs::read_to_string(&file).unwrap();
        let config = config
            .replace("/srv/sample", &self.dir.path().display().to_string())
            .replace("\"24503\"", &format!("\"{publish_port}\""));
        fs::write(file, config).unwrap();
    }

    fn backup(&self, word: &str, arguments: &[&str]) -> String {
        let mut command = tympan();
        command.args(["backup", word, "-r"]).arg(self.path("vault"));
        command.arg("--password-file").arg(self.path("vault-password")).args(arguments);
        command.env("XDG_CACHE_HOME", self.path("x")).env("XDG_STATE_HOME", self.path("x"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{word} {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Reads what must be in a home that was the author of the sample, through a running author.
fn check_author(home: &Path, noise: &[u8]) {
    let address = free_address();
    let _running = Running::start(&[
        "author",
        "--home",
        home.to_str().unwrap(),
        "--listen",
        &address.to_string(),
    ]);
    let read = |user: &str, password: &str, path: &str| {
        let answer = ask(address, "GET", path, &[("Authorization", basic(user, password))], b"");
        let answer = answer.unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer
    };
    let admin = |path: &str| read("admin", ADMIN_PASSWORD, path);
    assert!(admin("/content/sample/news.html").text().contains("<p>a draft</p>"));
    assert_eq!(admin("/content/dam/sample/noise.bin").body, noise);
    let asset = admin("/content/dam/sample/picture.png.infinity.json").text();
    assert!(asset.contains("\"tiff:ImageWidth\":64") && asset.contains("renditions"), "{asset}");
    assert!(admin("/api/v1/versions?path=/content/sample/news").text().contains("\"kept\""));
    // What the user may see is little; a password that is wrong is refused.
    for (password, is_refused) in [("sample-editor-password", false), ("wrong", true)] {
        let headers = [("Authorization", basic("editor", password))];
        let answer = ask(address, "GET", "/content/sample/news.json", &headers, b"").unwrap();
        assert_eq!(answer.status == 401, is_refused, "{}", answer.text());
    }
}

#[test]
fn the_homes_and_the_cache_of_version_1_are_served() {
    let sample = Sample::unpack();
    let noise = fs::read(sample.path(NOISE)).unwrap();
    let checked =
        tympan().args(["repo", "check", "--home"]).arg(sample.path("author")).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    check_author(&sample.path("author"), &noise);

    // All three together, as they ran before. Of the publisher's answers only the new one is drawn.
    let (author, publish, dispatcher) = (free_address(), free_address(), free_address());
    sample.aim_dispatcher(publish.port());
    fs::write(sample.path("author/initial-password"), ADMIN_PASSWORD).unwrap();
    let demo = Demo::start_at(sample.dir.path(), author, publish, dispatcher);
    let (before, news) = (get(dispatcher, "/content/sample/news.html"), "/content/sample/news");
    assert_eq!((before.status, before.text()), (200, NEWS.to_owned()));
    assert_eq!(before.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(get(dispatcher, "/content/dam/sample/noise.bin").body, noise);
    assert_eq!(demo.renders_of(&format!("{news}.html")), 0, "it comes from the stored cache");
    assert!(demo.post(&format!("{news}/jcr:content"), "text=fourth").status < 300);
    for (agent, target) in [
        ("agents.author/publish", format!("http://{publish}/bin/receive")),
        ("agents.publish/flush", format!("http://{dispatcher}/dispatcher/invalidate.cache")),
    ] {
        let agent = format!("/etc/replication/{agent}/jcr:content");
        assert!(demo.post(&agent, &format!("transportUri={target}")).status < 300);
    }
    for path in ["/etc/replication/agents.publish/flush", news] {
        assert_eq!(demo.post(path, ":operation=activate").status, 200);
    }
    wait_until("the change reaches visitors", || {
        get(dispatcher, &format!("{news}.html")).text().contains("<p>fourth</p>")
    });
}

/// A home of a program that recorded no format gets one; a home of a newer program is not opened.
#[test]
fn a_home_of_version_1_is_refused_after_a_newer_program_used_it() {
    let sample = Sample::unpack();
    let (home, file) = (sample.text_path("author"), sample.path("author/home-format"));
    assert!(!file.exists(), "the sample is of a program that did not record it");
    let check =
        |arguments: &[&str]| tympan().args(arguments).args(["--home", &home]).output().unwrap();
    assert!(check(&["user", "list"]).status.success());
    assert!(fs::read_to_string(&file).unwrap().starts_with("1 "));
    let before = fs::read(sample.path("author/state.db")).unwrap();
    fs::write(&file, "2 7.0.0\n").unwrap();
    for arguments in [&["user", "list"][..], &["author"], &["index", "status"]] {
        let refused = check(arguments);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(
            said.contains("release 7.0.0 wrote") && said.contains("start that release"),
            "{said}"
        );
    }
    assert_eq!(fs::read(sample.path("author/state.db")).unwrap(), before);
}

/// A save holds all that an author goes on with: branches, configuration, keys, and jobs and logins where they are asked for.
/// `latest` is all that one save has made.
#[test]
fn an_author_goes_on_from_a_backup() {
    let sample = Sample::unpack();
    let noise = fs::read(sample.path(NOISE)).unwrap();
    let author = sample.path("author");
    fs::write(author.join("tympan.toml"), "[collect]\nevery = \"2h\"\n").unwrap();
    fs::copy(sample.path("replication.key"), author.join("replication.key")).unwrap();
    let (source, site) = (format!("repo:{}", author.display()), sample.text_path("site"));
    let said = sample.backup("save", &["--with-state", &source, &site]);
    assert!(said.contains("left out: earlier revisions"), "{said}");
    let home = sample.text_path("home");
    let said = sample.backup("restore", &["latest", "--home", &home]);
    assert!(said.contains("spring") && said.contains("tympan.toml"), "{said}");
    for name in ["tympan.toml", "replication.key"] {
        let read = |home: &Path| fs::read(home.join(name)).unwrap();
        assert_eq!(read(Path::new(&home)), read(&author), "{name}");
    }
    let branches = tympan().args(["repo", "branch", "list", "--home", &home]).output().unwrap();
    assert!(String::from_utf8_lossy(&branches.stdout).contains("spring"), "{branches:?}");
    let restored = sample.text_path("restored");
    sample.backup("restore", &["latest", "--path", &site, "--to", &restored]);
    let same = Command::new("diff").args(["-r", &site, &restored]).output().unwrap();
    assert!(same.status.success(), "{same:?}");
    // A token that was made before the save is good after the restore.
    let token = fs::read_to_string(sample.path("author-token.txt")).unwrap();
    check_author(Path::new(&home), &noise);
    let address = free_address();
    let _running = Running::start(&["author", "--home", &home, "--listen", &address.to_string()]);
    let bearer = [("Authorization", format!("Bearer {}", token.trim()))];
    let path = "/content/sample/news.json";
    assert_eq!(ask(address, "GET", path, &bearer, b"").unwrap().status, 200);

    // Without being asked for, jobs and logins are left out, and that is said.
    let said = sample.backup("save", &[&source]);
    assert!(said.contains("--with-state"), "{said}");
    let other = sample.text_path("other");
    let said = sample.backup("restore", &["latest", "--home", &other]);
    assert!(said.contains("jobs and logins"), "{said}");
    assert!(!Path::new(&other).join("state.db").exists());
}

#[test]
fn the_vault_of_version_1_is_listed_and_restored() {
    let sample = Sample::unpack();
    let list = sample.backup("list", &["--all-clients", "--json"]);
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(list.contains("/tympan/srv/sample/author"), "{list}");
    sample.backup("check", &["--read-data"]);
    let of = ["--host", "sample"];
    let site = sample.text_path("restored");
    sample.backup(
        "restore",
        &[&of[..], &["136ba1a2", "--path", "/srv/sample/site", "--to", &site]].concat(),
    );
    let same = Command::new("diff").arg("-r").arg(sample.path("site")).arg(&site).output().unwrap();
    assert!(same.status.success(), "{same:?}");
    let first = sample.backup("ls", &[&of[..], &["ee7ac25f", "/srv/sample/site"]].concat());
    assert!(first.contains("site.toml") && !first.contains("later.txt"), "{first}");
    let home = sample.text_path("home");
    sample.backup("restore", &[&of[..], &["994e4563", "--home", &home]].concat());
    check_author(Path::new(&home), &fs::read(sample.path(NOISE)).unwrap());
}
