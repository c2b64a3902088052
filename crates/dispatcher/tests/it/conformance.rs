//! The conformance list has 132 rules, and each of them has a test that carries its number.
//!
//! A test's name begins with its rule: `fr94_…`, two rules as `fr92_fr93_…`, a table as `ca62_to_ca72_…`.

use std::collections::BTreeMap;
use std::path::Path;

/// The groups of the list: prefix, first rule, last rule.
const GROUPS: [(&str, u32, u32); 9] = [
    ("cf", 1, 20),
    ("gl", 21, 37),
    ("fa", 38, 43),
    ("fi", 44, 61),
    ("ca", 62, 85),
    ("fr", 86, 100),
    ("fl", 101, 119),
    ("lb", 120, 128),
    ("ob", 129, 132),
];

/// Returns the number in `word` and whether it belongs to its group; nothing for a word that is no rule.
fn rule(word: &str) -> Option<(u32, bool)> {
    let (prefix, digits) = word.split_at_checked(2)?;
    let number: u32 = digits.parse().ok()?;
    let group = GROUPS.iter().find(|(name, ..)| *name == prefix)?;
    Some((number, (group.1..=group.2).contains(&number)))
}

/// Returns the rules that the name of a test claims.
fn claimed(name: &str) -> Vec<u32> {
    let mut numbers: Vec<u32> = Vec::new();
    let mut is_range = false;
    for word in name.split('_') {
        match rule(word) {
            Some((number, is_of_group)) => {
                assert!(is_of_group, "`{name}`: rule {number} belongs to another group");
                let from =
                    if is_range { numbers.last().map_or(number, |last| last + 1) } else { number };
                numbers.extend(from..=number);
                is_range = false;
            }
            None if word == "to" && !numbers.is_empty() => is_range = true,
            None => break,
        }
    }
    numbers
}

/// Returns the names of all tests in a folder's files.
fn tests_in(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests_in(&path, found);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
            match function.and_then(|rest| rest.split(['(', '<']).next()) {
                Some(name) if is_test => found.push(name.to_owned()),
                _ => {}
            }
            is_test = line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        }
    }
}

#[test]
fn exactly_the_rules_of_the_list_have_tests() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = Vec::new();
    tests_in(&crate_folder.join("src"), &mut names);
    tests_in(&crate_folder.join("tests/it"), &mut names);
    let mut tests_of: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for name in &names {
        for number in claimed(name) {
            tests_of.entry(number).or_default().push(name);
        }
    }
    let covered: Vec<u32> = tests_of.keys().copied().collect();
    assert_eq!(covered, (1..=132).collect::<Vec<u32>>());
}

#[test]
fn names_of_tests_are_read() {
    assert_eq!(claimed("cf01_white_space"), [1]);
    assert_eq!(claimed("fi49_fi50_a_query"), [49, 50]);
    assert_eq!(claimed("ca62_to_ca65_reasons"), [62, 63, 64, 65]);
    assert_eq!(claimed("an_explanation_names_the_farm"), [0_u32; 0]);
}
