//! Maintenance as jobs: listed with its next time, run when somebody asks, its outcome in the statistics.

use tympan_testkit::condition_wait::wait_for;

use crate::program::{Running, free_address, run, run_ok};

#[test]
fn tasks_of_maintenance_are_scheduled_and_run_on_demand() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    let settings = "[collect]\ninterval = \"1h\"\n[maintenance]\nworkflows = \"720h\"\ndaily = \"0 0 3 * * ?\"\n";
    std::fs::write(dir.path().join("tympan.toml"), settings).unwrap();
    let address = free_address();
    let url = format!("http://{address}");
    let author = Running::start(&["author", "--home", home, "--listen", &address.to_string()]);
    let token = run_ok(&["user", "token", "admin", "--home", home]);
    let token = token.trim();
    let ask = |arguments: &[&str]| {
        run_ok(&[&["jobs"], arguments, &["--url", &url, "--token", token]].concat())
    };
    let schedules = ask(&["schedules"]);
    for (name, rule) in [
        ("maintenance/garbage", "every 3600000ms"),
        ("maintenance/blobs", "0 30 3 * * ?"),
        ("maintenance/versions", "0 0 3 * * ?"),
        ("maintenance/workflows", "0 0 1 ? * SAT"),
    ] {
        let (_, rest) = schedules.split_once(name).unwrap_or_else(|| panic!("{schedules}"));
        assert!(rest.trim_start().starts_with(&format!("`{rule}`, next at 2")), "{schedules}");
        let told = ask(&["run", name]);
        assert!(told.contains("started as job"), "{told}");
    }
    wait_for(|| {
        let topics = ask(&["topics"]);
        let done = topics.matches(" 0 waiting, 0 running, 1 done, 0 failed").count();
        if done >= 4 { Ok(()) } else { Err(topics) }
    });
    let missing = run(&["jobs", "run", "nothing", "--url", &url, "--token", token]);
    assert!(!missing.status.success());
    let told = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(told.contains("there is no schedule `nothing`"), "{told}");
    assert!(author.stop());
    let wrong = "[maintenance]\ndaily = \"at two\"\n";
    std::fs::write(dir.path().join("tympan.toml"), wrong).unwrap();
    let refused = run(&["author", "--home", home, "--listen", &address.to_string()]);
    assert_eq!(refused.status.code(), Some(2));
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains("[maintenance]"), "{told}");
}
