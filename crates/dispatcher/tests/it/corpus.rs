//! Real configuration files: each one is read, none panics, and only broken ones have errors.

use std::path::{Path, PathBuf};

use tympan_dispatcher::any_syntax::{ConfigSources, DiagnosticSeverity, parse_file};
use tympan_dispatcher::config::DispatcherConfig;
use tympan_testkit::fixture_folder::fixture_folder;

pub(crate) fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Faults of the text itself, not of files that are missing from the collection.
fn is_broken(file: &Path) -> bool {
    parse_file(file, &ConfigSources::default())
        .diagnostics
        .iter()
        .filter(|found| found.severity == DiagnosticSeverity::Error)
        .any(|found| !found.message.starts_with("cannot read"))
}

#[test]
fn cf20_every_public_file_is_read() {
    let Some(folder) = fixture_folder("dispatcher") else { return };
    let mut files = Vec::new();
    files_below(&folder, &mut files);
    files.sort();
    assert!(files.len() > 200, "only {} files", files.len());
    let mut broken = Vec::new();
    for file in &files {
        let is_config = file.extension().is_some_and(|kind| kind == "any" || kind == "farm");
        // Every file is read, so that foreign text is tried too, but only configurations are judged.
        let has_fault = is_broken(file);
        let loaded = DispatcherConfig::load_to_check(file, &ConfigSources::default());
        for finding in tympan_dispatcher::check_config(&loaded) {
            assert!(finding.position.line > 0 && finding.position.column > 0, "{finding}");
            assert!(loaded.files.iter().any(|read| **read == *finding.position.file), "{finding}");
        }
        if is_config && has_fault {
            let name = file.strip_prefix(&folder).unwrap();
            broken.push(name.to_str().unwrap().to_owned());
        }
    }
    let broken: Vec<&str> = broken
        .iter()
        .map(|name| name.trim_start_matches(OPTIMIZER).trim_start_matches(CORE))
        .collect();
    assert_eq!(broken, BROKEN);
}

/// Every configuration that is no negative example can be checked as it is: a part as a part, a whole with the files
/// that it includes. What stays an error is a file that the collection does not hold.
#[test]
fn parts_are_checked_as_parts() {
    let Some(folder) = fixture_folder("dispatcher") else { return };
    let mut files = Vec::new();
    files_below(&folder, &mut files);
    let mut parts = 0;
    let mut errors = Vec::new();
    for file in &files {
        let is_config = file.extension().is_some_and(|kind| kind == "any" || kind == "farm");
        let is_negative = file.to_string_lossy().contains("/test-project-all-rules-fail/");
        if !is_config || is_negative || is_broken(file) {
            continue;
        }
        let loaded = DispatcherConfig::load_to_check(file, &ConfigSources::default());
        let found =
            loaded.diagnostics.iter().filter(|found| found.severity == DiagnosticSeverity::Error);
        let found = found.filter(|found| !found.message.starts_with("cannot read `"));
        errors.extend(found.map(ToString::to_string));
        parts += usize::from(
            loaded.diagnostics.iter().any(|found| found.message.contains("checked as a part")),
        );
    }
    errors.retain(|error| !EXPECTED.iter().any(|text| error.contains(text)));
    assert_eq!(errors, Vec::<String>::new());
    assert!(parts > 100, "only {parts} parts");
}

/// What is wrong with files that can be read as a whole.
const EXPECTED: &[&str] = &[
    // Negative examples of the optimizer tool.
    "model/auth_checker/nobrace/dispatcher.any:7:5: error: `/auth_checker` must be a block",
    "model/filter/nobrace/dispatcher.any:4:5: error: `/filter` must be a block",
    "model/sessionmanagement/nobrace/dispatcher.any:4:5: error: `/sessionmanagement` must be a block",
    "a farm `/skylab` already exists",
    "model/farm/empty/dispatcher.any:1:1: error: `/farms` has no farm",
    "error: `/sessionmanagement` needs a `/directory`",
    "model/filter/filter.any:20:5: error: a rule must have either `/glob` or single elements",
    // The collection holds no enabled farm of this server: there they are links.
    "ams/2.6/etc/httpd/conf.dispatcher.d/dispatcher.any:1:1: error: `/farms` has no farm",
];

#[test]
fn a_copy_of_a_servers_files_is_checked_with_its_own_root() {
    let Some(folder) = fixture_folder("dispatcher") else { return };
    let root = folder.join("adobe__aem-dispatcher-docker/ams/2.6");
    let file = root.join("etc/httpd/conf.dispatcher.d/available_farms/002_ams_publish_farm.any");
    let messages = |root: Option<PathBuf>| {
        let loaded = DispatcherConfig::load_to_check(
            &file,
            &ConfigSources { root, ..ConfigSources::default() },
        );
        let texts: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
        (loaded, texts)
    };
    let (alone, texts) = messages(None);
    assert!(alone.has_errors(), "{texts:#?}");
    assert!(
        texts.iter().any(|text| text.contains("error: cannot read `/etc/httpd/")),
        "{texts:#?}"
    );
    let (at_home, texts) = messages(Some(root.clone()));
    assert!(!at_home.has_errors(), "{texts:#?}");
    assert!(at_home.files.len() > 5 && at_home.files.iter().all(|file| file.starts_with(&root)));
    assert!(
        texts.iter().any(|text| text.contains("warning: ") && text.contains("PUBLISH_")),
        "{texts:#?}"
    );
}

