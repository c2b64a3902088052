//! The commands of `tympan lab` that load an author, against a real one.

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use tympan_testkit::condition_wait::wait_until;

use crate::program::{Demo, get, lab_command};

struct Told {
    code: Option<i32>,
    text: String,
    errors: String,
}

fn lab(folder: &Path, login: &str, words: &[&str]) -> Told {
    let mut command = lab_command();
    command.current_dir(folder).env("TYMPAN_LAB_LOGIN", login).args(words);
    let Output { status, stdout, stderr } = command.output().unwrap();
    Told {
        code: status.code(),
        text: String::from_utf8(stdout).unwrap(),
        errors: String::from_utf8(stderr).unwrap(),
    }
}

/// Returns passed and failed per test.
fn metrics(json: &Value) -> Vec<(String, u64, u64)> {
    let tests = json["phases"][0]["tests"].as_array().unwrap();
    let number = |test: &Value, key: &str| test[key].as_u64().unwrap();
    tests
        .iter()
        .map(|test| {
            (
                test["test"].as_str().unwrap().to_owned(),
                number(test, "passed"),
                number(test, "failed"),
            )
        })
        .collect()
}

#[test]
fn tough_day_runs_on_an_author_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let demo = Demo::start(&folder.path().join("demo"));
    let login = format!("admin:{}", demo.password());
    let author = format!("http://{}", demo.author);
    let publish = format!("http://{}", demo.publish);
    let tests = [
        "CreatePage",
        "CreatePageTree",
        "CreateFolderTree",
        "CreateTagTree",
        "CreateTaggedPagesTree",
        "AddTagToResource",
        "UploadImage",
        "UploadPDF",
        "DeleteImage",
        "QueryBuilder",
        "GetHomepage",
        "Authoring",
        "PublishPage",
        "ActivatePagesTree",
    ];
    // Users leave when all counts are reached, however slow the machine.
    let file: String = tests
        .iter()
        .map(|test| format!("  - add: {test}Test\n    properties:\n      count: 2\n"))
        .collect();
    // Of the file's globals, the arguments replace what matters here.
    let globals = "globals:\n  user: admin\n  password: not-this-one\n";
    std::fs::write(folder.path().join("all.yaml"), format!("{globals}tests:\n{file}")).unwrap();
    let words = [
        "tough",
        "all.yaml",
        "--author",
        &author,
        "--publish",
        &publish,
        "--concurrency",
        "2",
        "--wait",
        "0s",
        "--duration",
        "5m",
        "--name",
        "lab-run",
        "--json",
        "--keep",
        "runs",
    ];
    let told = lab(folder.path(), &login, &words);
    // A slow machine may saturate the generator; the tests count in any case.
    assert!(matches!(told.code, Some(0 | 3)), "{} {}", told.text, told.errors);
    let json: Value = serde_json::from_str(&told.text).unwrap();
    let found = metrics(&json);
    for (name, passed, failed) in &found {
        assert_eq!(*failed, 0, "{name}: {found:?}");
        assert!(*passed > 0, "{name}: {found:?}");
    }
    for name in [
        "UploadImage: renditions",
        "UploadPDF: renditions",
        "Authoring: delete page",
        "PublishPage: visible",
        "ActivatePagesTree: visible",
    ] {
        assert!(found.iter().any(|(known, ..)| known == name), "{name}: {found:?}");
    }
    for path in ["/content/lab-run", "/content/dam/lab-run", "/content/cq:tags/lab-run"] {
        assert_eq!(demo.get_as_admin(&format!("{path}.json")).status, 404, "{path} is left over");
    }
    // Visitors lose it soon after: taking it away is a job of its own.
    wait_until("publish loses what was made", || {
        get(demo.publish, "/content/lab-run/flat/p1.json").status == 404
    });
    let runs: Vec<_> = std::fs::read_dir(folder.path().join("runs")).unwrap().collect();
    assert_eq!(runs.len(), 1);
    let run = runs[0].as_ref().unwrap().path();
    assert!(run.join("report.html").exists() && run.join("plan.yaml").exists());
    let command = std::fs::read_to_string(run.join("run.toml")).unwrap();
    assert!(!command.contains(demo.password()), "{command}");
    let plan = std::fs::read_to_string(run.join("plan.yaml")).unwrap();
    assert!(plan.contains("ActivatePagesTree") && !plan.contains("not-this-one"), "{plan}");

    let backups = [
        "backup-impact",
        "--author",
        &author,
        "--threads",
        "2",
        "--span",
        "3s",
        "--bytes",
        "\"data_added\":([0-9]+)",
        "--delay",
        "0,1",
        "--json",
        "--",
        "sh",
        "-c",
        "echo '\"data_added\":5'; sleep 1; : {delay}",
    ];
    let told = lab(folder.path(), &login, &backups);
    let json: Value = serde_json::from_str(&told.text)
        .unwrap_or_else(|_| panic!("{} {}", told.text, told.errors));
    assert_eq!(json["backups"].as_array().unwrap().len(), 4, "{json}");
    assert!(json["peak_per_second"].as_f64().unwrap() > 0.0);
}
