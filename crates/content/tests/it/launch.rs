//! Launches: states of a time, comparisons, merges of a part with decisions; against a plain model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use tympan_blobs::MemoryBlobStore;
use tympan_content::{
    ChangeKind, Error, MergeOptions, MergeSide, NodePath, Property, Repository, RevisionDetails,
    Session, Snapshot, Subtree, Value, ValueType,
};
use tympan_store::disk::Disk;
use tympan_store::{LocalStore, LocalStoreOptions};
use tympan_testkit::crash_disk::{CrashDisk, UnsyncedWrites};

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn by(message: &str) -> RevisionDetails<'_> {
    RevisionDetails { user: "ann", message, time: at(900) }
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

fn page(title: &str) -> Subtree {
    let content = Subtree::new("jcr:content", "cq:PageContent").with_property("jcr:title", title);
    Subtree::new("page", "cq:Page").with_child(content)
}

fn site() -> Repository {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.add_node(&path("/content"), "sling:Folder").unwrap();
    for name in ["one", "two"] {
        session.put_node(&path("/content").child(name).unwrap(), page(name)).unwrap();
    }
    session.commit("import", at(0)).unwrap();
    repository
}

fn set(repository: &Repository, page: &str, name: &str, value: &str, when: u64) {
    let mut session = repository.session("ann").unwrap();
    let content = path(&format!("/content/{page}/jcr:content"));
    session.set_property(&content, name, value.into()).unwrap();
    session.commit(&format!("set {value}"), at(when)).unwrap();
}

fn title_in(snapshot: &Snapshot, page: &str) -> Option<String> {
    let content = path(&format!("/content/{page}/jcr:content"));
    snapshot.node(&content).unwrap()?.text("jcr:title")
}

fn title(repository: &Repository, page: &str) -> Option<String> {
    title_in(&repository.snapshot().unwrap(), page)
}

fn paths(changes: &[(NodePath, ChangeKind)]) -> Vec<String> {
    changes.iter().map(|(path, kind)| format!("{} {path}", kind.name())).collect()
}

#[test]
fn a_past_instant_is_read_branched_and_brought_back() {
    let main = site();
    set(&main, "one", "jcr:title", "early", 10);
    set(&main, "one", "jcr:title", "late", 20);
    let mut session = main.session("ann").unwrap();
    session.put_node(&path("/content/one/sub"), page("sub")).unwrap();
    session.commit("add below", at(30)).unwrap();
    session.remove_node(&path("/content/one")).unwrap();
    session.commit("remove", at(40)).unwrap();

    assert_eq!(title_in(&main.snapshot_at_time(at(15)).unwrap(), "one").as_deref(), Some("early"));
    assert_eq!(title_in(&main.snapshot_at_time(at(20)).unwrap(), "one").as_deref(), Some("late"));
    assert_eq!(title_in(&main.snapshot_at_time(at(9_000)).unwrap(), "one"), None);
    let too_early = main.root_at_time(UNIX_EPOCH - Duration::from_secs(1));
    assert!(matches!(too_early, Err(Error::InvalidBranch { .. })), "{too_early:?}");

    let root = main.root_at_time(at(15)).unwrap();
    main.create_branch_at("early", root, by("look back")).unwrap();
    assert_eq!(title(&main.open_branch("early").unwrap(), "one").as_deref(), Some("early"));
    let unknown = main.create_branch_at("never", "ab".repeat(32).parse().unwrap(), by("no"));
    assert!(matches!(unknown, Err(Error::InvalidBranch { .. })), "{unknown:?}");

    let before = main.snapshot_at_time(at(35)).unwrap();
    session.replace_from_snapshot(&before, &path("/content/one"), &path("/content/one")).unwrap();
    session
        .replace_from_snapshot(&before, &path("/content/one"), &path("/content/two/copy"))
        .unwrap();
    let inner = path("/content/two/jcr:content/old");
    session.replace_from_snapshot(&before, &path("/content/one/jcr:content"), &inner).unwrap();
    session.commit("restore", at(50)).unwrap();
    assert_eq!(title(&main, "one").as_deref(), Some("late"));
    assert_eq!(title(&main, "one/sub").as_deref(), Some("sub"));
    assert_eq!(title(&main, "two/copy/sub").as_deref(), Some("sub"));
    assert!(main.snapshot().unwrap().node(&inner).unwrap().is_some());
    let root = session.replace_from_snapshot(&before, &path("/"), &path("/"));
    assert!(matches!(root, Err(Error::InvalidEdit { .. })), "{root:?}");
}

