//! Sessions: edits, moves, order, commits, conflicts.

use std::sync::Arc;
use std::time::SystemTime;

use tympan_blobs::MemoryBlobStore;
use tympan_content::{
    Error, JCR_CONTENT, JcrDate, LookupIndex, MergeConflict, NodePath, Property, Repository,
    Session, SiblingPosition, Subtree, SubtreeScope, Value,
};

pub(crate) fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

pub(crate) fn commit(session: &mut Session) {
    session.commit("test", SystemTime::UNIX_EPOCH).unwrap();
}

pub(crate) fn page(name: &str, title: &str) -> Subtree {
    let text = Subtree::new("text", "nt:unstructured")
        .with_property("text", "Hello")
        .with_property("sling:resourceType", "x/text");
    let content = Subtree::new(JCR_CONTENT, "cq:PageContent")
        .with_property("jcr:title", title)
        .with_child(text);
    Subtree::new(name, "cq:Page").with_child(content)
}

/// A repository with `/content/site` and the pages `a`, `b`, `c` in it.
fn site() -> Repository {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let mut site = page("site", "Site");
    for name in ["a", "b", "c"] {
        site = site.with_child(page(name, name));
    }
    session
        .put_node(
            &path("/content"),
            Subtree::new("content", "sling:OrderedFolder").with_child(site),
        )
        .unwrap();
    commit(&mut session);
    repository
}

fn names(repository: &Repository, folder: &str) -> Vec<String> {
    let node = repository.snapshot().unwrap().node(&path(folder)).unwrap().unwrap();
    node.children().unwrap().iter().map(|child| child.name().to_owned()).collect()
}

fn text(repository: &Repository, node: &str, name: &str) -> Option<String> {
    repository.snapshot().unwrap().node(&path(node)).unwrap()?.text(name)
}

fn conflicts(result: Result<tympan_content::ChunkId, Error>) -> Vec<String> {
    match result {
        Err(Error::Conflicts(conflicts)) => {
            conflicts.iter().map(MergeConflict::to_string).collect()
        }
        other => panic!("expected conflicts, not {other:?}"),
    }
}

#[test]
fn what_was_put_is_read_back_through_every_way() {
    let repository = site();
    assert_eq!(names(&repository, "/content/site"), [JCR_CONTENT, "a", "b", "c"]);
    assert_eq!(text(&repository, "/content/site/b/jcr:content", "jcr:title").as_deref(), Some("b"));
    assert_eq!(
        text(&repository, "/content/site/b/jcr:content/text", "text").as_deref(),
        Some("Hello")
    );
    let snapshot = repository.snapshot().unwrap();
    assert!(snapshot.node(&path("/content/site/b/jcr:content/none")).unwrap().is_none());
    assert!(snapshot.node(&path("/content/none/jcr:content")).unwrap().is_none());
    let site = snapshot.node(&path("/content/site")).unwrap().unwrap();
    let listed = site.listed_children().unwrap();
    assert_eq!(listed[0].summary().unwrap().title(), Some("a"));
    assert_eq!(listed[0].parent().unwrap().unwrap().path(), site.path());
    assert!(site.has_listed_children().unwrap() && !listed[0].has_listed_children().unwrap());
    assert_eq!(snapshot.root_node().unwrap().children().unwrap().len(), 1);
}

#[test]
fn pending_edits_show_in_the_session_alone() {
    let repository = site();
    let mut session = repository.session("ann").unwrap();
    session.set_property(&path("/content/site/a/jcr:content"), "jcr:title", "new".into()).unwrap();
    session.add_node(&path("/content/site/d"), "cq:Page").unwrap();
    session.add_node(&path("/content/site/d/jcr:content"), "cq:PageContent").unwrap();
    let pending = session.snapshot().unwrap();
    assert_eq!(
        pending
            .node(&path("/content/site/a/jcr:content"))
            .unwrap()
            .unwrap()
            .text("jcr:title")
            .unwrap(),
        "new"
    );
    assert!(pending.node(&path("/content/site/d/jcr:content")).unwrap().is_some());
    assert_eq!(text(&repository, "/content/site/a/jcr:content", "jcr:title").as_deref(), Some("a"));
    commit(&mut session);
    assert_eq!(
        text(&repository, "/content/site/a/jcr:content", "jcr:title").as_deref(),
        Some("new")
    );
    assert_eq!(names(&repository, "/content/site"), [JCR_CONTENT, "a", "b", "c", "d"]);
    let root = repository.head_root().unwrap();
    commit(&mut session);
    assert_eq!(repository.head_root().unwrap(), root, "nothing to commit makes no revision");
}

