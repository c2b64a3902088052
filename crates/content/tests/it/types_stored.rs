//! A site's own node types and namespaces: registered, changed, removed, and judged against what is there.

use std::time::SystemTime;

use tympan_content::node_type::{NodeTypeDefinition, parse_cnd};
use tympan_content::{
    ChunkId, ConstraintViolationKind, Error, NodePath, Property, Repository, Result, Session,
    Subtree,
};

use crate::session::path;

fn commit(session: &mut Session) -> Result<ChunkId> {
    session.commit("types", SystemTime::UNIX_EPOCH)
}

fn register(repository: &Repository, cnd: &str) -> Result<ChunkId> {
    let mut session = repository.session("ann")?;
    session.types().register_types(cnd)?;
    commit(&mut session)
}

/// A repository with the type `t` and the node `/n` of it, with the property `p`.
fn with_node(cnd: &str) -> Repository {
    let repository = Repository::in_memory().unwrap();
    register(&repository, cnd).unwrap();
    let mut session = repository.session("ann").unwrap();
    session.put_node(&path("/n"), Subtree::new("n", "t").with_property("p", "x")).unwrap();
    commit(&mut session).unwrap();
    repository
}

fn violations(result: Result<ChunkId>) -> Vec<(ConstraintViolationKind, String)> {
    match result {
        Ok(_) => Vec::new(),
        Err(Error::ConstraintViolations(violations)) => {
            violations.iter().map(|one| (one.kind, one.path.to_string())).collect()
        }
        Err(error) => panic!("{error}"),
    }
}

