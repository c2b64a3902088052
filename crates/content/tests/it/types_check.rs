//! What a commit refuses and what it sets itself: one case for each rule.

use std::time::{Duration, SystemTime};

use tympan_content::{
    BlobId, Error, MIXIN_TYPES, NodePath, PRIMARY_TYPE, Property, Repository, Result, Session,
    Snapshot, Subtree, Value, ValueType,
};

use crate::session::path;

/// Types that the cases use: rules that the standard set has no short example for.
const CND: &str = "
    <'t' = 'http://example.org/t'>
    [t:closed] - text (string) - number (long) - list (string) multiple
    [t:strict] > t:closed - must (string) mandatory + part (t:closed) mandatory + * (t:closed)
    [t:valued] - color (string) < 'red', 'gr.*n' - size (long) < '[1,10)' - at (date) - many (long) multiple < '(,5]'
    [t:made] - state (string) = 'new' autocreated - tags (string) = 'a', 'b' multiple autocreated
        - count (long) = '7' autocreated mandatory + inner (nt:base) = t:closed autocreated
    [t:abstract] abstract
    [t:mixin] mixin - extra (string) mandatory
    [t:abstractMixin] mixin abstract
    [t:holder] + named (t:abstract) = t:abstract + * (nt:base)
";

const ONE: SystemTime = SystemTime::UNIX_EPOCH;
const TWO: Duration = Duration::from_secs(60);

fn repository() -> Repository {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.types().register_types(CND).unwrap();
    session.add_node(&path("/content"), "sling:Folder").unwrap();
    session.commit("begin", ONE).unwrap();
    repository
}

/// Reads `name=text`, `name:Long=7` or `name:String[]=a,b`.
fn property(text: &str) -> (String, Option<Property>) {
    let (name, value) = text.split_once('=').unwrap();
    // The type stands behind the last colon if there is one of this name.
    let typed = name.rsplit_once(':').and_then(|(name, kind)| {
        let (kind, is_list) = kind.strip_suffix("[]").map_or((kind, false), |kind| (kind, true));
        Some((name, ValueType::find(kind)?, is_list))
    });
    let (name, value_type, is_list) = typed.unwrap_or((name, ValueType::String, false));
    if value.is_empty() && !is_list {
        return (name.to_owned(), None);
    }
    let parse = |text: &str| match value_type {
        ValueType::Binary => Value::Binary(BlobId::new([7; 32], text.parse().unwrap())),
        other => Value::parse(other, text).unwrap(),
    };
    let property = match is_list {
        true => {
            let texts = value.split(',').filter(|text| !text.is_empty());
            Property::List(value_type, texts.map(parse).collect())
        }
        false => Property::Single(parse(value)),
    };
    (name.to_owned(), Some(property))
}

/// Makes an edit: `+ /path type property…` puts a node, `= /path property…` sets, `- /path` removes, `> /from /to` moves.
fn edit(session: &mut Session, line: &str) -> Result<()> {
    let mut words = line.split_whitespace();
    let (sign, at) = (words.next().unwrap(), path(words.next().unwrap()));
    match sign {
        "-" => session.remove_node(&at),
        ">" => session.move_node(&at, &path(words.next().unwrap())),
        "+" => {
            let mut node = Subtree::new(at.name(), words.next().unwrap());
            if let Some(mixins) = words.clone().next().and_then(|word| word.strip_prefix("&")) {
                words.next();
                let mixins = mixins.split('&').map(|name| Value::Name(name.to_owned())).collect();
                node = node.with_property(MIXIN_TYPES, Property::List(ValueType::Name, mixins));
            }
            for word in words {
                let (name, property) = property(word);
                node = node.with_property(name, property.unwrap());
            }
            session.put_node(&at, node)
        }
        _ => words.map(property).try_for_each(|(name, property)| match property {
            Some(property) => session.set_property(&at, &name, property),
            None => session.remove_property(&at, &name).map(|_| ()),
        }),
    }
}

fn commit(repository: &Repository, edits: &[&str], at: SystemTime) -> Result<Snapshot> {
    let mut session = repository.session("bob").unwrap();
    edits.iter().try_for_each(|line| edit(&mut session, line))?;
    session.commit("edit", at)?;
    session.snapshot()
}

