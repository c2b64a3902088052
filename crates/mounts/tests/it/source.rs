//! Places that speak HTTP: WebDAV, S3 and CMIS, well-behaved and not.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::{Map, json};
use tympan_jobs::{JobWorker, JobWorkerOptions, OsgiConfigs};
use tympan_mounts::{
    MountConfig, MountLocation, MountPassReport, MountSecret, MountService, MountSettings,
};
use tympan_testkit::memory_file_tree::MemoryFileTree;
use tympan_testkit::origin_server::{
    OriginResponse, OriginServer, ResponseDelivery, refusing_addr,
};
use tympan_web::outgoing_policy::OutgoingPolicy;

use crate::pass::Desk;

/// A desk with a service whose one mount is `archive`.
pub(crate) struct Office {
    pub(crate) desk: Desk,
    pub(crate) mounts: MountService,
    stop: tokio::sync::watch::Sender<bool>,
}

impl Office {
    pub(crate) fn new(source: &str, place: MountLocation) -> Self {
        let mount = MountConfig::new("archive", source, "/content/dam/archive").unwrap();
        let (places, mounts) = (vec![place], vec![mount]);
        Self::with(MountSettings { locations: places, mounts, ..MountSettings::default() })
    }

    pub(crate) fn with(settings: MountSettings) -> Self {
        let desk = Desk::new();
        let handle = desk.runtime.handle().clone();
        let mounts =
            MountService::new(desk.repository.clone(), desk.queues.clone(), handle, settings);
        let options = JobWorkerOptions {
            poll_interval: Duration::from_millis(20),
            ..JobWorkerOptions::new("author", "one".to_owned())
        };
        let worker = JobWorker::new(desk.queues.clone(), options);
        for handler in mounts.handlers() {
            worker.register_handler(handler);
        }
        let (stop, stopped) = tokio::sync::watch::channel(false);
        desk.runtime.spawn(worker.run(stopped));
        Self { desk, mounts, stop }
    }

    pub(crate) fn apply(&self) {
        let configs = OsgiConfigs::default();
        let applied = self.mounts.apply_configs(&configs, SystemTime::now());
        self.desk.runtime.block_on(applied).unwrap();
    }

    /// Waits until a pass has ended that began after this was called, and returns what it says.
    pub(crate) fn pass(&self) -> Result<MountPassReport, String> {
        self.wait_for_rest();
        let before = self.mounts.counters().passes.load(Ordering::Relaxed);
        let run = self.mounts.start_pass_now("archive", SystemTime::now());
        assert!(self.desk.runtime.block_on(run).unwrap());
        while self.mounts.counters().passes.load(Ordering::Relaxed) == before {
            std::thread::yield_now();
        }
        self.wait_for_rest();
        let last =
            self.desk.runtime.block_on(self.desk.ledger().last_pass("archive")).unwrap().unwrap();
        last.failure.map_or(Ok(last.report), Err)
    }

    /// Waits until no pass waits or runs.
    pub(crate) fn wait_for_rest(&self) {
        loop {
            let status = self.desk.runtime.block_on(self.mounts.list_statuses()).unwrap();
            if status.iter().all(|mount| mount.job.is_none()) {
                return;
            }
            std::thread::yield_now();
        }
    }

