//! Who stores blobs where: no command stores a blob in another place than the instance, or before its home is known to
//! those who share it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use tympan_testkit::condition_wait::wait_until;

use crate::program::{Answer, Running, ask, basic, free_address, post, run, run_ok, tympan};

/// A running author.
struct Author {
    running: Running,
    address: SocketAddr,
    password: String,
}

impl Author {
    fn start(home: &Path) -> Self {
        Self::start_with(home, &[], &[])
    }

    fn start_with(home: &Path, variables: &[(&str, &str)], more: &[&str]) -> Self {
        let address = free_address();
        let listen = address.to_string();
        let arguments = ["author", "--home", text(home), "--listen", &listen];
        let running = Running::try_start_with(variables, &[&arguments, more].concat()).unwrap();
        let password = std::fs::read_to_string(home.join("initial-password")).unwrap_or_default();
        Self { running, address, password: password.trim().to_owned() }
    }

    fn send(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let headers = [("Authorization", basic("admin", &self.password))];
        ask(self.address, method, path, &headers, body).unwrap()
    }

    /// Stores a file in a folder that is made for it.
    fn store(&self, path: &str, bytes: &[u8]) -> u16 {
        let folder = path.rsplit_once('/').unwrap().0;
        post(self.address, &self.password, folder, "jcr:primaryType=sling:Folder");
        self.send("PUT", path, bytes).status
    }

    /// Returns what `/health` says about blobs.
    fn blob_fault(&self) -> Option<String> {
        let answer = ask(self.address, "GET", "/health", &[], b"").unwrap();
        let health: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let checks = health["checks"].as_array().unwrap();
        let blobs = checks.iter().find(|check| check["name"] == "blobs").unwrap();
        blobs["reason"].as_str().map(str::to_owned)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the names in a folder that begin with a word; none if it is not there.
fn names(folder: &Path, word: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(word)).collect()
}

/// Counts the blobs below a folder.
fn blobs(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.path().is_dir() {
            true => blobs(&entry.path()),
            false => usize::from(entry.file_name().len() == 64),
        })
        .sum()
}

fn configure(home: &Path, path: &str) {
    std::fs::create_dir_all(home).unwrap();
    let text = format!(
        "[blobs]\nroles = \"own\"\n[[blobs.delegates]]\nrole = \"own\"\npath = \"{path}\"\n"
    );
    std::fs::write(home.join("tympan.toml"), text).unwrap();
}

/// Makes a package of everything below `/content/f`.
fn build_package(home: &Path, package: &Path) {
    let filter = home.join("filter.xml");
    let xml = "<workspaceFilter version=\"1.0\"><filter root=\"/content/f\"/></workspaceFilter>";
    std::fs::write(&filter, xml).unwrap();
    let files = ["-f", text(&filter), "-o", text(package), "--home", text(home)];
    run_ok(&[&["package", "build"][..], &files].concat());
}

#[test]
fn a_command_registers_its_home_before_it_stores_a_blob() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let author = Author::start(&first);
    assert_eq!(author.store("/content/f/a.bin", &[1; 50_000]), 201);
    assert!(author.running.stop());
    let package = dir.path().join("f.zip");
    build_package(&first, &package);
    configure(&second, "../shared");
    run_ok(&["package", "install", text(&package), "--home", text(&second)]);
    let shared = dir.path().join("shared");
    assert_eq!(blobs(&shared), 1);
    let id = std::fs::read_to_string(second.join("blobs.id")).unwrap();
    let id: serde_json::Value = serde_json::from_str(&id).unwrap();
    let note = format!("repository-{}", id["id"].as_str().unwrap());
    assert_eq!(names(&shared, "repository-"), [note], "no sweep of others takes it for garbage");
}

/// Answers everything with 403, as a bucket of somebody else does.
fn forbidding_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut request = [0; 4096];
                let _begun = stream.read(&mut request);
                stream
                    .write_all(
                        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                    )
                    .ok();
            });
        }
    });
    address
}