#[test]
fn refuses_what_makes_no_sense() {
    let repository = site();
    let mut session = repository.session("ann").unwrap();
    assert!(matches!(
        session.add_node(&path("/content/site/a"), "cq:Page"),
        Err(Error::NodeExists(_))
    ));
    assert!(matches!(session.add_node(&path("/none/a"), "cq:Page"), Err(Error::NodeMissing(_))));
    assert!(matches!(session.remove_node(&path("/content/site/x")), Err(Error::NodeMissing(_))));
    assert!(matches!(
        session.remove_node(&path("/content/site/a/jcr:content/x")),
        Err(Error::NodeMissing(_))
    ));
    assert!(matches!(session.remove_node(&NodePath::root()), Err(Error::InvalidEdit { .. })));
    assert!(matches!(
        session.move_node(&path("/content/site"), &path("/content/site/a/x")),
        Err(Error::InvalidEdit { .. })
    ));
    assert!(matches!(
        session.set_property(&path("/content/x"), "a", "b".into()),
        Err(Error::NodeMissing(_))
    ));
    assert!(session.set_property(&path("/content"), "a/b", "c".into()).is_err());
    let nested = |depth: usize| {
        (0..depth).fold(Subtree::new("n", "nt:unstructured"), |tree, _| {
            Subtree::new("n", "nt:unstructured").with_child(tree)
        })
    };
    let deep = session.put_node(&path("/content/n"), nested(300));
    assert!(matches!(&deep, Err(Error::InvalidEdit { .. })), "{deep:?}");
    let deep = session.put_node(&path("/content/n"), nested(1_000));
    assert!(matches!(&deep, Err(Error::InvalidName { .. })), "{deep:?}");
    assert!(!session.has_changes().unwrap());
    // A failed edit takes nothing away, and does not get lost where others go through.
    let deep = session.put_node(&path("/content/site/a/jcr:content"), nested(300));
    assert!(deep.is_ok(), "it is written when the page is");
    for _ in 0..2 {
        let done = session.commit("too deep", SystemTime::UNIX_EPOCH);
        assert!(matches!(&done, Err(Error::InvalidEdit { .. })), "{done:?}");
    }
    session.refresh().unwrap();
    let before =
        repository.snapshot().unwrap().read_subtree(&path("/content/site")).unwrap().unwrap();
    let mut tree = before.clone();
    tree.put_child(nested(300));
    let deep = session.put_node(&path("/content/site"), tree);
    assert!(matches!(&deep, Err(Error::InvalidEdit { .. })), "{deep:?}");
    assert_eq!(
        session.snapshot().unwrap().read_subtree(&path("/content/site")).unwrap(),
        Some(before)
    );
}

