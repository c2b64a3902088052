//! Packages through the command line.

use serde_json::Value;
use tympan_testkit::fixture_folder::fixture_folder;

use crate::program::{run, run_ok};

#[test]
fn real_packages_install_with_exact_counts() {
    let Some(packages) = fixture_folder("packages") else { return };
    // Package, docview elements with attributes, attributes, pages, assets.
    let expected = [
        ("core.wcm.components.examples.ui.content-2.26.0.zip", 2730, 9109, 68, 40),
        ("core.wcm.components.content-2.29.0.zip", 3591, 11_400, 0, 0),
        ("wknd.ui.content.sample.zip", 4980, 31_703, 208, 5),
        ("wknd.ui.content.zip", 907, 3166, 44, 5),
    ];
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    for (name, elements, attributes, pages, assets) in expected {
        let file = packages.join(name);
        let report =
            run_ok(&["package", "install", "--json", file.to_str().unwrap(), "--home", home]);
        let report: Value = serde_json::from_str(&report).unwrap();
        let count = |name: &str| report[name].as_u64().unwrap();
        let counts = (count("elements"), count("attributes"), count("pages"), count("assets"));
        assert_eq!(counts, (elements, attributes, pages, assets), "{name}");
        let skipped = report["skipped"].as_array().unwrap();
        let skipped_elements =
            skipped.iter().filter(|skipped| skipped["is_element"] == true).count() as u64;
        assert_eq!(
            count("elements_stored") + skipped_elements,
            elements,
            "{name}: stored or listed"
        );
        assert!(
            skipped.iter().all(|skipped| skipped["reason"].is_string()),
            "{name}: each with its reason"
        );
    }
    let check = run_ok(&["repo", "check", "--home", home]);
    assert!(check.trim_end().ends_with(": clean"), "{check}");
    // Installing again changes nothing.
    let root = |text: String| text.split(':').next().unwrap().to_owned();
    let before = root(run_ok(&["repo", "stats", "--home", home]));
    run_ok(&["package", "install", packages.join(expected[0].0).to_str().unwrap(), "--home", home]);
    assert_eq!(root(run_ok(&["repo", "stats", "--home", home])), before);
}

#[test]
fn broken_packages_are_refused_with_the_place_and_leave_no_trace() {
    let Some(packages) = fixture_folder("packages") else { return };
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let whole = std::fs::read(packages.join("wknd.ui.content.zip")).unwrap();
    let cut = dir.path().join("cut.zip");
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let text = dir.path().join("text.zip");
    std::fs::write(&text, b"this is no package").unwrap();
    for file in [&cut, &text, &dir.path().join("absent.zip")] {
        let output =
            run(&["package", "install", file.to_str().unwrap(), "--home", home.to_str().unwrap()]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(file.file_name().unwrap().to_str().unwrap()), "{message}");
        assert!(!home.exists(), "the home is not touched");
    }
}
