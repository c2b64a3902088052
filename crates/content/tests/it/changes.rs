//! The change feed: what a follower is told, exactly once, and what it is told when it cannot follow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tympan_blobs::MemoryBlobStore;
use tympan_content::{
    ChangeCursor, ChangeFilter, Error, FeedChangeKind, Node, NodeChange, Property, Repository,
    Session, SiblingPosition, Subtree, ValueType, Viewer,
};
use tympan_store::{ChunkStore, GarbageCollectionOptions, LocalStore, RevisionRetention};
use tympan_testkit::watched_store::WatchedStore;

use crate::session::{commit, page, path};

/// Writes a change on one line: `changed /a (+new *other -gone)`.
fn line(change: &NodeChange) -> String {
    let sign = |kind| match kind {
        FeedChangeKind::Added => '+',
        FeedChangeKind::Removed => '-',
        _ => '*',
    };
    let from = change.from.as_ref().map(|from| format!(" from {from}")).unwrap_or_default();
    let properties: Vec<String> =
        change.properties.iter().map(|one| format!("{}{}", sign(one.kind), one.name)).collect();
    let properties = if properties.is_empty() || change.kind == FeedChangeKind::Added {
        String::new()
    } else {
        format!(" ({})", properties.join(" "))
    };
    format!("{} {}{from}{properties}", change.kind.name(), change.path)
}

/// Follows a repository to its end, page by page.
fn follow(
    repository: &Repository,
    since: &ChangeCursor,
    filter: &ChangeFilter,
    limit: usize,
) -> (Vec<String>, ChangeCursor) {
    let (mut lines, mut cursor) = (Vec::new(), since.clone());
    loop {
        let page = repository.changes(&Viewer::system(), &cursor, filter, limit).unwrap();
        for revision in &page.revisions {
            let of = |change| format!("{} {}", revision.sequence, line(change));
            lines.extend(revision.changes.iter().map(of));
        }
        // The cursor survives as text.
        cursor = page.next.to_string().parse().unwrap();
        if page.is_end {
            return (lines, cursor);
        }
    }
}

/// Commits one edit to a small site and returns what a follower is told of it.
fn told(edit: impl FnOnce(&mut Session)) -> Vec<String> {
    told_through(&ChangeFilter::default(), edit)
}

fn told_through(filter: &ChangeFilter, edit: impl FnOnce(&mut Session)) -> Vec<String> {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let mut content = Subtree::new("content", "sling:OrderedFolder");
    for name in ["a", "b", "c"] {
        content = content.with_child(page(name, name));
    }
    session.put_node(&path("/content"), content).unwrap();
    commit(&mut session);
    let cursor = repository.newest_cursor().unwrap();
    edit(&mut session);
    commit(&mut session);
    let (lines, _) = follow(&repository, &cursor, filter, 1000);
    lines.iter().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
}

#[test]
fn each_kind_of_edit_is_reported() {
    let text = path("/content/a/jcr:content/text");
    let edited = told(|session| {
        session.set_property(&text, "text", Property::text("new")).unwrap();
        session.set_property(&text, "more", Property::text("x")).unwrap();
        session.remove_property(&text, "sling:resourceType").unwrap();
    });
    assert_eq!(edited, ["changed /content/a/jcr:content/text (+more -sling:resourceType *text)"]);
    let added = told(|session| session.put_node(&path("/content/d"), page("d", "D")).unwrap());
    assert_eq!(
        added,
        ["added /content/d", "added /content/d/jcr:content", "added /content/d/jcr:content/text"]
    );
    let removed = told(|session| session.remove_node(&path("/content/b")).unwrap());
    assert_eq!(
        removed,
        [
            "removed /content/b",
            "removed /content/b/jcr:content",
            "removed /content/b/jcr:content/text"
        ]
    );
    let ordered =
        told(|session| session.reorder_node(&path("/content/c"), &SiblingPosition::First).unwrap());
    assert_eq!(ordered, ["reordered /content"]);
    let inside = told(|session| {
        let list = path("/content/a/jcr:content/list");
        session.put_node(&list, Subtree::new("list", "nt:unstructured")).unwrap();
        session.reorder_node(&list, &SiblingPosition::First).unwrap();
    });
    assert_eq!(
        inside,
        ["reordered /content/a/jcr:content", "added /content/a/jcr:content/list"]
            .map(str::to_owned)[1..],
        "a new child does not change the order of the others"
    );
}