#[test]
fn moves_keep_everything_below_and_copies_get_identifiers_of_their_own() {
    let repository = site();
    let mut session = repository.session("ann").unwrap();
    session
        .set_property(&path("/content/site/a/jcr:content"), "jcr:uuid", Property::text("one"))
        .unwrap();
    commit(&mut session);
    session.move_node(&path("/content/site"), &path("/content/moved")).unwrap();
    commit(&mut session);
    assert_eq!(names(&repository, "/content"), ["moved"]);
    assert_eq!(names(&repository, "/content/moved"), [JCR_CONTENT, "a", "b", "c"]);
    session.copy_node(&path("/content/moved"), &path("/content/copy")).unwrap();
    // Into a document, out of one, and inside one.
    session
        .copy_node(
            &path("/content/moved/a/jcr:content/text"),
            &path("/content/moved/b/jcr:content/text2"),
        )
        .unwrap();
    session.move_node(&path("/content/moved/c"), &path("/content/moved/b/jcr:content/c")).unwrap();
    commit(&mut session);
    assert_eq!(names(&repository, "/content/moved/b/jcr:content"), ["text", "text2", "c"]);
    assert_eq!(
        text(&repository, "/content/moved/b/jcr:content/c/jcr:content", "jcr:title").as_deref(),
        Some("c")
    );
    let copied = text(&repository, "/content/copy/a/jcr:content", "jcr:uuid").unwrap();
    assert_ne!(copied, "one");
    let snapshot = repository.snapshot().unwrap();
    assert_eq!(
        snapshot.look_up_paths(LookupIndex::Uuid, "one").unwrap(),
        [path("/content/moved/a/jcr:content")]
    );
    assert_eq!(
        snapshot.look_up_paths(LookupIndex::Uuid, &copied).unwrap(),
        [path("/content/copy/a/jcr:content")]
    );
}

#[test]
fn children_take_the_place_they_are_given() {
    let repository = site();
    let mut session = repository.session("ann").unwrap();
    let mut order = |name: &str, place: SiblingPosition| {
        session.reorder_node(&path(&format!("/content/site/{name}")), &place).unwrap();
        commit(&mut session);
        names(&repository, "/content/site")[1..].join(" ")
    };
    assert_eq!(order("c", SiblingPosition::First), "c a b");
    assert_eq!(order("c", SiblingPosition::After("a".into())), "a c b");
    assert_eq!(order("b", SiblingPosition::Before("a".into())), "b a c");
    assert_eq!(order("b", SiblingPosition::Last), "a c b");
    let content = "/content/site/a/jcr:content";
    session
        .copy_node(&path(&format!("{content}/text")), &path(&format!("{content}/second")))
        .unwrap();
    session.reorder_node(&path(&format!("{content}/second")), &SiblingPosition::First).unwrap();
    commit(&mut session);
    assert_eq!(names(&repository, content), ["second", "text"]);
    assert!(
        session
            .reorder_node(&path("/content/site/a"), &SiblingPosition::Before("none".into()))
            .is_err()
    );
}

#[test]
fn many_insertions_at_one_place_keep_their_order() {
    let repository = site();
    let mut session = repository.session("ann").unwrap();
    for number in 0..300 {
        let new = path(&format!("/content/site/n{number}"));
        session.add_node(&new, "cq:Page").unwrap();
        session.reorder_node(&new, &SiblingPosition::After("a".into())).unwrap();
    }
    commit(&mut session);
    let mut expected: Vec<String> = (0..300).rev().map(|number| format!("n{number}")).collect();
    expected.insert(0, "a".into());
    assert_eq!(names(&repository, "/content/site")[1..302], expected);
}

#[test]
fn a_type_change_cuts_documents_anew() {
    let repository = site();
    let mut session = repository.session("ann").unwrap();
    let whole = repository.snapshot().unwrap().read_subtree(&path("/content")).unwrap().unwrap();
    for primary_type in
        ["nt:unstructured", "sling:OrderedFolder", "cq:Page", "nt:unstructured", "cq:Page"]
    {
        session
            .set_property(&path("/content/site"), "jcr:primaryType", Property::name(primary_type))
            .unwrap();
        commit(&mut session);
        assert_eq!(names(&repository, "/content/site").len(), 4, "{primary_type}");
        assert_eq!(
            text(&repository, "/content/site/b/jcr:content", "jcr:title").as_deref(),
            Some("b")
        );
    }
    assert_eq!(
        repository.snapshot().unwrap().read_subtree(&path("/content")).unwrap().unwrap(),
        whole
    );
}

