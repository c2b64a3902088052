//! A node that a branch and `main` moved to two places: a conflict that can be decided.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tympan_content::{
    ConflictKind, Error, MergeConflict, MergeOptions, MergeSide, NodePath, Property, Repository,
    RevisionDetails, Subtree, ValueType, Viewer,
};

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn by(message: &str) -> RevisionDetails<'_> {
    RevisionDetails { user: "ann", message, time: at(900) }
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

fn mixins() -> Property {
    Property::parse_list(ValueType::Name, ["mix:referenceable"]).unwrap()
}

/// A page whose content and one of whose components have identifiers.
fn page(number: u32) -> Subtree {
    let identifier = |kind: u32| format!("{kind:08x}-0000-4000-8000-{number:012x}");
    let teaser = Subtree::new("teaser", "nt:unstructured")
        .with_property("jcr:mixinTypes", mixins())
        .with_property("jcr:uuid", identifier(2).as_str())
        .with_property("text", "hello");
    let content = Subtree::new("jcr:content", "cq:PageContent")
        .with_property("jcr:mixinTypes", mixins())
        .with_property("jcr:uuid", identifier(1).as_str())
        .with_child(teaser);
    Subtree::new("page", "cq:Page").with_child(content)
}

/// A site with pages, and a branch of it.
fn site() -> [Repository; 2] {
    let main = Repository::in_memory().unwrap();
    let mut session = main.session("ann").unwrap();
    session.add_node(&path("/content"), "sling:Folder").unwrap();
    for (number, name) in (0..).zip(["a", "a/below", "other", "third"]) {
        session.put_node(&path("/content").resolve(name).unwrap(), page(number)).unwrap();
    }
    session.commit("import", at(0)).unwrap();
    main.create_branch("launch", by("launch")).unwrap();
    let launch = main.open_branch("launch").unwrap();
    [main, launch]
}

fn move_node(repository: &Repository, user: &str, from: &str, to: &str) {
    let mut session = repository.session(user).unwrap();
    session.move_node(&path(from), &path(to)).unwrap();
    session.commit(&format!("move {from}"), at(10)).unwrap();
}

fn has(repository: &Repository, at: &str) -> bool {
    repository.snapshot().unwrap().node(&path(at)).unwrap().is_some()
}

fn decided(at: &str, side: MergeSide) -> MergeOptions {
    MergeOptions { decisions: [(path(at), side)].into(), ..MergeOptions::default() }
}

fn places(conflict: &MergeConflict) -> [String; 3] {
    [&conflict.base, &conflict.ours, &conflict.theirs].map(|place| {
        place.as_ref().and_then(Property::first).map(|one| one.to_text().into_owned()).unwrap()
    })
}

#[test]
fn a_page_moved_to_two_places_is_one_conflict() {
    let [main, launch] = site();
    move_node(&launch, "ann", "/content/a", "/content/b");
    move_node(&main, "bob", "/content/a", "/content/other/c");
    let trial = main.preview_merge("launch", &MergeOptions::default()).unwrap();
    let Err(Error::Conflicts(conflicts)) = main.merge_branch("launch", by("merge")) else {
        panic!("the merge needs a decision")
    };
    for conflicts in [&trial.conflicts, &conflicts] {
        let [conflict] = conflicts.as_slice() else { panic!("{conflicts:?}") };
        assert_eq!(conflict.path, path("/content/b"));
        assert_eq!((conflict.kind, &conflict.property), (ConflictKind::AddExistingNode, &None));
        assert_eq!(places(conflict), ["/content/a", "/content/b", "/content/other/c"]);
        assert_eq!(conflict.last_change.as_ref().unwrap().user, "bob");
        assert!(conflict.to_string().contains("theirs is `/content/other/c`"), "{conflict}");
    }
    assert!(has(&main, "/content/other/c/below") && !has(&main, "/content/b"));
}

#[test]
fn the_place_of_the_side_that_counts_is_taken() {
    for (side, expected) in [(MergeSide::Ours, [true, false]), (MergeSide::Theirs, [false, true])] {
        let [main, launch] = site();
        move_node(&launch, "ann", "/content/a", "/content/b");
        let mut session = launch.session("ann").unwrap();
        let text = path("/content/b/jcr:content/teaser");
        session.set_property(&text, "text", "changed".into()).unwrap();
        session.commit("edit", at(11)).unwrap();
        move_node(&main, "bob", "/content/a", "/content/other/c");
        let merged =
            main.merge_branch_part("launch", &decided("/content/b", side), by("merge")).unwrap();
        assert_eq!(merged.resolved_conflicts.len(), 1, "{merged:?}");
        let found = ["/content/b/below", "/content/other/c/below"].map(|at| has(&main, at));
        assert_eq!(found, expected, "{side:?}");
        let found = ["/content/b", "/content/other/c"].map(|at| has(&main, at));
        assert_eq!(found, expected, "{side:?}");
        assert!(!has(&main, "/content/a") && has(&main, "/content/other/jcr:content"));
        // What was decided is merged: nothing is left to do.
        let again = main.preview_merge("launch", &MergeOptions::default()).unwrap();
        assert!(again.document_changes.is_empty() && again.conflicts.is_empty(), "{again:?}");
    }
}