#[test]
fn moves_are_reported_where_an_identifier_shows_them() {
    let give = |session: &mut Session| {
        let content = path("/content/a/jcr:content");
        session.set_property(&content, "jcr:uuid", Property::text("u1")).unwrap();
    };
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let content = Subtree::new("content", "sling:OrderedFolder")
        .with_child(page("a", "A"))
        .with_child(Subtree::new("z", "sling:OrderedFolder"));
    session.put_node(&path("/content"), content).unwrap();
    give(&mut session);
    commit(&mut session);
    let cursor = repository.newest_cursor().unwrap();
    session.move_node(&path("/content/a"), &path("/content/z/b")).unwrap();
    session
        .set_property(&path("/content/z/b/jcr:content"), "jcr:title", Property::text("B"))
        .unwrap();
    commit(&mut session);
    let all =
        repository.changes(&Viewer::system(), &cursor, &ChangeFilter::default(), 100).unwrap();
    let lines: Vec<String> = all.revisions[0].changes.iter().map(line).collect();
    assert_eq!(
        lines,
        ["moved /content/z/b from /content/a", "changed /content/z/b/jcr:content (*jcr:title)"]
    );
    // Whoever follows the old place only hears of it, too.
    let mut filter = ChangeFilter::default();
    filter.add_path("/content/a").unwrap();
    let (lines, _) = follow(&repository, &cursor, &filter, 100);
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn filters_choose_by_path_kind_and_type() {
    let edit = |session: &mut Session| {
        session.put_node(&path("/content/d"), page("d", "D")).unwrap();
        session.remove_node(&path("/content/b")).unwrap();
    };
    let check = |set: &dyn Fn(&mut ChangeFilter), expected: &[&str]| {
        let mut filter = ChangeFilter::default();
        set(&mut filter);
        assert_eq!(told_through(&filter, edit), expected);
    };
    check(
        &|filter| filter.add_path("/content/d/jcr:content/text").unwrap(),
        &["added /content/d/jcr:content/text"],
    );
    check(
        &|filter| filter.add_path("/content/*").unwrap(),
        &["removed /content/b", "added /content/d"],
    );
    check(&|filter| filter.add_node_type("cq:Page"), &["removed /content/b", "added /content/d"]);
    check(
        &|filter| {
            filter.add_kind(FeedChangeKind::Removed);
            filter.add_path("/content/**/text").unwrap();
        },
        &["removed /content/b/jcr:content/text"],
    );
    check(&|filter| filter.add_path("/etc").unwrap(), &[]);
}

#[test]
fn each_commit_names_its_user_and_time() {
    let repository = Repository::in_memory().unwrap();
    let cursor = repository.newest_cursor().unwrap();
    for (second, user) in ["ann", "bob", "ann"].into_iter().enumerate() {
        let mut session = repository.session(user).unwrap();
        session.put_node(&path(&format!("/n{second}")), Subtree::new("n", "sling:Folder")).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second as u64);
        session.commit(&format!("edit {second}"), at).unwrap();
    }
    let page =
        repository.changes(&Viewer::system(), &cursor, &ChangeFilter::default(), 100).unwrap();
    let told: Vec<_> = page
        .revisions
        .iter()
        .map(|one| {
            let at = one.time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
            format!("{at} {} {}", one.user, one.message.as_deref().unwrap())
        })
        .collect();
    assert_eq!(told, ["0 ann edit 0", "1 bob edit 1", "2 ann edit 2"]);
    assert!(page.is_end);
    assert_eq!(page.next, repository.newest_cursor().unwrap());
}