#[test]
fn a_comparison_names_documents_nodes_and_properties() {
    let main = site();
    main.create_branch("launch", by("launch")).unwrap();
    let launch = main.open_branch("launch").unwrap();
    set(&launch, "one", "jcr:title", "new", 1);
    let mut session = launch.session("ann").unwrap();
    session.put_node(&path("/content/three"), page("three")).unwrap();
    session.remove_node(&path("/content/two")).unwrap();
    session.commit("edit", at(2)).unwrap();
    let [before, after] = main.branch_change_states("launch").unwrap();
    let changes: Vec<_> = before.changed_documents(&after).collect::<Result<_, _>>().unwrap();
    let lines: Vec<String> =
        changes.iter().map(|change| format!("{} {}", change.kind.name(), change.path)).collect();
    assert_eq!(lines, ["changed /content/one", "added /content/three", "removed /content/two"]);
    let details = changes[0].node_differences().unwrap();
    assert_eq!(details.len(), 1);
    assert_eq!((&*details[0].path, details[0].properties.len()), ("jcr:content", 1));
    assert_eq!(changes[1].node_differences().unwrap()[0].kind, ChangeKind::Added);
    assert!(!changes[0].is_reorder_only());
}

#[test]
fn a_part_is_merged_and_the_rest_later() {
    let main = site();
    main.create_branch("launch", by("launch")).unwrap();
    let launch = main.open_branch("launch").unwrap();
    set(&launch, "one", "jcr:title", "launch one", 1);
    set(&launch, "two", "jcr:title", "launch two", 2);
    let mut session = launch.session("ann").unwrap();
    session.add_node(&path("/content/new"), "sling:Folder").unwrap();
    session.put_node(&path("/content/new/page"), page("new")).unwrap();
    session.put_node(&path("/content/new/other"), page("other")).unwrap();
    session.commit("edit", at(3)).unwrap();

    let only =
        |text: &str| MergeOptions { included_paths: vec![path(text)], ..MergeOptions::default() };
    let trial = main.preview_merge("launch", &only("/content/one")).unwrap();
    assert_eq!(paths(&trial.document_changes), ["changed /content/one"]);
    assert_eq!((trial.root, title(&main, "one").as_deref()), (None, Some("one")));
    let merged = main.merge_branch_part("launch", &only("/content/one"), by("merge one")).unwrap();
    assert_eq!(paths(&merged.document_changes), ["changed /content/one"]);
    assert_eq!(title(&main, "one").as_deref(), Some("launch one"));
    assert_eq!(title(&main, "two").as_deref(), Some("two"));
    // The folder above comes along, what else is in it does not.
    let merged =
        main.merge_branch_part("launch", &only("/content/new/page"), by("merge new")).unwrap();
    assert_eq!(paths(&merged.document_changes), ["added /content/new", "added /content/new/page"]);
    // What was merged and taken back since is not brought again; the rest comes.
    set(&main, "one", "jcr:title", "taken back", 4);
    let rest =
        main.merge_branch_part("launch", &MergeOptions::default(), by("merge the rest")).unwrap();
    assert_eq!(paths(&rest.document_changes), ["changed /content/two", "added /content/new/other"]);
    assert_eq!(title(&main, "one").as_deref(), Some("taken back"));
    let none = main.merge_branch_part("launch", &MergeOptions::default(), by("again")).unwrap();
    assert_eq!(paths(&none.document_changes), [""; 0]);
}

