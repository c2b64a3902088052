//! GraphQL at AEM's addresses: the endpoint of a site, and persisted queries on author and publisher.

use http::{Method, StatusCode};
use serde_json::json;
use tympan_server::InstanceRole;
use tympan_testkit::fixture_folder::fixture_folder;

use crate::support::TestInstance;

const ENDPOINT: &str = "/content/_cq_graphql/wknd-shared/endpoint.json";
const QUERY: &str = "{ adventureList(limit: 1) { items { slug } } }";

/// Starts an author with the fragments of WKND, and a publisher of the same content; `None` without fixtures.
async fn instances() -> Option<(TestInstance, TestInstance)> {
    let package = fixture_folder("packages")?.join("wknd-shared.fragments.zip");
    let author = TestInstance::author().await;
    let request = author.as_admin(Method::POST, "/api/v1/packages?install=true");
    let request = request.header("content-type", "application/zip");
    let reply = request.body(std::fs::read(package).unwrap()).send().await;
    assert!(reply.status.is_success(), "{reply:?}");
    let publish =
        TestInstance::start_on(author.repository.clone(), InstanceRole::Publish, |_| {}).await;
    Some((author, publish))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_endpoint_of_a_site_runs_queries() {
    let Some((author, publish)) = instances().await else { return };
    let expected =
        json!({ "data": { "adventureList": { "items": [{ "slug": "bali-surf-camp" }] } } });
    let body = json!({ "query": QUERY });
    for endpoint in [ENDPOINT, "/content/cq:graphql/wknd-shared/endpoint.json"] {
        let reply = author.as_admin(Method::POST, endpoint).json(&body).send().await;
        assert_eq!((reply.status, reply.json()), (StatusCode::OK, expected.clone()));
        let reply = publish.request(Method::POST, endpoint).json(&body).send().await;
        assert_eq!((reply.status, reply.json()), (StatusCode::OK, expected.clone()));
        assert_eq!(reply.header("dispatcher"), "no-cache");
        let query = "query=%7BadventureList(limit:1)%7Bitems%7Bslug%7D%7D%7D";
        let reply = publish.visit(&format!("{endpoint}?{query}")).await;
        assert_eq!((reply.status, reply.json()), (StatusCode::OK, expected.clone()));
    }
    // Variables, and the operation of several.
    let body = json!({
        "query": "query a { adventureList(limit: 0) { items { slug } } } \
                  query b($limit: Int) { adventureList(limit: $limit) { items { slug } } }",
        "operationName": "b", "variables": { "limit": 1 },
    });
    let reply = publish.request(Method::POST, ENDPOINT).json(&body).send().await;
    assert_eq!(reply.json(), expected);
    // The schema is for authors.
    let body = json!({ "query": "{ __schema { queryType { name } } }" });
    let reply = author.as_admin(Method::POST, ENDPOINT).json(&body).send().await;
    assert_eq!(
        reply.json(),
        json!({ "data": { "__schema": { "queryType": { "name": "QueryType" } } } })
    );
    let reply = publish.request(Method::POST, ENDPOINT).json(&body).send().await;
    assert!(reply.json().get("data").is_none(), "{reply:?}");
    // What is no query, and what would be too much.
    let status = async |body: &str| {
        publish.request(Method::POST, ENDPOINT).body(body.to_owned()).send().await.status
    };
    assert_eq!(status("[{\"query\": \"{a}\"}]").await, StatusCode::BAD_REQUEST);
    assert_eq!(status("{}").await, StatusCode::BAD_REQUEST);
    assert_eq!(status(&"x".repeat(600_000)).await, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(author.visit(ENDPOINT).await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test(flavor = "multi_thread")]
async fn persisted_queries_are_stored_listed_and_run() {
    let Some((author, publish)) = instances().await else { return };
    let persist = "/graphql/persist.json/wknd-shared/first";
    let run = "/graphql/execute.json/wknd-shared/first";
    assert_eq!(publish.visit(run).await.status, StatusCode::NOT_FOUND);
    let put = |body: &'static str| author.as_admin(Method::PUT, persist).body(body).send();
    let reply = put(QUERY).await;
    assert_eq!(reply.status, StatusCode::CREATED, "{reply:?}");
    let stored = "/conf/wknd-shared/settings/graphql/persistentQueries/first";
    assert_eq!(
        reply.json(),
        json!({ "action": "create", "configurationName": "wknd-shared", "name": "first",
            "shortPath": "/wknd-shared/first", "path": stored })
    );
    assert_eq!(author.property(stored, "sling:resourceType"), "String graphql/persistent/query");
    let reply = publish.visit(run).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(reply.header("content-type").split(';').next(), Some("application/json"));
    assert_eq!(reply.json()["data"]["adventureList"]["items"][0]["slug"], "bali-surf-camp");
    assert_eq!(author.get(run).await.json(), reply.json());
    // POST replaces what is there.
    let other = json!({ "query": "{ authorList(limit: 1) { items { lastName } } }", "cache-control": { "max-age": 5 } });
    let reply = author.as_admin(Method::POST, persist).json(&other).send().await;
    assert_eq!((reply.status, reply.json()["action"].clone()), (StatusCode::OK, json!("update")));
    let reply = publish.visit(run).await;
    assert_eq!(reply.json()["data"]["authorList"]["items"][0]["lastName"], "Provo");
    assert_eq!(reply.header("cache-control"), "max-age=5");
    let reply = author
        .as_admin(Method::POST, "/graphql/persist.json/wknd-shared/none")
        .json(&other)
        .send()
        .await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND);
    assert_eq!(put("{ adventureList").await.status, StatusCode::UNPROCESSABLE_ENTITY);
    let list = author.get("/graphql/list.json/wknd-shared").await.json();
    let queries = list[0]["queries"].as_array().unwrap();
    let first = queries.iter().find(|query| query["path"]["shortForm"] == "wknd-shared/first");
    assert_eq!(first.unwrap()["data"]["query"], other["query"]);
    // Who may not see the settings of a site finds none there; who may not change them stores nothing.
    author.user("powerless", &[]).await;
    author.user("writer", &["content-authors"]).await;
    for (user, status) in [("powerless", StatusCode::NOT_FOUND), ("writer", StatusCode::FORBIDDEN)]
    {
        let token = author.token_of(user).await;
        let request = author.request(Method::PUT, persist).bearer(&token).body(QUERY);
        assert_eq!(request.send().await.status, status, "{user}");
    }
}