#[test]
fn commands_look_for_blobs_where_the_instance_had_them() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let endpoint = format!("http://{}", forbidding_server());
    let variables = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
    ];
    // A bucket that refuses does not keep the instance from starting; health says so.
    let author = Author::start_with(&home, &variables, &["--blobs", "s3://site/p"]);
    wait_until("health tells of the bucket", || author.blob_fault().is_some());
    assert!(author.blob_fault().unwrap().contains("s3://site/p"));
    assert!(author.store("/content/f/a.bin", &[1; 50_000]) >= 400);
    assert!(author.running.stop());
    let mark = ["blobs", "gc", "--mark-only", "--home", text(&home)];
    let marked = tympan().args(mark).envs(variables).output().unwrap();
    let said = String::from_utf8_lossy(&marked.stderr).into_owned();
    assert!(!marked.status.success() && said.contains("s3://site/p"), "{said}");
    assert_eq!(names(&home.join("blobs"), ""), [""; 0], "nothing is stored beside the home");
    // The configuration counts again when an instance starts by it.
    configure(&home, "blobs");
    assert!(!tympan().args(mark).envs(variables).output().unwrap().status.success());
    let author = Author::start(&home);
    assert_eq!((author.blob_fault(), author.store("/content/f/a.bin", &[1; 50_000])), (None, 201));
    assert!(author.running.stop());
    run_ok(&mark);
    assert_eq!(blobs(&home.join("blobs")), 1);
}

#[test]
fn the_blobs_of_another_home_are_where_its_configuration_says() {
    let dir = tempfile::tempdir().unwrap();
    let [production, staging, copied, elsewhere] =
        ["production", "staging", "copied", "elsewhere"].map(|name| dir.path().join(name));
    configure(&production, text(&elsewhere));
    let author = Author::start(&production);
    assert_eq!(author.store("/content/f/a.bin", &[1; 50_000]), 201);
    assert!(author.running.stop());
    for (to, more) in [(&staging, &[][..]), (&copied, &["--full"])] {
        let clone = ["repo", "clone", "--from", text(&production), "--to", text(to)];
        run_ok(&[&clone[..], more].concat());
        let mut author = Author::start(to);
        author.password =
            std::fs::read_to_string(production.join("initial-password")).unwrap().trim().to_owned();
        assert!(author.send("GET", "/content/f/a.bin", b"").body == [1; 50_000], "{}", text(to));
        assert_eq!(author.store("/content/f/b.bin", &[2; 50_000]), 201);
        assert!(author.running.stop());
    }
    assert_eq!((blobs(&elsewhere), blobs(&copied.join("blobs"))), (1, 2));
    let promote = ["blobs", "promote", "/content/f", "--to", text(&production), "--json"];
    let done = run_ok(&[&promote[..], &["--home", text(&staging)]].concat());
    let done: serde_json::Value = serde_json::from_str(&done).unwrap();
    assert_eq!((&done["blobs"], &done["present"]), (&1.into(), &1.into()), "{done}");
    assert_eq!((blobs(&elsewhere), blobs(&production.join("blobs"))), (2, 0));
    let list = |more: &[&str]| {
        run_ok(&[&["blobs", "list", "--home", text(&production)], more].concat()).lines().count()
    };
    assert_eq!([list(&[]), list(&["--json"]), list(&["--trash"])], [2, 2, 0]);
}

#[test]
fn a_guest_says_what_it_needs_without_writing_to_the_owner() {
    let dir = tempfile::tempdir().unwrap();
    let [owner, guest, marks] = ["owner", "guest", "marks"].map(|name| dir.path().join(name));
    let author = Author::start(&owner);
    assert_eq!(author.store("/content/f/a.bin", &[1; 50_000]), 201);
    assert!(author.running.stop());
    std::fs::create_dir_all(&guest).unwrap();
    let delegates = "[blobs]\nroles = \"own,owner\"\n[[blobs.delegates]]\nrole = \"owner\"\nreadOnly = true\n\
                     path = \"../owner/blobs\"\nmarks = \"../marks\"\n[[blobs.delegates]]\nrole = \"own\"\npath = \"blobs\"\n";
    std::fs::write(guest.join("tympan.toml"), delegates).unwrap();
    std::fs::write(owner.join("tympan.toml"), "[blobs]\nguests = [\"../marks\"]\n").unwrap();
    // A folder that is not there may hold marks.
    for home in [&owner, &guest] {
        let refused = run(&["author", "--home", text(home)]);
        assert_eq!(refused.status.code(), Some(2));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("there is no folder"), "{said}");
    }
    std::fs::create_dir(&marks).unwrap();
    assert!(Author::start(&guest).running.stop());
    assert_eq!(names(&marks, "repository-").len(), 1, "it is known from its start on");
    let gc = |home: &Path, more: &[&str]| {
        let done = run_ok(&[&["blobs", "gc", "--json", "--home", text(home)], more].concat());
        serde_json::from_str::<serde_json::Value>(&done).unwrap()
    };
    let waits = gc(&owner, &[]);
    assert_eq!(waits["places"][0]["waitsFor"].as_array().unwrap().len(), 1, "{waits}");
    gc(&guest, &["--mark-only"]);
    assert_eq!(names(&marks, "marks-").len(), 1);
    let swept = gc(&owner, &[]);
    assert_eq!(swept["places"][0]["waitsFor"].as_array().unwrap().len(), 0, "{swept}");
    assert_eq!(names(&owner.join("blobs"), "marks-").len(), 2, "the owner's own, and their part");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &target),
            false => drop(std::fs::copy(&path, target).unwrap()),
        }
    }
}