#[test]
fn conflicts_are_shown_decided_and_merged() {
    let fixture = || {
        let main = site();
        main.create_branch("launch", by("launch")).unwrap();
        let launch = main.open_branch("launch").unwrap();
        for page in ["one", "two"] {
            set(&launch, page, "jcr:title", "launch", 1);
            set(&main, page, "jcr:title", "main", 2);
            set(&launch, page, "jcr:description", "launch", 3);
        }
        main
    };
    let main = fixture();
    let head = main.head_root().unwrap();
    let trial = main.preview_merge("launch", &MergeOptions::default()).unwrap();
    assert_eq!(trial.conflicts.len(), 2);
    let by_whom = trial.conflicts[0].last_change.as_ref().unwrap();
    assert_eq!((by_whom.message.as_deref(), by_whom.time), (Some("set main"), at(2)));
    let refused = main.merge_branch_part("launch", &MergeOptions::default(), by("merge"));
    assert!(matches!(&refused, Err(Error::Conflicts(conflicts)) if conflicts.len() == 2));
    assert_eq!(main.head_root().unwrap(), head);

    let decisions = BTreeMap::from([(path("/content/one"), MergeSide::Ours)]);
    let one = MergeOptions { decisions: decisions.clone(), ..MergeOptions::default() };
    let refused = main.merge_branch_part("launch", &one, by("merge"));
    assert!(matches!(&refused, Err(Error::Conflicts(conflicts)) if conflicts.len() == 1));
    let both = MergeOptions {
        default_side: Some(MergeSide::Theirs),
        decisions,
        ..MergeOptions::default()
    };
    let merged = main.merge_branch_part("launch", &both, by("merge")).unwrap();
    let sides: Vec<(String, MergeSide)> = merged
        .resolved_conflicts
        .iter()
        .map(|(conflict, side)| (conflict.path.to_string(), *side))
        .collect();
    let content = |page: &str| format!("/content/{page}/jcr:content");
    assert_eq!(sides, [(content("one"), MergeSide::Ours), (content("two"), MergeSide::Theirs)]);
    assert_eq!(title(&main, "one").as_deref(), Some("launch"));
    assert_eq!(title(&main, "two").as_deref(), Some("main"));
    let node = main.snapshot().unwrap().node(&path(&content("two"))).unwrap().unwrap();
    assert_eq!(node.text("jcr:description").as_deref(), Some("launch"), "what did not clash");
    // A decision counts once: the branch is merged.
    let none = main.merge_branch_part("launch", &MergeOptions::default(), by("again")).unwrap();
    assert_eq!(paths(&none.document_changes), [""; 0]);
}

#[test]
fn decisions_about_removed_folders_leave_no_orphans() {
    let check = |on_main: &str, on_launch: &str, side: MergeSide, expected: &[&str]| {
        let main = site();
        let mut session = main.session("ann").unwrap();
        session.add_node(&path("/content/folder"), "sling:Folder").unwrap();
        session.add_node(&path("/content/folder/deep"), "sling:Folder").unwrap();
        session.commit("base", at(1)).unwrap();
        main.create_branch("launch", by("launch")).unwrap();
        for (repository, what) in
            [(&main, on_main), (&main.open_branch("launch").unwrap(), on_launch)]
        {
            let mut session = repository.session("ann").unwrap();
            match what {
                "remove" => session.remove_node(&path("/content/folder")).unwrap(),
                name => session
                    .put_node(&path("/content/folder/deep").child(name).unwrap(), page(name))
                    .unwrap(),
            }
            session.commit("edit", at(2)).unwrap();
        }
        let choice = MergeOptions { default_side: Some(side), ..MergeOptions::default() };
        let merged = main.merge_branch_part("launch", &choice, by("merge")).unwrap();
        assert!(!merged.resolved_conflicts.is_empty());
        let snapshot = main.snapshot().unwrap();
        let all = snapshot.root_node().unwrap().listed_descendants().unwrap();
        let found: Vec<String> = all
            .iter()
            .map(|node| node.path().to_string())
            .filter(|path| path.starts_with("/content/folder"))
            .collect();
        assert_eq!(found, expected, "{on_main} | {on_launch} | {side:?}");
        for node in all {
            assert!(node.parent().unwrap().is_some(), "{} has no parent", node.path());
        }
    };
    let whole = |name| ["/content/folder", "/content/folder/deep", name];
    check("remove", "new", MergeSide::Ours, &whole("/content/folder/deep/new"));
    check("remove", "new", MergeSide::Theirs, &[]);
    check("new", "remove", MergeSide::Ours, &[]);
    check("new", "remove", MergeSide::Theirs, &whole("/content/folder/deep/new"));
}

type Titles = BTreeMap<usize, u8>;

fn edits() -> impl Strategy<Value = Vec<(usize, Option<u8>)>> {
    prop::collection::vec((0..5_usize, prop::option::weighted(0.8, any::<u8>())), 0..8)
}

fn place(number: usize) -> NodePath {
    path(&format!("/content/p{number}"))
}

