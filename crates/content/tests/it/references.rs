//! References: who refers to what, and what a commit refuses for their sake.

use std::time::SystemTime;

use tympan_content::{
    ChunkId, Error, JCR_CONTENT, MIXIN_TYPES, NodePath, Property, ReferenceKind, Referrer,
    Repository, Result, Session, Subtree, Value, ValueType, ViolationKind,
};

use crate::session::{page, path};

const A: &str = "0e4c1c6b-1f5f-4a3c-9f25-3d2e0e2f3a10";
const B: &str = "0e4c1c6b-1f5f-4a3c-9f25-3d2e0e2f3a11";
const NONE: &str = "0e4c1c6b-1f5f-4a3c-9f25-3d2e0e2f3aff";

fn referenceable(name: &str, identifier: &str) -> Subtree {
    let mixins = vec![Value::Name("mix:referenceable".into())];
    Subtree::new(name, "nt:unstructured")
        .with(MIXIN_TYPES, Property::List(ValueType::Name, mixins))
        .with("jcr:uuid", identifier)
}

/// `/content` with the referenceable nodes `a` and `b`, and a page `p` whose paragraph refers to them.
fn site() -> Repository {
    let repository = Repository::memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let mut p = page("p", "P");
    let content = p.child_mut(JCR_CONTENT).unwrap();
    content.put_child(
        Subtree::new("text", "nt:unstructured")
            .with("strong", Value::Reference(A.into()))
            .with("weak", Value::WeakReference(B.into()))
            .with("link", "/content/b")
            .with("title", "/content/b is a path and more"),
    );
    let content = Subtree::new("content", "sling:Folder")
        .with_child(referenceable("a", A))
        .with_child(referenceable("b", B))
        .with_child(p);
    session.put(&path("/content"), content).unwrap();
    session.commit("begin", SystemTime::UNIX_EPOCH).unwrap();
    repository
}

fn commit(session: &mut Session) -> Result<ChunkId> {
    session.commit("edit", SystemTime::UNIX_EPOCH)
}

/// Commits what `edit` does; gives the kinds of violations with their paths.
fn refused(
    repository: &Repository,
    edit: impl FnOnce(&mut Session),
) -> Vec<(ViolationKind, String)> {
    let mut session = repository.session("ann").unwrap();
    edit(&mut session);
    match commit(&mut session) {
        Ok(_) => Vec::new(),
        Err(Error::Constraint(violations)) => {
            violations.iter().map(|one| (one.kind, one.path.to_string())).collect()
        }
        Err(error) => panic!("{error}"),
    }
}

fn referrer(at: &str, property: &str, kind: ReferenceKind) -> Referrer {
    Referrer { path: path(at), property: property.into(), kind }
}

#[test]
fn a_node_that_is_referred_to_is_not_removed() {
    let repository = site();
    let mut session = repository.session("ann").unwrap();
    session.remove(&path("/content/a")).unwrap();
    let Err(Error::Constraint(violations)) = commit(&mut session) else { panic!("not refused") };
    let [violation] = &violations[..] else { panic!("{violations:?}") };
    assert_eq!(violation.kind.code(), "OakIntegrity0001");
    assert_eq!(violation.path, path("/content/a"));
    let text = "/content/p/jcr:content/text";
    assert_eq!(violation.referrers, [referrer(text, "strong", ReferenceKind::Strong)]);
    assert!(
        violation.to_string().ends_with("by `strong` of /content/p/jcr:content/text"),
        "{violation}"
    );

    assert_eq!(refused(&repository, |session| session.remove(&path("/content/b")).unwrap()), []);
    let both = refused(&repository, |session| {
        session.remove(&path("/content/a")).unwrap();
        session.remove(&path("/content/p")).unwrap();
    });
    assert_eq!(both, [], "the referrer goes with it");
}

#[test]
fn a_referrer_in_the_same_commit_counts() {
    let repository = site();
    let text = path("/content/p/jcr:content/text");
    let dropped = refused(&repository, |session| {
        session.remove(&path("/content/a")).unwrap();
        session.remove_property(&text, "strong").unwrap();
    });
    assert_eq!(dropped, []);
    let added = refused(&repository, |session| {
        session.remove(&path("/content/b")).unwrap();
        session.set_property(&text, "new", Value::Reference(B.into()).into()).unwrap();
    });
    assert_eq!(added, [(ViolationKind::Referenced, "/content/b".into())]);
    let other_identifier = refused(&repository, |session| {
        session.put(&path("/content/b"), referenceable("b", NONE)).unwrap();
        session.set_property(&text, "new", Value::Reference(B.into()).into()).unwrap();
    });
    assert_eq!(other_identifier, [(ViolationKind::Referenced, "/content/b".into())]);
}

