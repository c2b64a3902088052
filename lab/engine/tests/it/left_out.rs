//! What of a plan cannot be run may be left out, by its class and with a word about it; and which subset a plan needs.

use std::collections::HashMap;
use std::path::Path;

use tympan_lab_engine::plan_run::{RunOptions, run_plan};
use tympan_lab_plan::{TestPlan, check_plan, check_plan_without};
use tympan_testkit::fixture_folder::fixture_folder;
use tympan_testkit::jmeter_plan::{defaults, element, plan, sampler};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

fn write(folder: &Path, inside: &str) -> std::path::PathBuf {
    let path = folder.join("p.jmx");
    std::fs::write(&path, plan("1", "1", inside)).unwrap();
    path
}

fn classes(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn elements_of_a_class_are_left_out_only_where_they_cannot_be_run() {
    let folder = tempfile::tempdir().unwrap();
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    // One of two timers cannot be run, and one sampler of a class that is not known has others below it.
    let timer = |name: &str, mode: &str| {
        element("ConstantThroughputTimer", name, &[("throughput", "0"), ("calcMode", mode)], "")
    };
    let (bad, good) = (timer("t", "never"), timer("u", "1"));
    let inside = format!(
        "{}{}{}{}",
        defaults(&origin),
        element("JDBCSampler", "load users", &[], &element("JMSSampler", "inner", &[], "")),
        sampler("/a", &bad),
        sampler("/b", &good),
    );
    let path = write(folder.path(), &inside);
    let refused = |names: &[&str]| {
        let error = TestPlan::load_without_classes(&path, &classes(names)).unwrap_err();
        let error = tympan_lab_engine::Error::from(error);
        assert!(error.is_usage(), "{error}");
        error.to_string()
    };
    assert!(refused(&[]).ends_with("2 problems; nothing was run"), "{}", refused(&[]));
    assert!(refused(&["JDBCSampler"]).contains("calculation by `never` is not supported"));
    assert!(refused(&["ConstantThroughputTimer", "jdbcsampler"]).contains("load users"));
    assert_eq!(origin.request_count(), 0);
    let allowed = classes(&["ConstantThroughputTimer", "JDBCSampler", "HTTPSamplerProxy"]);
    let known = TestPlan::load_without_classes(&path, &allowed).unwrap();
    let places =
        known.inventory.excluded_elements.iter().map(|place| (place.line, place.message.as_str()));
    let places: Vec<(u32, &str)> = places.collect();
    assert_eq!(places, [(10, "JDBCSampler \"load users\""), (13, "ConstantThroughputTimer \"t\"")]);
    assert_eq!(known.inventory.elements["ConstantThroughputTimer"], 1);
    assert!(!known.inventory.elements.contains_key("JDBCSampler"));
    run_plan(&known, &RunOptions::default(), &mut |_| {}).unwrap();
    assert_eq!((origin.request_count_for("/a"), origin.request_count_for("/b")), (1, 1));
    assert!(check_plan_without(&path, &allowed).unwrap().findings.is_empty());
}

#[test]
fn plans_in_toml_have_nothing_to_leave_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.toml");
    std::fs::write(&path, "").unwrap();
    let error = TestPlan::load_without_classes(&path, &classes(&["X"])).unwrap_err();
    assert!(error.to_string().contains("no JMeter elements"), "{error}");
}

#[test]
fn functions_in_variables_count_for_the_subset_too() {
    let folder = tempfile::tempdir().unwrap();
    let variables = |value: &str| {
        format!(
            r#"<Arguments testclass="Arguments" testname="v"><collectionProp name="Arguments.arguments"><elementProp name="a" elementType="Argument"><stringProp name="Argument.name">a</stringProp><stringProp name="Argument.value">{value}</stringProp></elementProp></collectionProp></Arguments><hashTree/>"#
        )
    };
    let subset = |inside: &str| {
        check_plan(&write(folder.path(), inside)).unwrap().inventory.required_subset()
    };
    assert_eq!(subset(&variables("${__P(x,1)}")), Some(1));
    assert_eq!(subset(&variables("${__jexl3(1 + 1)}")), Some(3));
    assert_eq!(subset(&variables("a ${__XPath(a,b)}")), None);
    assert_eq!(subset(&element("JDBCSampler", "x", &[], "")), None);
}

/// The list of the public plans says which of them hold scripts.
#[test]
fn public_plans_with_scripts_are_of_the_fourth_subset() {
    let Some(folder) = fixture_folder("jmx") else { return };
    let index = std::fs::read_to_string(folder.join("INDEX.tsv")).unwrap();
    let mut seen: HashMap<&str, Vec<(&str, Option<u8>)>> = HashMap::new();
    for line in index.lines().skip(1) {
        let cells: Vec<&str> = line.split('\t').collect();
        let (file, has_script) = (cells[0], cells[7]);
        let subset = check_plan(&folder.join(file)).unwrap().inventory.required_subset();
        seen.entry(has_script).or_default().push((file, subset));
    }
    for (file, subset) in &seen["no"] {
        assert!(subset.is_some_and(|subset| subset < 4), "{file}: {subset:?}");
    }
    for (file, subset) in &seen["yes"] {
        assert!(subset.is_none_or(|subset| subset >= 3), "{file}: {subset:?}");
    }
}