fn violations(result: Result<Snapshot>) -> Vec<String> {
    match result {
        Ok(_) => Vec::new(),
        Err(Error::ConstraintViolations(violations)) => {
            let text = |one: &tympan_content::ConstraintViolation| {
                format!("{} {} {}", one.kind.code(), one.path, one.item)
            };
            violations.iter().map(text).collect()
        }
        Err(error) => panic!("{error}"),
    }
}

/// Commits `before`, which must be good, then `edits`, which breaks exactly these rules.
#[track_caller]
fn check(before: &[&str], edits: &[&str], expected: &[&str]) {
    let repository = repository();
    assert_eq!(violations(commit(&repository, before, ONE)), [""; 0]);
    let root = repository.head_root().unwrap();
    assert_eq!(violations(commit(&repository, edits, ONE)), expected, "{before:?} {edits:?}");
    if !expected.is_empty() {
        assert_eq!(repository.head_root().unwrap(), root, "nothing of a refused commit is stored");
    }
}

#[test]
fn types_of_nodes() {
    check(&[], &["+ /content/a t:none"], &["OakConstraint0001 /content/a t:none"]);
    check(&[], &["+ /content/a mix:title"], &["OakConstraint0002 /content/a mix:title"]);
    check(&[], &["+ /content/a t:abstract"], &["OakConstraint0003 /content/a t:abstract"]);
    check(&[], &["+ /content/a t:holder", "+ /content/a/named t:abstract"], &[]);
    check(&[], &["+ /content/a nt:unstructured &t:none"], &["OakConstraint0005 /content/a t:none"]);
    check(
        &[],
        &["+ /content/a nt:unstructured &nt:file"],
        &["OakConstraint0006 /content/a nt:file"],
    );
    check(
        &[],
        &["+ /content/a nt:unstructured &t:abstractMixin"],
        &["OakConstraint0007 /content/a t:abstractMixin"],
    );
    check(
        &["+ /content/a t:closed"],
        &["= /content/a jcr:primaryType:Name=t:none"],
        &["OakConstraint0001 /content/a t:none"],
    );
}

#[test]
fn properties_of_closed_types() {
    check(&[], &["+ /content/a t:closed text=x number:Long=1 list:String[]=a,b"], &[]);
    check(&[], &["+ /content/a t:closed other=x"], &["OakConstraint0004 /content/a other"]);
    check(&[], &["+ /content/a t:closed text:String[]=x"], &["OakConstraint0004 /content/a text"]);
    check(&[], &["+ /content/a t:closed list=x"], &["OakConstraint0004 /content/a list"]);
    check(&[], &["+ /content/a t:closed number=x"], &["OakConstraint0004 /content/a number"]);
    check(
        &["+ /content/a t:closed"],
        &["= /content/a other=x"],
        &["OakConstraint0004 /content/a other"],
    );
    check(&["+ /content/a t:closed text=x"], &["= /content/a text="], &[]);
    check(&[], &["+ /content/a nt:unstructured other=x number=x list=x"], &[]);
    check(&[], &["+ /content/a t:closed &mix:title jcr:title=x"], &[]);
    check(
        &["+ /content/a t:closed &mix:title jcr:title=x"],
        &["= /content/a jcr:mixinTypes="],
        &["OakConstraint0004 /content/a jcr:title"],
    );
}

#[test]
fn mandatory_items() {
    let whole = ["+ /content/a t:strict must=x", "+ /content/a/part t:closed"];
    check(&[], &whole, &[]);
    check(
        &[],
        &["+ /content/a t:strict"],
        &["OakConstraint0021 /content/a must", "OakConstraint0025 /content/a part"],
    );
    check(&whole, &["= /content/a must="], &["OakConstraint0022 /content/a must"]);
    check(&whole, &["- /content/a/part"], &["OakConstraint0026 /content/a part"]);
    check(&whole, &["- /content/a"], &[]);
    check(
        &["+ /content/a nt:unstructured"],
        &["= /content/a jcr:mixinTypes:Name[]=t:mixin"],
        &["OakConstraint0021 /content/a extra"],
    );
    check(
        &["+ /content/a nt:unstructured"],
        &["= /content/a jcr:mixinTypes:Name[]=t:mixin extra=x"],
        &[],
    );
    // A mandatory definition counts whatever the type of its value, so the residual one does not help.
    check(
        &[],
        &["+ /content/a nt:resource jcr:data=x"],
        &["OakConstraint0055 /content/a jcr:data"],
    );
    check(&[], &["+ /content/a nt:file"], &["OakConstraint0025 /content/a jcr:content"]);
}