/// Returns what `check` says of a farm of the optimizer tool, which looks up included files from the folder above.
fn findings_of_oracle(folder: &Path, project: &str, farm: &str) -> Vec<String> {
    let project = format!("{OPTIMIZER}test-projects/test-project-all-rules-{project}");
    let from = folder.join(project).join("dispatcher/src/conf.dispatcher.d");
    let copy = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    files_below(&from, &mut files);
    for file in files {
        let below = file.strip_prefix(&from).unwrap();
        let to = copy.path().join(below);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        // Written anew, as the collection may be read-only.
        std::fs::write(&to, std::fs::read(&file).unwrap()).unwrap();
    }
    let file = copy.path().join("farm.any");
    let text = std::fs::read(from.join("available_farms").join(farm)).unwrap();
    std::fs::write(&file, text).unwrap();
    let loaded = DispatcherConfig::load_to_check(&file, &ConfigSources::default());
    tympan_dispatcher::check_config(&loaded).iter().map(ToString::to_string).collect()
}

#[test]
fn the_projects_of_the_optimizer_are_distinguished() {
    let Some(folder) = fixture_folder("dispatcher") else { return };
    let check = |farms: [(&str, &str); 2], expected: &[&str]| {
        let [failing, passing] =
            farms.map(|(project, farm)| findings_of_oracle(&folder, project, farm));
        for text in expected {
            assert!(failing.iter().any(|line| line.contains(text)), "{text} in {failing:#?}");
            assert!(!passing.iter().any(|line| line.contains(text)), "{text} in {passing:#?}");
        }
    };
    check(
        [("fail", "999_skylab_farm.any"), ("pass", "999_skylab_publish_farm.any")],
        &[
            "the first rule of a filter should deny everything",
            "`/statfileslevel` is 0",
            "`/serveStaleOnError` is off",
            "no `/gracePeriod`",
            "no `/ignoreUrlParams`",
        ],
    );
    check(
        [("fail", "000_skylab_farm.any"), ("pass", "999_skylab_publish_farm.any")],
        &[
            "`/sessionmanagement` needs a `/directory`",
            "`/homepage` has no effect",
            "`/ignoreUrlParams` ignores no parameter",
            "`/allowAuthorized` without `/auth_checker`",
        ],
    );
}

const OPTIMIZER: &str = "adobe__aem-dispatcher-optimizer-tool/";
const CORE: &str = "core/src/test/resources/com/adobe/aem/dot/dispatcher/core/";

/// The files that are broken on purpose, and those that include them.
const BROKEN: [&str; 13] = [
    "model/cache/complete/dispatcher.any",
    "model/cache/defaults/dispatcher.any",
    "model/renders/complete/dispatcher.any",
    "model/rule/dispatcher.any",
    "model/rule/nobrace2/dispatcher.any",
    "model/rule/nobrace3/dispatcher.any",
    "model/rule/rules.any",
    "parser/binary_any_file/dispatcher.any",
    "parser/no_ending_brace/dispatcher.any",
    "resolver/dispatcher.any",
    "resolver/infinite.any",
    "test-projects/test-project-all-rules-fail/dispatcher/src/conf.dispatcher.d/clientheaders/skylab_author_clientheaders.any",
    "test-projects/test-project-all-rules-fail/dispatcher/src/conf.dispatcher.d/dispatcher.any",
];

#[test]
fn the_configuration_of_the_published_experiments_is_understood() {
    let Some(folder) = fixture_folder("dispatcher") else { return };
    let file = folder.join(
        "adobe__aem-dispatcher-experiments/dispatcher-config-basic/private/etc/apache2/conf/dispatcher.any",
    );
    let loaded = DispatcherConfig::load(&file, &ConfigSources::default());
    let found: Vec<String> = loaded
        .diagnostics
        .iter()
        .map(|found| format!("{}:{} {}", found.position.line, found.position.column, found.message))
        .collect();
    // A rule stands outside the filter, on purpose.
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("entry not recognized: '/0003'"), "{found:?}");
    let farm = &loaded.config.farms[0];
    assert_eq!(farm.name, "publish");
    assert_eq!(farm.renders[0].port, 4503);
    assert_eq!(farm.filter.as_ref().unwrap().len(), 3);
    assert_eq!(farm.cache.as_ref().unwrap().rules.rules.len(), 5);
    assert_eq!(farm.categories.len(), 2);
}
