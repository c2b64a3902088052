//! Pages as files: a real nginx serves what `tympan export` and a running publisher write.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tympan_testkit::condition_wait::wait_until;

use crate::program::{Demo, free_address, get, run, run_ok, tympan};

const HOME_PAGE: &str = "/content/wayfare/en.html";
const PAGE: &str = "/content/wayfare/en/journal/night-train-to-lisbon";

/// A running nginx that is stopped when the test ends.
struct Nginx {
    child: Child,
    address: SocketAddr,
}

impl Nginx {
    /// Serves a folder; what is not there is asked of a publisher, if there is one.
    fn serve(root: &Path, folder: &Path, publish: Option<SocketAddr>) -> Option<Self> {
        let program = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"];
        let Some(program) = program.iter().find(|program| Path::new(program).exists()) else {
            eprintln!("skipped: nginx is not installed");
            return None;
        };
        std::fs::create_dir_all(folder).unwrap();
        let address = free_address();
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        let dir = folder.display();
        let missing = match publish {
            Some(publish) => format!(
                "error_page 404 = @tympan; }} location @tympan {{ \
                 proxy_pass http://{publish}/handle404?exporturi=$request_uri;"
            ),
            None => String::new(),
        };
        let text = format!(
            "{user} worker_processes 1; daemon off; pid {dir}/nginx.pid; events {{ worker_connections 256; }}
            http {{ access_log off; types {{ text/html html; text/css css; image/jpeg jpg jpeg; image/webp webp; }}
              client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi;
              uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
              server {{ listen {address}; root {}; index index_export.html; location / {{ {missing} }} }} }}",
            root.display()
        );
        let config = folder.join("nginx.conf");
        std::fs::write(&config, text).unwrap();
        let child = Command::new(program)
            .args(["-p", folder.to_str().unwrap(), "-c", config.to_str().unwrap()])
            .args(["-e", folder.join("error.log").to_str().unwrap()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut nginx = Self { child, address };
        wait_until("nginx answers", || {
            let log = || std::fs::read_to_string(folder.join("error.log")).unwrap_or_default();
            assert!(nginx.child.try_wait().unwrap().is_none(), "nginx: {}", log());
            std::net::TcpStream::connect(address).is_ok()
        });
        Some(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        // Its workers end with it.
        kill_process(pid, Signal::TERM).ok();
        self.child.wait().ok();
    }
}

/// Fills a home with the sample site and says that all of it is exported.
fn publisher(dir: &Path) -> PathBuf {
    let demo = Demo::start(&dir.join("demo"));
    assert!(demo.running.stop());
    let home = dir.join("demo/publish");
    std::fs::write(home.join("tympan.toml"), "[export]\ndefault = true\n").unwrap();
    home
}

fn export(home: &Path, out: &Path, more: &[&str]) -> (Option<i32>, Value) {
    let mut arguments =
        vec!["export", "--home", home.to_str().unwrap(), "--out", out.to_str().unwrap(), "--json"];
    arguments.extend(more);
    let output = run(&arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let report = serde_json::from_str(&text).unwrap_or(Value::Null);
    assert!(output.status.code() < Some(2), "{arguments:?}: {output:?}");
    (output.status.code(), report)
}

fn count(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { count(&entry.path()) } else { 1 }).sum()
}

/// Returns what the links and parts of a page lead to.
fn targets(page: &str) -> BTreeSet<String> {
    let parts = page.split("href=\"").skip(1).chain(page.split("src=\"").skip(1));
    let all = parts.filter_map(|part| part.split_once('"').map(|(target, _)| target));
    all.filter(|target| target.starts_with('/') && !target.starts_with("//"))
        .map(|target| target.split('#').next().unwrap_or_default().replace("&amp;", "&"))
        .collect()
}

#[test]
fn nginx_serves_every_page_that_is_exported_and_what_it_links_to() {
    let dir = tempfile::tempdir().unwrap();
    let home = publisher(dir.path());
    let out = dir.path().join("out");
    let listed = run_ok(&[
        "export",
        "--home",
        home.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
        "--list",
    ]);
    assert!(listed.contains(&format!("{HOME_PAGE} -> content/wayfare/en.html")), "{listed}");
    assert!(!out.join("current").exists());
    let (_, report) = export(&home, &out, &[]);
    assert_eq!(report["failed"], 0, "{report}");
    assert_eq!(report["written"], count(&out.join("current/")), "{report}");
    let Some(nginx) = Nginx::serve(&out.join("current"), &dir.path().join("nginx"), None) else {
        return;
    };
    let (mut seen, mut pending) = (BTreeSet::new(), vec![HOME_PAGE.to_owned()]);
    let mut missing = BTreeSet::new();
    while let Some(url) = pending.pop() {
        if !seen.insert(url.clone()) {
            continue;
        }
        let answer = get(nginx.address, &url);
        if answer.status != 200 {
            missing.insert(url);
            continue;
        }
        if answer.header("content-type").is_some_and(|kind| kind.starts_with("text/html")) {
            pending.extend(targets(&answer.text()));
        }
    }
    // What is missing is told, as it is no resource either: forms, logins.
    let told = report["findings"].to_string();
    let untold: Vec<_> = missing.iter().filter(|url| !told.contains(&**url)).collect();
    assert!(untold.is_empty(), "{untold:?} of {} addresses: {told}", seen.len());
    assert!(seen.len() > 60, "{seen:?}");
    // Without a change there is nothing to do.
    let (_, report) = export(&home, &out, &["--mode", "changed"]);
    assert_eq!((&report["drawn"], &report["written"]), (&0.into(), &0.into()), "{report}");
}

#[test]
fn a_kill_leaves_the_served_tree_whole_and_the_run_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let home = publisher(dir.path());
    let out = dir.path().join("out");
    export(&home, &out, &[]);
    let served = out.join("current").canonicalize().unwrap();
    let whole = count(&served);
    for share in [3, 2] {
        let mut child = tympan()
            .args([
                "export",
                "--home",
                home.to_str().unwrap(),
                "--out",
                out.to_str().unwrap(),
                "--resume",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("a part of the pages is written", || {
            count(&out.join("tree-000002")) >= whole / share || child.try_wait().unwrap().is_some()
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let current = out.join("current").canonicalize().unwrap();
        assert_eq!(count(&current), whole, "the tree that is served is whole");
        if current != served {
            eprintln!("the run was faster than the kill");
            return;
        }
    }
    let (code, report) = export(&home, &out, &["--resume"]);
    assert_eq!((code, &report["failed"]), (Some(0), &0.into()), "{report}");
    assert!(report["resumed"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(count(&out.join("current/")), whole, "{report}");
    assert!(out.join("current").canonicalize().unwrap().ends_with("tree-000002"));
    assert!(!served.exists(), "no backups are asked for");
}

#[test]
fn a_folder_with_other_files_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let home = publisher(dir.path());
    std::fs::write(dir.path().join("letter.txt"), "mine").unwrap();
    let home = home.to_str().unwrap();
    let output = run(&["export", "--home", home, "--out", dir.path().to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("contains other files"), "{text}");
    let out = dir.path().join("out");
    let output =
        run(&["export", "--home", home, "--out", out.to_str().unwrap(), "--mode", "changed"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("do a full export first"), "{text}");
}

#[test]
fn a_site_is_exported_beside_its_publisher() {
    let dir = tempfile::tempdir().unwrap();
    let home = publisher(dir.path());
    let alone = dir.path().join("alone");
    export(&home, &alone, &[]);
    let demo = Demo::start(&dir.path().join("demo"));
    let beside = dir.path().join("beside");
    let (code, report) = export(&home, &beside, &[]);
    assert_eq!((code, &report["failed"]), (Some(0), &0.into()), "{report}");
    let served = |out: &Path| listing(&out.join("current").canonicalize().unwrap());
    let names = |out: &Path| -> BTreeSet<PathBuf> {
        let served_from = out.join("current").canonicalize().unwrap();
        let relative =
            |(file, _): (PathBuf, u64)| file.strip_prefix(&served_from).map(Path::to_owned);
        served(out).into_iter().filter_map(|one| relative(one).ok()).collect()
    };
    assert_eq!(names(&alone), names(&beside));
    assert!(names(&beside).len() > 60);
    assert_eq!(get(demo.publish, HOME_PAGE).status, 200, "the publisher goes on");
}

#[test]
fn a_full_disk_leaves_what_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=24m", "tmpfs", small.to_str().unwrap()])
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this test mounts a small disk, which takes root");
        return;
    }
    struct Mounted<'a>(&'a Path);
    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            Command::new("umount").arg(self.0).status().ok();
        }
    }
    let _mounted = Mounted(&small);
    let home = publisher(dir.path());
    let out = small.join("out");
    let (_, report) = export(&home, &out, &[]);
    let whole = count(&out.join("current/"));
    assert_eq!(report["written"], whole, "{report}");
    std::fs::write(small.join("ballast"), vec![1; 24 << 20]).ok();
    std::fs::write(small.join("ballast.2"), vec![1; 1 << 20]).ok();
    let failed = run(&["export", "--home", home.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!(failed.status.code(), Some(3), "{failed:?}");
    let text = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(text.contains("No space left"), "{text}");
    assert_eq!(count(&out.join("current/")), whole, "what is served stays");
    std::fs::remove_file(small.join("ballast")).unwrap();
    std::fs::remove_file(small.join("ballast.2")).ok();
    let (code, report) = export(&home, &out, &["--resume"]);
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(count(&out.join("current/")), whole);
}

/// Returns all names below a folder, with how much each holds.
fn listing(folder: &Path) -> BTreeSet<(PathBuf, u64)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let inner = entries.flat_map(|entry| {
        let about = entry.path().symlink_metadata().unwrap();
        match about.is_dir() {
            true => listing(&entry.path()),
            false => BTreeSet::from([(entry.path(), about.len())]),
        }
    });
    inner.collect()
}

#[test]
fn nobody_leaves_the_sandbox_of_on_demand_export() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("demo");
    std::fs::create_dir_all(home.join("publish")).unwrap();
    let settings =
        "[export]\ndir = \"export\"\ndefault = true\nroots = [\"/content\", \"/etc.clientlibs\"]\n";
    std::fs::write(home.join("publish/tympan.toml"), settings).unwrap();
    let demo = Demo::start(&home);
    let current = home.join("publish/export/current");
    wait_until("the site is exported", || current.exists());
    let ask_for = |uri: &str| get(demo.publish, &format!("/handle404?exporturi={uri}"));
    // A page that is there and is not exported.
    let hidden = "/content/wayfare/en/journal/night-train-to-lisbon";
    let about = demo.post(&format!("{hidden}/jcr:content"), "./export=false");
    assert_eq!(about.status, 200, "{}", about.text());
    assert_eq!(demo.post(hidden, ":operation=activate").status, 200);
    wait_until("the page is exported no longer", || {
        ask_for(&format!("{hidden}.html")).status != 200
    });
    // Links in the tree that lead elsewhere: to a folder, and to a file.
    let outside = dir.path().join("outside");
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(outside.join("letter"), "a private letter").unwrap();
    let journal = current.join("content/wayfare/en/journal");
    std::fs::create_dir_all(journal.parent().unwrap()).unwrap();
    std::fs::remove_dir_all(&journal).ok();
    std::os::unix::fs::symlink(&outside, &journal).unwrap();
    let guide = current.join("content/wayfare/en/guides.html");
    std::fs::remove_file(&guide).ok();
    std::os::unix::fs::symlink(outside.join("letter"), &guide).unwrap();
    let before = listing(&current.canonicalize().unwrap());
    let long = format!("/content/{}.html", "x".repeat(3000));
    let deep = format!("/content{}.html", "/x".repeat(400));
    for uri in [
        "/../../../../etc/passwd",
        "/content/../../../../etc/passwd",
        "/content/../conf",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "%2F..%2F..%2Fetc%2Fpasswd",
        "%2Fcontent%2F%252e%252e%2F%252e%252e%2Fetc%2Fpasswd",
        "/%252e%252e/%252e%252e/etc/passwd",
        "/%c0%ae%c0%ae/etc/passwd",
        "/..\\..\\etc\\passwd",
        "//etc/passwd",
        "/content//wayfare/en.html",
        "/content/wayfare/./en.html",
        "/content/wayfare/en.html%00.css",
        "/content/wayfare/en.html%0a",
        "/.htaccess",
        "/content/.htpasswd",
        "http://127.0.0.1/content/wayfare/en.html",
        "file:///etc/passwd",
        "/../publish/state.db",
        "/../tree-000001.manifest",
        "/../../initial-password",
        // What visitors may not read, whatever its name.
        "/home/users.json",
        "/home/users.infinity.json",
        "/conf.json",
        "/apps/wayfare/components/page/page.html.j2",
        "/apps/wayfare.infinity.json",
        "/etc/replication.json",
        "/content/wayfare/en/jcr:content/rep:policy.json",
        "/bin/querybuilder.json",
        "/api/v1/nodes",
        "/health",
        "/metrics",
        "/system/timing.json",
        "/system/timing.html",
        "/handle404",
        // What is there and is not made of an address that somebody thought of.
        "/content/wayfare/en.a.b.html",
        "/content/wayfare/en.html/x",
        "/content/wayfare.infinity.json",
        "",
        "?",
        "%",
        "%2",
        "/%zz",
        &long,
        &deep,
    ] {
        let answer = ask_for(uri);
        let text = answer.text();
        assert!(matches!(answer.status, 303 | 400 | 404 | 414), "{uri}: {} {text}", answer.status);
        for secret in ["root:", "argon2", "{{", "private letter"] {
            assert!(!text.contains(secret), "{uri}: {text}");
        }
        if let Some(target) = answer.header("location") {
            assert!(target.starts_with('/') && !target.starts_with("//"), "{uri}: {target}");
        }
    }
    // Through the link to a folder nothing is written, though the page is there and is exported.
    let through = "/content/wayfare/en/journal/the-last-ferry.html";
    let answer = ask_for(through);
    assert!(matches!(answer.status, 200 | 404), "{}", answer.text());
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "a link led out of the tree");
    assert_eq!(std::fs::read_to_string(outside.join("letter")).unwrap(), "a private letter");
    assert_eq!(listing(&current.canonicalize().unwrap()), before);
    // Who asks makes no difference: files are made with everybody's rights.
    let headers = [("Authorization", crate::program::basic("admin", demo.password()))];
    let path = "/handle404?exporturi=/home/users.json";
    let asked = crate::program::ask(demo.publish, "GET", path, &headers, b"").unwrap();
    assert!(matches!(asked.status, 303 | 401 | 404), "{}", asked.text());
    // And what may be made is still made.
    assert_eq!(ask_for("/content/wayfare/en.html").status, 200);
    // Below a prefix, as OpenCms's web servers ask, with the query of the file behind it.
    let below = |query: &str| get(demo.publish, &format!("/portal/handle404{query}"));
    assert_eq!(below("?exporturi=/content/wayfare/en.html&a=b").status, 200);
    assert_eq!(below("?exporturi=/home/users.json&").status, 404);
    assert_eq!(below("").status, 404);
    assert!(current.join("content/wayfare/en.html").is_file());
}

#[test]
fn visitors_of_nginx_have_files_made_and_changes_take_them_away() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("demo");
    std::fs::create_dir_all(home.join("publish")).unwrap();
    let settings = "[export]\ndir = \"export\"\ndefault = true\n";
    std::fs::write(home.join("publish/tympan.toml"), settings).unwrap();
    let demo = Demo::start(&home);
    let current = home.join("publish/export/current");
    wait_until("the site is exported", || current.exists());
    let Some(nginx) = Nginx::serve(&current, &dir.path().join("nginx"), Some(demo.publish)) else {
        return;
    };
    let url = format!("{PAGE}.html");
    let file = current.join(url.trim_start_matches('/'));
    assert!(!file.exists());
    let made = get(nginx.address, &url);
    assert_eq!(made.status, 200, "{}", made.text());
    assert_eq!(std::fs::read(&file).unwrap(), made.body);
    let asked = demo.renders_of(&url);
    assert_eq!(get(nginx.address, &url).body, made.body);
    assert_eq!(demo.renders_of(&url), asked, "nginx has the file");
    for hostile in [
        "/content/wayfare/en.a.b.c.d.html",
        "/content/none.html",
        "/content/wayfare/en.html/x/y.html",
        "/..%2f..%2fetc/passwd",
        "/content/%00.html",
    ] {
        let answer = get(nginx.address, hostile);
        assert_ne!(answer.status, 200, "{hostile}");
    }
    assert_eq!(count(&current.join("content")), 1, "nobody makes files by making up addresses");
    // A change on the author, once it is published, is what visitors see.
    let saved = demo.post(&format!("{PAGE}/jcr:content"), "./jcr:title=Written+anew");
    assert_eq!(saved.status, 200, "{}", saved.text());
    assert_eq!(demo.post(PAGE, ":operation=activate").status, 200);
    wait_until("the new file is served", || {
        get(nginx.address, &url).text().contains("Written anew")
    });
    assert!(std::fs::read_to_string(&file).unwrap().contains("Written anew"));
}
