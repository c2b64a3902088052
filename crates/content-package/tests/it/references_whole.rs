//! References of whole sites: the sample and real packages, by the witness of a second, naive reading of their texts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use regex::Regex;
use tympan_content::{NodePath, Repository, Snapshot, Subtree, Value};
use tympan_content_package::{ContentPackage, PackageLimits};
use tympan_testkit::fixture_folder::fixture_folder;

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

/// A text that refers to a node, as the naive reading sees it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NaiveReference {
    holder: String,
    property: String,
    target: String,
}

/// Reads references by patterns: whole texts, and values of attributes.
struct NaiveReader {
    attribute: Regex,
    paths: BTreeSet<String>,
}

impl NaiveReader {
    fn new(paths: BTreeSet<String>) -> Self {
        let attribute = Regex::new(r#"(?:href|src|poster|data-[a-z-]+)\s*=\s*"([^"]*)""#).unwrap();
        Self { attribute, paths }
    }

    /// Returns the node that an address means: the one with the longest path.
    fn target_of(&self, address: &str) -> Option<String> {
        let address = address.replace("&amp;", "&").replace("%20", " ");
        let address = address.split(['?', '#']).next().unwrap().to_owned();
        if !address.starts_with("/content/") && !address.starts_with("/conf/") {
            return None;
        }
        let cuts = address.match_indices('.').map(|(at, _)| at).collect::<Vec<_>>();
        let forms = std::iter::once(address.len()).chain(cuts.into_iter().rev());
        forms.map(|end| address[..end].to_owned()).find(|form| self.paths.contains(form))
    }

    fn read(&self, at: &str, node: &Subtree, found: &mut BTreeSet<NaiveReference>) {
        for (property, value) in &node.properties {
            for value in value.values() {
                let Value::String(text) = value else { continue };
                let mut addresses = vec![text.clone()];
                if text.contains('<') {
                    let attributes = self.attribute.captures_iter(text);
                    addresses.extend(attributes.map(|one| one[1].trim().to_owned()));
                }
                let mut targets: Vec<String> =
                    addresses.iter().filter_map(|address| self.target_of(address)).collect();
                if property == "cq:tags" {
                    let tag = format!("/content/cq:tags/{}", text.replacen(':', "/", 1));
                    targets.extend(self.paths.get(&tag).cloned());
                }
                for target in targets {
                    let (holder, property) = (at.to_owned(), property.clone());
                    found.insert(NaiveReference { holder, property, target });
                }
            }
        }
        for child in &node.children {
            self.read(&below(at, &child.name), child, found);
        }
    }
}

fn below(at: &str, name: &str) -> String {
    if at == "/" { format!("/{name}") } else { format!("{at}/{name}") }
}

fn collect_paths(at: &str, node: &Subtree, paths: &mut BTreeSet<String>) {
    paths.insert(at.to_owned());
    for child in &node.children {
        collect_paths(&below(at, &child.name), child, paths);
    }
}

fn naive_references(snapshot: &Snapshot) -> BTreeSet<NaiveReference> {
    let mut root = snapshot.read_subtree(&NodePath::root()).unwrap().unwrap();
    root.remove_child("jcr:system");
    let mut paths = BTreeSet::new();
    collect_paths("/", &root, &mut paths);
    let mut found = BTreeSet::new();
    NaiveReader::new(paths).read("/", &root, &mut found);
    found
}

/// Fails for a reference that is not told from either end; returns how many there are.
fn check_both_ends(repository: &Repository) -> usize {
    let snapshot = repository.snapshot().unwrap();
    let references = naive_references(&snapshot);
    let mut used_by = BTreeMap::new();
    for reference in &references {
        let target = path(&reference.target);
        let users = used_by.entry(target.clone()).or_insert_with(|| {
            let users = snapshot.referrers(&target).unwrap();
            users
                .into_iter()
                .map(|one| (one.path.to_string(), one.property))
                .collect::<BTreeSet<_>>()
        });
        let user = (reference.holder.clone(), reference.property.clone());
        assert!(users.contains(&user), "{reference:?} is not among the users");
        let uses = snapshot.references_in_document(&path(&reference.holder)).unwrap();
        let is_told = uses
            .iter()
            .any(|one| one.property == reference.property && one.target.as_ref() == Some(&target));
        assert!(is_told, "{reference:?} is not among what is used");
    }
    references.len()
}

/// Moves some of the nodes that texts refer to, with their references: all of these lead to the new place, and every text
/// is as before where the new path is put back.
fn check_moves(repository: &Repository) -> usize {
    let snapshot = repository.snapshot().unwrap();
    let before = naive_references(&snapshot);
    let targets: BTreeSet<&str> = before.iter().map(|one| one.target.as_str()).collect();
    let targets: Vec<NodePath> = targets
        .into_iter()
        .map(path)
        .filter(|target| snapshot.node(target).unwrap().unwrap().summary().is_some())
        .collect();
    let step = (targets.len() / 12).max(1);
    let mut moved = 0;
    for from in targets.iter().step_by(step) {
        let mut session = repository.session("ann").unwrap();
        let to = from.parent().unwrap().child("zz-moved-zz").unwrap();
        session.move_node(from, &to).unwrap();
        let done = session.rewrite_references(from, &to).unwrap();
        assert_eq!(done.skipped_references, [], "{from}");
        let after = session.snapshot().unwrap();
        for reference in before.iter().filter(|one| path(&one.target).is_within(from)) {
            let holder = path(&reference.holder);
            let holder = holder.rebase(from, &to).unwrap_or(holder);
            let node = after.node(&holder).unwrap().unwrap();
            let new = node.property(&reference.property).unwrap();
            let old = snapshot.node(&path(&reference.holder)).unwrap().unwrap();
            let old = old.property(&reference.property).unwrap();
            for (new, old) in new.values().iter().zip(old.values()) {
                let (new, old) = (new.to_text().into_owned(), old.to_text().into_owned());
                let back = new.replace("zz-moved-zz", from.name());
                let encoded = new.replace("zz-moved-zz", &from.name().replace(' ', "%20"));
                assert!(back == old || encoded == old, "{new} was {old}");
                moved += usize::from(new != old);
            }
            let target = path(&reference.target).rebase(from, &to).unwrap();
            assert!(after.node(&target).unwrap().is_some());
        }
        let changed: BTreeSet<String> = done
            .rewritten_referrers
            .iter()
            .map(|one| format!("{}/{}", one.path, one.property))
            .collect();
        assert!(!changed.is_empty(), "nothing refers to {from} any more?");
    }
    moved
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { collect_files(&path, files) } else { files.push(path) }
    }
}