#[test]
fn a_component_moved_to_two_pages_is_one_conflict() {
    let teaser = |page: &str, name: &str| format!("/content/{page}/jcr:content/{name}");
    for (side, expected) in [(MergeSide::Ours, [true, false]), (MergeSide::Theirs, [false, true])] {
        let [main, launch] = site();
        move_node(&launch, "ann", &teaser("a", "teaser"), &teaser("other", "moved"));
        move_node(&main, "bob", &teaser("a", "teaser"), &teaser("third", "moved"));
        let trial = main.preview_merge("launch", &MergeOptions::default()).unwrap();
        let [conflict] = trial.conflicts.as_slice() else { panic!("{trial:?}") };
        let expected_places =
            [teaser("a", "teaser"), teaser("other", "moved"), teaser("third", "moved")];
        assert_eq!(places(conflict), expected_places);
        let choice = decided(&teaser("other", "moved"), side);
        main.merge_branch_part("launch", &choice, by("merge")).unwrap();
        let found = ["other", "third"].map(|page| has(&main, &teaser(page, "moved")));
        assert_eq!(found, expected, "{side:?}");
        assert!(has(&main, &teaser("other", "teaser")) && has(&main, &teaser("third", "teaser")));
    }
}

#[test]
fn a_move_of_one_side_is_no_conflict() {
    let [main, launch] = site();
    move_node(&launch, "ann", "/content/a", "/content/b");
    move_node(&main, "bob", "/content/other", "/content/second");
    main.merge_branch("launch", by("merge")).unwrap();
    assert!(has(&main, "/content/b/below") && has(&main, "/content/second"));
    assert!(!has(&main, "/content/a") && !has(&main, "/content/other"));
}

#[test]
fn an_identifier_that_one_side_gives_twice_is_refused_as_before() {
    let [main, launch] = site();
    move_node(&main, "bob", "/content/third", "/content/second");
    let mut session = launch.session("ann").unwrap();
    session.put_node(&path("/content/twin"), page(2)).unwrap();
    let error = session.commit("copy", at(12)).unwrap_err();
    assert!(matches!(error, Error::ConstraintViolations(_)), "{error}");
}

#[test]
fn two_sessions_that_move_a_node_apart_get_a_conflict() {
    let [main, _] = site();
    let mut session = main.session("ann").unwrap();
    session.move_node(&path("/content/a"), &path("/content/b")).unwrap();
    move_node(&main, "bob", "/content/a", "/content/c");
    let error = session.commit("move", at(20)).unwrap_err();
    assert!(matches!(&error, Error::Conflicts(list) if list.len() == 1), "{error}");
    assert!(has(&main, "/content/c") && !has(&main, "/content/b"));
}

#[test]
fn a_hidden_place_is_not_reported() {
    let [main, _] = site();
    let entry = |name: &str, kind: &str, principal: &str, privilege: &str| {
        Subtree::new(name, kind).with_property("rep:principalName", principal).with_property(
            "rep:privileges",
            Property::parse_list(ValueType::Name, [privilege]).unwrap(),
        )
    };
    let mut session = main.session("system").unwrap();
    session.accounts().add_user("eve", "x").unwrap();
    let allow = Subtree::new("rep:policy", "rep:ACL").with_child(entry(
        "allow",
        "rep:GrantACE",
        "eve",
        "jcr:all",
    ));
    session.put_node(&path("/content/rep:policy"), allow).unwrap();
    session.add_node(&path("/content/hidden"), "sling:Folder").unwrap();
    let deny = entry("deny", "rep:DenyACE", "eve", "jcr:read");
    let deny = Subtree::new("rep:policy", "rep:ACL").with_child(deny);
    session.put_node(&path("/content/hidden/rep:policy"), deny).unwrap();
    session.commit("close", at(1)).unwrap();
    let viewer = Viewer::of_user(Some("eve"));
    let mut session = main.session_as(&viewer).unwrap();
    session.move_node(&path("/content/a"), &path("/content/b")).unwrap();
    move_node(&main, "bob", "/content/a", "/content/hidden/secret-name");
    let error = session.commit("move", at(20)).unwrap_err();
    let Error::Conflicts(conflicts) = &error else { panic!("{error}") };
    assert_eq!(conflicts.len(), 1);
    assert!(!format!("{conflicts:?} {error}").contains("hidden"), "{conflicts:?}");
}