#[test]
fn a_reference_needs_its_node_a_weak_one_does_not() {
    let repository = site();
    let text = path("/content/p/jcr:content/text");
    let set = |value: Value| {
        refused(&repository, |session| session.set_property(&text, "new", value.into()).unwrap())
    };
    let place = text.to_string();
    assert_eq!(set(Value::Reference(NONE.into())), [(ViolationKind::DanglingReference, place)]);
    assert_eq!(set(Value::WeakReference(NONE.into())), []);
    assert_eq!(set(Value::Reference(B.into())), []);
    let together = refused(&repository, |session| {
        session.put(&path("/content/c"), referenceable("c", NONE)).unwrap();
        session.set_property(&text, "new", Value::Reference(NONE.into()).into()).unwrap();
    });
    assert_eq!(together, [], "the node comes in the same commit");
}

#[test]
fn a_dangling_reference_that_is_there_already_stays() {
    let repository = site();
    let text = path("/content/p/jcr:content/text");
    let mut session = repository.session("ann").unwrap();
    session.set_property(&text, "old", Value::Reference(NONE.into()).into()).unwrap();
    session.follow();
    commit(&mut session).unwrap();
    let changed = refused(&repository, |session| {
        session.set_property(&text, "other", "x".into()).unwrap();
    });
    assert_eq!(changed, []);
}

#[test]
fn moves_keep_identifiers_and_copies_get_their_own() {
    let repository = site();
    let moved = refused(&repository, |session| {
        session.move_node(&path("/content/a"), &path("/content/moved")).unwrap();
        session.copy_node(&path("/content/moved"), &path("/content/copy")).unwrap();
    });
    assert_eq!(moved, []);
    let snapshot = repository.snapshot().unwrap();
    assert_eq!(snapshot.find_by_identifier(A).unwrap().unwrap().path(), &path("/content/moved"));
    assert!(snapshot.find_by_identifier(NONE).unwrap().is_none());
    let copy = snapshot.node(&path("/content/copy")).unwrap().unwrap();
    assert_ne!(copy.text("jcr:uuid").unwrap(), A);
}

#[test]
fn references_are_found_from_both_ends() {
    let repository = site();
    let snapshot = repository.snapshot().unwrap();
    let text = "/content/p/jcr:content/text";
    assert_eq!(
        snapshot.referrers(&path("/content/b")).unwrap(),
        [referrer(text, "link", ReferenceKind::Path), referrer(text, "weak", ReferenceKind::Weak),]
    );
    assert_eq!(
        snapshot.referrers(&path("/content/a")).unwrap(),
        [referrer(text, "strong", ReferenceKind::Strong),]
    );
    assert_eq!(snapshot.referrers(&path("/content/p")).unwrap(), []);
    assert!(matches!(snapshot.referrers(&path("/content/x")), Err(Error::NodeMissing(_))));

    let own = snapshot.references_of(&path("/content/p")).unwrap();
    let shown: Vec<_> = own
        .iter()
        .map(|one| (one.property.as_str(), one.kind, one.target.as_ref().map(NodePath::as_str)))
        .collect();
    assert_eq!(
        shown,
        [
            ("link", ReferenceKind::Path, Some("/content/b")),
            ("strong", ReferenceKind::Strong, Some("/content/a")),
            ("weak", ReferenceKind::Weak, Some("/content/b")),
        ]
    );
    assert_eq!(refused(&repository, |session| session.remove(&path("/content/b")).unwrap()), []);
    let after = repository.snapshot().unwrap();
    let own = after.references_of(&path(text)).unwrap();
    assert_eq!(own.iter().filter(|one| one.target.is_none()).count(), 2, "both ends of `b` dangle");
}

#[test]
fn the_content_of_a_page_counts_as_the_page() {
    let repository = site();
    let mut session = repository.session("ann").unwrap();
    let mut q = page("q", "Q");
    let content = q.child_mut(JCR_CONTENT).unwrap();
    content.properties.extend(
        referenceable("", NONE)
            .properties
            .into_iter()
            .filter(|(name, _)| name != "jcr:primaryType"),
    );
    session.put(&path("/content/q"), q).unwrap();
    session
        .set_property(
            &path("/content/p/jcr:content"),
            "related",
            Value::WeakReference(NONE.into()).into(),
        )
        .unwrap();
    commit(&mut session).unwrap();
    let referrers = session.snapshot().unwrap().referrers(&path("/content/q")).unwrap();
    assert_eq!(referrers, [referrer("/content/p/jcr:content", "related", ReferenceKind::Weak)]);
}
