//! GraphQL on the content fragments of WKND: answers, rights, limits, and what a change flushes.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tympan_content::{
    JcrDate, NodePath, Property, Repository, Session, Snapshot, Subtree, Value, ValueType, Viewer,
};
use tympan_content_fragments::{GraphqlRequest, PersistedQuery};
use tympan_content_package::{ContentPackage, PackageLimits};
use tympan_render::ledger::{
    AffectedUrls, DependencyLedger, LedgerOptions, MIGRATIONS, RecordOutcome, ResponseFingerprint,
};
use tympan_render::{
    ReadRecording, RenderOptions, RenderOutcome, RenderRequest, RenderResponse, RenderResponseBody,
    Renderer,
};
use tympan_testkit::StateDatabase;
use tympan_testkit::fixture_folder::fixture_folder;

const SITE: &str = "wknd-shared";
const ADVENTURES: &str = "/content/dam/wknd-shared/en/adventures";
const AUTHORS: &str = "/content/dam/wknd-shared/en/contributors";
const ARTICLES: &str = "/content/dam/wknd-shared/en/magazine";

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

fn edit(repository: &Repository, change: impl FnOnce(&mut Session)) {
    let mut session = repository.session("test").unwrap();
    change(&mut session);
    session.commit("test", SystemTime::UNIX_EPOCH).unwrap();
}

/// Installs the fragments of WKND; nothing without fixtures.
fn wknd() -> Option<Repository> {
    let package = fixture_folder("packages")?.join("wknd-shared.fragments.zip");
    let repository = Repository::in_memory().unwrap();
    let mut package = ContentPackage::open(&package, &PackageLimits::default()).unwrap();
    edit(&repository, |session| drop(package.install(session, &mut |_| {}).unwrap()));
    repository.install_initial_policies(SystemTime::UNIX_EPOCH).unwrap();
    Some(repository)
}

/// A site that is asked.
struct Fragments {
    repository: Repository,
    renderer: Renderer,
}

impl Fragments {
    fn new() -> Option<Self> {
        let repository = wknd()?;
        let renderer = Renderer::new(&repository, RenderOptions::default());
        Some(Self { repository, renderer })
    }

    fn snapshot(&self) -> Snapshot {
        self.repository.snapshot().unwrap().as_viewer(&Viewer::anonymous())
    }

    fn run(&self, query: &str, variables: Json) -> Json {
        let request = GraphqlRequest {
            query: query.to_owned(),
            variables: match variables {
                Json::Object(variables) => variables,
                _ => serde_json::Map::new(),
            },
            ..GraphqlRequest::default()
        };
        self.renderer.run_graphql(&self.snapshot(), SITE, &request).unwrap().body
    }

    #[track_caller]
    fn check(&self, query: &str, expected: Json) {
        let expected = Json::from_iter([("data".to_owned(), expected)]);
        assert_eq!(self.run(query, json!({})), expected, "{query}");
    }

    /// Checks which adventures a list has, by their slugs.
    #[track_caller]
    fn check_slugs(&self, arguments: &str, expected: &[&str]) {
        let answer = self
            .run(&format!("{{ adventureList({arguments}) {{ items {{ slug }} }} }}"), json!({}));
        let items = answer["data"]["adventureList"]["items"].as_array();
        let items = items.unwrap_or_else(|| panic!("{arguments}: {answer}"));
        let slugs: Vec<&str> = items.iter().map(|item| item["slug"].as_str().unwrap()).collect();
        assert_eq!(slugs, expected, "{arguments}");
    }

    #[track_caller]
    fn check_refused(&self, query: &str, reason: &str) {
        let answer = self.run(query, json!({}));
        let message = answer["errors"][0]["message"].as_str().unwrap_or_default();
        assert!(message.contains(reason) && answer.get("data").is_none(), "{query:.80}: {answer}");
    }
}