#[test]
fn children_of_closed_types() {
    check(
        &["+ /content/a t:closed"],
        &["+ /content/a/b nt:unstructured"],
        &["OakConstraint0001 /content/a b"],
    );
    let whole = ["+ /content/a t:strict must=x", "+ /content/a/part t:closed"];
    check(&whole, &["+ /content/a/b t:strict must=x", "+ /content/a/b/part t:closed"], &[]);
    check(&whole, &["+ /content/a/b nt:unstructured"], &["OakConstraint0001 /content/a b"]);
    check(
        &["+ /content/f nt:folder"],
        &["+ /content/f/a nt:unstructured"],
        &["OakConstraint0001 /content/f a"],
    );
    check(&["+ /content/f nt:folder"], &["+ /content/f/a cq:Page"], &[]);
    check(
        &["+ /content/a t:holder", "+ /content/a/b nt:unstructured"],
        &["= /content/a jcr:primaryType:Name=t:closed"],
        &["OakConstraint0001 /content/a b"],
    );
    check(
        &["+ /content/f sling:Folder", "+ /content/f/a nt:unstructured"],
        &["= /content/f jcr:primaryType:Name=nt:folder"],
        &["OakConstraint0001 /content/f a"],
    );
    check(
        &["+ /content/f nt:folder", "+ /content/a nt:unstructured"],
        &["> /content/a /content/f/a"],
        &["OakConstraint0001 /content/f a"],
    );
}

#[test]
fn a_mandatory_child_with_a_record_of_its_own() {
    let repository = repository();
    let mut session = repository.session("ann").unwrap();
    session.types().register_types("[t:site] mixin + home (cq:Page) mandatory").unwrap();
    session.commit("types", ONE).unwrap();
    let lines = ["+ /content/s sling:Folder &t:site", "+ /content/s/home cq:Page"];
    assert_eq!(
        violations(commit(&repository, &lines[..1], ONE)),
        ["OakConstraint0025 /content/s home",]
    );
    assert_eq!(violations(commit(&repository, &lines, ONE)), [""; 0]);
    assert_eq!(
        violations(commit(&repository, &["- /content/s/home"], ONE)),
        ["OakConstraint0026 /content/s home",]
    );
    assert_eq!(violations(commit(&repository, &["- /content/s"], ONE)), [""; 0]);
}

#[test]
fn value_constraints() {
    check(&[], &["+ /content/a t:valued color=red size:Long=1 many:Long[]=5,-3"], &[]);
    check(&[], &["+ /content/a t:valued color=green"], &[]);
    check(&[], &["+ /content/a t:valued color=reds"], &["OakConstraint0005 /content/a color"]);
    check(&[], &["+ /content/a t:valued size:Long=10"], &["OakConstraint0005 /content/a size"]);
    check(&[], &["+ /content/a t:valued many:Long[]=5,6"], &["OakConstraint0005 /content/a many"]);
    check(&[], &["+ /content/a t:valued many:Long[]="], &[]);
    check(&[], &["+ /content/a cq:EditConfig cq:layout=rollover"], &[]);
    check(
        &[],
        &["+ /content/a cq:EditConfig cq:layout=none"],
        &["OakConstraint0005 /content/a cq:layout"],
    );
}