    pub(crate) fn added(&self) -> MountPassReport {
        self.pass().unwrap()
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

pub(crate) fn place(url: &str) -> MountLocation {
    MountLocation {
        url: url.to_owned(),
        user: Some("ann".to_owned()),
        secret: Some(MountSecret::new("hush-hush")),
        idle_timeout: Some(Duration::from_secs(20)),
        ..MountLocation::default()
    }
}

/// Makes a service with one mount, without the pass that it begins with.
fn office(source: &str) -> Office {
    let office = Office::new(source, place(source));
    office.mounts.load_configs(&OsgiConfigs::default());
    office
}

fn names() -> [&'static str; 5] {
    ["a.txt", "2024/b c.txt", "2024/deep/é%.txt", "jcr:content/x", "2024/#?&.txt"]
}

fn follows(shelf: &MemoryFileTree, office: &Office, tells_moves: bool) {
    for name in names() {
        shelf.put(name, name);
    }
    let report = office.added();
    assert_eq!((report.added, report.skipped), (5, 0), "{report:?}");
    let original = |name: &str| office.desk.original(&format!("/content/dam/archive/{name}"));
    assert_eq!(original("2024/b c.txt"), b"2024/b c.txt");
    assert_eq!(original("2024/deep/é%25.txt"), "2024/deep/é%.txt".as_bytes());
    assert_eq!(original("jcr%3Acontent/x"), b"jcr:content/x");
    assert_eq!(original("2024/#?&.txt"), b"2024/#?&.txt");
    let report = office.added();
    assert_eq!((report.unchanged, report.bytes), (5, 0), "{report:?}");
    shelf.put("a.txt", "changed");
    shelf.remove("jcr:content/x");
    shelf.rename("2024/b c.txt", "2024/c.txt");
    let report = office.added();
    assert_eq!(original("a.txt"), b"changed");
    assert_eq!(original("2024/c.txt"), b"2024/b c.txt");
    assert!(!office.desk.exists("/content/dam/archive/jcr%3Acontent"));
    let moved = u64::from(tells_moves);
    assert_eq!(
        (report.moved, report.removed, report.unchanged),
        (moved, 2 - moved, 2 + moved),
        "{report:?}"
    );
}

#[test]
fn a_webdav_server_is_followed() {
    let shelf = MemoryFileTree::default();
    let server = shelf.serve_webdav();
    let office = office(&format!("dav://{}/dav", server.addr()));
    follows(&shelf, &office, false);
    let basic = "Basic YW5uOmh1c2gtaHVzaA==";
    assert!(server.requests().iter().all(|seen| seen.header("authorization") == Some(basic)));
}

#[test]
fn a_cmis_repository_is_followed() {
    let shelf = MemoryFileTree::default();
    let server = shelf.serve_cmis();
    let office = office(&format!("cmis+http://{}/cmis#main", server.addr()));
    follows(&shelf, &office, true);
}

#[test]
fn a_cmis_folder_of_many_pages_is_read_page_by_page() {
    let shelf = MemoryFileTree::default();
    for number in 0..1201 {
        shelf.put(&format!("press/{number}.txt"), "x");
    }
    shelf.put("other.txt", "x");
    let server = shelf.serve_cmis();
    let office = office(&format!("cmis+http://{}/cmis#main/press", server.addr()));
    assert_eq!(office.added().added, 1201);
    let pages = server
        .requests()
        .iter()
        .filter(|seen| seen.target.contains("cmisselector=children"))
        .count();
    assert_eq!(pages, 3);
    // Nothing changed: three pages again, and no file.
    let before = server.request_count();
    office.added();
    assert_eq!(server.request_count() - before, 4);
}

/// The binding that servers speak that are older than CMIS 1.1.
#[test]
fn a_cmis_repository_that_speaks_feeds_is_followed() {
    let shelf = MemoryFileTree::default();
    let server = shelf.serve_cmis_atom();
    let office = office(&format!("cmis+http://{}/cmis", server.addr()));
    follows(&shelf, &office, true);
}

#[test]
fn feeds_of_many_pages_are_read_page_by_page() {
    let shelf = MemoryFileTree::default();
    for number in 0..1201 {
        shelf.put(&format!("a & b/press/{number}.txt"), "x");
    }
    shelf.put("other.txt", "x");
    let server = shelf.serve_cmis_atom();
    let office = office(&format!("cmis+http://{}/cmis#main/a & b/press", server.addr()));
    assert_eq!(office.added().added, 1201);
    // Nothing changed: the service, the folder by its path, three pages, and no file.
    let before = server.request_count();
    office.added();
    assert_eq!(server.request_count() - before, 5);
}

#[test]
fn feeds_lead_nowhere_else_and_end() {
    let check = |entry: &'static str, expected: &str| {
        let server = OriginServer::start(move |seen| {
            let host = seen.header("host").unwrap();
            let body = if seen.target == "/cmis" {
                format!(
                    "<service><workspace><collection href='http://{host}/all'><collectionType>root</collectionType>\
                     </collection><repositoryId>main</repositoryId></workspace></service>"
                )
            } else {
                let entry = entry.replace("HOST", host);
                format!(
                    "<feed><entry>{entry}<object><properties><propertyId propertyDefinitionId='cmis:objectId'><value>1\
                     </value></propertyId><propertyId propertyDefinitionId='cmis:baseTypeId'><value>cmis:document</value>\
                     </propertyId><propertyString propertyDefinitionId='cmis:name'><value>a.txt</value></propertyString>\
                     </properties></object></entry><link rel='next' href='http://{host}/all'/></feed>"
                )
            };
            OriginResponse::with_status(200)
                .with_header("Content-Type", "application/atom+xml")
                .with_body(body)
        });
        let error = office(&format!("cmis+http://{}/cmis", server.addr())).pass().unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    check("<content src='http://elsewhere.example/a.txt'/>", "which is not at");
    check("<content src='http://HOST.elsewhere.example/a.txt'/>", "which is not at");
    check("<content src='http://HOST/a.txt'/>", "reports more entries, but returns no new ones");
}

#[test]
fn refusals_and_silence_are_reported_without_secrets() {
    let check = |answer: OriginResponse, expected: &str| {
        let server = OriginServer::start_constant(answer);
        for source in [
            format!("dav://{}/dav", server.addr()),
            format!("cmis+http://{}/cmis#main", server.addr()),
        ] {
            let office = office(&source);
            let error = office.pass().unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("hush") && !error.contains("Basic"), "{error}");
        }
    };
    check(OriginResponse::with_status(401), "check the credentials");
    check(OriginResponse::with_status(404), "404");
    check(OriginResponse::with_status(500), "500");
    check(
        OriginResponse::with_status(200).with_delivery(ResponseDelivery::Hangup),
        "cannot be reached",
    );
    let away = OriginResponse::with_status(302)
        .with_header("Location", "http://elsewhere.example/?token=hush");
    check(away, "redirects to `http://elsewhere.example/`");
    check(OriginResponse::with_status(200).with_body("<a><b>"), "is malformed");
    check(OriginResponse::with_status(200).with_body("{\"a\":"), "is malformed");
    check(OriginResponse::with_status(207).with_body("<x/>".repeat(3)), "");
    let dead = office(&format!("dav://{}/dav", refusing_addr()));
    assert!(dead.pass().unwrap_err().contains("cannot be reached"));
    assert_eq!(dead.mounts.counters().failed_passes.load(Ordering::Relaxed), 1);
}

#[test]
fn a_server_that_stops_in_the_middle_is_not_waited_for() {
    let body = "<D:multistatus xmlns:D='DAV:'>".to_owned() + &" ".repeat(1000);
    let server = OriginServer::start_constant(
        OriginResponse::with_status(207)
            .with_body(body)
            .with_delivery(ResponseDelivery::StallAfter(100)),
    );
    let source = format!("dav://{}/dav", server.addr());
    let place = MountLocation { idle_timeout: Some(Duration::from_secs(5)), ..place(&source) };
    let office = Office::new(&source, place);
    office.mounts.load_configs(&OsgiConfigs::default());
    let error = office.pass().unwrap_err();
    assert!(error.contains("stopped sending data"), "{error}");
}

#[test]
fn listings_without_end_end() {
    // A folder that holds itself under another name, for ever.
    let deep = OriginServer::start(|seen| {
        let href = format!("{}x/", seen.target);
        OriginResponse::with_status(207).with_body(format!(
            "<multistatus xmlns='DAV:'><response><href>{href}</href><propstat><prop><resourcetype><collection/>\
             </resourcetype></prop></propstat></response></multistatus>"
        ))
    });
    let report = office(&format!("dav://{}/dav", deep.addr())).added();
    assert_eq!((report.added, report.skipped), (0, 1));
    assert_eq!(deep.request_count(), 33);
    // Something that is not in the folder.
    let elsewhere = OriginServer::start_constant(OriginResponse::with_status(207).with_body(
        "<multistatus xmlns='DAV:'><response><href>/etc/passwd</href></response></multistatus>",
    ));
    let error = office(&format!("dav://{}/dav", elsewhere.addr())).pass().unwrap_err();
    assert!(error.contains("not in the folder"), "{error}");
    // Pages that say that there is more, always.
    let cmis = OriginServer::start(|seen| {
        let host = seen.header("host").unwrap().to_owned();
        OriginResponse::with_status(200).with_body(if seen.target == "/cmis" {
            json!({ "main": { "rootFolderUrl": format!("http://{host}/root") } }).to_string()
        } else {
            json!({ "objects": [{ "object": { "succinctProperties": {
                "cmis:objectId": "1", "cmis:name": "a", "cmis:baseTypeId": "cmis:document",
                "cmis:contentStreamLength": 1 } } }], "hasMoreItems": true })
            .to_string()
        })
    });
    let error = office(&format!("cmis+http://{}/cmis", cmis.addr())).pass().unwrap_err();
    assert!(error.contains("returns no new ones"), "{error}");
    let s3 = OriginServer::start_constant(OriginResponse::with_status(200).with_body(
        "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>\
         </ListBucketResult>",
    ));
    let error = bucket(&s3, "b").pass().unwrap_err();
    assert!(error.contains("returns no new ones"), "{error}");
}

#[test]
fn credentials_stay_with_their_host() {
    let other = OriginServer::start_constant(OriginResponse::with_status(200).with_body("{}"));
    let elsewhere = format!("http://{}/root", other.addr());
    let cmis = OriginServer::start_constant(
        OriginResponse::with_status(200)
            .with_body(json!({ "main": { "rootFolderUrl": elsewhere } }).to_string()),
    );
    let error = office(&format!("cmis+http://{}/cmis", cmis.addr())).pass().unwrap_err();
    assert!(error.contains("which is not at"), "{error}");
    assert_eq!(other.request_count(), 0);
}

#[test]
fn a_file_that_breaks_off_or_changes_is_left_for_later() {
    let shelf = MemoryFileTree::default();
    shelf.put("a.txt", "0123456789");
    let good = shelf.serve_webdav();
    let turn = AtomicUsize::new(0);
    let good_at = good.addr();
    let proxy = OriginServer::start(move |seen| {
        let mut request = format!("{} {} HTTP/1.1\r\n", seen.method, seen.target);
        request.push_str("Host: x\r\nConnection: close\r\nDepth: 1\r\n\r\n");
        let answer = tympan_testkit::origin_server::exchange_bytes(good_at, request.as_bytes());
        let text = String::from_utf8(answer).unwrap();
        let body = text.split_once("\r\n\r\n").unwrap().1.to_owned();
        match (&*seen.method, turn.load(Ordering::Relaxed)) {
            ("GET", 0) => {
                turn.store(1, Ordering::Relaxed);
                OriginResponse::with_status(200)
                    .with_body(body)
                    .with_delivery(ResponseDelivery::CutAfter(5))
            }
            ("GET", 1) => {
                turn.store(2, Ordering::Relaxed);
                OriginResponse::with_status(200).with_header("ETag", "\"other\"").with_body(body)
            }
            ("GET", _) => OriginResponse::with_status(200).with_body(body),
            _ => OriginResponse::with_status(207).with_body(body),
        }
    });
    let office = office(&format!("dav://{}/dav", proxy.addr()));
    for reason in ["", "changed since it was listed"] {
        let report = office.added();
        assert_eq!((report.added, report.skipped), (0, 1), "{report:?}");
        assert!(report.skipped_files[0].1.contains(reason), "{report:?}");
        assert!(!office.desk.exists("/content/dam/archive/a.txt"));
    }
    assert_eq!(office.added().added, 1);
}

fn bucket(server: &OriginServer, name: &str) -> Office {
    let source = format!("s3://{name}");
    let place =
        MountLocation { endpoint: Some(format!("http://{}", server.addr())), ..place(&source) };
    let office = Office::new(&source, place);
    office.mounts.load_configs(&OsgiConfigs::default());
    office
}

#[test]
fn keys_of_a_bucket_become_paths() {
    let keys = ["a", "a/b", "dir/", "x/../y", "//", "%20%2B", "new%0Aline", "q%26r"];
    let contents: String = keys
        .iter()
        .map(|key| {
            format!("<Contents><Key>{key}</Key><Size>1</Size><ETag>\"{key}\"</ETag></Contents>")
        })
        .collect();
    let server = OriginServer::start(move |seen| {
        if seen.target.starts_with("/b?") {
            assert!(
                seen.header("authorization")
                    .unwrap()
                    .starts_with("AWS4-HMAC-SHA256 Credential=ann/")
            );
            OriginResponse::with_status(200).with_body(format!(
                "<?xml version=\"1.0\"?><ListBucketResult><EncodingType>url</EncodingType>{contents}\
                 <IsTruncated>false</IsTruncated></ListBucketResult>"
            ))
        } else {
            OriginResponse::with_status(200).with_body("x")
        }
    });
    let office = bucket(&server, "b");
    let report = office.added();
    // `dir/` and `//` stand for folders; `a` cannot be a file and a folder.
    assert_eq!((report.added, report.skipped), (5, 1), "{report:?}");
    for place in ["x/%2E%2E/y", " +", "new%0Aline", "q&r"] {
        let place = match place {
            " +" => "%20+",
            other => other,
        };
        assert!(office.desk.exists(&format!("/content/dam/archive/{place}")), "{place}");
    }
    let asked: Vec<String> = server.requests().iter().map(|seen| seen.target.clone()).collect();
    assert!(
        asked.contains(&"/b/x/../y".to_owned()) && asked.contains(&"/b/%20%2B".to_owned()),
        "{asked:?}"
    );
}

#[test]
fn temporary_credentials_of_a_bucket_are_replaced_while_it_is_mounted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("credentials");
    let write = |token: &str| {
        let keys = "[default]\naws_access_key_id = ben\naws_secret_access_key = s\n";
        std::fs::write(&file, format!("{keys}aws_session_token = {token}\n")).unwrap();
    };
    write("first");
    let server = OriginServer::start(|_| {
        OriginResponse::with_status(200).with_body(
            "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>",
        )
    });
    let location = MountLocation {
        endpoint: Some(format!("http://{}", server.addr())),
        credentials_file: Some(file.clone()),
        ..place("s3://b")
    };
    let office = Office::new("s3://b", location);
    office.mounts.load_configs(&OsgiConfigs::default());
    office.added();
    write("second");
    office.added();
    std::fs::remove_file(&file).unwrap();
    let failure = office.pass().unwrap_err();
    assert!(failure.contains("credentials"), "{failure}");
    let mut tokens: Vec<String> = Vec::new();
    for request in server.requests() {
        let authorization = request.header("authorization").unwrap();
        assert!(authorization.starts_with("AWS4-HMAC-SHA256 Credential=ben/"), "{authorization}");
        assert!(authorization.contains(";x-amz-security-token,"), "{authorization}");
        tokens.push(request.header("x-amz-security-token").unwrap().to_owned());
    }
    tokens.dedup();
    assert_eq!(tokens, ["first", "second"]);
}

