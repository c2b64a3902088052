//! Models with fields of every type, their values in answers, and what they do not allow.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};
use tympan_content::{JcrDate, NodePath, Property, Repository, Session, Subtree, Value, ValueType};
use tympan_content_fragments::{
    FieldType, FragmentIndexCache, GraphqlRequest, SiteModels, SiteSchemaCache, SnapshotContent,
    VariationRecord, validate_variation,
};

const MODELS: &str = "/conf/site/settings/dam/cfm/models";

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

fn edit(repository: &Repository, change: impl FnOnce(&mut Session)) {
    let mut session = repository.session("test").unwrap();
    change(&mut session);
    session.commit("test", SystemTime::UNIX_EPOCH).unwrap();
}

/// A field of a model: its name, `metaType`, `valueType`, and further properties.
fn field(name: &str, kind: &str, value: &str, more: &[(&str, &str)]) -> Subtree {
    let field = Subtree::new(format!("field-{name}"), "nt:unstructured")
        .with_property("name", name)
        .with_property("fieldLabel", &*format!("The {name}"))
        .with_property("metaType", kind)
        .with_property("valueType", value);
    more.iter().fold(field, |field, (name, value)| field.with_property(*name, *value))
}

fn constraints(values: &[(&str, &str)]) -> Subtree {
    let node = Subtree::new("granite:data", "nt:unstructured");
    values.iter().fold(node, |node, (name, value)| node.with_property(*name, *value))
}

fn model(name: &str, fields: Vec<Subtree>) -> Subtree {
    let nested =
        |name: &str, child: Subtree| Subtree::new(name, "nt:unstructured").with_child(child);
    let items =
        fields.into_iter().fold(Subtree::new("items", "nt:unstructured"), Subtree::with_child);
    let dialog = nested("model", nested("cq:dialog", nested("content", items)));
    let content = Subtree::new("jcr:content", "nt:unstructured")
        .with_property("jcr:title", "Every thing")
        .with_child(dialog);
    Subtree::new(name, "cq:Template").with_child(content)
}

fn fragment(name: &str, model: &str, master: Subtree) -> Subtree {
    let data = Subtree::new("data", "nt:unstructured")
        .with_property("cq:model", &*format!("{MODELS}/{model}"))
        .with_child(master);
    let content = Subtree::new("jcr:content", "dam:AssetContent").with_child(data);
    Subtree::new(name, "dam:Asset").with_child(content)
}

fn texts(values: &[&str]) -> Property {
    let values = values.iter().map(|value| Value::String((*value).to_owned())).collect();
    Property::List(ValueType::String, values)
}

fn date(text: &str) -> Property {
    Property::Single(Value::Date(JcrDate::parse(text).unwrap()))
}