#[test]
fn identifiers() {
    const ID: &str = "0e4c1c6b-1f5f-4a3c-9f25-3d2e0e2f3a10";
    let first = format!("+ /content/a nt:unstructured &mix:referenceable jcr:uuid={ID}");
    let second = format!("+ /content/b nt:unstructured &mix:referenceable jcr:uuid={ID}");
    check(
        &[],
        &["+ /content/a nt:unstructured &mix:referenceable jcr:uuid=x"],
        &["OakConstraint0012 /content/a jcr:uuid"],
    );
    check(&[], &["+ /content/a nt:unstructured jcr:uuid=x"], &[]);
    let taken = format!("OakConstraint0030 /content/b {ID}");
    check(&[&first], &[&second], &[&taken]);
    check(&[&first], &["- /content/a", &second], &[]);
    check(&[&first], &["> /content/a /content/c"], &[]);
    let both = format!("OakConstraint0030 /content/a {ID}");
    check(&[], &[&first, &second], &[&both, &taken]);
}

#[test]
fn names_and_their_prefixes() {
    check(&[], &["+ /content/x:a nt:unstructured"], &["OakName0001 /content/x:a x"]);
    check(&[], &["+ /content/a nt:unstructured x:p=1"], &["OakName0001 /content/a x"]);
    check(&[], &["+ /content/a nt:unstructured p:Name=x:b"], &["OakName0001 /content/a x"]);
    check(&[], &["+ /content/a nt:unstructured p:Name=a*b"], &["OakName0003 /content/a a*b"]);
    check(&[], &["+ /content/a nt:unstructured t:p=1 p:Name=t:b"], &[]);
    check(
        &["+ /content/a nt:unstructured"],
        &["+ /content/a/x:b nt:unstructured"],
        &["OakName0001 /content/a/x:b x"],
    );
}

#[test]
fn names_that_jcr_refuses_never_get_into_a_session() {
    let repository = repository();
    let mut session = repository.session("bob").unwrap();
    let long = "n".repeat(257);
    for name in [
        "",
        ".",
        "..",
        "a/b",
        "/a",
        "a[1]",
        "a[",
        "a]",
        "a|b",
        "a*",
        "*",
        " a",
        "a ",
        "\u{a0}a",
        "a\tb",
        "a\rb",
        "a\nb",
        "a\u{0}",
        "a\u{1}b",
        "a\u{7f}",
        "a\u{85}",
        "a\u{fffe}",
        "a\u{ffff}",
        ":a",
        "a:",
        "a:b:c",
        "a b:c",
        &long,
    ] {
        let refused = |result: Result<()>| matches!(result, Err(Error::InvalidName { .. }));
        let content = path("/content");
        assert!(refused(session.set_property(&content, name, "x".into())), "{name:?}");
        assert!(content.child(name).is_err(), "{name:?}");
        let tree = Subtree::new("t", "nt:unstructured");
        let child = tree.clone().with_child(Subtree::new(name, "nt:unstructured"));
        assert!(refused(session.put_node(&path("/content/t"), child)), "{name:?}");
        let property = tree.clone().with_property(name, "x");
        assert!(refused(session.put_node(&path("/content/t"), property)), "{name:?}");
    }
    assert!(!session.has_changes().unwrap());
}

#[test]
fn all_violations_are_reported_at_once() {
    check(
        &[],
        &["+ /content/a t:closed other=x more=y", "+ /content/b t:none", "+ /content/c t:strict"],
        &[
            "OakConstraint0004 /content/a more",
            "OakConstraint0004 /content/a other",
            "OakConstraint0001 /content/b t:none",
            "OakConstraint0021 /content/c must",
            "OakConstraint0025 /content/c part",
        ],
    );
}

#[test]
fn what_was_stored_before_a_rule_is_not_judged_again() {
    let repository = repository();
    let mut session = repository.session("ann").unwrap();
    edit(&mut session, "+ /content/a t:closed other=x").unwrap();
    session.mark_as_received();
    session.commit("from elsewhere", ONE).unwrap();
    assert_eq!(violations(commit(&repository, &["= /content/a text=new"], ONE)), [""; 0]);
    assert_eq!(
        violations(commit(&repository, &["= /content/a other=y"], ONE)),
        ["OakConstraint0004 /content/a other",]
    );
    assert_eq!(violations(commit(&repository, &["= /content/a other="], ONE)), [""; 0]);
    edit(&mut session, "+ /content/b t:closed other=x").unwrap();
    assert!(session.commit("own", ONE).is_err(), "following others ends with the commit");
}