#[test]
fn fragments_are_filtered() {
    let Some(site) = Fragments::new() else { return };
    let check = |filter: &str, expected: &[&str]| {
        site.check_slugs(&format!("filter: {filter}"), expected);
    };
    let surfing = ["bali-surf-camp", "surf-camp-costa-rica"];
    // Equality is the default.
    check(r#"{activity: {_expressions: [{value: "Surfing"}]}}"#, &surfing);
    check(r#"{activity: {_expressions: {value: "Surfing", _operator: EQUALS}}}"#, &surfing);
    check(r#"{activity: {_expressions: [{value: "surfing"}]}}"#, &[]);
    check(r#"{activity: {_expressions: [{value: "surfing", _ignoreCase: true}]}}"#, &surfing);
    check(
        r#"{adventureType: {_expressions: [{value: "Overnight Trip", _operator: EQUALS_NOT}]}}"#,
        &["beervana-portland", "gastronomic-marais-tour", "napa-wine-tasting"],
    );
    // Parts of texts.
    check(
        r#"{title: {_expressions: [{value: "Ski", _operator: CONTAINS}]}}"#,
        &["downhill-skiing-wyoming", "ski-touring-mount-blanc", "tahoe-skiing"],
    );
    check(
        r#"{title: {_expressions: [{value: "CAMP", _operator: CONTAINS, _ignoreCase: true}]}}"#,
        &["bali-surf-camp", "riverside-camping-australia", "surf-camp-costa-rica"],
    );
    check(
        r#"{slug: {_expressions: [{value: "c", _operator: STARTS_WITH}]}}"#,
        &[
            "climbing-new-zealand",
            "colorado-rock-climbing",
            "cycling-southern-utah",
            "cycling-tuscany",
        ],
    );
    check(
        r#"{slug: {_expressions: [{value: "i", _operator: CONTAINS_NOT}]}}"#,
        &["beervana-portland"],
    );
    check(
        r#"{description: {_expressions: [{value: "Surf Camp Costa Rica", _operator: CONTAINS}]}}"#,
        &["bali-surf-camp"],
    );
    // Numbers.
    check(
        r#"{price: {_expressions: [{value: 152.59, _operator: EQUAL}]}}"#,
        &["napa-wine-tasting"],
    );
    check(r#"{price: {_expressions: [{value: 150, _sensitiveness: 3}]}}"#, &["napa-wine-tasting"]);
    check(
        r#"{price: {_expressions: [{value: 4500, _operator: GREATER_EQUAL}]}}"#,
        &["bali-surf-camp", "cycling-tuscany", "west-coast-cycling"],
    );
    check(r#"{price: {_expressions: [{value: 4500, _operator: GREATER}]}}"#, &["bali-surf-camp"]);
    check(
        r#"{price: {_expressions: [{value: 300, _operator: LOWER}]}}"#,
        &["gastronomic-marais-tour", "napa-wine-tasting"],
    );
    check(
        r#"{price: {_expressions: [{value: 300, _operator: LOWER_EQUAL}]}}"#,
        &["beervana-portland", "gastronomic-marais-tour", "napa-wine-tasting"],
    );
    check(
        r#"{groupSize: {_expressions: [{value: 3, _operator: GREATER}, {value: 6, _operator: LOWER}]}}"#,
        &["cycling-tuscany", "downhill-skiing-wyoming", "ski-touring-mount-blanc"],
    );
    check(
        r#"{groupSize: {_logOp: OR, _expressions: [{value: 14}, {value: 12}]}}"#,
        &["cycling-southern-utah", "west-coast-cycling", "yosemite-backpacking"],
    );
    check(
        r#"{groupSize: {_expressions: [{value: 6, _operator: UNEQUAL}, {value: 8, _operator: UNEQUAL}, {value: 4, _operator: UNEQUAL}]}}"#,
        &[
            "climbing-new-zealand",
            "cycling-southern-utah",
            "west-coast-cycling",
            "whistler-mountain-biking",
            "yosemite-backpacking",
        ],
    );
    // Several fields: all of them, or any.
    check(
        r#"{activity: {_expressions: [{value: "Cycling"}]}, difficulty: {_expressions: [{value: "Advanced"}]}}"#,
        &["cycling-southern-utah", "whistler-mountain-biking"],
    );
    check(
        r#"{_logOp: OR, activity: {_expressions: [{value: "Camping"}]}, price: {_expressions: [{value: 95}]}}"#,
        &["gastronomic-marais-tour", "riverside-camping-australia", "yosemite-backpacking"],
    );
    check("{}", &site.all_slugs().iter().map(String::as_str).collect::<Vec<_>>());
    // Paths, variations and tags.
    check(
        &format!(
            r#"{{_path: {{_expressions: [{{value: "{ADVENTURES}/cycling", _operator: STARTS_WITH}}]}}}}"#
        ),
        &["cycling-southern-utah", "cycling-tuscany"],
    );
    check(r#"{_variation: {_expressions: [{value: "other"}]}}"#, &[]);
    check(
        r#"{_tags: {_expressions: [{value: "wknd-shared:season/winter", _operator: CONTAINS}]}}"#,
        &["downhill-skiing-wyoming", "ski-touring-mount-blanc", "tahoe-skiing"],
    );
    check(
        r#"{_tags: {_expressions: [{values: ["wknd-shared:activity/surfing", "wknd-shared:season/summer", "wknd-shared:region/apac"]}]}}"#,
        &["bali-surf-camp"],
    );
    check(
        &format!(
            r#"{{primaryImage: {{_expressions: [{{value: "{ADVENTURES}/bali", _operator: STARTS_WITH}}]}}}}"#
        ),
        &["bali-surf-camp"],
    );
}

impl Fragments {
    /// The slugs of all adventures in the order of their paths, from the content.
    fn all_slugs(&self) -> Vec<String> {
        let mut all: Vec<(NodePath, String)> = Vec::new();
        for document in self.repository.snapshot().unwrap().document_nodes() {
            let document = document.unwrap();
            let master = document.find_descendant("jcr:content/data/master").unwrap();
            let model = document.find_descendant("jcr:content/data").unwrap();
            if model.is_some_and(|data| {
                data.text("cq:model").is_some_and(|model| model.ends_with("/adventure"))
            }) {
                all.push((document.path().clone(), master.unwrap().text("slug").unwrap()));
            }
        }
        all.sort();
        all.into_iter().map(|(_, slug)| slug).collect()
    }
}

#[test]
fn lists_are_ordered_and_paged() {
    let Some(site) = Fragments::new() else { return };
    site.check_slugs("limit: 3", &["bali-surf-camp", "beervana-portland", "climbing-new-zealand"]);
    site.check_slugs("offset: 14", &["whistler-mountain-biking", "yosemite-backpacking"]);
    site.check_slugs("offset: 2, limit: 1", &["climbing-new-zealand"]);
    site.check_slugs("offset: 99, limit: 1", &[]);
    site.check_slugs("limit: 0", &[]);
    site.check_slugs(
        r#"sort: "price", limit: 3"#,
        &["gastronomic-marais-tour", "napa-wine-tasting", "beervana-portland"],
    );
    site.check_slugs(
        r#"sort: "price DESC", limit: 3"#,
        &["bali-surf-camp", "cycling-tuscany", "west-coast-cycling"],
    );
    site.check_slugs(
        r#"sort: "activity, title DESC", limit: 3"#,
        &["yosemite-backpacking", "riverside-camping-australia", "whistler-mountain-biking"],
    );
    site.check_slugs(r#"_locale: "en", limit: 1"#, &["bali-surf-camp"]);
    site.check_slugs(r#"_locale: "de""#, &[]);
    site.check(
        r#"{ articleList(sort: "authorFragment.lastName, slug", limit: 2) { items { slug authorFragment { lastName } } } }"#,
        json!({ "articleList": { "items": [
            { "slug": "san-diego-surfspots", "authorFragment": { "lastName": "Barr" } },
            { "slug": "fly-fishing-amazon", "authorFragment": { "lastName": "Hammer" } },
        ] } }),
    );
    // Cursors: those that AEM has for the same content.
    let first = "ODg1MmMyMmEtZTAzMy00MTNjLThiMzMtZGQyMzY5ZTNjN2M1";
    let answer = site.run(
        "query ($after: String) { adventurePaginated(first: 2, after: $after) { edges { cursor node { slug } } \
         pageInfo { endCursor hasNextPage hasPreviousPage } } }",
        json!({ "after": first }),
    );
    let page = &answer["data"]["adventurePaginated"];
    // By identifier: those that follow 8852c22a are 9e1e9835 and a3409558.
    assert_eq!(page["edges"][0]["node"]["slug"], "beervana-portland", "{answer}");
    assert_eq!(page["edges"][1]["node"]["slug"], "colorado-rock-climbing");
    assert_eq!(page["pageInfo"]["endCursor"], page["edges"][1]["cursor"]);
    assert_eq!(page["pageInfo"]["hasNextPage"], true);
    assert_eq!(page["pageInfo"]["hasPreviousPage"], true);
    // All pages together have each fragment once, in any order.
    for sort in ["", r#", sort: "activity DESC, price""#] {
        let (mut seen, mut after) = (Vec::new(), Json::Null);
        loop {
            let query = format!(
                "query ($after: String) {{ adventurePaginated(first: 5, after: $after{sort}) {{ edges {{ node {{ slug }} }} \
                 pageInfo {{ endCursor hasNextPage }} }} }}"
            );
            let answer = site.run(&query, json!({ "after": after }));
            let page = &answer["data"]["adventurePaginated"];
            let edges = page["edges"].as_array().unwrap_or_else(|| panic!("{answer}"));
            seen.extend(edges.iter().map(|edge| edge["node"]["slug"].as_str().unwrap().to_owned()));
            if page["pageInfo"]["hasNextPage"] == false {
                break;
            }
            after = page["pageInfo"]["endCursor"].clone();
        }
        assert_eq!(seen.len(), 16, "{sort}");
        assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 16, "{sort}");
    }
}

#[test]
fn a_fragment_shows_its_fields() {
    let Some(site) = Fragments::new() else { return };
    let bali = format!("{ADVENTURES}/bali-surf-camp/bali-surf-camp");
    let one = |fields: &str| {
        format!("{{ adventureByPath(_path: \"{bali}\") {{ item {{ {fields} }} }} }}")
    };
    let item = |item: Json| json!({ "adventureByPath": { "item": item } });
    site.check(
        &one("_path _variation _variations title groupSize price tripLength"),
        item(json!({
            "_path": bali, "_variation": "master", "_variations": [], "title": "Bali Surf Camp",
            "groupSize": 6, "price": 5000.0, "tripLength": "6 Days",
        })),
    );
    site.check(
        &one("_id _tags _model { _path title } __typename"),
        item(json!({
            "_id": "1b726c3f-926f-4c2e-8bca-31d84e507ad8",
            "_tags": ["wknd-shared:activity/surfing", "wknd-shared:season/summer", "wknd-shared:region/apac"],
            "_model": { "_path": "/conf/wknd-shared/settings/dam/cfm/models/adventure", "title": "Adventure" },
            "__typename": "AdventureModel",
        })),
    );
    site.check(
        &one("_metadata { stringMetadata { name value } stringArrayMetadata { name value } intMetadata { name } }"),
        item(json!({ "_metadata": {
            "stringMetadata": [{ "name": "description", "value": "" }, { "name": "title", "value": "Bali Surf Camp" }],
            "stringArrayMetadata": [{ "name": "cq:tags", "value": [
                "wknd-shared:activity/surfing", "wknd-shared:season/summer", "wknd-shared:region/apac",
            ] }],
            "intMetadata": [],
        } })),
    );
    site.check(
        &one("gearList { html plaintext markdown json }"),
        item(json!({ "gearList": {
            "html": "<ul>\n<li>Surf shorts</li>\n<li>Boards, beach chairs and towels will be provided</li>\n</ul>\n",
            "plaintext": "Surf shorts\nBoards, beach chairs and towels will be provided",
            "markdown": "* Surf shorts\n* Boards, beach chairs and towels will be provided",
            "json": [{ "nodeType": "unordered-list", "content": [
                { "nodeType": "list-item", "content": [{ "nodeType": "text", "value": "Surf shorts" }] },
                { "nodeType": "list-item", "content": [
                    { "nodeType": "text", "value": "Boards, beach chairs and towels will be provided" },
                ] },
            ] }],
        } })),
    );
    let image = format!("{ADVENTURES}/bali-surf-camp/adobestock-175749320.jpg");
    site.check(
        &one("primaryImage { ... on ImageRef { _path _publishUrl type mimeType width height } ... on PageRef { title } }"),
        item(json!({ "primaryImage": {
            "_path": image, "_publishUrl": image, "type": "image", "mimeType": "image/jpeg", "width": 1600, "height": 899,
        } })),
    );
    let camp = format!("{ADVENTURES}/surf-camp-in-costa-rica/surf-camp-costa-rica");
    site.check(
        &one("description { _references { ... on AdventureModel { _path title } } }"),
        item(json!({ "description": { "_references": [{ "_path": camp, "title": "Surf Camp in Costa Rica" }] } })),
    );
    site.check(
        &one("_references { __typename ... on ImageRef { _path } ... on AdventureModel { slug } }"),
        item(json!({ "_references": [
            { "__typename": "AdventureModel", "slug": "surf-camp-costa-rica" },
            { "__typename": "ImageRef", "_path": image },
        ] })),
    );
    site.check(
        "{ adventureByPath(_path: \"/content/dam/none\") { item { title } } }",
        item(Json::Null),
    );
    // A fragment of another model.
    site.check(
        &format!("{{ articleByPath(_path: \"{bali}\") {{ item {{ title }} }} }}"),
        json!({ "articleByPath": { "item": null } }),
    );
}

#[test]
fn variations_references_and_directives() {
    let Some(site) = Fragments::new() else { return };
    let ian = format!("{AUTHORS}/ian-provo");
    site.check(
        &format!(r#"{{ authorByPath(_path: "{ian}") {{ item {{ firstName birthDay occupations _variation _variations }} }} }}"#),
        json!({ "authorByPath": { "item": {
            "firstName": "Ian", "birthDay": "1988-09-26T14:09:00.000-07:00", "occupations": ["Influencer", "Photographer"],
            "_variation": "master", "_variations": ["another"],
        } } }),
    );
    site.check(
        &format!(r#"{{ authorByPath(_path: "{ian}", variation: "another") {{ item {{ firstName occupations birthDay _variation }} }} }}"#),
        json!({ "authorByPath": { "item": {
            "firstName": "IanX", "occupations": ["Influencer"], "birthDay": null, "_variation": "another",
        } } }),
    );
    // A variation that is not there shows the master.
    site.check(
        r#"{ authorList(variation: "another", limit: 2) { items { firstName _variation } } }"#,
        json!({ "authorList": { "items": [
            { "firstName": "IanX", "_variation": "another" },
            { "firstName": "Jacob", "_variation": "master" },
        ] } }),
    );
    site.check(
        r#"{ authorList(variation: "another", filter: {_variation: {_expressions: {value: "another"}}}) { items { firstName } } }"#,
        json!({ "authorList": { "items": [{ "firstName": "IanX" }] } }),
    );
    site.check(
        r#"{ authorList(includeVariations: true, filter: {lastName: {_expressions: [{value: "Provo"}]}}) { items { firstName } } }"#,
        json!({ "authorList": { "items": [{ "firstName": "Ian" }, { "firstName": "IanX" }] } }),
    );
    site.check(
        r#"{ authorList(filter: {lastName: {_logOp: OR, _expressions: [{value: "SJÖ", _operator: CONTAINS, _ignoreCase: true}, {value: "Provo"}]}}) { items { lastName } } }"#,
        json!({ "authorList": { "items": [{ "lastName": "Provo" }, { "lastName": "Sjöberg" }] } }),
    );
    let occupations = |expression: &str| {
        let query = format!(
            "{{ authorList(filter: {{occupations: {{_expressions: [{expression}]}}}}) {{ items {{ lastName }} }} }}"
        );
        let answer = site.run(&query, json!({}));
        let items = answer["data"]["authorList"]["items"].as_array().cloned();
        let items = items.unwrap_or_else(|| panic!("{answer}"));
        items.iter().map(|item| item["lastName"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        occupations(r#"{value: "Photographer", _apply: AT_LEAST_ONCE}"#),
        ["Provo", "Selveraj", "Sjöberg", "Roswells"]
    );
    assert_eq!(occupations(r#"{values: ["Photographer", "Surfer"]}"#), ["Selveraj"]);
    assert_eq!(
        occupations(r#"{value: "er", _operator: CONTAINS, _apply: ALL}"#),
        ["Provo", "Wester", "Hammer", "Selveraj", "Sjöberg"]
    );
    assert_eq!(
        occupations(r#"{value: "Artist", _apply: INSTANCES, _instances: 1}"#),
        ["Barr", "Roswells"]
    );
    assert_eq!(
        occupations(r#"{value: "Writer", _operator: EQUALS_NOT, _apply: ALL_OR_EMPTY}"#).len(),
        5
    );
    let birth = |expression: &str| {
        site.run(
            &format!("{{ authorList(filter: {{birthDay: {{_expressions: [{expression}]}}}}) {{ items {{ firstName }} }} }}"),
            json!({}),
        )["data"]["authorList"]["items"]
            .clone()
    };
    assert_eq!(
        birth(r#"{value: "1990-01-01", _operator: BEFORE}"#),
        json!([{ "firstName": "Ian" }])
    );
    assert_eq!(birth(r#"{value: "1990-01-01", _operator: AFTER}"#), json!([]));
    assert_eq!(
        birth(r#"{value: "1988-09-26T21:09:00.000Z", _operator: AT_OR_AFTER}"#),
        json!([{ "firstName": "Ian" }])
    );
    // References to fragments, two levels deep, and filters that follow them.
    site.check(
        r#"{ articleList(filter: {authorFragment: {lastName: {_expressions: [{value: "Sjöberg"}]}}}, sort: "slug") {
             items { slug authorFragment { firstName profilePicture { ... on ImageRef { _path } } } } } }"#,
        json!({ "articleList": { "items": [
            { "slug": "ski-touring", "authorFragment": { "firstName": "Sofia",
              "profilePicture": { "_path": format!("{AUTHORS}/ayo-ogunseinde-237739.jpg") } } },
            { "slug": "western-australia-by-camper-van", "authorFragment": { "firstName": "Sofia",
              "profilePicture": { "_path": format!("{AUTHORS}/ayo-ogunseinde-237739.jpg") } } },
        ] } }),
    );
    // The variation also holds for referenced fragments.
    site.check(
        &format!(r#"{{ articleByPath(_path: "{ARTICLES}/alaska-adventure/alaskan-adventures", variation: "another") {{
             item {{ _variation authorFragment {{ firstName _variation }} }} }} }}"#),
        json!({ "articleByPath": { "item": { "_variation": "master",
            "authorFragment": { "firstName": "IanX", "_variation": "another" } } } }),
    );
    // Variables, directives, aliases, named fragments.
    let query = "query Trips($with: Boolean!, $limit: Int = 1) { \
        first: adventureList(limit: $limit) { items { ...trip } } \
        last: adventureList(offset: 15) { items { ...trip title } } } \
        fragment trip on AdventureModel { slug price @include(if: $with) }";
    let answer = site.run(query, json!({ "with": false }));
    assert_eq!(
        answer["data"],
        json!({ "first": { "items": [{ "slug": "bali-surf-camp" }] },
            "last": { "items": [{ "slug": "yosemite-backpacking", "title": "Yosemite Backpacking" }] } }),
        "{answer}"
    );
    let answer = site.run(query, json!({ "with": true, "limit": 0 }));
    assert_eq!(answer["data"]["first"]["items"], json!([]));
    assert_eq!(answer["data"]["last"]["items"][0]["price"], 1500.0);
}

#[test]
fn hostile_queries_are_refused_before_they_run() {
    let Some(site) = Fragments::new() else { return };
    site.check_refused("{ adventureList", "expected");
    site.check_refused("{ none { a } }", "Unknown field");
    site.check_refused("mutation { a }", "only queries");
    site.check_refused("{ __schema { types { name } } }", "authors only");
    site.check_refused("{ adventureList(offset: -1) { items { slug } } }", "negative");
    // Depth, by references that lead back.
    let deep = (0..12).fold("slug".to_owned(), |inner, _| {
        format!("_references {{ ... on AdventureModel {{ {inner} }} }}")
    });
    let answer =
        site.run(&format!("{{ adventureList(limit: 1) {{ items {{ {deep} }} }} }}"), json!({}));
    assert!(answer["errors"][0]["message"].as_str().unwrap().contains("at most"), "{answer}");
    site.check_refused(&format!("{{ a {} }}", "{ a ".repeat(5000)), "nested brackets");
    // Many aliases, of lists and of fields.
    let aliases: String = (0..1000)
        .map(|number| format!("a{number}: adventureList {{ items {{ slug title price }} }} "))
        .collect();
    site.check_refused(&format!("{{ {aliases} }}"), "costs");
    // Fragments that contain themselves, or double with each level.
    site.check_refused(
        "{ adventureList { items { ...a } } } fragment a on AdventureModel { ...b } fragment b on AdventureModel { ...a }",
        "contains itself",
    );
    let mut doubling =
        "{ adventureList { items { ...f0 } } } fragment f30 on AdventureModel { slug } ".to_owned();
    for level in 0..30 {
        let next = level + 1;
        doubling
            .push_str(&format!("fragment f{level} on AdventureModel {{ ...f{next} ...f{next} }} "));
    }
    site.check_refused(&doubling, "costs");
    // Long texts.
    site.check_refused(
        &format!("{{ adventureList {{ items {{ slug }} }} }} #{}", "x".repeat(70_000)),
        "longer",
    );
    let directives = "@include(if: true) ".repeat(100);
    site.check_refused(
        &format!("{{ adventureList {{ items {{ slug {directives} }} }} }}"),
        "directives",
    );
}

#[test]
fn a_huge_list_needs_a_limit() {
    let Some(site) = Fragments::new() else { return };
    edit(&site.repository, |session| {
        session.put_node(&path("/content/dam/many"), Subtree::new("many", "sling:Folder")).unwrap();
        for number in 0..2000 {
            let at = path(&format!("/content/dam/many/{number:04}"));
            session.put_node(&at, author(at.name(), "Many", None)).unwrap();
        }
    });
    let fields = "firstName lastName occupations biography { html markdown plaintext } _path _tags _model { title } \
        a: firstName b: firstName c: firstName d: firstName e: firstName f: firstName g: firstName h: firstName \
        i: firstName j: firstName k: firstName l: firstName m: firstName n: firstName o: firstName";
    site.check_refused(&format!("{{ authorList {{ items {{ {fields} }} }} }}"), "limit");
    let answer =
        site.run(&format!("{{ authorList(limit: 20) {{ items {{ {fields} }} }} }}"), json!({}));
    assert_eq!(answer["data"]["authorList"]["items"].as_array().unwrap().len(), 20);
    // The index follows what is added, changed and removed.
    let count = |filter: &str| {
        let answer = site.run(&format!("{{ authorList(filter: {{lastName: {{_expressions: [{filter}]}}}}) {{ items {{ _path }} }} }}"), json!({}));
        answer["data"]["authorList"]["items"].as_array().unwrap().len()
    };
    assert_eq!(count(r#"{value: "Many"}"#), 2000);
    edit(&site.repository, |session| {
        session
            .set_property(
                &path("/content/dam/many/0007/jcr:content/data/master"),
                "lastName",
                "Few".into(),
            )
            .unwrap();
        session.remove_node(&path("/content/dam/many/0008")).unwrap();
        let at = path("/content/dam/many/more");
        session.put_node(&at, author("more", "Many", None)).unwrap();
    });
    assert_eq!((count(r#"{value: "Many"}"#), count(r#"{value: "Few"}"#)), (1999, 1));
}

/// A fragment of the model of authors.
fn author(name: &str, last_name: &str, reference: Option<&str>) -> Subtree {
    let mut master = Subtree::new("master", "nt:unstructured")
        .with_property("firstName", "One")
        .with_property("lastName", last_name);
    if let Some(reference) = reference {
        master = master.with_property("profilePicture", reference);
    }
    let data = Subtree::new("data", "nt:unstructured")
        .with_property("cq:model", "/conf/wknd-shared/settings/dam/cfm/models/author")
        .with_child(master);
    let content = Subtree::new("jcr:content", "dam:AssetContent").with_child(data);
    Subtree::new(name, "dam:Asset").with_child(content)
}

#[test]
fn what_a_user_may_not_read_is_absent() {
    let Some(site) = Fragments::new() else { return };
    let names = |query: &str| site.run(query, json!({}));
    let all = names("{ authorList { items { lastName } } }");
    assert_eq!(all["data"]["authorList"]["items"].as_array().unwrap().len(), 7);
    edit(&site.repository, |session| {
        let read = Property::parse_list(ValueType::Name, ["jcr:read"]).unwrap();
        let entry = Subtree::new("entry", "rep:DenyACE")
            .with_property("rep:principalName", "everyone")
            .with_property("rep:privileges", read);
        let policy = Subtree::new("rep:policy", "rep:ACL").with_child(entry);
        session.put_node(&path(&format!("{AUTHORS}/ian-provo/rep:policy")), policy).unwrap();
    });
    let rest = names("{ authorList { items { lastName } } }");
    assert_eq!(rest["data"]["authorList"]["items"].as_array().unwrap().len(), 6, "{rest}");
    assert!(!rest.to_string().contains("Provo"));
    let one = names(&format!(
        "{{ authorByPath(_path: \"{AUTHORS}/ian-provo\") {{ item {{ lastName }} }} }}"
    ));
    assert_eq!(one["data"]["authorByPath"]["item"], Json::Null);
    // Nor does a reference, a filter or an order lead there.
    let article = names(&format!(
        "{{ articleByPath(_path: \"{ARTICLES}/alaska-adventure/alaskan-adventures\") {{ item {{ slug authorFragment {{ lastName }} }} }} }}"
    ));
    assert_eq!(article["data"]["articleByPath"]["item"]["authorFragment"], Json::Null);
    let filtered = names(
        r#"{ articleList(filter: {authorFragment: {lastName: {_expressions: [{value: "Provo"}]}}}) { items { slug } } }"#,
    );
    assert_eq!(filtered["data"]["articleList"]["items"], json!([]));
}

/// A publisher with its ledger.
struct Publisher {
    site: Fragments,
    ledger: DependencyLedger,
    _folder: TempDir,
}

impl Publisher {
    async fn new() -> Option<Self> {
        let site = Fragments::new()?;
        let folder = tempfile::tempdir().unwrap();
        let state = StateDatabase::open(&folder.path().join("state.db")).await.unwrap();
        state.migrate_tables("render", MIGRATIONS).await.unwrap();
        let options = LedgerOptions {
            pool: state.pool().clone(),
            folder: folder.path().to_owned(),
            publisher: "one".to_owned(),
            boot: "first".to_owned(),
            renderer_fingerprint: "the same".to_owned(),
            max_urls: 1000,
        };
        let ledger = DependencyLedger::open(options, SystemTime::UNIX_EPOCH).await.unwrap();
        ledger.acknowledge(&ledger.pending_flushes());
        Some(Self { site, ledger, _folder: folder })
    }

    /// Stores a query, and returns the address at which it is run.
    fn persist(&self, name: &str, body: &str) -> String {
        let query = PersistedQuery::parse(body).unwrap();
        edit(&self.site.repository, |session| {
            let blob = session.put_blobs(&[query.query.as_bytes()]).unwrap()[0];
            let now = JcrDate::from_system_time(SystemTime::UNIX_EPOCH);
            let at =
                path("/conf/wknd-shared/settings/graphql/persistentQueries").child(name).unwrap();
            session.put_node(&at, query.to_subtree(name, Value::Binary(blob), now)).unwrap();
        });
        format!("/graphql/execute.json/{SITE}/{name}")
    }

    fn render(&self, url: &str) -> (RenderResponse, Option<ResponseFingerprint>) {
        let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(url) };
        let response = self.site.renderer.render(&self.site.snapshot(), &request);
        let look = ResponseFingerprint::from_response(&response, &request);
        (response, look)
    }

    fn body(&self, url: &str) -> Json {
        match self.render(url).0.body {
            RenderResponseBody::Bytes(bytes) => serde_json::from_slice(&bytes).unwrap(),
            body => panic!("{body:?}"),
        }
    }

    #[track_caller]
    fn visit(&self, url: &str) {
        let when = (self.ledger.begin_rendering(), self.site.snapshot().visible_root_id());
        let (response, look) = self.render(url);
        assert_eq!(response.outcome, RenderOutcome::Ok, "{url}");
        let outcome = self.ledger.record_answer(when, url, &response, look);
        assert_eq!(outcome, RecordOutcome::Recorded, "{url}");
    }

    /// Edits, and returns the addresses that are flushed if none is compared, and if all are.
    fn change(&self, change: impl FnOnce(&mut Session)) -> AffectedUrls {
        let before = self.site.snapshot();
        edit(&self.site.repository, change);
        let draw = |state: &Snapshot, request: &RenderRequest<'_>| {
            Some(self.site.renderer.render(state, request))
        };
        let affected =
            self.ledger.visibly_affected_urls(&before, &self.site.snapshot(), &draw).unwrap();
        self.ledger.acknowledge(&affected);
        affected
    }
}

#[tokio::test]
async fn a_change_of_a_fragment_flushes_exactly_the_answers_that_show_it() {
    let Some(publisher) = Publisher::new().await else { return };
    let surfing = publisher.persist(
        "surfing",
        r#"{ adventureList(filter: {activity: {_expressions: [{value: "Surfing"}]}}) { items { title price } } }"#,
    );
    let titles = publisher.persist("titles", "{ adventureList { items { title } } }");
    let trip = publisher.persist(
        "trip",
        "query ($at: ID!) { adventureByPath(_path: $at) { item { title primaryImage { ... on ImageRef { width } } } } }",
    );
    let bali = format!(
        "{trip};at={}",
        format!("{ADVENTURES}/bali-surf-camp/bali-surf-camp").replace('/', "%2F")
    );
    let napa = format!("{trip}%3Bat%3D{ADVENTURES}/napa-wine-tasting/napa-wine-tasting");
    let articles = publisher
        .persist("articles", "{ articleList { items { slug authorFragment { lastName } } } }");
    assert_eq!(publisher.body(&bali)["data"]["adventureByPath"]["item"]["title"], "Bali Surf Camp");
    assert_eq!(
        publisher.body(&napa)["data"]["adventureByPath"]["item"]["title"],
        "Napa Wine Tasting"
    );
    let all = [&surfing, &titles, &bali, &napa, &articles];
    let flushed_by = |path_text: &str, name: &str, value: Property| {
        all.iter().for_each(|url| publisher.visit(url));
        publisher
            .change(|session| session.set_property(&path(path_text), name, value).unwrap())
            .urls
    };
    let urls = |urls: &[&String]| {
        let mut urls: Vec<String> = urls.iter().map(|url| (*url).clone()).collect();
        urls.sort();
        urls
    };
    let master = |name: &str| format!("{ADVENTURES}/{name}/{name}/jcr:content/data/master");
    let text = |text: &str| Property::text(text);
    let number = |number: f64| Property::Single(Value::Double(number));
    let bali_master = master("bali-surf-camp");
    assert_eq!(flushed_by(&bali_master, "price", number(1.0)), urls(&[&surfing]));
    assert_eq!(flushed_by(&bali_master, "title", text("Bali")), urls(&[&surfing, &titles, &bali]));
    assert_eq!(flushed_by(&bali_master, "tripLength", text("9 Days")), urls(&[]));
    let napa_master = master("napa-wine-tasting");
    assert_eq!(flushed_by(&napa_master, "price", number(2.0)), urls(&[]));
    assert_eq!(flushed_by(&napa_master, "activity", text("Surfing")), urls(&[&surfing]));
    assert_eq!(flushed_by(&napa_master, "activity", text("Social")), urls(&[&surfing]));
    let image =
        format!("{ADVENTURES}/bali-surf-camp/adobestock-175749320.jpg/jcr:content/metadata");
    let width = Property::Single(Value::Long(7));
    assert_eq!(flushed_by(&image, "tiff:ImageWidth", width), urls(&[&bali]));
    let author = format!("{AUTHORS}/jake-hammer/jcr:content/data/master");
    assert_eq!(flushed_by(&author, "lastName", text("Ham")), urls(&[&articles]));
    assert_eq!(flushed_by(&author, "firstName", text("J")), urls(&[]));
    // Another query text, and a model without a field that answers show.
    all.iter().for_each(|url| publisher.visit(url));
    let before = publisher.site.snapshot();
    publisher.persist("titles", "{ adventureList { items { slug } } }");
    let draw = |state: &Snapshot, request: &RenderRequest<'_>| {
        Some(publisher.site.renderer.render(state, request))
    };
    let affected =
        publisher.ledger.visibly_affected_urls(&before, &publisher.site.snapshot(), &draw).unwrap();
    assert_eq!(affected.urls, urls(&[&titles]));
    publisher.ledger.acknowledge(&affected);
    // A new fragment changes the lists that have it.
    all.iter().for_each(|url| publisher.visit(url));
    let affected = publisher.change(|session| {
        let copy = session
            .node(&path(&format!("{ADVENTURES}/bali-surf-camp/bali-surf-camp")))
            .unwrap()
            .unwrap();
        let mut copy = copy.read_subtree().unwrap();
        copy.properties.remove("jcr:uuid");
        session.put_node(&path(&format!("{ADVENTURES}/bali-surf-camp/second")), copy).unwrap();
    });
    assert_eq!(affected.urls, urls(&[&surfing, &titles]));
}

#[tokio::test]
async fn addresses_of_persisted_queries() {
    let Some(publisher) = Publisher::new().await else { return };
    let list = publisher.persist(
        "by-price",
        r#"{"query": "query ($least: Float, $limit: Int = 16) { adventureList(limit: $limit, filter: {price: {_expressions: [{value: $least, _operator: GREATER_EQUAL}]}}) { items { slug } } }",
            "cache-control": {"max-age": 300}, "surrogate-control": {"max-age": 600, "stale-if-error": 10}}"#,
    );
    let header = |url: &str, name: &str| {
        let response = publisher.render(url).0;
        let header = response.headers.iter().find(|(own, _)| *own == name);
        header.map(|(_, value)| value.clone())
    };
    let items = |url: &str| publisher.body(url)["data"]["adventureList"]["items"].clone();
    assert_eq!(items(&format!("{list};least=5000")), json!([{ "slug": "bali-surf-camp" }]));
    assert_eq!(
        items(&format!("{list}%3Bleast%3D4500.0%3Blimit%3D1")),
        json!([{ "slug": "bali-surf-camp" }])
    );
    assert_eq!(
        header(&format!("{list};least=1"), "cache-control").as_deref(),
        Some("max-age=300, s-maxage=600, stale-if-error=10")
    );
    // Answers without data, and addresses that any number of others equal, are not for caches.
    for url in [format!("{list};least=cheap"), format!("{list};least=1;none=2")] {
        assert_eq!(header(&url, "cache-control").as_deref(), Some("no-store"), "{url}");
        assert_eq!(header(&url, "dispatcher").as_deref(), Some("no-cache"), "{url}");
    }
    assert!(
        publisher.body(&format!("{list};least=cheap"))["errors"][0]["message"]
            .as_str()
            .unwrap()
            .contains("`least`")
    );
    for url in ["none", "", "..", "by-price/x", "%ff", "%2e%2e%2fx"] {
        let url = format!("/graphql/execute.json/{SITE}/{url}");
        assert_eq!(publisher.render(&url).0.outcome, RenderOutcome::NotFound, "{url}");
    }
    for url in [
        "/graphql/execute.json/none/by-price",
        "/graphql/execute.json/wknd-shared",
        "/graphql/execute.json/",
    ] {
        assert_eq!(publisher.render(url).0.outcome, RenderOutcome::NotFound, "{url}");
    }
}

#[test]
fn a_package_of_fragments_comes_out_as_it_went_in() {
    let Some(repository) = wknd() else { return };
    let snapshot = repository.snapshot().unwrap();
    let before = snapshot.read_subtree(&path("/content/dam/wknd-shared")).unwrap().unwrap();
    let models = snapshot.read_subtree(&path("/conf/wknd-shared")).unwrap().unwrap();
    // Installed again, nothing differs: the package updates what it has.
    let package = fixture_folder("packages").unwrap().join("wknd-shared.fragments.zip");
    let mut package = ContentPackage::open(&package, &PackageLimits::default()).unwrap();
    edit(&repository, |session| drop(package.install(session, &mut |_| {}).unwrap()));
    let snapshot = repository.snapshot().unwrap();
    let after = snapshot.read_subtree(&path("/content/dam/wknd-shared")).unwrap().unwrap();
    let differences = before.differences(&after);
    assert!(differences.is_empty(), "{differences:?}");
    let again = snapshot.read_subtree(&path("/conf/wknd-shared")).unwrap().unwrap();
    let differences = models.differences(&again);
    assert!(differences.is_empty(), "{differences:?}");
}
