//! Several instances hold assets: an author of its own for one subtree, far from the main one; and a publisher that shows
//! external groups nothing but what is final.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::delay_proxy::DelayProxy;

use crate::program::{Answer, Running, ask, basic, free_address, post, run_ok, tympan};

const PHOTOS: &str = "/content/dam/photos";

struct Instance {
    running: Running,
    address: SocketAddr,
    password: String,
}

impl Instance {
    fn start(role: &str, home: &Path) -> Self {
        let address = free_address();
        let running =
            Running::start(&[role, "--home", text(home), "--listen", &address.to_string()]);
        let password = std::fs::read_to_string(home.join("initial-password")).unwrap();
        Self { running, address, password: password.trim().to_owned() }
    }

    fn post(&self, path: &str, form: &str) {
        let answer = post(self.address, &self.password, path, form);
        assert!(matches!(answer.status, 200 | 201), "{path}: {} {}", answer.status, answer.text());
    }

    fn get(&self, path: &str, user: &str, password: &str) -> Answer {
        let headers = [("Authorization", basic(user, password))];
        ask(self.address, "GET", path, &headers, b"").unwrap()
    }

    fn upload(&self, folder: &str, name: &str, bytes: &[u8]) {
        let mut body = format!(
            "--b\r\nContent-Disposition: form-data; name=\"*\"; filename=\"{name}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        )
        .into_bytes();
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n--b--\r\n");
        let headers = [
            ("Authorization", basic("admin", &self.password)),
            ("Accept", "application/json".to_owned()),
            ("Content-Type", "multipart/form-data; boundary=b".to_owned()),
        ];
        let answer = ask(self.address, "POST", folder, &headers, &body).unwrap();
        assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.text());
    }

    fn add_agent(&self, name: &str, target: SocketAddr) {
        let form = format!(
            "jcr:primaryType=cq:Page&jcr:content/jcr:primaryType=nt:unstructured\
             &jcr:content/enabled=true&jcr:content/paths={PHOTOS}\
             &jcr:content/transportUri=http://{target}/bin/receive"
        );
        self.post(&format!("/etc/replication/agents.author/{name}"), &form);
    }

    fn activate(&self, path: &str) {
        self.post(path, ":operation=activate&:deep=true");
    }

    /// Waits until every message has been answered.
    fn wait_until_sent(&self) {
        wait_until("all messages are answered", || {
            !self.get("/api/v1/queue", "admin", &self.password).text().contains(PHOTOS)
        });
    }