#[test]
fn a_place_comes_no_nearer_and_is_none_of_the_link() {
    let shelf = MemoryFileTree::default();
    shelf.put("a.txt", "a");
    let server = shelf.serve_webdav();
    let source = format!("dav://localhost:{}/dav", server.addr().port());
    let office = |source: &str, outgoing: OutgoingPolicy| {
        let mount = MountConfig::new("archive", source, "/content/dam/archive").unwrap();
        let (places, mounts) = (vec![place(source)], vec![mount]);
        let settings = MountSettings {
            locations: places,
            mounts,
            outgoing_policy: outgoing,
            ..MountSettings::default()
        };
        let office = Office::with(settings);
        office.mounts.load_configs(&OsgiConfigs::default());
        office
    };
    // At first, the name led into the internet.
    let outgoing = OutgoingPolicy::default();
    let named = outgoing.for_configured_host(&source.replace("dav:", "http:").parse().unwrap());
    assert_eq!(named.partition_addresses([([93, 184, 216, 34], 80).into()]).0.len(), 1);
    let failure = office(&source, outgoing).pass().unwrap_err();
    assert!(
        failure.contains("are not allowed") && failure.contains("closer to this machine"),
        "{failure}"
    );
    assert_eq!(server.request_count(), 0);
    assert_eq!(
        office(&source, OutgoingPolicy::default()).added().added,
        1,
        "it always was a neighbor"
    );
    for secret in ["dav://169.254.169.254/x", "cmis+http://169.254.169.254/x#r"] {
        let failure = office(secret, OutgoingPolicy::default()).pass().unwrap_err();
        assert!(failure.contains("cloud metadata address"), "{secret}: {failure}");
    }
    let bucket = MountLocation {
        endpoint: Some("http://169.254.169.254".to_owned()),
        ..place("s3://bucket/press")
    };
    let office = Office::new("s3://bucket/press", bucket);
    office.mounts.load_configs(&OsgiConfigs::default());
    let failure = office.pass().unwrap_err();
    assert!(failure.contains("cloud metadata address"), "{failure}");
}