/// Puts or removes pages, in the repository and in the model.
fn apply(repository: &Repository, model: &mut Titles, edits: &[(usize, Option<u8>)]) {
    let mut session = repository.session("ann").unwrap();
    for (number, title) in edits {
        match title {
            Some(title) => {
                if model.insert(*number, *title).is_some() {
                    let content = place(*number).child("jcr:content").unwrap();
                    let title = title.to_string();
                    session.set_property(&content, "jcr:title", title.as_str().into()).unwrap();
                } else {
                    session.put_node(&place(*number), page(&title.to_string())).unwrap();
                }
            }
            None if model.remove(number).is_some() => session.remove_node(&place(*number)).unwrap(),
            None => {}
        }
    }
    session.commit("edit", at(1)).unwrap();
}

fn titles(repository: &Repository) -> Titles {
    let snapshot = repository.snapshot().unwrap();
    (0..5)
        .filter_map(|number| {
            Some((number, title_in(&snapshot, &format!("p{number}"))?.parse().unwrap()))
        })
        .collect()
}

proptest! {
    #[test]
    fn merges_equal_a_plain_three_way_merge(
        base in edits(), on_main in edits(), on_launch in edits(),
        only in prop::option::of(prop::collection::btree_set(0..5_usize, 1..4)),
        prefer in prop::option::of(any::<bool>()),
        later in edits(),
    ) {
        let main = site();
        let mut before = Titles::new();
        apply(&main, &mut before, &base);
        main.create_branch("launch", by("launch")).unwrap();
        let launch = main.open_branch("launch").unwrap();
        let (mut theirs, mut ours) = (before.clone(), before.clone());
        apply(&main, &mut theirs, &on_main);
        apply(&launch, &mut ours, &on_launch);
        let side = prefer.map(|is_mine| if is_mine { MergeSide::Ours } else { MergeSide::Theirs });
        let wanted = only.clone().unwrap_or_else(|| (0..5).collect());
        let choice = MergeOptions {
            included_paths: only.iter().flatten().map(|number| place(*number)).collect(),
            default_side: side,
            decisions: BTreeMap::new(),
        };
        let expected = merge(&before, &ours, &theirs, &wanted, side);
        let trial = main.preview_merge("launch", &choice).unwrap();
        let done = main.merge_branch_part("launch", &choice, by("merge"));
        match &expected {
            Some(expected) => {
                let done = done.unwrap();
                prop_assert_eq!(&titles(&main), expected);
                prop_assert_eq!(paths(&trial.document_changes), paths(&done.document_changes));
                // What was merged counts as merged, the rest does not.
                for number in &wanted {
                    match ours.get(number) {
                        Some(title) => _ = before.insert(*number, *title),
                        None => _ = before.remove(number),
                    }
                }
                let mut theirs = expected.clone();
                apply(&main, &mut theirs, &later);
                let all: BTreeSet<usize> = (0..5).collect();
                let expected = merge(&before, &ours, &theirs, &all, Some(MergeSide::Ours));
                let choice = MergeOptions { default_side: Some(MergeSide::Ours), ..MergeOptions::default() };
                main.merge_branch_part("launch", &choice, by("merge the rest")).unwrap();
                prop_assert_eq!(Some(titles(&main)), expected);
            }
            None => {
                let is_conflict = matches!(done, Err(Error::Conflicts(_)));
                prop_assert!(is_conflict);
                prop_assert!(!trial.conflicts.is_empty());
                prop_assert_eq!(titles(&main), theirs);
            }
        }
    }
}

/// Merges page by page; nothing if a conflict is not decided.
fn merge(
    base: &Titles,
    ours: &Titles,
    theirs: &Titles,
    wanted: &BTreeSet<usize>,
    side: Option<MergeSide>,
) -> Option<Titles> {
    let mut merged = theirs.clone();
    for number in wanted {
        let [base, ours, theirs] = [base, ours, theirs].map(|side| side.get(number));
        let value = if ours == theirs || ours == base {
            theirs
        } else if theirs == base {
            ours
        } else {
            match side? {
                MergeSide::Ours => ours,
                MergeSide::Theirs => theirs,
            }
        };
        match value.copied() {
            Some(value) => _ = merged.insert(*number, value),
            None => _ = merged.remove(number),
        }
    }
    Some(merged)
}

