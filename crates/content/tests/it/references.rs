//! References: who refers to what, and what a commit refuses for their sake.

use std::time::SystemTime;

use tympan_content::{
    ChunkId, ConstraintViolationKind, Error, IndexMapRebuilder, JCR_CONTENT, MIXIN_TYPES, NodePath,
    Property, ReferenceKind, Referrer, Repository, Result, Session, Subtree, SubtreeBudget, Value,
    ValueType, Viewer,
};

use tympan_store::{ChunkBatch, RefUpdate, StoreRoot};

use crate::session::{page, path};

const A: &str = "0e4c1c6b-1f5f-4a3c-9f25-3d2e0e2f3a10";
const B: &str = "0e4c1c6b-1f5f-4a3c-9f25-3d2e0e2f3a11";
const NONE: &str = "0e4c1c6b-1f5f-4a3c-9f25-3d2e0e2f3aff";

fn referenceable(name: &str, identifier: &str) -> Subtree {
    let mixins = vec![Value::Name("mix:referenceable".into())];
    Subtree::new(name, "nt:unstructured")
        .with_property(MIXIN_TYPES, Property::List(ValueType::Name, mixins))
        .with_property("jcr:uuid", identifier)
}

/// `/content` with the referenceable nodes `a` and `b`, and a page `p` whose paragraph refers to them.
fn site() -> Repository {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let mut p = page("p", "P");
    let content = p.child_mut(JCR_CONTENT).unwrap();
    content.put_child(
        Subtree::new("text", "nt:unstructured")
            .with_property("strong", Value::Reference(A.into()))
            .with_property("weak", Value::WeakReference(B.into()))
            .with_property("link", "/content/b")
            .with_property("title", "/content/b is a path and more"),
    );
    let content = Subtree::new("content", "sling:Folder")
        .with_child(referenceable("a", A))
        .with_child(referenceable("b", B))
        .with_child(p);
    session.put_node(&path("/content"), content).unwrap();
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
) -> Vec<(ConstraintViolationKind, String)> {
    let mut session = repository.session("ann").unwrap();
    edit(&mut session);
    match commit(&mut session) {
        Ok(_) => Vec::new(),
        Err(Error::ConstraintViolations(violations)) => {
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
    session.remove_node(&path("/content/a")).unwrap();
    let Err(Error::ConstraintViolations(violations)) = commit(&mut session) else {
        panic!("not refused")
    };
    let [violation] = &violations[..] else { panic!("{violations:?}") };
    assert_eq!(violation.kind.code(), "OakIntegrity0001");
    assert_eq!(violation.path, path("/content/a"));
    let text = "/content/p/jcr:content/text";
    assert_eq!(violation.referrers, [referrer(text, "strong", ReferenceKind::Strong)]);
    assert!(
        violation.to_string().ends_with("by `strong` of /content/p/jcr:content/text"),
        "{violation}"
    );

    assert_eq!(
        refused(&repository, |session| session.remove_node(&path("/content/b")).unwrap()),
        []
    );
    let both = refused(&repository, |session| {
        session.remove_node(&path("/content/a")).unwrap();
        session.remove_node(&path("/content/p")).unwrap();
    });
    assert_eq!(both, [], "the referrer goes with it");
}

#[test]
fn a_referrer_in_the_same_commit_counts() {
    let repository = site();
    let text = path("/content/p/jcr:content/text");
    let dropped = refused(&repository, |session| {
        session.remove_node(&path("/content/a")).unwrap();
        session.remove_property(&text, "strong").unwrap();
    });
    assert_eq!(dropped, []);
    let added = refused(&repository, |session| {
        session.remove_node(&path("/content/b")).unwrap();
        session.set_property(&text, "new", Value::Reference(B.into()).into()).unwrap();
    });
    assert_eq!(added, [(ConstraintViolationKind::Referenced, "/content/b".into())]);
    let other_identifier = refused(&repository, |session| {
        session.put_node(&path("/content/b"), referenceable("b", NONE)).unwrap();
        session.set_property(&text, "new", Value::Reference(B.into()).into()).unwrap();
    });
    assert_eq!(other_identifier, [(ConstraintViolationKind::Referenced, "/content/b".into())]);
}

#[test]
fn a_reference_needs_its_node_a_weak_one_does_not() {
    let repository = site();
    let text = path("/content/p/jcr:content/text");
    let set = |value: Value| {
        refused(&repository, |session| session.set_property(&text, "new", value.into()).unwrap())
    };
    let place = text.to_string();
    assert_eq!(
        set(Value::Reference(NONE.into())),
        [(ConstraintViolationKind::DanglingReference, place)]
    );
    assert_eq!(set(Value::WeakReference(NONE.into())), []);
    assert_eq!(set(Value::Reference(B.into())), []);
    let together = refused(&repository, |session| {
        session.put_node(&path("/content/c"), referenceable("c", NONE)).unwrap();
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
    session.mark_as_received();
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

    let own = snapshot.references_in_document(&path("/content/p")).unwrap();
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
    assert_eq!(
        refused(&repository, |session| session.remove_node(&path("/content/b")).unwrap()),
        []
    );
    let after = repository.snapshot().unwrap();
    let own = after.references_in_document(&path(text)).unwrap();
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
    session.put_node(&path("/content/q"), q).unwrap();
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

/// A page with one text of its content.
fn page_with(name: &str, property: &str, value: impl Into<Property>) -> Subtree {
    let mut tree = page(name, name);
    let content = tree.child_mut(JCR_CONTENT).unwrap();
    content.put_child(Subtree::new("text", "nt:unstructured").with_property(property, value));
    tree
}

fn asset(name: &str) -> Subtree {
    let rendition = Subtree::new("web.jpg", "nt:unstructured");
    let renditions = Subtree::new("renditions", "nt:unstructured").with_child(rendition);
    let content = Subtree::new(JCR_CONTENT, "dam:AssetContent").with_child(renditions);
    Subtree::new(name, "dam:Asset").with_child(content)
}

/// Pages and assets that texts of the page `/content/site/rich` link to, besides that page.
fn rich_site(property: &str, value: impl Into<Property>) -> Repository {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let tags = Subtree::new("cq:tags", "sling:Folder").with_child(
        Subtree::new("ns", "cq:Tag").with_child(
            Subtree::new("red", "cq:Tag")
                .with_property("jcr:title", "Red")
                .with_child(Subtree::new("dark", "cq:Tag")),
        ),
    );
    let dam = Subtree::new("dam", "sling:Folder")
        .with_child(asset("a b.jpg"))
        .with_child(asset("x"))
        .with_child(asset("x.jpg"));
    let site = Subtree::new("site", "sling:OrderedFolder")
        .with_child(page("target", "Target").with_child(page("below", "Below")))
        .with_child(page("other", "Other"))
        .with_child(page_with("rich", property, value));
    let content =
        Subtree::new("content", "sling:Folder").with_child(tags).with_child(dam).with_child(site);
    session.put_node(&path("/content"), content).unwrap();
    commit(&mut session).unwrap();
    repository
}

#[test]
fn texts_refer_to_what_they_link_to() {
    let used = |property: &str, text: &str| -> Vec<String> {
        let repository = rich_site(property, text);
        let snapshot = repository.snapshot().unwrap();
        let all = [
            "/content/cq:tags/ns/red",
            "/content/cq:tags/ns/red/dark",
            "/content/dam/a b.jpg",
            "/content/dam/x",
            "/content/dam/x.jpg",
            "/content/site/target",
            "/content/site/target/below",
        ];
        let is_used = |target: &&str| {
            let referrers = snapshot.referrers(&path(target)).unwrap();
            assert!(
                referrers.iter().all(|one| one.path == path("/content/site/rich/jcr:content/text"))
            );
            !referrers.is_empty()
        };
        let used: Vec<String> = all.into_iter().filter(is_used).map(str::to_owned).collect();
        let mut uses: Vec<String> = snapshot
            .references_in_document(&path("/content/site/rich"))
            .unwrap()
            .into_iter()
            .filter_map(|one| one.target)
            .map(|target| target.as_str().split("/jcr:content").next().unwrap().to_owned())
            .collect();
        uses.sort();
        uses.dedup();
        assert_eq!(uses, used, "both directions agree about {text}");
        used
    };
    let target = ["/content/site/target"];
    assert_eq!(used("t", "<p>see <a href=\"/content/site/target.html\">it</a></p>"), target);
    assert_eq!(used("t", "<a href='/content/site/target.print.html?a=1&amp;b#c'>"), target);
    assert_eq!(used("t", "<a href=/content/site/target#c>"), target);
    assert_eq!(used("t", "<a href='/content/site/target.html/content/site/x'>"), target);
    assert_eq!(used("t", "/content/site/target.html"), target);
    assert_eq!(used("t", "{\"a\":{\"link\":\"/content/site/target\"}}"), target);
    assert_eq!(used("t", "<a href='/content/site/target/_jcr_content.html'>"), target);
    assert_eq!(
        used("t", "<a href='/content/site/target/below.html'>"),
        ["/content/site/target/below"]
    );
    assert_eq!(used("t", "<img src=\"/content/dam/a%20b.jpg\">"), ["/content/dam/a b.jpg"]);
    assert_eq!(used("t", "<img src=\"/content/dam/x.jpg\">"), ["/content/dam/x.jpg"]);
    assert_eq!(used("t", "<img src=\"/content/dam/x.png\">"), ["/content/dam/x"]);
    assert_eq!(
        used("t", "<img src=\"/content/dam/x.jpg/jcr:content/renditions/web.jpg\">"),
        ["/content/dam/x.jpg"]
    );
    assert_eq!(
        used("t", "<img srcset='/content/dam/x.jpg 1x,/content/dam/a%20b.jpg 2x'>"),
        ["/content/dam/a b.jpg", "/content/dam/x.jpg"]
    );
    assert_eq!(used("t", "<p style='background:url(/content/dam/x.jpg)'>"), ["/content/dam/x.jpg"]);
    assert_eq!(used("cq:tags", "ns:red"), ["/content/cq:tags/ns/red"]);
    assert_eq!(used("filterTags", "ns:red/dark"), ["/content/cq:tags/ns/red/dark"]);
    for nothing in ["see /content/site/target", "<p>/content/site/target</p>", "ns:red"] {
        assert_eq!(used("t", nothing), [""; 0], "{nothing}");
    }
    assert_eq!(used("t", "<a href='https://example.com/content/site/target.html'>"), [""; 0]);
}

/// Moves a node with its references; gives what was rewritten and what was not.
fn move_rewriting(repository: &Repository, from: &str, to: &str) -> [Vec<String>; 2] {
    let mut session = repository.session("ann").unwrap();
    session.move_node(&path(from), &path(to)).unwrap();
    let done = session.rewrite_references(&path(from), &path(to)).unwrap();
    commit(&mut session).unwrap();
    [
        done.rewritten_referrers.iter().map(ToString::to_string).collect(),
        done.skipped_references
            .iter()
            .map(|kept| format!("{} {}", kept.referrer, kept.reason))
            .collect(),
    ]
}

fn text_of(repository: &Repository, property: &str) -> String {
    let snapshot = repository.snapshot().unwrap();
    let node = snapshot.node(&path("/content/site/rich/jcr:content/text")).unwrap().unwrap();
    let property = node.property(property).unwrap();
    property.values().iter().map(|value| value.to_text().into_owned()).collect::<Vec<_>>().join("|")
}

/// A batch that moves a node to and fro goes through all references each time.
#[test]
fn rewriting_ends_at_the_limit_of_the_session() {
    let repository = rich_site("t", "<a href='/content/site/target.html'>it</a>");
    let mut session = repository.session("ann").unwrap();
    session.limit_bulk_edits(SubtreeBudget::new(2, 1 << 20));
    let (mut from, mut to) = (path("/content/site/target"), path("/content/site/moved"));
    let mut results = Vec::new();
    for _ in 0..3 {
        session.move_node(&from, &to).unwrap();
        results.push(session.rewrite_references(&path("/content/site/target"), &to).is_ok());
        (from, to) = (to.clone(), path(&format!("{to}x")));
    }
    assert_eq!(results, [true, true, false]);
}

#[test]
fn a_move_rewrites_links_and_nothing_else() {
    let text = "<P class=x>1 < 2 &nbsp;<a  HREF = '/content/site/target.html?a=1&b=2#c' >it</a>\r\n\
        <a href=/content/site/target/below.html>below</a><a href=\"/content/site/target-2.html\">\
        <img srcset=\"/content/site/target.img.png 1x, /content/dam/x.jpg 2x\">/content/site/target</P";
    let repository = rich_site("t", text);
    let [rewritten, kept] =
        move_rewriting(&repository, "/content/site/target", "/content/site/new name");
    assert_eq!(rewritten, ["`t` of /content/site/rich/jcr:content/text"]);
    assert_eq!(kept, [""; 0]);
    let expected = text.replace("/target.", "/new%20name.").replace("/target/", "/new%20name/");
    assert_eq!(text_of(&repository, "t"), expected);
    let snapshot = repository.snapshot().unwrap();
    assert_eq!(snapshot.referrers(&path("/content/site/new name")).unwrap().len(), 1);
    assert_eq!(snapshot.referrers_within(&path("/content/site/new name")).unwrap().len(), 1);
}

#[test]
fn a_move_rewrites_each_value_of_a_list_and_paths_as_they_are() {
    let values = ["/content/site/target", "/content/site/target.html", "/content/site/other", "x"];
    let values = values.map(|text| Value::String(text.to_owned())).to_vec();
    let repository = rich_site("links", Property::List(ValueType::String, values));
    move_rewriting(&repository, "/content/site/target", "/content/site/new name");
    assert_eq!(
        text_of(&repository, "links"),
        "/content/site/new name|/content/site/new name.html|/content/site/other|x"
    );
}

#[test]
fn a_move_lists_what_it_has_to_leave() {
    let repository = rich_site("t", "<a href='/content/site/target'>");
    let mut session = repository.session("ann").unwrap();
    let text = path("/content/site/rich/jcr:content/text");
    let mixins = vec![Value::Name("mix:versionable".into())];
    session.set_property(&text, MIXIN_TYPES, Property::List(ValueType::Name, mixins)).unwrap();
    session.set_property(&text, "jcr:isCheckedOut", Value::Boolean(false).into()).unwrap();
    session.bypass_check_ins();
    commit(&mut session).unwrap();
    let [rewritten, kept] = move_rewriting(&repository, "/content/site/target", "/content/site/n");
    assert_eq!(rewritten, [""; 0]);
    assert_eq!(kept, ["`t` of /content/site/rich/jcr:content/text the node is checked in"]);
    assert_eq!(text_of(&repository, "t"), "<a href='/content/site/target'>");
}

#[test]
fn a_moved_tag_is_found_by_its_old_name() {
    let repository = rich_site("cq:tags", "ns:red/dark");
    let mut session = repository.session("ann").unwrap();
    let (old, new) = (path("/content/cq:tags/ns/red"), path("/content/cq:tags/ns/rouge"));
    session.move_node(&old, &new).unwrap();
    commit(&mut session).unwrap();
    let snapshot = repository.snapshot().unwrap();
    let left = snapshot.node(&old).unwrap().unwrap();
    assert_eq!(left.text("cq:movedTo").as_deref(), Some(new.as_str()));
    let backlinks = snapshot.node(&new).unwrap().unwrap().property("cq:backlinks").unwrap();
    assert_eq!(backlinks.values()[0].to_text(), old.as_str());
    let found = snapshot.find_tag("ns:red/dark").unwrap().unwrap();
    assert_eq!(found.path(), &path("/content/cq:tags/ns/rouge/dark"));
    let referrers = snapshot.referrers(&new).unwrap();
    let moved_to = referrer(old.as_str(), "cq:movedTo", ReferenceKind::Path);
    assert!(referrers.contains(&moved_to), "{referrers:?}");

    session.move_node(&new, &old).unwrap();
    commit(&mut session).unwrap();
    let snapshot = repository.snapshot().unwrap();
    let back = snapshot.node(&old).unwrap().unwrap();
    assert_eq!((back.text("jcr:title").as_deref(), back.text("cq:movedTo")), (Some("Red"), None));
    assert_eq!(snapshot.find_tag("ns:rouge/dark").unwrap().unwrap().path().name(), "dark");
}

#[test]
fn a_moved_tag_is_renamed_where_it_is_used() {
    let values = ["ns:red", "ns:red/dark", "ns:redder"];
    let values = values.map(|text| Value::String(text.to_owned())).to_vec();
    let repository = rich_site("cq:tags", Property::List(ValueType::String, values));
    move_rewriting(&repository, "/content/cq:tags/ns/red", "/content/cq:tags/ns/rouge");
    assert_eq!(text_of(&repository, "cq:tags"), "ns:rouge|ns:rouge/dark|ns:redder");
}

#[test]
fn policies_are_used_by_the_mappings_that_name_them() {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let folder = |name: &str, child: Subtree| Subtree::new(name, "sling:Folder").with_child(child);
    let policy = |name: &str| {
        let group = Subtree::new("site", "nt:unstructured")
            .with_child(Subtree::new(name, "nt:unstructured"));
        folder("policies", group)
    };
    let mapping = Subtree::new("root", "nt:unstructured").with_property("cq:policy", "site/p1");
    let template = Subtree::new("t", "cq:Template")
        .with_child(Subtree::new("policies", "nt:unstructured").with_child(mapping));
    let own = Subtree::new("wcm", "sling:Folder")
        .with_child(policy("p1"))
        .with_child(folder("templates", template));
    let conf = Subtree::new("conf", "sling:Folder")
        .with_child(folder("s", folder("settings", own)))
        .with_child(folder("global", folder("settings", folder("wcm", policy("p1")))));
    session.put_node(&path("/conf"), conf).unwrap();
    commit(&mut session).unwrap();
    let own = "/conf/s/settings/wcm/policies/site/p1";
    let mapping = "/conf/s/settings/wcm/templates/t/policies/root";
    let snapshot = repository.snapshot().unwrap();
    let users = snapshot.referrers(&path(own)).unwrap();
    assert_eq!(users, [referrer(mapping, "cq:policy", ReferenceKind::Policy)]);
    let global = path("/conf/global/settings/wcm/policies/site/p1");
    assert_eq!(snapshot.referrers(&global).unwrap(), [], "that of the site is meant");
    move_rewriting(&repository, own, "/conf/s/settings/wcm/policies/site/p2");
    let snapshot = repository.snapshot().unwrap();
    let node = snapshot.node(&path(mapping)).unwrap().unwrap();
    assert_eq!(node.text("cq:policy").as_deref(), Some("site/p2"));
}

#[test]
fn a_state_without_the_map_of_links_gets_it() {
    let repository = rich_site("t", "<a href='/content/site/target.html'>");
    let store = repository.chunks().clone();
    let head = repository.head_root().unwrap();
    let with = StoreRoot::read(&*store, &head).unwrap();
    let mut without = with.clone();
    without.maps.remove("link").unwrap();
    let mut batch = ChunkBatch::new();
    let new = Some(without.write(&mut batch).unwrap());
    let (at, author) = (SystemTime::UNIX_EPOCH, "test".to_owned());
    let (name, message) = ("main".to_owned(), "as before".to_owned());
    batch.add_ref_update(RefUpdate {
        name,
        expected_root: Some(head),
        new_root: new,
        updated_at: at,
        author,
        message,
    });
    store.commit(batch).unwrap();
    let target = path("/content/site/target");
    let users =
        |repository: &Repository| repository.snapshot().unwrap().referrers(&target).unwrap().len();
    assert_eq!(users(&repository), 1, "all is read");
    let mut session = repository.session("ann").unwrap();
    session
        .set_property(
            &path("/content/site/other/jcr:content"),
            "l",
            "/content/site/target.html".into(),
        )
        .unwrap();
    commit(&mut session).unwrap();
    assert!(
        !StoreRoot::read(&*store, &repository.head_root().unwrap())
            .unwrap()
            .maps
            .contains_key("link")
    );
    assert_eq!(users(&repository), 2, "a commit makes no part of the map");
    repository.build_indexes().unwrap();
    let built = StoreRoot::read(&*store, &repository.head_root().unwrap()).unwrap();
    assert_eq!(users(&repository), 2);
    assert!(built.maps.contains_key("link"));
    assert_eq!(IndexMapRebuilder::new(&*store).find_faults().unwrap(), []);
}

/// A policy with one entry for `bob`.
fn policy_for_bob(kind: &str, privilege: &str) -> Subtree {
    let privileges = Property::parse_list(ValueType::Name, [privilege]).unwrap();
    let entry = Subtree::new("entry", kind)
        .with_property("rep:principalName", "bob")
        .with_property("rep:privileges", privileges);
    Subtree::new("rep:policy", "rep:ACL").with_child(entry)
}

#[test]
fn a_move_rewrites_only_what_the_mover_may_write() {
    let link = "<a href='/content/site/target.html'>";
    let repository = rich_site("t", link);
    let mut session = repository.session("ann").unwrap();
    session.accounts().add_user("bob", "x").unwrap();
    for name in ["open", "hidden"] {
        session
            .put_node(&path("/content/site").child(name).unwrap(), page_with(name, "t", link))
            .unwrap();
    }
    let policies = [
        ("/content", policy_for_bob("rep:GrantACE", "jcr:all")),
        ("/content/site/rich", policy_for_bob("rep:DenyACE", "jcr:modifyProperties")),
        ("/content/site/hidden", policy_for_bob("rep:DenyACE", "jcr:read")),
    ];
    for (node, policy) in policies {
        session.put_node(&path(node).child("rep:policy").unwrap(), policy).unwrap();
    }
    commit(&mut session).unwrap();

    let viewer = Viewer::of_user(Some("bob"));
    let mut session = repository.session_as(&viewer).unwrap();
    let (from, to) = (path("/content/site/target"), path("/content/site/moved"));
    session.move_node(&from, &to).unwrap();
    let done = session.rewrite_references(&from, &to).unwrap();
    commit(&mut session).unwrap();
    let open = referrer("/content/site/open/jcr:content/text", "t", ReferenceKind::Link);
    assert_eq!(done.rewritten_referrers, [open]);
    let kept: Vec<_> =
        done.skipped_references.iter().map(|kept| kept.referrer.path.as_str()).collect();
    assert_eq!(kept, ["/content/site/rich/jcr:content/text"], "what is hidden is not told");
    let snapshot = repository.snapshot().unwrap();
    let text = |page: &str| {
        let node = path(&format!("/content/site/{page}/jcr:content/text"));
        snapshot.node(&node).unwrap().unwrap().text("t").unwrap()
    };
    assert_eq!(text("open"), "<a href='/content/site/moved.html'>");
    assert_eq!([text("rich"), text("hidden")], [link, link]);
}