#[test]
fn what_content_configures_leads_to_places_only() {
    let settings = MountSettings {
        locations: vec![MountLocation { url: "/srv/press".to_owned(), ..MountLocation::default() }],
        ..MountSettings::default()
    };
    let check = |name: &str, properties: serde_json::Value, expected: &str| {
        let configs = configs_of(&[(name, properties)]);
        let configured = settings.with_osgi_configs(&configs);
        let told = match configured.faults.first() {
            Some(fault) => fault.message.clone(),
            None => configured.mounts.iter().map(|mount| format!("{mount:?}")).collect(),
        };
        assert!(told.contains(expected), "{told}");
    };
    let factory = "org.tympan.assets.Mount";
    let mount = |source: &str, target: &str| json!({ "source": source, "target": target });
    check(&format!("{factory}-a"), mount("/srv/press/x", "/content/dam/x"), "MountConfig");
    check(&format!("{factory}~a"), mount("/srv/press/x", "/content/dam/x"), "MountConfig");
    check(&format!("{factory}-a"), mount("/etc", "/content/dam/x"), "is not in any location");
    check(
        &format!("{factory}-a"),
        mount("dav://intranet/x", "/content/dam/x"),
        "is not in any location",
    );
    check(
        &format!("{factory}-a"),
        mount("/srv/press", "/content/dam"),
        "is not a folder for assets",
    );
    check(&format!("{factory}-a"), mount("/srv/press", "/apps"), "is not a folder for assets");
    check(
        &format!("{factory}-a b"),
        mount("/srv/press", "/content/dam/x"),
        "is not a valid mount name",
    );
    check(
        &format!("{factory}-a"),
        json!({ "source": "/srv/press", "target": "/content/dam/x", "password": "p" }),
        "must not be stored in content",
    );
    check(
        "com.day.cq.dam.jcrconnector.impl.AssetSynchronizationService",
        json!({ "scheduler.period": "soon" }),
        "number of seconds",
    );
}

/// Makes configurations as content would hold them.
fn configs_of(of: &[(&str, serde_json::Value)]) -> OsgiConfigs {
    let repository = tympan_content::Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    for folder in ["/apps", "/apps/site", "/apps/site/config"] {
        session.add_node(&crate::pass::path(folder), "sling:Folder").unwrap();
    }
    for (pid, properties) in of {
        let node = crate::pass::path(&format!("/apps/site/config/{pid}"));
        session.add_node(&node, "sling:OsgiConfig").unwrap();
        let empty = Map::new();
        for (name, value) in properties.as_object().unwrap_or(&empty) {
            let text = tympan_content::Property::text(value.as_str().unwrap());
            session.set_property(&node, name, text).unwrap();
        }
    }
    session.commit("configure", SystemTime::now()).unwrap();
    let snapshot = repository.snapshot().unwrap();
    OsgiConfigs::read_snapshot(&repository, &snapshot, &["author"]).unwrap()
}