#[test]
fn a_merge_and_where_it_reached_are_one_write() {
    let disk = CrashDisk::new();
    let open = |disk: Arc<dyn Disk>| {
        let store = LocalStore::open(disk, LocalStoreOptions::default()).unwrap();
        Repository::open(Arc::new(store), Arc::new(MemoryBlobStore::default())).unwrap()
    };
    let main = open(Arc::new(disk.clone()));
    let counter = |session: &mut Session, amount: i64| {
        session.set_property(&path("/count"), "oak:increment", Value::Long(amount).into()).unwrap();
    };
    let mut session = main.session("ann").unwrap();
    let mixins = Property::List(ValueType::Name, vec![Value::Name("mix:atomicCounter".to_owned())]);
    let node = Subtree::new("count", "nt:unstructured").with_property("jcr:mixinTypes", mixins);
    session.put_node(&path("/count"), node).unwrap();
    session.commit("begin", at(0)).unwrap();
    main.create_branch("launch", by("launch")).unwrap();
    let mut session = main.open_branch("launch").unwrap().session("ann").unwrap();
    counter(&mut session, 5);
    session.commit("count", at(1)).unwrap();
    let before = disk.call_count();
    main.merge_branch("launch", by("merge")).unwrap();
    for calls in before..=disk.call_count() {
        let left = open(Arc::new(disk.crash(calls, UnsyncedWrites::Persisted)));
        // Whoever does not know whether the merge was made makes it again.
        left.merge_branch("launch", by("merge again")).unwrap();
        let count = left.snapshot().unwrap().node(&path("/count")).unwrap().unwrap();
        let count = count.property("oak:counter").unwrap();
        assert_eq!(count.first().unwrap().to_text(), "5", "cut after {calls} calls");
    }
}

#[test]
fn a_launch_that_was_merged_into_another_still_goes_to_main() {
    let main = site();
    main.create_branch("launch", by("launch")).unwrap();
    main.create_branch("other", by("other")).unwrap();
    let (launch, other) = (main.open_branch("launch").unwrap(), main.open_branch("other").unwrap());
    set(&launch, "one", "jcr:title", "of the launch", 1);
    other.merge_branch("launch", by("into the other")).unwrap();
    assert_eq!(title(&other, "one").as_deref(), Some("of the launch"));
    let trial = main.preview_merge("launch", &MergeOptions::default()).unwrap();
    assert_eq!(paths(&trial.document_changes), ["changed /content/one"]);
    // Where it was merged counts for each by itself, also under another name.
    set(&other, "one", "jcr:title", "taken back", 2);
    main.rename_branch("other", "renamed", by("rename")).unwrap();
    main.rename_branch("launch", "spring", by("rename")).unwrap();
    let other = main.open_branch("renamed").unwrap();
    assert_eq!(
        paths(&other.preview_merge("spring", &MergeOptions::default()).unwrap().document_changes),
        [""; 0]
    );
    main.merge_branch("spring", by("into main")).unwrap();
    assert_eq!(title(&main, "one").as_deref(), Some("of the launch"));
    main.delete_branch("renamed", by("delete")).unwrap();
    main.delete_branch("spring", by("delete")).unwrap();
    let refs = main.chunks().list_refs().unwrap();
    assert_eq!(refs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["main"]);
}

#[test]
fn revisions_without_a_time_do_not_stand_for_another() {
    let main = site();
    set(&main, "one", "jcr:title", "early", 100);
    // As when an index is built: the repository's own work, and in it what was there.
    let mut session = main.session("system").unwrap();
    session.add_node(&path("/content/own"), "sling:Folder").unwrap();
    session.commit("own work", UNIX_EPOCH).unwrap();
    set(&main, "one", "jcr:title", "late", 200);
    let title = |seconds: u64| title_in(&main.snapshot_at_time(at(seconds)).unwrap(), "one");
    assert_eq!(title(50).as_deref(), Some("one"));
    assert_eq!(title(100).as_deref(), Some("early"));
    assert_eq!(title(199).as_deref(), Some("early"));
    assert_eq!(title(200).as_deref(), Some("late"));
    let own = main.snapshot_at_time(at(150)).unwrap();
    assert!(own.node(&path("/content/own")).unwrap().is_some(), "the newest of its time");
    assert!(main.snapshot_at_time(at(50)).unwrap().node(&path("/content/own")).unwrap().is_none());
    let before = main.snapshot_at_time(UNIX_EPOCH + Duration::from_secs(1));
    assert!(matches!(before, Err(Error::InvalidBranch { .. })), "nothing was there yet");
}
