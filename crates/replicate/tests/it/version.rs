//! What is activated is kept as a version, once for each state.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tympan_content::{NodePath, Repository, Subtree, SubtreeScope};
use tympan_replicate::{
    ActivationVersioning, ReplicationAction, ReplicationRequest, mark_replicated,
    mark_replicated_with_versioning,
};

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

fn wish(action: ReplicationAction, depth: SubtreeScope) -> Vec<ReplicationRequest> {
    vec![ReplicationRequest { action, path: path("/content/page"), depth, user: "ann".to_owned() }]
}

fn site() -> Repository {
    let repository = Repository::in_memory().unwrap();
    let page = |name: &str, title: &str| {
        let content =
            Subtree::new("jcr:content", "cq:PageContent").with_property("jcr:title", title);
        Subtree::new(name, "cq:Page").with_child(content)
    };
    let content = Subtree::new("content", "sling:Folder")
        .with_child(page("page", "first").with_child(page("sub", "sub")));
    let mut session = repository.session("ann").unwrap();
    session.put_node(&path("/content"), content).unwrap();
    session.commit("import", at(0)).unwrap();
    repository
}

fn names(repository: &Repository, page: &str) -> Vec<String> {
    let versions = repository.snapshot().unwrap().versions(&path(page)).unwrap();
    versions.into_iter().map(|version| version.name).collect()
}

#[test]
fn an_activation_keeps_what_visitors_get_once() {
    let repository = site();
    mark_replicated(&repository, &wish(ReplicationAction::Activate, SubtreeScope::Document), at(1))
        .unwrap();
    assert_eq!(names(&repository, "/content/page"), ["1.0"]);
    assert_eq!(names(&repository, "/content/page/sub"), [""; 0], "it was not activated");
    // Only what replication noted differs.
    mark_replicated(&repository, &wish(ReplicationAction::Activate, SubtreeScope::Subtree), at(2))
        .unwrap();
    mark_replicated(
        &repository,
        &wish(ReplicationAction::Deactivate, SubtreeScope::Document),
        at(3),
    )
    .unwrap();
    assert_eq!(names(&repository, "/content/page"), ["1.0"]);
    assert_eq!(names(&repository, "/content/page/sub"), ["1.0"]);
    let mut session = repository.session("ann").unwrap();
    let content = path("/content/page/jcr:content");
    session.set_property(&content, "jcr:title", "second".into()).unwrap();
    session.commit("edit", at(4)).unwrap();
    mark_replicated_with_versioning(
        &repository,
        &wish(ReplicationAction::Activate, SubtreeScope::Document),
        ActivationVersioning::NoVersion,
        at(5),
    )
    .unwrap();
    assert_eq!(names(&repository, "/content/page"), ["1.0"]);
    mark_replicated(&repository, &wish(ReplicationAction::Activate, SubtreeScope::Document), at(6))
        .unwrap();
    let snapshot = repository.snapshot().unwrap();
    let version = snapshot.version(&path("/content/page"), "1.1").unwrap();
    assert_eq!(
        (&*version.user, version.created_at, &*version.comment),
        ("ann", at(6), "activated")
    );
    let tree = snapshot.read_version(&version).unwrap();
    assert_eq!(tree.child("jcr:content").unwrap().text("jcr:title"), Some("second"));
}
