//! The names of AEM in real packages: each is provided by the program, or has a row in `docs/compat/aem-sites.md`.

use std::collections::BTreeMap;

use tympan_content::{NodePath, Snapshot, Subtree};
use tympan_content_package::{ContentPackage, PackageLimits};
use tympan_render::{
    RenderOutcome, RepositoryScriptSource, ScriptSet, ScriptSource, find_merged_node,
};
use tympan_testkit::fixture_folder::fixture_folder;

use crate::site::{Site, component};

const PACKAGES: [&str; 6] = [
    "core.wcm.components.content-2.29.0.zip",
    "core.wcm.components.examples.ui.apps-2.26.0.zip",
    "core.wcm.components.examples.ui.content-2.26.0.zip",
    "wknd-shared.fragments.zip",
    "wknd.ui.content.zip",
    "wknd.ui.content.sample.zip",
];

/// The types of components that a project has in a package of its own, which is not among the fixtures.
const PROJECT_TYPES: [&str; 2] = ["wknd/", "wknd-shared/"];

/// The names that content and scripts use, with the first place of each.
#[derive(Default)]
struct AemNames {
    /// Resources and types, relative to the search paths.
    paths: BTreeMap<String, String>,
    /// Categories of client libraries.
    categories: BTreeMap<String, String>,
}

impl AemNames {
    fn add_path(&mut self, name: &str, place: &str) {
        let name =
            ["/libs/", "/apps/"].iter().find_map(|root| name.strip_prefix(root)).unwrap_or(name);
        let is_type = !name.contains(':') || name.contains("/cq:");
        if name.contains('/') && is_type && !PROJECT_TYPES.iter().any(|own| name.starts_with(own)) {
            self.paths.entry(name.to_owned()).or_insert_with(|| place.to_owned());
        }
    }

    fn add_category(&mut self, name: &str, place: &str) {
        if name
            .contains(|character: char| !character.is_alphanumeric() && !"._-".contains(character))
        {
            return;
        }
        self.categories.entry(name.to_owned()).or_insert_with(|| place.to_owned());
    }

    /// Adds the paths below `/libs` and `/mnt/overlay` in a text.
    fn add_paths_in(&mut self, text: &str, place: &str) {
        for root in ["/libs/", "/mnt/overlay/"] {
            for (at, _) in text.match_indices(root) {
                let is_whole = !text[..at].ends_with(|before: char| before.is_alphanumeric());
                let rest = &text[at + root.len()..];
                let end = rest
                    .find(|part: char| !part.is_alphanumeric() && !"_./:-".contains(part))
                    .unwrap_or(rest.len());
                if is_whole {
                    self.add_path(rest[..end].trim_end_matches(['.', '/', ':']), place);
                }
            }
        }
    }

    fn add_node(&mut self, path: &str, node: &Subtree) {
        let is_library = node.primary_type() == "cq:ClientLibraryFolder";
        for (name, property) in &node.properties {
            for value in property.values() {
                let text = value.to_text();
                self.add_paths_in(&text, path);
                match name.as_str() {
                    "sling:resourceType" | "sling:resourceSuperType" => self.add_path(&text, path),
                    "extraClientlibs" => self.add_category(&text, path),
                    "dependencies" | "embed" if is_library => self.add_category(&text, path),
                    _ => {}
                }
            }
        }
        for child in &node.children {
            self.add_node(&format!("{path}/{}", child.name), child);
        }
    }

    /// Adds the types, templates and categories in quotes in a script.
    fn add_script(&mut self, path: &str, text: &str) {
        self.add_paths_in(text, path);
        for line in text.lines() {
            for quoted in line.split(['\'', '"']).skip(1) {
                if line.contains("resourceType")
                    || quoted.ends_with(".html")
                    || quoted.ends_with(".js")
                {
                    let is_name = |part: char| part.is_alphanumeric() || "_./-".contains(part);
                    let is_relative = quoted.starts_with(|first: char| first.is_alphabetic());
                    if is_relative && quoted.contains('/') && quoted.chars().all(is_name) {
                        self.add_path(quoted, path);
                    }
                }
            }
            for named in line.split("categories='").skip(1) {
                let category = named.split('\'').next().unwrap_or_default();
                if category.contains('.') {
                    self.add_category(category, path);
                }
            }
        }
    }
}

/// Returns the names in the tables of the page, without the search path.
fn documented_names() -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/compat/aem-sites.md");
    let page = std::fs::read_to_string(page).unwrap();
    let cells = page.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(|name| name.trim_start_matches("/libs/").trim_end_matches("/…").to_owned())
        .collect()
}

fn is_documented(documented: &[String], name: &str) -> bool {
    documented.iter().any(|entry| match entry.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => {
            name.strip_prefix(entry).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
    })
}

fn names_of(snapshot: &Snapshot, scripts: &ScriptSet) -> AemNames {
    let mut names = AemNames::default();
    names.add_node("", &snapshot.root_node().unwrap().read_subtree().unwrap());
    for (path, text) in &scripts.scripts {
        names.add_script(path, text);
    }
    names
}

#[test]
fn every_name_of_aem_in_real_packages_is_provided_or_documented() {
    let Some(folder) = fixture_folder("packages") else { return };
    let site = Site::empty();
    for name in PACKAGES {
        let mut package =
            ContentPackage::open(&folder.join(name), &PackageLimits::default()).unwrap();
        site.edit(|session| drop(package.install(session, &mut |_| {}).unwrap()));
    }
    let snapshot = site.repository.snapshot().unwrap();
    let scripts =
        RepositoryScriptSource::new(site.repository.clone()).load_scripts(&snapshot).unwrap();
    let names = names_of(&snapshot, &scripts);
    assert!(names.paths.len() > 150 && names.categories.len() > 30, "too few names were found");

    let documented = documented_names();
    let exists = |name: &str| {
        let path = NodePath::new(&format!("/mnt/overlay/{name}")).ok();
        path.is_some_and(|path| find_merged_node(&snapshot, &path).unwrap().is_some())
    };
    let mut missing: Vec<(&String, &String)> = names
        .paths
        .iter()
        .filter(|(name, _)| !exists(name) && !is_documented(&documented, name))
        .collect();
    // What is neither stored nor documented may be a type that the program draws.
    site.edit(|session| {
        let folder = Subtree::new("", "sling:Folder");
        session.put_node(&NodePath::new("/content/probes").unwrap(), folder).unwrap();
        for (number, (name, _)) in missing.iter().enumerate() {
            let path = NodePath::new(&format!("/content/probes/p{number}")).unwrap();
            session.put_node(&path, component("", name)).unwrap();
        }
    });
    let mut number = 0;
    missing.retain(|_| {
        number += 1;
        let address = format!("/content/probes/p{}.html", number - 1);
        site.get(&address).outcome != RenderOutcome::Ok
    });
    let known: Vec<&String> =
        scripts.client_libraries.values().flat_map(|library| &library.categories).collect();
    missing.extend(
        names
            .categories
            .iter()
            .filter(|(name, _)| !known.contains(name) && !is_documented(&documented, name)),
    );
    let missing: Vec<String> =
        missing.into_iter().map(|(name, place)| format!("{name} ({place})")).collect();
    assert!(missing.is_empty(), "not provided and without a row:\n{}", missing.join("\n"));
}