#[test]
fn a_cursor_that_leads_nowhere_is_refused_and_says_where_to_begin() {
    let other = Repository::in_memory().unwrap();
    let mut session = other.session("ann").unwrap();
    session.put_node(&path("/x"), Subtree::new("x", "sling:Folder")).unwrap();
    commit(&mut session);
    let foreign = other.newest_cursor().unwrap();

    let store = Arc::new(LocalStore::open_in_memory().unwrap());
    let repository = Repository::open(store.clone(), Arc::new(MemoryBlobStore::default())).unwrap();
    let fault = |cursor: &ChangeCursor| match repository.changes(
        &Viewer::system(),
        cursor,
        &ChangeFilter::default(),
        10,
    ) {
        Err(Error::CursorLost(lost)) => {
            assert_eq!(lost.newest, repository.newest_cursor().unwrap().to_string());
            assert_eq!(lost.root, repository.head_root().unwrap());
            lost.reason
        }
        other => panic!("{other:?}"),
    };
    assert!(fault(&foreign).contains("newer than this repository's history"));
    let old = repository.newest_cursor().unwrap();
    let mut session = repository.session("ann").unwrap();
    for name in ["a", "b", "c"] {
        session.put_node(&path(&format!("/{name}")), Subtree::new(name, "sling:Folder")).unwrap();
        commit(&mut session);
    }
    assert!(
        fault(&foreign).contains("does not belong to this repository's history")
            || fault(&foreign).contains("older than the retained history")
    );
    let (lines, _) = follow(&repository, &old, &ChangeFilter::default(), 1);
    assert_eq!(lines.len(), 3);

    let options = GarbageCollectionOptions {
        retention: RevisionRetention::KEEP_NEWEST,
        ..GarbageCollectionOptions::at_time(SystemTime::now() + Duration::from_secs(1))
    };
    store.collect_garbage(&options, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    // Whoever remembers them can still tell all of them, as long as the states can be read.
    match repository.changes(&Viewer::system(), &old, &ChangeFilter::default(), 10) {
        Ok(page) => assert_eq!((page.revisions.len(), page.is_end), (3, true)),
        Err(error) => assert!(matches!(error, Error::CursorLost { .. }), "{error}"),
    }
    // A process that begins afterwards says the same.
    let again = Repository::open(store, Arc::new(MemoryBlobStore::default())).unwrap();
    let refused = again.changes(&Viewer::system(), &old, &ChangeFilter::default(), 10);
    assert!(matches!(refused, Err(Error::CursorLost { .. })), "{refused:?}");
}

#[test]
fn oldest_and_newest_are_cursors() {
    let repository = Repository::in_memory().unwrap();
    let oldest = repository.oldest_cursor().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.put_node(&path("/a"), Subtree::new("a", "sling:Folder")).unwrap();
    commit(&mut session);
    assert_eq!(repository.oldest_cursor().unwrap(), oldest);
    let (lines, end) = follow(&repository, &oldest, &ChangeFilter::default(), 10);
    assert_eq!(lines.len(), 1);
    assert_eq!(end, repository.newest_cursor().unwrap());
}

/// One random edit.
#[derive(Debug, Clone)]
enum Edit {
    Put(u8, u8),
    Set(u8, u8),
    Remove(u8),
    Move(u8, u8),
    First(u8),
    Commit,
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let name = 0_u8..6;
    let one = prop_oneof![
        3 => (name.clone(), 0_u8..3).prop_map(|(at, kind)| Edit::Put(at, kind)),
        3 => (name.clone(), any::<u8>()).prop_map(|(at, value)| Edit::Set(at, value)),
        1 => name.clone().prop_map(Edit::Remove),
        2 => (name.clone(), name.clone()).prop_map(|(from, to)| Edit::Move(from, to)),
        1 => name.prop_map(Edit::First),
        3 => Just(Edit::Commit),
    ];
    prop::collection::vec(one, 1..40)
}

fn place(at: u8) -> tympan_content::NodePath {
    path(["/f/a", "/f/b", "/f/b/c", "/f/d", "/f/d/jcr:content/x", "/g"][usize::from(at)])
}

/// Makes an edit if it is possible.
fn apply(session: &mut Session, edit: &Edit, number: usize) {
    let done = match edit {
        Edit::Put(at, kind) => {
            let at = place(*at);
            let tree = match kind {
                0 => Subtree::new(at.name(), "sling:OrderedFolder"),
                1 => page(at.name(), "T"),
                _ => Subtree::new(at.name(), "nt:unstructured"),
            };
            session
                .put_node(&at, tree.with_property("jcr:uuid", Property::text(format!("u{number}"))))
        }
        Edit::Set(at, value) => {
            session.set_property(&place(*at), "p", Property::text(value.to_string()))
        }
        Edit::Remove(at) => session.remove_node(&place(*at)),
        Edit::Move(from, to) => session.move_node(&place(*from), &place(*to)),
        Edit::First(at) => session.reorder_node(&place(*at), &SiblingPosition::First),
        Edit::Commit => commit_unjudged(session),
    };
    // What makes no sense now is left out.
    done.ok();
}

/// Commits what node types would not allow: the feed tells of whatever is there.
fn commit_unjudged(session: &mut Session) -> tympan_content::Result<()> {
    session.mark_as_received();
    session.commit("test", SystemTime::UNIX_EPOCH).map(drop)
}

/// Every node with its type and `p`.
fn state(node: &Node, found: &mut BTreeMap<String, String>) {
    let properties: BTreeSet<String> =
        node.properties().into_iter().map(|(name, _)| name).collect();
    found.insert(node.path().to_string(), format!("{} {properties:?}", node.primary_type()));
    node.children().unwrap().iter().for_each(|child| state(child, found));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pages_of_any_size_tell_the_same_and_lead_from_state_to_state(edits in edits(), limit in 1_usize..5) {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("ann").unwrap();
        session.put_node(&path("/f"), Subtree::new("f", "sling:OrderedFolder")).unwrap();
        commit(&mut session);
        let begin = repository.newest_cursor().unwrap();
        let mut model = BTreeMap::new();
        state(&repository.snapshot().unwrap().root_node().unwrap(), &mut model);
        for (number, edit) in edits.iter().enumerate() {
            apply(&mut session, edit, number);
        }
        commit_unjudged(&mut session).unwrap();
        let all = ChangeFilter::default();
        let (whole, end) = follow(&repository, &begin, &all, usize::MAX);
        prop_assert_eq!(&end, &repository.newest_cursor().unwrap());
        let (paged, paged_end) = follow(&repository, &begin, &all, limit);
        prop_assert_eq!(&whole, &paged);
        prop_assert_eq!(end, paged_end);

        // The nodes that a follower knows of are the nodes that there are.
        let mut known: BTreeSet<String> = model.into_keys().collect();
        let page = repository.changes(&Viewer::system(), &begin, &all, usize::MAX).unwrap();
        for revision in page.revisions {
            for change in &revision.changes {
                match (change.kind, &change.from) {
                    (FeedChangeKind::Removed, _) => drop(known.remove(change.path.as_str())),
                    (_, Some(from)) => known.retain(|one| !path(one).is_within(from)),
                    _ => {}
                }
            }
            let then = repository.snapshot_at(revision.root).unwrap();
            for change in &revision.changes {
                if change.kind == FeedChangeKind::Added {
                    known.insert(change.path.to_string());
                }
                if change.kind == FeedChangeKind::Moved {
                    let mut moved = BTreeMap::new();
                    state(&then.node(&change.path).unwrap().unwrap(), &mut moved);
                    known.extend(moved.into_keys());
                }
            }
        }
        let mut now = BTreeMap::new();
        state(&repository.snapshot().unwrap().root_node().unwrap(), &mut now);
        prop_assert_eq!(known, now.into_keys().collect::<BTreeSet<_>>());
    }
}

#[test]
fn a_page_inside_a_large_commit_does_not_begin_at_its_start() {
    const DOCUMENTS: usize = 2_000;
    let inner = Arc::new(LocalStore::open_in_memory().unwrap());
    let store = Arc::new(WatchedStore::new(inner, |_| Ok(())));
    let repository = Repository::open(store.clone(), Arc::new(MemoryBlobStore::default())).unwrap();
    let begin = repository.newest_cursor().unwrap();
    let mut session = repository.session("ann").unwrap();
    let mut site = Subtree::new("site", "sling:OrderedFolder");
    for number in 0..DOCUMENTS {
        let node = Subtree::new(format!("n{number}"), "nt:unstructured")
            .with_property("p", "x".repeat(200).as_str());
        site.put_child(node);
    }
    session.put_node(&path("/site"), site).unwrap();
    commit(&mut session);
    let read_all = |limit: usize| {
        let (mut cursor, mut count, mut pages) = (begin.clone(), 0, 0_u64);
        store.take_read_count();
        loop {
            let all = ChangeFilter::default();
            let page = repository.changes(&Viewer::system(), &cursor, &all, limit).unwrap();
            count += page.revisions.iter().map(|one| one.changes.len()).sum::<usize>();
            cursor = page.next;
            pages += 1;
            if page.is_end {
                return (count, pages, store.take_read_count());
            }
        }
    };
    let (count, _, once) = read_all(10 * DOCUMENTS);
    let (paged, pages, reads) = read_all(DOCUMENTS / 50);
    assert_eq!(count, paged);
    assert!(pages >= 50, "{pages}");
    // Each page reads its part, and the few chunks that lead there.
    assert!(reads <= 2 * once + pages * 12, "{reads} chunks in {pages} pages, {once} in one");
}

#[test]
fn a_cursor_names_no_document_that_its_follower_does_not_see() {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("system").unwrap();
    session.accounts().add_user("eve", "x").unwrap();
    session.put_node(&path("/site"), Subtree::new("site", "sling:OrderedFolder")).unwrap();
    for name in ["a", "hidden-name", "z"] {
        session.add_node(&path("/site").child(name).unwrap(), "nt:unstructured").unwrap();
    }
    let entry = |kind: &str| {
        let privileges = Property::parse_list(ValueType::Name, ["jcr:read"]).unwrap();
        let entry = Subtree::new("entry", kind)
            .with_property("rep:principalName", "eve")
            .with_property("rep:privileges", privileges);
        Subtree::new("rep:policy", "rep:ACL").with_child(entry)
    };
    session.put_node(&path("/site/rep:policy"), entry("rep:GrantACE")).unwrap();
    session.put_node(&path("/site/hidden-name/rep:policy"), entry("rep:DenyACE")).unwrap();
    session.commit("begin", SystemTime::UNIX_EPOCH).unwrap();
    let begin = repository.newest_cursor().unwrap();
    // The order of all three changes, and they change.
    session.reorder_node(&path("/site/z"), &SiblingPosition::First).unwrap();
    session.reorder_node(&path("/site/hidden-name"), &SiblingPosition::First).unwrap();
    for name in ["a", "hidden-name", "z"] {
        let node = path("/site").child(name).unwrap();
        session.set_property(&node, "p", "new".into()).unwrap();
    }
    session.commit("edit", SystemTime::UNIX_EPOCH).unwrap();
    let viewer = Viewer::of_user(Some("eve"));
    let (mut cursor, mut told) = (begin, Vec::new());
    loop {
        let page = repository.changes(&viewer, &cursor, &ChangeFilter::default(), 1).unwrap();
        told.extend(page.revisions.iter().flat_map(|one| one.changes.iter().map(line)));
        cursor = page.next;
        let hex = hex::encode("hidden-name");
        assert!(!cursor.to_string().contains(&hex), "{cursor}");
        if page.is_end {
            break;
        }
    }
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(!format!("{told:?}").contains("hidden"), "{told:?}");
}
