//! Real sites in memory: the sample site, and the WKND packages drawn by one generic component.

use std::collections::BTreeSet;
use std::io::Cursor;
use std::path::Path;
use std::time::SystemTime;

use tympan_content::{Node, NodePath, Repository, Session, Subtree};
use tympan_content_package::{ContentPackage, PackageLimits};
use tympan_testkit::fixture_folder::fixture_folder;

use crate::site::file;

#[path = "../../../site/src/archive.rs"]
mod archive;

/// Draws everything that a node holds, and what stands around a page.
const GENERIC: &str = "<section>{% for name, value in properties|items %}<i>{{ name }}={{ value }}</i>{% endfor %}\
    {{ include_children(resource) }}</section>";
const GENERIC_PAGE: &str = "<title>{{ page.title }}</title>\
    {% for entry in breadcrumb() %}<a href=\"{{ entry.url }}\">{{ entry.title }}</a>{% endfor %}\
    {% for entry in nav(page.parent or page, depth=2) %}<b>{{ entry.title }}{% for one in entry.children %}\
    {{ one.title }}{{ one.active }}{% endfor %}</b>{% endfor %}\
    {% for tag in page.tags %}<u>{{ tag.title }}</u>{% endfor %}\
    {% for one in pages(page, limit=3) %}<em>{{ one.title }} {{ one.description }}</em>{% endfor %}\
    {{ include_children(resource) }}{{ include_children(resource.child(\"root\")) }}\
    {{ include_children(resource.child(\"root/container\")) }}";

/// Makes a repository with the sample site.
pub(crate) fn sample() -> Repository {
    let site = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../site"));
    let bytes = archive::build_site_package(site, &archive::CONTENT_ROOTS, None).unwrap();
    let mut package =
        ContentPackage::read(Cursor::new(bytes), "site", &PackageLimits::default()).unwrap();
    let repository = Repository::in_memory().unwrap();
    commit(&repository, |session| drop(package.install(session, &mut |_| {}).unwrap()));
    repository.install_initial_policies(SystemTime::UNIX_EPOCH).unwrap();
    repository
}

/// Makes a repository with the WKND content, each of its types drawn by a generic component; nothing without fixtures.
pub(crate) fn wknd() -> Option<Repository> {
    let packages = fixture_folder("packages")?;
    let repository = Repository::in_memory().unwrap();
    for name in ["wknd.ui.content.zip", "wknd.ui.content.sample.zip"] {
        let mut package =
            ContentPackage::open(&packages.join(name), &PackageLimits::default()).unwrap();
        commit(&repository, |session| drop(package.install(session, &mut |_| {}).unwrap()));
    }
    let mut types = BTreeSet::new();
    for document in repository.snapshot().unwrap().document_nodes() {
        types_of(&document.unwrap().read_subtree().unwrap(), &mut types);
    }
    commit(&repository, |session| {
        for one in &types {
            let label = one.rsplit('/').next().unwrap();
            let text = if label.contains("page") { GENERIC_PAGE } else { GENERIC };
            let path = NodePath::new(&format!("/apps/{one}/{label}.html.j2")).unwrap();
            put_below(
                session,
                &path,
                file(&repository, path.name(), text.as_bytes(), "text/plain"),
            );
        }
    });
    repository.install_initial_policies(SystemTime::UNIX_EPOCH).unwrap();
    Some(repository)
}

fn types_of(tree: &Subtree, types: &mut BTreeSet<String>) {
    if let Some(one) = tree.properties.get("sling:resourceType").and_then(|one| one.first()) {
        let one = one.to_text().into_owned();
        if !one.starts_with('/') && NodePath::new(&format!("/apps/{one}/x")).is_ok() {
            types.insert(one);
        }
    }
    tree.children.iter().for_each(|child| types_of(child, types));
}

/// Puts a subtree, making the folders above it.
pub(crate) fn put_below(session: &mut Session, path: &NodePath, tree: Subtree) {
    let mut above: Vec<NodePath> = std::iter::successors(path.parent(), NodePath::parent).collect();
    above.reverse();
    for folder in above {
        if session.node(&folder).unwrap().is_none() {
            session.put_node(&folder, Subtree::new("", "sling:Folder")).unwrap();
        }
    }
    session.put_node(path, tree).unwrap();
}

/// Commits an edit that nothing can refuse.
pub(crate) fn commit(repository: &Repository, edit: impl FnOnce(&mut Session)) {
    let mut session = repository.session("test").unwrap();
    edit(&mut session);
    session.commit("test", SystemTime::UNIX_EPOCH).unwrap();
}

/// Returns every node of a subtree that has a record of its own.
pub(crate) fn documents(repository: &Repository) -> Vec<Node> {
    repository.snapshot().unwrap().document_nodes().map(Result::unwrap).collect()
}