/// A site with a model that has every type of field, one that is a draft, and a fragment.
fn site() -> Repository {
    let repository = Repository::in_memory().unwrap();
    let options = Subtree::new("optionsmultifield", "nt:unstructured")
        .with_child(Subtree::new("item0", "nt:unstructured").with_property("fieldValue", "red"))
        .with_child(Subtree::new("item1", "nt:unstructured").with_property("fieldValue", "blue"));
    let here = format!("{MODELS}/every-thing");
    let fields = vec![
        field("tab", "tab-placeholder", "", &[]),
        field(
            "line",
            "text-single",
            "string",
            &[("maxlength", "5"), ("required", "on"), ("unique", "true")],
        )
        .with_child(constraints(&[
            ("validationRegex", "^[a-z]+$"),
            ("customErrorMsg", "small letters"),
        ])),
        field("lines", "text-single", "string[]", &[]),
        field("body", "text-multi", "string", &[("default-mime-type", "text/x-markdown")]),
        field("count", "number", "long", &[("typeHint", "long")])
            .with_child(constraints(&[("number-min", "1"), ("number-max", "9")])),
        field("price", "number", "double", &[("typeHint", "double")]),
        field("open", "boolean", "boolean", &[]),
        field("day", "date", "calendar/date", &[("type", "date")]),
        field("hour", "date", "calendar/time", &[("type", "time")]),
        field("moment", "date", "calendar/datetime", &[("type", "datetime")]),
        field("color", "enumeration", "string", &[]).with_child(options),
        field("tagged", "tags", "string[]", &[]),
        field("page", "reference", "string/reference", &[]),
        field(
            "next",
            "fragment-reference",
            "string/content-fragment",
            &[("fragmentmodelreference", &here)],
        ),
        field(
            "all",
            "fragment-reference",
            "string/content-fragment[]",
            &[("fragmentmodelreference", &here)],
        ),
        field("data", "json", "string", &[]),
        field("no name", "text-single", "string", &[]),
        field("odd", "unheard-of", "string", &[]),
    ];
    let master = Subtree::new("master", "nt:unstructured")
        .with_property("line", "abc")
        .with_property("lines", texts(&["a", "b"]))
        .with_property("body", "*b*")
        .with_property("count", Property::Single(Value::Long(3)))
        .with_property("price", Property::Single(Value::Double(1.5)))
        .with_property("open", Property::Single(Value::Boolean(true)))
        .with_property("day", date("2024-02-29T00:00:00.000+01:00"))
        .with_property("hour", date("1970-01-01T09:30:00.000Z"))
        .with_property("moment", date("2024-02-29T10:00:00.000+01:00"))
        .with_property("color", "red")
        .with_property("tagged", texts(&["a:b", "a:c"]))
        .with_property("page", "/content/page")
        .with_property("next", "/content/dam/one")
        .with_property("all", texts(&["/content/dam/one", "/content/dam/none", "/content/page"]))
        .with_property("data", "{\"a\": [1, null]}");
    edit(&repository, |session| {
        for (at, kind) in [
            ("/conf", "sling:Folder"),
            ("/conf/site", "sling:Folder"),
            ("/conf/site/settings", "sling:Folder"),
            ("/conf/site/settings/dam", "sling:Folder"),
            ("/conf/site/settings/dam/cfm", "sling:Folder"),
            (MODELS, "sling:Folder"),
            ("/content", "sling:Folder"),
            ("/content/dam", "sling:Folder"),
        ] {
            session.put_node(&path(at), Subtree::new(path(at).name(), kind)).unwrap();
        }
        session.put_node(&path(&here), model("every-thing", fields)).unwrap();
        let mut draft = model("draft", vec![field("line", "text-single", "string", &[])]);
        let content = draft.child_mut("jcr:content").unwrap();
        content.properties.insert("status".to_owned(), "draft".into());
        session.put_node(&path(&format!("{MODELS}/draft")), draft).unwrap();
        session
            .put_node(&path("/content/dam/one"), fragment("one", "every-thing", master))
            .unwrap();
        let title =
            Subtree::new("jcr:content", "cq:PageContent").with_property("jcr:title", "Page");
        let page = Subtree::new("page", "cq:Page").with_child(title);
        session.put_node(&path("/content/page"), page).unwrap();
    });
    repository
}

fn run(repository: &Repository, query: &str, allows_introspection: bool) -> Json {
    let snapshot = repository.snapshot().unwrap();
    let schema = SiteSchemaCache::default().schema_at(&snapshot, "site").unwrap();
    let content = SnapshotContent::new(snapshot, Arc::new(FragmentIndexCache::default()));
    let request = GraphqlRequest {
        query: query.to_owned(),
        allows_introspection,
        ..GraphqlRequest::default()
    };
    schema.execute(&request, Arc::new(content)).body
}