#[test]
fn changes_of_others_merge_or_conflict() {
    let repository = site();
    let content = path("/content/site/a/jcr:content");
    let (mut ann, mut bob) =
        (repository.session("ann").unwrap(), repository.session("bob").unwrap());
    ann.set_property(&content, "jcr:title", "Ann's".into()).unwrap();
    bob.set_property(&content, "jcr:description", "Bob's".into()).unwrap();
    bob.add_node(&path("/content/site/bob"), "cq:Page").unwrap();
    commit(&mut ann);
    commit(&mut bob);
    assert_eq!(text(&repository, content.as_str(), "jcr:title").as_deref(), Some("Ann's"));
    assert_eq!(text(&repository, content.as_str(), "jcr:description").as_deref(), Some("Bob's"));

    let (mut ann, mut bob) =
        (repository.session("ann").unwrap(), repository.session("bob").unwrap());
    ann.set_property(&content, "jcr:title", "x".into()).unwrap();
    bob.set_property(&content, "jcr:title", "y".into()).unwrap();
    commit(&mut ann);
    let found = conflicts(bob.commit("test", SystemTime::UNIX_EPOCH));
    assert_eq!(
        found,
        [
            "changeChangedProperty at `/content/site/a/jcr:content`, property `jcr:title`, was `Ann's`, ours is `y`, theirs is `x`, by `ann` at 1970-01-01T00:00:00.000Z"
        ]
    );
    assert!(bob.has_changes().unwrap(), "a failed commit keeps the edits");
    bob.refresh().unwrap();
    assert_eq!(bob.node(&content).unwrap().unwrap().text("jcr:title").unwrap(), "x");
}

#[test]
fn removals_conflict_with_changes_below() {
    let repository = site();
    let (mut ann, mut bob) =
        (repository.session("ann").unwrap(), repository.session("bob").unwrap());
    ann.remove_node(&path("/content/site")).unwrap();
    bob.add_node(&path("/content/site/a/new"), "cq:Page").unwrap();
    commit(&mut bob);
    let found = conflicts(ann.commit("test", SystemTime::UNIX_EPOCH));
    assert_eq!(
        found,
        ["removeChangedNode at `/content/site/a/new`, by `bob` at 1970-01-01T00:00:00.000Z"]
    );

    let (mut ann, mut bob) =
        (repository.session("ann").unwrap(), repository.session("bob").unwrap());
    ann.remove_node(&path("/content/site")).unwrap();
    bob.add_node(&path("/content/site/b/new"), "cq:Page").unwrap();
    commit(&mut ann);
    let found = conflicts(bob.commit("test", SystemTime::UNIX_EPOCH));
    assert_eq!(
        found,
        ["changeRemovedNode at `/content/site/b`, by `ann` at 1970-01-01T00:00:00.000Z"]
    );
}

#[test]
fn indexes_follow_every_commit() {
    let repository = site();
    let find = |value: &str| {
        repository.snapshot().unwrap().look_up_paths(LookupIndex::ResourceType, value).unwrap()
    };
    assert_eq!(find("x/text").len(), 4);
    let mut session = repository.session("ann").unwrap();
    session.remove_node(&path("/content/site/a")).unwrap();
    let text = path("/content/site/b/jcr:content/text");
    session.set_property(&text, "sling:resourceType", "x/other".into()).unwrap();
    session.set_property(&text, "link", "/content/site/c".into()).unwrap();
    commit(&mut session);
    assert_eq!((find("x/text").len(), find("x/other")), (2, vec![text.clone()]));
    let snapshot = repository.snapshot().unwrap();
    assert_eq!(snapshot.look_up_paths(LookupIndex::Reference, "/content/site/c").unwrap(), [text]);
    assert_eq!(snapshot.look_up_paths(LookupIndex::Type, "cq:Page").unwrap().len(), 3);
    assert_eq!(snapshot.look_up_paths(LookupIndex::Type, "cq:Pag").unwrap(), []);
}