fn text(snapshot: &Snapshot, at: &str, name: &str) -> Option<String> {
    let node = snapshot.node(&path(at)).unwrap()?;
    let property = node.property(name)?;
    let texts: Vec<String> =
        property.values().iter().map(|value| value.to_text().into_owned()).collect();
    Some(texts.join(","))
}

#[test]
fn what_types_create_is_there_after_the_commit() {
    let repository = repository();
    let lines = ["+ /content/a t:made", "+ /content/b t:made state=old count:Long=1"];
    let snapshot = commit(&repository, &lines, ONE).unwrap();
    let value = |at: &str, name: &str| text(&snapshot, at, name).unwrap_or_default();
    assert_eq!(value("/content/a", "state"), "new");
    assert_eq!(value("/content/a", "tags"), "a,b");
    assert_eq!(value("/content/a", "count"), "7");
    assert_eq!(value("/content/a/inner", PRIMARY_TYPE), "t:closed");
    assert_eq!(
        (value("/content/b", "state"), value("/content/b", "count")),
        ("old".into(), "1".into())
    );

    let lines = ["+ /content/p cq:Page", "+ /content/r nt:unstructured &mix:referenceable"];
    let snapshot = commit(&repository, &lines, ONE + TWO).unwrap();
    assert_eq!(text(&snapshot, "/content/p", "jcr:created").unwrap(), "1970-01-01T00:01:00.000Z");
    assert_eq!(text(&snapshot, "/content/p", "jcr:createdBy").unwrap(), "bob");
    let identifier = text(&snapshot, "/content/r", "jcr:uuid").unwrap();
    assert_eq!(
        snapshot.find_by_identifier(&identifier).unwrap().unwrap().path(),
        &path("/content/r")
    );
    let moved = commit(&repository, &["> /content/r /content/q"], ONE).unwrap();
    assert_eq!(text(&moved, "/content/q", "jcr:uuid").unwrap(), identifier);
    let lines = ["= /content/q jcr:uuid=", "= /content/p jcr:created="];
    let kept = commit(&repository, &lines, ONE).unwrap();
    assert_eq!(text(&kept, "/content/q", "jcr:uuid").unwrap(), identifier);
    assert_eq!(text(&kept, "/content/p", "jcr:created").unwrap(), "1970-01-01T00:01:00.000Z");
}

#[test]
fn the_last_change_is_noted_unless_the_session_notes_it() {
    let repository = repository();
    let stamp = |snapshot: &Snapshot| {
        let value = |name: &str| text(snapshot, "/content/a", name).unwrap();
        (value("jcr:lastModified"), value("jcr:lastModifiedBy"))
    };
    let first = "1970-01-01T00:00:00.000Z".to_owned();
    let second = "1970-01-01T00:01:00.000Z".to_owned();
    let own = "1999-01-01T00:00:00.000Z";
    let node = ["+ /content/a nt:unstructured &mix:lastModified"];
    assert_eq!(stamp(&commit(&repository, &node, ONE).unwrap()), (first.clone(), "bob".into()));
    let below = ["+ /content/a/b nt:unstructured"];
    assert_eq!(stamp(&commit(&repository, &below, ONE + TWO).unwrap()), (first, "bob".into()));
    let change = ["= /content/a p=x"];
    assert_eq!(stamp(&commit(&repository, &change, ONE + TWO).unwrap()), (second, "bob".into()));
    let noted = format!("= /content/a p=y jcr:lastModified:Date={own} jcr:lastModifiedBy=eve");
    let snapshot = commit(&repository, &[&noted], ONE + TWO).unwrap();
    assert_eq!(stamp(&snapshot), (own.to_owned(), "eve".into()));
    let root = repository.head_root().unwrap();
    commit(&repository, &["= /content/a jcr:lastModifiedBy="], ONE + TWO).unwrap();
    assert_eq!(
        repository.head_root().unwrap(),
        root,
        "what a type creates stays, and that is no change"
    );
}