#[test]
fn every_type_of_field_has_its_value() {
    let repository = site();
    let answer = run(
        &repository,
        "{ everyThingList { items { line lines body { html markdown } count price open day hour moment color tagged \
           page { ... on PageRef { _path title _publishUrl } } next { line } all { line } data \
           _metadata { stringMetadata { name } } } } }",
        false,
    );
    assert_eq!(
        answer["data"]["everyThingList"]["items"][0],
        json!({
            "line": "abc", "lines": ["a", "b"], "body": { "html": "<p><em>b</em></p>\n", "markdown": "*b*" },
            "count": 3, "price": 1.5, "open": true, "day": "2024-02-29", "hour": "09:30:00",
            "moment": "2024-02-29T10:00:00.000+01:00", "color": "red", "tagged": ["a:b", "a:c"],
            "page": { "_path": "/content/page", "title": "Page", "_publishUrl": "/content/page.html" },
            "next": { "line": "abc" }, "all": [{ "line": "abc" }], "data": { "a": [1, null] },
            "_metadata": { "stringMetadata": [] },
        }),
        "{answer}"
    );
    let filtered = |filter: &str| {
        let answer = run(
            &repository,
            &format!("{{ everyThingList(filter: {filter}) {{ items {{ line }} }} }}"),
            false,
        );
        let items = answer["data"]["everyThingList"]["items"].as_array().map(Vec::len);
        items.unwrap_or_else(|| panic!("{filter}: {answer}"))
    };
    assert_eq!(filtered("{open: {_expressions: [{value: true}]}}"), 1);
    assert_eq!(filtered("{open: {_expressions: [{value: false}]}}"), 0);
    assert_eq!(filtered(r#"{day: {_expressions: [{value: "2024-03-01", _operator: BEFORE}]}}"#), 1);
    assert_eq!(filtered(r#"{next: {count: {_expressions: [{value: 3}]}}}"#), 1);
    assert_eq!(
        filtered(
            r#"{all: {_apply: AT_LEAST_ONCE, _match: {line: {_expressions: [{value: "abc"}]}}}}"#
        ),
        1
    );
    assert_eq!(
        filtered(r#"{all: {_apply: ALL, _match: {line: {_expressions: [{value: "abc"}]}}}}"#),
        0
    );
    assert_eq!(filtered(r#"{next: {next: {next: {line: {_expressions: [{value: "abcd"}]}}}}}"#), 0);
    // The index holds no long texts.
    let long = format!("{} end", "x".repeat(5000));
    edit(&repository, |session| {
        let master = path("/content/dam/one/jcr:content/data/master");
        session.set_property(&master, "body", (&*long).into()).unwrap();
    });
    assert_eq!(filtered(r#"{body: {_expressions: [{value: "x end", _operator: CONTAINS}]}}"#), 1);
    assert_eq!(filtered(r#"{body: {_expressions: [{value: "y end", _operator: CONTAINS}]}}"#), 0);
    assert_eq!(filtered(r#"{color: {_expressions: [{value: null, _operator: EQUALS_NOT}]}}"#), 1);
}

#[test]
fn the_schema_has_the_names_of_aem() {
    let repository = site();
    let models = SiteModels::read(&repository.snapshot().unwrap(), "site").unwrap();
    let [model] = &*models.models else { panic!("a draft is no model: {models:?}") };
    assert_eq!(
        (&*model.query_name, &*model.type_name, &*model.title),
        ("everyThing", "EveryThingModel", "Every thing")
    );
    assert_eq!(model.fields.len(), 15, "tabs, unknown types and names that are none are left out");
    let color = FieldType::Enumeration { options: vec!["red".to_owned(), "blue".to_owned()] };
    assert_eq!(model.field("color").unwrap().field_type, color);
    let answer = run(
        &repository,
        "{ __schema { queryType { name fields { name } } types { name } } }",
        true,
    );
    let names = |list: &Json| -> Vec<String> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let schema = &answer["data"]["__schema"];
    assert_eq!(
        names(&schema["queryType"]["fields"]),
        ["everyThingList", "everyThingPaginated", "everyThingByPath"]
    );
    let types = names(&schema["types"]);
    for name in [
        "EveryThingModel",
        "EveryThingModelFilter",
        "EveryThingModelArrayFilter",
        "EveryThingModelResult",
        "EveryThingModelResults",
        "EveryThingModelConnection",
        "EveryThingModelEdge",
        "Reference",
        "ImageRef",
        "MultiFormatString",
        "TypedMetaData",
        "StringFilterExpression",
        "ArrayMode",
        "LogOp",
    ] {
        assert!(types.iter().any(|own| own == name), "{name}");
    }
    let refused = run(&repository, "{ __schema { types { name } } }", false);
    assert!(refused.get("data").is_none(), "{refused}");
}

#[test]
fn values_that_a_model_does_not_allow_are_named() {
    let repository = site();
    let models = SiteModels::read(&repository.snapshot().unwrap(), "site").unwrap();
    let check = |name: &str, value: Property, expected: Option<&str>| {
        let mut variation = Subtree::new("master", "nt:unstructured").with_property("line", "abc");
        variation.properties.insert(name.to_owned(), value);
        let variation = VariationRecord::from_subtree(&variation);
        let taken = |_: &str, value: &Value| &*value.to_text() == "taken";
        let violations = validate_variation(&models.models[0], &variation, taken);
        let messages: Vec<&str> = violations.iter().map(|violation| &*violation.message).collect();
        assert_eq!(messages, expected.into_iter().collect::<Vec<_>>(), "{name}");
    };
    let text = |text: &str| Property::text(text);
    check("line", text("abc"), None);
    check("line", text(""), Some("`The line` needs a value"));
    check("line", text("abcdef"), Some("`The line` takes at most 5 characters"));
    check("line", text("ABC"), Some("small letters"));
    check("line", text("taken"), Some("another fragment has the same `The line`"));
    check("line", texts(&["a", "b"]), Some("`The line` has 2 values, but takes one"));
    check("lines", texts(&["a", "b"]), None);
    check("count", Property::Single(Value::Long(9)), None);
    check(
        "count",
        Property::Single(Value::Long(10)),
        Some("`The count` takes a number from 1 to 9, not `10`"),
    );
    check("count", text("x"), Some("`The count` takes a whole number, not `x`"));
    check("price", text("x"), Some("`The price` takes a number, not `x`"));
    check("open", text("maybe"), Some("`The open` takes `true` or `false`, not `maybe`"));
    check("day", text("soon"), Some("`The day` takes a date, not `soon`"));
    check("color", text("green"), Some("`The color` takes one of its options, not `green`"));
    check("page", text("x"), Some("`The page` takes a path, not `x`"));
    check("data", text("{"), Some("`The data` takes JSON, not `{`"));
}
