//! The archive for support has what helps, and no secret.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crate::program::{Running, ask, free_address, run, run_ok};

/// Secrets of the configuration.
const LISTENER_TOKEN: &str = "token-of-a-listener-5c1d";
const BACK_END_PASSWORD: &str = "password-of-a-back-end-7f3a";

fn read_archive(file: &Path) -> BTreeMap<String, String> {
    let mut archive = zip::ZipArchive::new(std::fs::File::open(file).unwrap()).unwrap();
    let mut parts = BTreeMap::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        parts.insert(entry.name().unwrap().into_owned(), text);
    }
    parts
}

#[test]
fn an_archive_for_support_has_no_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("author");
    std::fs::create_dir(&home).unwrap();
    let settings = format!(
        "[dispatcher.admin]\ntoken = \"{LISTENER_TOKEN}\"\n\
         [back_ends.prices]\nurl = \"http://ann:{BACK_END_PASSWORD}@127.0.0.1:1/api\"\n"
    );
    std::fs::write(home.join("tympan.toml"), settings).unwrap();
    let (home_text, address) = (home.to_str().unwrap(), free_address());
    let running =
        Running::start(&["author", "--home", home_text, "--listen", &address.to_string()]);
    let token = run_ok(&["user", "token", "admin", "--home", home_text]).trim().to_owned();
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, &token).unwrap();
    run_ok(&[
        "pair",
        "standby",
        "--home",
        home_text,
        "--purpose",
        "clone",
        "--out",
        dir.path().join("pair").to_str().unwrap(),
    ]);
    let read = |file: &Path| std::fs::read_to_string(file).unwrap().trim().to_owned();
    let [password, replication_key] =
        ["initial-password", "replication.key"].map(|name| read(&home.join(name)));
    let pair_key = read(&dir.path().join("pair"));
    // What somebody put into an address by mistake is in the log, if not as one of the names that it hides.
    for secret in [&token, &password, &replication_key] {
        ask(address, "GET", &format!("/content/{secret}.html?token={secret}"), &[], b"").unwrap();
    }

    let url = format!("http://{address}");
    let write = |name: &str| {
        let bundle = dir.path().join(name);
        let output = run(&[
            "status",
            "--url",
            &url,
            "--token-file",
            token_file.to_str().unwrap(),
            "--home",
            home_text,
            "--bundle",
            bundle.to_str().unwrap(),
        ]);
        (output, bundle)
    };
    let (output, bundle) = write("running.zip");
    assert!(output.status.success(), "{output:?}");
    let parts = read_archive(&bundle);
    let names: Vec<&str> = parts.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "doctor.txt",
            "health.json",
            "logs/access.log",
            "logs/request.log",
            "metrics.txt",
            "settings.txt",
            "sizes.txt",
            "version.txt",
        ]
    );
    for (name, expected) in [
        ("doctor.txt", "ok      disk: "),
        ("health.json", "\"checks\""),
        ("metrics.txt", "tympan_build_info{version="),
        ("settings.txt", "dispatcher.admin.token = ***"),
        ("sizes.txt", "store"),
        ("version.txt", "tympan 0."),
    ] {
        assert!(parts[name].contains(expected), "{name}: {}", parts[name]);
    }
    let secrets =
        [LISTENER_TOKEN, BACK_END_PASSWORD, &token, &password, &replication_key, &pair_key];
    let check_secrets = |parts: &BTreeMap<String, String>| {
        for (name, text) in parts {
            for secret in secrets {
                assert!(!text.contains(secret), "{name} has `{secret}`: {text}");
            }
        }
    };
    check_secrets(&parts);
    // An archive that exists is not replaced.
    assert!(!write("running.zip").0.status.success());

    // An instance that is down is when it is needed, and the logs are complete then.
    assert!(running.stop());
    let (output, bundle) = write("stopped.zip");
    assert!(output.status.success(), "{output:?}");
    let parts = read_archive(&bundle);
    assert!(parts["health.json"].starts_with("not available: "), "{}", parts["health.json"]);
    assert!(
        parts["logs/request.log"].contains("-> GET /content/***.html?token=- "),
        "{}",
        parts["logs/request.log"]
    );
    check_secrets(&parts);
}