#[test]
fn values_are_converted_to_the_type_that_is_wanted() {
    let repository = repository();
    let lines = [
        "+ /content/a t:closed number=17",
        "+ /content/b cq:PageContent hideInNav=true onTime=soon",
    ];
    let snapshot = commit(&repository, &lines, ONE).unwrap();
    let property = |at: &str, name: &str| {
        snapshot.node(&path(at)).unwrap().unwrap().property(name).unwrap().value_type()
    };
    assert_eq!(property("/content/a", "number"), ValueType::Long);
    // Any value will do where a residual definition takes it.
    assert_eq!(property("/content/b", "hideInNav"), ValueType::String);
    assert_eq!(property("/content/b", "onTime"), ValueType::String);
}

#[test]
fn a_child_without_a_type_gets_that_of_its_parents_definition() {
    let repository = repository();
    let mut session = repository.session("bob").unwrap();
    session.add_node(&path("/content/p"), "cq:Page").unwrap();
    let content = Subtree { name: "jcr:content".into(), ..Subtree::default() };
    session.put_node(&path("/content/p/jcr:content"), content).unwrap();
    session.commit("edit", ONE).unwrap();
    let snapshot = session.snapshot().unwrap();
    assert_eq!(text(&snapshot, "/content/p/jcr:content", PRIMARY_TYPE).unwrap(), "nt:unstructured");
    session.put_node(&path("/content/p/x"), Subtree::default()).unwrap();
    let refused = session.commit("edit", ONE).map(|_| snapshot);
    assert_eq!(violations(refused), [""; 0], "the default may be abstract");
}

#[test]
fn two_sessions_that_make_the_same_node_do_not_clash() {
    let repository = repository();
    let make = |user: &str| {
        let mut session = repository.session(user).unwrap();
        edit(&mut session, "+ /content/f sling:Folder").unwrap();
        edit(&mut session, "+ /content/n nt:unstructured &mix:referenceable p=x").unwrap();
        session
    };
    let (mut ann, mut bob) = (make("ann"), make("bob"));
    let root = ann.commit("first", ONE).unwrap();
    assert_eq!(bob.commit("second", ONE + TWO).unwrap(), root, "nothing is left to do");
    let snapshot = bob.snapshot().unwrap();
    assert_eq!(text(&snapshot, "/content/f", "jcr:createdBy").unwrap(), "ann");
    let mut cid = make("cid");
    edit(&mut cid, "= /content/n p=y").unwrap();
    assert!(cid.commit("third", ONE).is_ok(), "a change of what is there, not a node of its own");
}

#[test]
fn people_do_not_set_what_is_protected() {
    let repository = repository();
    let lines = ["+ /content/p cq:Page", "+ /content/n nt:unstructured &mix:referenceable"];
    let snapshot = commit(&repository, &lines, ONE).unwrap();
    let refused = |at: &str, name: &str| {
        let protection = snapshot.property_protection(&path(at)).unwrap();
        let result = protection.check_settable(name, &Property::text("x"));
        violations(result.map(|()| snapshot.clone()))
    };
    assert_eq!(
        refused("/content/p", "jcr:createdBy"),
        ["ConstraintViolation /content/p jcr:createdBy"]
    );
    // Whatever is set: a list of texts would not fit either.
    assert_eq!(
        refused("/content/p", "jcr:created"),
        ["ConstraintViolation /content/p jcr:created"]
    );
    assert_eq!(refused("/content/n", "jcr:uuid"), ["ConstraintViolation /content/n jcr:uuid"]);
    for (at, name) in [
        ("/content/n", "jcr:created"),
        ("/content/n", "title"),
        ("/content/p", "jcr:primaryType"),
        ("/content/none", "jcr:uuid"),
    ] {
        assert_eq!(refused(at, name), [""; 0], "{at} {name}");
    }
}

#[test]
fn siblings_of_one_name_are_refused() {
    let repository = repository();
    let mut session = repository.session("bob").unwrap();
    let mut tree = Subtree::new("a", "nt:unstructured");
    tree.children =
        vec![Subtree::new("b", "nt:unstructured"), Subtree::new("b", "nt:unstructured")].into();
    assert!(matches!(
        session.put_node(&path("/content/a"), tree),
        Err(Error::InvalidName { reason, .. }) if reason.contains("sibling")
    ));
    assert!(NodePath::new("/content/a/b[2]").is_err());
}