#[test]
fn documents_travel_unopened() {
    let (author, publish) = (site(), Repository::in_memory().unwrap());
    let mut session = author.session("ann").unwrap();
    let blob = author.blobs().put(&mut &b"bytes"[..]).unwrap();
    session
        .set_property(&path("/content/site/a/jcr:content"), "data", Value::Binary(blob).into())
        .unwrap();
    commit(&mut session);
    let snapshot = author.snapshot().unwrap();
    let documents =
        snapshot.stored_documents(&path("/content/site"), SubtreeScope::Subtree).unwrap();
    assert_eq!(documents.len(), 4);
    let mut receiver = publish.session("replication").unwrap();
    let folder = Subtree::new("content", "sling:OrderedFolder")
        .with_property(
            "jcr:created",
            Value::Date(JcrDate::from_system_time(SystemTime::UNIX_EPOCH)),
        )
        .with_property("jcr:createdBy", "ann");
    receiver.put_node(&path("/content"), folder).unwrap();
    let mut blobs = Vec::new();
    for document in &documents {
        let needs = snapshot.document_requirements(document).unwrap();
        blobs.extend(needs.blobs);
        let mut batch = tympan_store::ChunkBatch::default();
        for id in needs.chunks {
            batch.add_chunk(author.chunks().read_chunk(&id).unwrap().bytes().clone());
        }
        publish.chunks().commit(batch).unwrap();
        receiver.put_document(document).unwrap();
    }
    assert_eq!(blobs, [blob]);
    commit(&mut receiver);
    let (sent, received) = (
        snapshot.read_subtree(&path("/content")).unwrap(),
        publish.snapshot().unwrap().read_subtree(&path("/content")).unwrap(),
    );
    assert_eq!(sent, received);
    let changed = snapshot.changed_paths(&publish.snapshot().unwrap()).unwrap();
    assert_eq!(changed, []);
}

#[test]
fn every_binary_property_keeps_its_own_blob() {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let mut asset = Subtree::new("a.jpg", "dam:Asset");
    let mut blobs = Vec::new();
    for number in 0..20 {
        let blob = repository.blobs().put(&mut format!("rendition {number}").as_bytes()).unwrap();
        let name = format!("r{number}");
        asset = asset.with_child(
            Subtree::new(&*name, "nt:resource").with_property("jcr:data", Value::Binary(blob)),
        );
        blobs.push((name, blob));
    }
    session.put_node(&path("/a.jpg"), asset).unwrap();
    commit(&mut session);
    let reopened =
        Repository::open(repository.chunks().clone(), Arc::new(MemoryBlobStore::default()))
            .unwrap();
    for (name, blob) in blobs {
        let node =
            reopened.snapshot().unwrap().node(&path(&format!("/a.jpg/{name}"))).unwrap().unwrap();
        assert_eq!(node.property("jcr:data"), Some(Value::Binary(blob).into()), "{name}");
    }
}

#[test]
fn an_edit_that_changes_nothing_but_a_blob_is_kept() {
    let repository = Repository::in_memory().unwrap();
    let blob = |text: &str| repository.blobs().put(&mut text.as_bytes()).unwrap();
    let mut session = repository.session("ann").unwrap();
    let data =
        Subtree::new("file", "nt:unstructured").with_property("data", Value::Binary(blob("one")));
    session.put_node(&path("/file"), data).unwrap();
    commit(&mut session);
    let two = blob("two");
    session.set_property(&path("/file"), "data", Value::Binary(two).into()).unwrap();
    commit(&mut session);
    let node = repository.snapshot().unwrap().node(&path("/file")).unwrap().unwrap();
    assert_eq!(node.property("data"), Some(Value::Binary(two).into()));
}

