//! What goes along with an activation, and what is live.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tympan_content::{JcrDate, Property, Repository, Subtree, SubtreeScope, Value};
use tympan_replicate::{
    ReplicationAction, ReplicationRequest, ReplicationStatus, list_live_documents,
    list_referenced_documents, mark_replicated,
};

use crate::agent::{page, path, put};

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn activate(repository: &Repository, at_path: &str, seconds: u64) {
    let (action, user) = (ReplicationAction::Activate, "ann".to_owned());
    let wish =
        ReplicationRequest { action, path: path(at_path), depth: SubtreeScope::Document, user };
    mark_replicated(repository, &[wish], at(seconds)).unwrap();
}

fn asset(name: &str) -> Subtree {
    let content = Subtree::new("jcr:content", "dam:AssetContent");
    Subtree::new(name, "dam:Asset").with_child(content)
}

#[test]
fn what_visitors_lack_is_ticked() {
    let repository = Repository::in_memory().unwrap();
    put(&repository, "/content/dam/new.jpg", asset("new.jpg"));
    put(&repository, "/content/dam/live.jpg", asset("live.jpg"));
    put(&repository, "/content/cq:tags/site/red", Subtree::new("red", "cq:Tag"));
    put(&repository, "/content/other", page("other", "Other"));
    let part = |name: &str, property: &str, value: &str| {
        Subtree::new(name, "nt:unstructured").with_property(property, Property::text(value))
    };
    let content = Subtree::new("jcr:content", "cq:PageContent")
        .with_property("cq:tags", Property::text("site:red"))
        .with_child(part("one", "fileReference", "/content/dam/new.jpg"))
        .with_child(part("two", "fileReference", "/content/dam/live.jpg"))
        .with_child(part("three", "link", "/content/other"))
        .with_child(part("four", "self", "/content/page"));
    put(&repository, "/content/page", Subtree::new("page", "cq:Page").with_child(content));
    activate(&repository, "/content/dam/live.jpg", 1);
    let snapshot = repository.snapshot().unwrap();
    let found =
        list_referenced_documents(&snapshot, &path("/content/page"), SubtreeScope::Document, 100)
            .unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|one| {
            let (path, kind) = (one.document.path.as_str(), one.kind.name());
            format!("{path} {kind} {} {}", one.document.status.name(), one.is_preselected)
        })
        .collect();
    assert_eq!(
        found,
        [
            "/content/cq:tags/site/red tag never true",
            "/content/dam/live.jpg asset live false",
            "/content/dam/new.jpg asset never true",
            "/content/other page never false",
        ]
    );
}

#[test]
fn what_is_live_is_listed_with_who_and_when() {
    let repository = Repository::in_memory().unwrap();
    for name in ["a", "b", "c", "d"] {
        put(&repository, &format!("/content/{name}"), page(name, name));
    }
    for (name, seconds) in [("a", 1), ("b", 2), ("c", 3)] {
        activate(&repository, &format!("/content/{name}"), seconds);
    }
    let mut session = repository.session("ann").unwrap();
    let modified = Property::Single(Value::Date(JcrDate::from_system_time(at(60))));
    session.set_property(&path("/content/b/jcr:content"), "cq:lastModified", modified).unwrap();
    session.commit("edit", at(60)).unwrap();
    let (action, user) = (ReplicationAction::Deactivate, "bob".to_owned());
    let gone = ReplicationRequest {
        action,
        path: path("/content/c"),
        depth: SubtreeScope::Document,
        user,
    };
    mark_replicated(&repository, &[gone], at(5)).unwrap();
    let snapshot = repository.snapshot().unwrap();
    let all = list_live_documents(&snapshot, &path("/content"), None, 10).unwrap();
    let told: Vec<_> = all.iter().map(|one| (one.path.name(), one.status)).collect();
    assert_eq!(told, [("a", ReplicationStatus::Live), ("b", ReplicationStatus::Outdated)]);
    assert_eq!((all[0].replicated_at, all[0].replicated_by.as_deref()), (Some(at(1)), Some("ann")));
    let rest =
        list_live_documents(&snapshot, &path("/content"), Some(&path("/content/a")), 10).unwrap();
    assert_eq!(rest.len(), 1);
    assert_eq!(list_live_documents(&snapshot, &path("/content"), None, 1).unwrap().len(), 1);
}