    /// Waits until something can be read.
    fn wait_for(&self, path: &str) {
        wait_until(format_args!("{path} is there"), || {
            self.get(path, "admin", &self.password).status == 200
        });
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Makes a home that shares its key with the others of a test.
fn home(dir: &Path, name: &str, config: &str) -> std::path::PathBuf {
    let home = dir.join(name);
    std::fs::create_dir_all(&home).unwrap();
    std::fs::write(home.join("replication.key"), "the key of this farm").unwrap();
    std::fs::write(home.join("tympan.toml"), config).unwrap();
    home
}

fn bytes(seed: usize) -> Vec<u8> {
    (0..20_000 + seed).map(|at| (at % 251) as u8).collect()
}

#[test]
fn a_far_author_gets_any_number_of_nodes_in_as_many_round_trips() {
    let dir = tempfile::tempdir().unwrap();
    let far = Instance::start(
        "author",
        &home(dir.path(), "main", &format!("[receive]\npaths = [\"{PHOTOS}\"]\n")),
    );
    let own = Instance::start("author", &home(dir.path(), "photos", ""));
    let link = DelayProxy::start(far.address, Duration::from_millis(150));
    own.add_agent("main", link.addr());
    let mut seed = 0;
    let mut cost = |folder: &str, count: usize| {
        for number in 0..count {
            seed += 1;
            own.upload(&format!("{PHOTOS}/{folder}"), &format!("{number}.bin"), &bytes(seed));
        }
        let before = link.sequential_round_trips();
        own.activate(&format!("{PHOTOS}/{folder}"));
        let last = format!("{PHOTOS}/{folder}/{}.bin", count - 1);
        far.wait_for(&last);
        assert_eq!(far.get(&last, "admin", &far.password).body, bytes(seed));
        // The last answer is on its way yet, and would count for what comes next.
        own.wait_until_sent();
        link.sequential_round_trips() - before
    };
    // The first one makes the folders above, too.
    cost("first", 2);
    let (few, many) = (cost("few", 4), cost("many", 40));
    assert_eq!(few, many, "round trips for 4 and for 40 nodes");
    assert!(many <= 6, "{many}");
    // What lies elsewhere is not taken, whoever sends it with the key.
    let message = serde_json::json!({
        "agent": "main", "sequence": 1, "action": "Deactivate", "path": "/content", "user": "admin",
        "ancestors": [], "documents": [], "chunks": [], "blobs": [],
    });
    let send = |to: &Instance, key: &str| {
        let headers = [("X-Tympan-Replication-Key", key.to_owned())];
        ask(to.address, "POST", "/bin/receive", &headers, message.to_string().as_bytes()).unwrap()
    };
    let refused = send(&far, "the key of this farm");
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert!(refused.text().contains("[receive]"), "{}", refused.text());
    assert_eq!(send(&far, "another key").status, 403);
    // An author that was not told to receive takes nothing.
    assert_eq!(send(&own, "the key of this farm").status, 403);
    far.wait_for(&format!("{PHOTOS}/many/0.bin"));
    assert!(own.running.stop() && far.running.stop());
}

/// Installs closed user groups: staff sees all photos, partners what is final.
fn close(home: &Path, dir: &Path) {
    let file = dir.join("closed.zip");
    let mut zip = zip::ZipWriter::new(std::fs::File::create(&file).unwrap());
    let folder = |mixin: &str| {
        format!(
            "<jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" xmlns:rep=\"internal\" \
             xmlns:sling=\"http://sling.apache.org/jcr/sling/1.0\" \
             jcr:primaryType=\"sling:Folder\"{mixin}/>"
        )
    };
    let closed = " jcr:mixinTypes=\"[rep:CugMixin]\"";
    let group = |names: &str| {
        format!(
            "<jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" xmlns:rep=\"internal\" \
             jcr:primaryType=\"rep:CugPolicy\" rep:principalNames=\"[{names}]\"/>"
        )
    };
    let filter =
        format!("<workspaceFilter version=\"1.0\"><filter root=\"{PHOTOS}\"/></workspaceFilter>");
    let properties = "<properties><entry key=\"name\">closed</entry><entry key=\"group\">t</entry>\
                      <entry key=\"version\">1</entry><entry key=\"cugHandling\">overwrite</entry>\
                      <entry key=\"acHandling\">overwrite</entry></properties>";
    for (name, content) in [
        ("META-INF/vault/filter.xml", filter),
        ("META-INF/vault/properties.xml", properties.to_owned()),
        ("jcr_root/content/dam/photos/.content.xml", folder(closed)),
        ("jcr_root/content/dam/photos/_rep_cugPolicy.xml", group("staff")),
        ("jcr_root/content/dam/photos/final/.content.xml", folder(closed)),
        ("jcr_root/content/dam/photos/final/_rep_cugPolicy.xml", group("staff,partners")),
        ("jcr_root/content/dam/photos/draft/.content.xml", folder("")),
    ] {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(content.as_bytes()).unwrap();
    }
    zip.finish().unwrap();
    run_ok(&["package", "install", text(&file), "--home", text(home)]);
}

fn add_user(home: &Path, name: &str, group: &str) {
    run_ok(&["user", "group", "create", group, "--home", text(home)]);
    let arguments = ["user", "add", name, "--group", group, "--home", text(home)];
    let mut child = tympan().args(arguments).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"correct horse battery").unwrap();
    assert!(child.wait().unwrap().success(), "{name}");
}

#[test]
fn external_groups_see_final_assets_only() {
    let dir = tempfile::tempdir().unwrap();
    let (author_home, publish_home) =
        (home(dir.path(), "author", ""), home(dir.path(), "publish", ""));
    // The first start makes the home.
    assert!(Instance::start("author", &author_home).running.stop());
    assert!(Instance::start("publish", &publish_home).running.stop());
    close(&author_home, dir.path());
    add_user(&publish_home, "pat", "partners");
    add_user(&publish_home, "sam", "staff");
    let author = Instance::start("author", &author_home);
    let publish = Instance::start("publish", &publish_home);
    author.add_agent("publish", publish.address);
    author.upload(&format!("{PHOTOS}/final"), "done.bin", &bytes(1));
    author.upload(&format!("{PHOTOS}/draft"), "idea.bin", &bytes(2));
    author.activate(PHOTOS);
    let (done, idea) = (format!("{PHOTOS}/final/done.bin"), format!("{PHOTOS}/draft/idea.bin"));
    publish.wait_for(&done);
    publish.wait_for(&idea);
    let sees =
        |user: &str, path: &str| publish.get(path, user, "correct horse battery").status == 200;
    assert!(sees("sam", &done) && sees("sam", &idea));
    assert!(sees("pat", &done) && !sees("pat", &idea));
    // Neither in a listing, nor by whoever is not logged in.
    let listing = publish.get(&format!("{PHOTOS}.2.json"), "pat", "correct horse battery");
    assert!(!listing.text().contains("idea"), "{}", listing.text());
    for path in [&done, &idea] {
        let answer = ask(publish.address, "GET", path, &[], b"").unwrap();
        assert_ne!(answer.status, 200, "{path}");
    }
    // A draft that becomes final is seen from then on, one that goes back no more.
    author.post(&idea, &format!(":operation=move&:dest={PHOTOS}/final/idea.bin"));
    author.activate(PHOTOS);
    let moved = format!("{PHOTOS}/final/idea.bin");
    publish.wait_for(&moved);
    assert!(sees("pat", &moved));
    assert!(author.running.stop() && publish.running.stop());
}
