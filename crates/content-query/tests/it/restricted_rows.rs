//! Queries of viewers who may not read everything.

use tympan_content::{Property, Repository, Subtree, Value, ValueType, Viewer};
use tympan_content_query::{QueryEngine, QueryRequest, parse_sql2};

use crate::test_session::{commit, path};

#[test]
fn a_property_that_may_not_be_read_finds_no_row() {
    const UUID: &str = "11111111-1111-4111-8111-111111111111";
    let repository = Repository::in_memory().unwrap();
    assert!(repository.install_initial_policies(std::time::SystemTime::UNIX_EPOCH).unwrap());
    let names = |names: &[&str]| Property::parse_list(ValueType::Name, names.iter().copied());
    let mut session = repository.session("system").unwrap();
    session.accounts().add_user("bob", "hash").unwrap();
    let restrictions = Subtree::new("rep:restrictions", "rep:Restrictions")
        .with_property("rep:itemNames", names(&["hidden"]).unwrap());
    let entry = Subtree::new("deny", "rep:DenyACE")
        .with_property("rep:principalName", Property::text("bob"))
        .with_property("rep:privileges", names(&["rep:readProperties"]).unwrap())
        .with_child(restrictions);
    let page = |name: &str, content: Subtree| Subtree::new(name, "cq:Page").with_child(content);
    let target = Subtree::new("jcr:content", "nt:unstructured")
        .with_property("jcr:mixinTypes", names(&["mix:referenceable"]).unwrap())
        .with_property("jcr:uuid", UUID);
    let source = Subtree::new("jcr:content", "nt:unstructured")
        .with_property("hidden", Property::Single(Value::Reference(UUID.into())));
    let site = Subtree::new("content", "sling:OrderedFolder")
        .with_child(page("target", target))
        .with_child(page("source", source));
    session.put_node(&path("/content"), site).unwrap();
    commit(&mut session);
    let policy = Subtree::new("rep:policy", "rep:ACL").with_child(entry);
    session.put_node(&path("/content/source/rep:policy"), policy).unwrap();
    session.mark_as_received();
    commit(&mut session);
    let count_rows = |user: Option<&str>| {
        let snapshot = repository.snapshot().unwrap();
        let seen = match user {
            Some(user) => snapshot.as_viewer(&Viewer::of_user(Some(user))),
            None => snapshot,
        };
        let statement = format!("SELECT * FROM [nt:base] WHERE [hidden] = '{UUID}'");
        let request = QueryRequest::new(parse_sql2(&statement).unwrap());
        QueryEngine::default().query_page(&seen, &request).unwrap().rows.len()
    };
    assert_eq!(count_rows(None), 1);
    assert_eq!(count_rows(Some("bob")), 0);
}
