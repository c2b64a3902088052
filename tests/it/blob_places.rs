//! Where blobs lie, by `[blobs]` of `tympan.toml`: a second home over the folder of a first one.

use std::path::Path;

use crate::program::{Running, ask, basic, free_address, post, run};

/// Returns every file below a folder with its length and times, and every folder's.
fn trace(dir: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt as _;
    let mut lines = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let found = std::fs::metadata(&path).unwrap();
            let times = (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
            lines.push(format!("{} {} {times:?} {}", path.display(), found.len(), found.mode()));
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    lines.sort();
    lines
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target)
        } else {
            std::fs::copy(&path, target).unwrap();
        }
    }
}

#[test]
fn a_home_reads_anothers_blobs_and_writes_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (production, staging) = (dir.path().join("production"), dir.path().join("staging"));
    let address = free_address();
    let start = |home: &Path| {
        Running::start(&[
            "author",
            "--home",
            home.to_str().unwrap(),
            "--listen",
            &address.to_string(),
        ])
    };
    let running = start(&production);
    let password = std::fs::read_to_string(production.join("initial-password")).unwrap();
    let password = password.trim();
    let headers = [("Authorization", basic("admin", password))];
    let send =
        |method: &str, path: &str, body: &[u8]| ask(address, method, path, &headers, body).unwrap();
    let (old, new) = (vec![7; 100_000], vec![8; 100_000]);
    assert!(post(address, password, "/content/f", "jcr:primaryType=sling:Folder").status < 300);
    assert_eq!(send("PUT", "/content/f/old.bin", &old).status, 201);
    assert!(running.stop());
    copy(&production, &staging);
    std::fs::remove_dir_all(staging.join("blobs")).unwrap();
    let delegates = "[[blobs.delegates]]\nrole = \"production\"\nreadOnly = true\npath = \"../production/blobs\"\n\
                     [[blobs.delegates]]\nrole = \"staging\"\npath = \"blobs\"\n";
    let configure = |roles: &str| {
        let text = format!("[blobs]\nroles = \"{roles}\"\n{delegates}");
        std::fs::write(staging.join("tympan.toml"), text).unwrap();
    };
    configure("staging");
    let refused = run(&["author", "--home", staging.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("`production`, which `roles` does not list"), "{said}");
    configure("staging,production");
    let before = trace(&production.join("blobs"));
    let running = start(&staging);
    let read = |path: &str| send("GET", path, b"").body;
    assert!(read("/content/f/old.bin") == old);
    assert_eq!(send("PUT", "/content/f/new.bin", &new).status, 201);
    assert_eq!(send("PUT", "/content/f/again.bin", &old).status, 201);
    assert!(read("/content/f/new.bin") == new && read("/content/f/again.bin") == old);
    let metrics = send("GET", "/metrics", b"").text();
    assert!(metrics.contains("tympan_blob_origin_hits_total{role=\"author\"} "), "{metrics}");
    assert_eq!(trace(&production.join("blobs")), before, "nothing is written to production");
    let own = trace(&staging.join("blobs"));
    assert_eq!(own.iter().filter(|line| line.contains(" 100000 ")).count(), 2);
    assert!(running.stop());
}