/// Makes a package of the sample's content.
fn sample() -> Vec<u8> {
    let site = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../site"));
    let mut files = Vec::new();
    for folder in ["content/wayfare", "content/_cq_tags/wayfare", "content/dam/wayfare"] {
        collect_files(&site.join(folder), &mut files);
    }
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    let filter = "<workspaceFilter version=\"1.0\"><filter root=\"/content/wayfare\"/>\
        <filter root=\"/content/cq:tags/wayfare\"/><filter root=\"/content/dam/wayfare\"/></workspaceFilter>";
    zip.start_file("META-INF/vault/filter.xml", options).unwrap();
    zip.write_all(filter.as_bytes()).unwrap();
    for file in files {
        let name = file.strip_prefix(site).unwrap().to_str().unwrap().to_owned();
        zip.start_file(format!("jcr_root/{name}"), options).unwrap();
        zip.write_all(&fs::read(file).unwrap()).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn commit(session: &mut tympan_content::Session) {
    session.commit("install", SystemTime::UNIX_EPOCH).unwrap();
}

#[test]
fn references_of_the_sample_are_complete() {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let package =
        ContentPackage::read(Cursor::new(sample()), "sample.zip", &PackageLimits::default());
    package.unwrap().install(&mut session, &mut |_| {}).unwrap();
    commit(&mut session);
    let count = check_both_ends(&repository);
    assert!(count > 250, "{count}");
    let moved = check_moves(&repository);
    assert!(moved > 20, "{moved}");
}

#[test]
fn references_of_real_packages_are_complete() {
    let Some(folder) = fixture_folder("packages") else {
        return;
    };
    let repository = Repository::in_memory().unwrap();
    let names = [
        "core.wcm.components.content-2.29.0.zip",
        "core.wcm.components.examples.ui.content-2.26.0.zip",
        "wknd.ui.content.zip",
        "wknd.ui.content.sample.zip",
    ];
    for name in names {
        let mut session = repository.session("ann").unwrap();
        let mut package =
            ContentPackage::open(&folder.join(name), &PackageLimits::default()).unwrap();
        package.install(&mut session, &mut |_| {}).unwrap();
        commit(&mut session);
    }
    let count = check_both_ends(&repository);
    assert!(count > 700, "{count}");
    let moved = check_moves(&repository);
    assert!(moved > 20, "{moved}");
}