/// Collects all but the newest state of a home. What a follower saw last is kept, too: it looks further at the next start.
fn collect_all(home: &Path) {
    let begun = Instant::now();
    loop {
        let done = run(&["repo", "gc", "--json", "--home", text(home)]);
        let said: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        if said["revisionsKept"] == 1 {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{said}");
        assert!(Author::start(home).running.stop());
    }
}

#[test]
fn a_home_that_reads_over_http_says_what_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let [owner, guest] = ["owner", "guest"].map(|name| dir.path().join(name));
    std::fs::create_dir(&owner).unwrap();
    let forgetful = "[collect]\ninterval = \"0s\"\n\
                     [history]\nall = \"0s\"\nhourly = 0\ndaily = 0\nweekly = 0\n";
    std::fs::write(owner.join("tympan.toml"), forgetful).unwrap();
    let author = Author::start(&owner);
    for (path, seed) in [("/content/f/needed.bin", 1), ("/content/f/garbage.bin", 2)] {
        assert_eq!(author.store(path, &[seed; 50_000]), 201);
    }
    assert!(author.running.stop());
    copy(&owner, &guest);
    std::fs::remove_dir_all(guest.join("blobs")).unwrap();
    let author = Author::start(&owner);
    let key = dir.path().join("guest.key");
    let paired = ["pair", "guest", "--home", text(&owner), "--purpose", "clone", "--out"];
    run_ok(&[&paired[..], &[text(&key)]].concat());
    let delegates = format!(
        "[blobs]\nroles = \"own,owner\"\n[[blobs.delegates]]\nrole = \"owner\"\nreadOnly = true\n\
         url = \"http://{}\"\nkey = \"../guest.key\"\n\
         [[blobs.delegates]]\nrole = \"own\"\npath = \"blobs\"\n",
        author.address
    );
    std::fs::write(guest.join("tympan.toml"), format!("{delegates}{forgetful}")).unwrap();
    let staging = Author::start(&guest);
    let needed = staging.send("GET", "/content/f/needed.bin", b"");
    assert!(needed.body == [1; 50_000], "{}", needed.status);
    assert_eq!(
        staging.send("DELETE", "/api/v1/nodes?path=/content/f/garbage.bin", b"").status,
        204
    );
    wait_until("the home is known to those who share its blobs", || {
        names(&owner.join("blobs"), "repository-").len() >= 2
    });
    assert_eq!(staging.blob_fault(), None);
    assert!(staging.running.stop());
    collect_all(&guest);
    let gc = |home: &Path, more: &[&str]| {
        let done = run(&[&["blobs", "gc", "--json", "--home", text(home)], more].concat());
        let said: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        (done.status.code().unwrap(), said)
    };
    let (code, marked) = gc(&guest, &["--mark-only"]);
    assert_eq!((code, &marked["needs"]), (0, &1.into()), "{marked}");

    // The owner needs neither any more.
    assert_eq!(author.send("DELETE", "/api/v1/nodes?path=/content/f", b"").status, 204);
    assert!(author.running.stop());
    collect_all(&owner);
    let now = ["--grace", "0s"];
    let (_, swept) = gc(&owner, &now);
    let place = &swept["places"][0];
    assert_eq!((&place["live"]["blobs"], &place["discarded"]["blobs"]), (&1.into(), &1.into()));
    // Nobody answers: what is stored here is swept all the same, and somebody is told.
    let (code, marked) = gc(&guest, &[]);
    assert_eq!(code, 1, "{marked}");
    let untold = marked["untold"][0].as_str().unwrap();
    assert!(untold.contains("`owner`"), "{untold}");
    assert_eq!(marked["places"][0]["role"], "own");
    // What it said before counts until it is forgotten.
    let (_, swept) = gc(&owner, &now);
    assert_eq!(swept["places"][0]["discarded"]["blobs"], 0, "{swept}");
    let id = std::fs::read_to_string(guest.join("blobs.id")).unwrap();
    let id: serde_json::Value = serde_json::from_str(&id).unwrap();
    run_ok(&["blobs", "forget", id["id"].as_str().unwrap(), "--home", text(&owner)]);
    let (_, swept) = gc(&owner, &now);
    assert_eq!(swept["places"][0]["discarded"]["blobs"], 1, "{swept}");
}