#[test]
fn nodes_are_found_at_every_depth_and_anew_after_every_commit() {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let leaf =
        || Subtree::new("leaf", "nt:unstructured").with_property("text", "x".repeat(300).as_str());
    let content = || Subtree::new("jcr:content", "nt:unstructured").with_child(leaf());
    let tree =
        Subtree::new("a", "sling:Folder")
            .with_child(content())
            .with_child(Subtree::new("page", "cq:Page").with_child(content()))
            .with_child(Subtree::new("asset", "dam:Asset").with_child(
                content().with_child(Subtree::new("deep", "cq:Page").with_child(leaf())),
            ));
    session.put_node(&path("/a"), tree).unwrap();
    session.commit("first", SystemTime::UNIX_EPOCH).unwrap();
    let all = [
        "/",
        "/a",
        "/a/jcr:content",
        "/a/jcr:content/leaf",
        "/a/page",
        "/a/page/jcr:content",
        "/a/page/jcr:content/leaf",
        "/a/asset",
        "/a/asset/jcr:content",
        "/a/asset/jcr:content/deep",
        "/a/asset/jcr:content/deep/leaf",
    ];
    let missing = [
        "/b",
        "/jcr:content",
        "/a/b",
        "/a/page/b",
        "/a/page/b/jcr:content",
        "/a/page/jcr:content/b",
        "/a/asset/jcr:content/b/c/d",
        "/a/jcr:content/jcr:content",
        "/a/b/c/d/e/f/g",
        "/b/c/d/e/f",
        "/a/jcr:contents/leaf",
    ];
    let check = |snapshot: &tympan_content::Snapshot, all: &[&str], missing: &[&str]| {
        // The second time, what was found the first time is remembered.
        for _ in 0..2 {
            for text in all {
                let node = snapshot.node(&path(text)).unwrap().unwrap_or_else(|| panic!("{text}"));
                assert_eq!(node.path().as_str(), *text);
                let is_leaf = text.ends_with("leaf");
                assert_eq!(node.as_borrowed().unwrap().text("text").is_some(), is_leaf, "{text}");
            }
            for text in missing {
                assert!(snapshot.node(&path(text)).unwrap().is_none(), "{text}");
            }
        }
    };
    let first = repository.snapshot().unwrap();
    check(&first, &all, &missing);
    session.remove_node(&path("/a/page")).unwrap();
    session.add_node(&path("/b"), "sling:Folder").unwrap();
    check(&session.snapshot().unwrap(), &["/a", "/b"], &["/a/page", "/a/page/jcr:content/leaf"]);
    session.commit("second", SystemTime::UNIX_EPOCH).unwrap();
    check(&repository.snapshot().unwrap(), &["/a", "/b"], &["/a/page", "/a/page/jcr:content/leaf"]);
    check(&first, &all, &missing);
}

#[test]
fn a_folder_stands_in_for_a_page_that_is_lost() {
    use tympan_store::{ChunkBatch, DeriveMaps as _, StoreRoot, key};
    let repository = site();
    let store = &**repository.chunks();
    let whole = StoreRoot::read(store, &repository.head_root().unwrap()).unwrap();
    for base in [StoreRoot::default(), whole.clone()] {
        let mut root = whole.clone();
        let mut batch = ChunkBatch::new();
        let lost = ["content", "content/site"].map(|lost| {
            let names: Vec<&str> = lost.split('/').collect();
            (key::record_key(&names).unwrap(), None)
        });
        let content = root.map("content").edit(store, &mut batch, lost.into()).unwrap();
        store.commit(batch).unwrap();
        root.maps.insert("content".to_owned(), content);
        tympan_content::IndexMapRebuilder::new(store).derive_maps(&base, &mut root).unwrap();
        let mut batch = ChunkBatch::new();
        let id = root.write(&mut batch).unwrap();
        store.commit(batch).unwrap();
        let mended = repository.snapshot_at(id).unwrap();
        let site = mended.node(&path("/content/site")).unwrap().unwrap();
        assert!(site.text("jcr:title").unwrap().starts_with("Lost"));
        let children = site.children().unwrap();
        let children: Vec<&str> = children.iter().map(tympan_content::Node::name).collect();
        assert_eq!(children, ["a", "b", "c"], "in their order");
        let pages = mended.look_up_paths(LookupIndex::Type, "cq:Page").unwrap();
        let pages: Vec<&str> = pages.iter().map(NodePath::as_str).collect();
        assert_eq!(pages, ["/content/site/a", "/content/site/b", "/content/site/c"]);
    }
}