fn refusal(result: Result<ChunkId>) -> String {
    match result {
        Err(Error::InvalidNodeTypes(diagnostics)) => {
            let texts: Vec<String> = diagnostics.iter().map(ToString::to_string).collect();
            texts.join("; ")
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn types_are_nodes_and_read_back() {
    let cnd = "<'x' = 'http://example.org/x'>
        [x:t] > nt:unstructured, x:m orderable primaryitem p
          - p (long) = '1' multiple autocreated mandatory protected version queryops '=, <' nofulltext noqueryorder < '[0,9]'
          - * (undefined) - q (name) = 'x:n'
          + c (nt:base, nt:file) = nt:file sns abort + d
        [x:m] mixin noquery [x:a] abstract";
    let repository = Repository::in_memory().unwrap();
    register(&repository, cnd).unwrap();
    let snapshot = repository.snapshot().unwrap();
    let types = snapshot.node_types().unwrap();
    let wanted = parse_cnd(cnd);
    for definition in &wanted.types {
        assert_eq!(&types.find(&definition.name).unwrap().definition, definition);
    }
    let own: Vec<&NodeTypeDefinition> = types.custom_definitions().collect();
    assert_eq!(own.len(), 3);
    assert!(types.is_type("x:t", "nt:base") && types.is_type("x:t", "x:m"));
    assert_eq!(types.subtypes("x:m").collect::<Vec<_>>(), ["x:m", "x:t"]);
    assert_eq!(snapshot.namespaces().unwrap().uri("x"), Some("http://example.org/x"));
    let node = snapshot.node(&path("/jcr:system/jcr:nodeTypes/x:t")).unwrap().unwrap();
    assert_eq!(node.primary_type(), "nt:nodeType");
    assert_eq!(node.children().unwrap().len(), 5);
    let root = repository.head_root().unwrap();
    assert_eq!(register(&repository, cnd).unwrap(), root, "nothing new");
}

#[test]
fn the_stored_form_does_not_tell_in_which_order_types_came() {
    let (one, other) = (Repository::in_memory().unwrap(), Repository::in_memory().unwrap());
    register(&one, "[a] > b [b] > nt:base - p").unwrap();
    for cnd in ["[b] > nt:base", "[c]", "[a] > b", "[b] > nt:base - p"] {
        register(&other, cnd).unwrap();
    }
    let mut session = other.session("bob").unwrap();
    session.types().remove_types(&["c"]).unwrap();
    assert_eq!(commit(&mut session).unwrap(), one.head_root().unwrap());
}

#[test]
fn definitions_that_make_no_sense_are_refused() {
    let check = |cnd: &str, expected: &str| {
        let repository = Repository::in_memory().unwrap();
        let text = refusal(register(&repository, cnd));
        assert!(text.contains(expected), "{cnd}: {text}");
    };
    check("[a] > b", "the supertype `b` of `a` is not known");
    check("[a] > b [b] > c [c] > a", "is its own supertype");
    check("[a] > a", "`a` is its own supertype");
    check("[a] mixin > nt:base", "expected an attribute");
    check("[a] > nt:base mixin", "the mixin `a` cannot extend `nt:base`");
    check("[a] + c (b)", "the type `b` of the child `c` of `a` is not known");
    check("[a] + c = b", "the type `b` of the child `c` of `a` is not known");
    check("[a] - p (long) = 'x'", "the default `x` of `p` of `a` is not a valid Long");
    check("[a] - p (string) < '('", "the constraint of `p` of `a`");
    check("[a] - p (long) < '[1;2]'", "is not a range");
    check("[a] - * autocreated", "has an autocreated property without a name");
    check("[a] + * autocreated", "cannot be autocreated");
    check("[a] + c (nt:base) autocreated", "cannot be autocreated");
    check("[a] - p (lang)", "1:10: `lang` is not a property type");
    let line: String = (0..200).map(|at| format!("[t{at}] > t{} ", at + 1)).collect();
    check(&format!("{line}[t200]"), "more than 100 levels");
    check("[nt:hierarchyNode] > nt:hierarchyNode", "is its own supertype");
}

#[test]
fn a_type_that_is_used_is_not_removed() {
    let repository = with_node("[t] - p [u] > t");
    let mut session = repository.session("ann").unwrap();
    assert!(
        refusal(session.types().remove_types(&["t"]).map(|()| repository.head_root().unwrap()))
            .contains("`t` of `u`")
    );
    session.types().remove_types(&["t", "u"]).unwrap();
    assert_eq!(
        violations(commit(&mut session)),
        [(ConstraintViolationKind::UnknownPrimaryType, "/n".into())]
    );
    session.remove_node(&path("/n")).unwrap();
    assert_eq!(violations(commit(&mut session)), []);
    assert!(session.snapshot().unwrap().node_types().unwrap().find("t").is_none());
}

#[test]
fn a_change_that_the_content_breaks_is_refused() {
    let check = |before: &str, after: &str, expected: &[ConstraintViolationKind]| {
        let repository = with_node(before);
        let kinds: Vec<_> =
            violations(register(&repository, after)).into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, expected, "{before} to {after}");
    };
    check("[t] - p", "[t] - p - q", &[]);
    check("[t] - p", "[t] - *", &[]);
    check("[t] - p", "[t] - q", &[ConstraintViolationKind::UnknownProperty]);
    check("[t] - p", "[t] - p (long)", &[ConstraintViolationKind::UnknownProperty]);
    check("[t] - p", "[t] - p mandatory", &[]);
    check("[t] - p", "[t] - p - q mandatory", &[ConstraintViolationKind::MandatoryProperty]);
    check("[t] - p", "[t] - p + c (nt:base) mandatory", &[ConstraintViolationKind::MandatoryChild]);
    check("[t] - p", "[t] - p < 'y'", &[ConstraintViolationKind::ValueConstraint]);
    check("[t] - p", "[t] - p < '[xyz]'", &[]);
    check("[t] - p", "[t] abstract - p", &[ConstraintViolationKind::AbstractPrimaryType]);
    check("[t] - p", "[t] mixin - p", &[ConstraintViolationKind::MixinAsPrimaryType]);
    check("[s] - p [t] > s", "[s] - q", &[ConstraintViolationKind::UnknownProperty]);
    check("[s] - p [t] > s", "[t] - q", &[ConstraintViolationKind::UnknownProperty]);
}

#[test]
fn a_type_and_its_first_node_come_in_one_commit() {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.types().register_types("<'x' = 'http://example.org/x'> [x:t] - x:p (string)").unwrap();
    session
        .put_node(
            &path("/n"),
            Subtree::new("n", "x:t").with_property("x:p", "v").with_property("q", "v"),
        )
        .unwrap();
    assert_eq!(
        violations(commit(&mut session)),
        [(ConstraintViolationKind::UnknownProperty, "/n".into())]
    );
    session.remove_property(&path("/n"), "q").unwrap();
    assert_eq!(violations(commit(&mut session)), []);
}

#[test]
fn a_site_can_put_its_own_type_in_the_place_of_a_standard_one() {
    let repository = Repository::in_memory().unwrap();
    register(&repository, "[cq:Tag] > nt:base - jcr:title (string) mandatory").unwrap();
    let mut session = repository.session("ann").unwrap();
    session.add_node(&path("/tag"), "cq:Tag").unwrap();
    assert_eq!(
        violations(commit(&mut session)),
        [(ConstraintViolationKind::MandatoryProperty, "/tag".into())]
    );
    session.types().remove_types(&["cq:Tag"]).unwrap();
    assert_eq!(violations(commit(&mut session)), []);
    assert_eq!(session.snapshot().unwrap().node_types().unwrap().custom_definitions().count(), 0);
}

#[test]
fn each_branch_and_state_has_its_own_types() {
    let repository = Repository::in_memory().unwrap();
    let before = repository.snapshot().unwrap();
    register(&repository, "[t]").unwrap();
    assert!(before.node_types().unwrap().find("t").is_none());
    assert!(repository.snapshot().unwrap().node_types().unwrap().find("t").is_some());
    let mut session = repository.session("ann").unwrap();
    session.types().register_types("[u]").unwrap();
    assert!(session.snapshot().unwrap().node_types().unwrap().find("u").is_some());
    assert!(repository.snapshot().unwrap().node_types().unwrap().find("u").is_none());
}

#[test]
fn a_prefix_stands_for_one_namespace() {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.types().register_namespace("x", "http://example.org/x").unwrap();
    session.types().register_namespace("x", "http://example.org/x").unwrap();
    session.types().register_namespace("jcr", "http://www.jcp.org/jcr/1.0").unwrap();
    commit(&mut session).unwrap();
    let mut refused = |prefix: &str, uri: &str| match session
        .types()
        .register_namespace(prefix, uri)
    {
        Err(Error::InvalidNamespace { reason, .. }) => reason.split(':').next().unwrap().to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused("x", "http://example.org/y"), "OakNamespace0001");
    assert_eq!(refused("jcr", "http://example.org/y"), "OakNamespace0001");
    assert_eq!(refused("xmlThing", "http://example.org/y"), "OakNamespace0003");
    assert_eq!(refused("a:b", "http://example.org/y"), "OakNamespace0004");
    assert_eq!(refused("y", "http://example.org/x"), "OakNamespace0005");
    let stored = repository.snapshot().unwrap();
    let node = stored.node(&NodePath::new("/jcr:system/rep:namespaces").unwrap()).unwrap().unwrap();
    assert_eq!(node.property("x"), Some(Property::text("http://example.org/x")));
}
