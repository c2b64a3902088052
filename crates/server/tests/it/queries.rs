//! Queries over HTTP: AEM's form and the JSON API.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::blocking_instance::BlockingInstance;

/// An author with five pages, of which one lies below another, among many other nodes.
fn author_with_pages() -> BlockingInstance {
    let author = BlockingInstance::author();
    let others: serde_json::Map<String, Value> =
        (0..200).map(|number| (format!("node{number}"), json!({}))).collect();
    author.done("PUT", "/api/v1/nodes?path=/content/others", &json!({ "children": others }));
    for page in ["home", "home/news", "about", "contact", "search"] {
        let form = format!(
            "jcr:primaryType=cq:Page&jcr:content/jcr:primaryType=cq:PageContent&jcr:content/jcr:title={page}"
        );
        let saved = author.post(&format!("/content/{page}"), &form);
        assert_eq!(saved.status, 201, "{}", saved.text());
    }
    author
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Returns the number of pages, as AEM's form counts them.
fn count_pages(author: &BlockingInstance) -> u64 {
    let built = author.get("/bin/querybuilder.json?path=/content&type=cq:Page&p.limit=1");
    built["total"].as_u64().unwrap()
}

#[test]
fn the_form_of_aem_counts_and_shows_hits() {
    let author = author_with_pages();
    let built =
        author.get("/bin/querybuilder.json?path=/content&type=cq:Page&p.limit=2&orderby=path");
    assert_eq!(
        (&built["success"], &built["results"], &built["more"]),
        (&true.into(), &2.into(), &true.into())
    );
    let total = built["total"].as_u64().unwrap();
    assert!(
        total > 2 && built["hits"][0]["path"].as_str().unwrap().starts_with("/content/"),
        "{built}"
    );
    let all = author.get(
        "/bin/querybuilder.json?path=/content&type=cq:Page&p.limit=-1&p.hits=selective&p.properties=jcr:content/jcr:title",
    );
    assert_eq!(all["results"], total);
    assert!(
        all["hits"].as_array().unwrap().iter().all(|hit| hit["jcr:content/jcr:title"].is_string()),
        "{all}"
    );
    let nobody = author.send("GET", "/bin/querybuilder.json?type=cq:Page", &[], b"");
    assert_eq!(nobody.status, 401);
}

#[test]
fn results_come_page_by_page_and_plans_are_explained() {
    let author = author_with_pages();
    let total = count_pages(&author);
    let statement =
        encode("SELECT [jcr:path] FROM [cq:Page] AS p WHERE ISDESCENDANTNODE(p, '/content')");
    let (mut count, mut cursor) = (0, String::new());
    loop {
        let page = author.get(&format!("/api/v1/query?statement={statement}&limit=3{cursor}"));
        count += page["rows"].as_array().unwrap().len();
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(count as u64, total);
    let plan = author.get(&format!("/api/v1/query?statement={statement}&explain=analyze"));
    assert_eq!(
        (plan["steps"][0]["index"].as_str(), plan["measured"]["rows"].as_u64()),
        (Some("node type cq:Page"), Some(total))
    );
}

#[test]
fn a_wrong_statement_is_refused_with_its_column() {
    let author = BlockingInstance::author();
    let path = format!("/api/v1/query?statement={}", encode("SELECT * FORM [cq:Page]"));
    let wrong = author.ask("admin", "GET", &path, &Value::Null);
    assert_eq!(wrong.status, 400);
    assert!(wrong.text().contains("column 10: expected `FROM`, not `FORM`"), "{}", wrong.text());
}

#[test]
fn statements_that_no_index_serves_are_listed() {
    let author = BlockingInstance::author();
    author.get(&format!(
        "/api/v1/query?statement={}",
        encode("SELECT * FROM [nt:base] WHERE [no index] = 'x'")
    ));
    let slow = author.get("/api/v1/query/slow");
    let statements = slow["statements"].as_array().unwrap();
    assert!(
        statements.iter().any(|one| one["statement"].as_str().unwrap().contains("[no index] = $v")),
        "{slow}"
    );
}

#[test]
fn words_of_a_new_page_are_found_at_once() {
    let author = author_with_pages();
    let form = "jcr:primaryType=cq:Page&jcr:content/jcr:primaryType=cq:PageContent\
                &jcr:content/jcr:title=Quokkas&jcr:content/text/jcr:primaryType=nt:unstructured\
                &jcr:content/text/text=A+zyzzyva+sleeps";
    let saved = author.post("/content/home/quokkas", form);
    assert!(matches!(saved.status, 200 | 201), "{}", saved.text());
    let built = author.get("/bin/querybuilder.json?path=/content&type=cq:Page&fulltext=zyzzyva");
    assert_eq!(built["hits"][0]["path"], "/content/home/quokkas", "{built}");
    for (node_type, below) in [
        ("cq:Page", ""),
        ("cq:PageContent", "/jcr:content"),
        ("nt:unstructured", "/jcr:content/text"),
    ] {
        let statement = format!(
            "SELECT [jcr:path] FROM [{node_type}] AS a \
             WHERE ISDESCENDANTNODE(a, '/content') AND CONTAINS(a.*, 'zyzzyva')"
        );
        let page = author.get(&format!("/api/v1/query?statement={}", encode(&statement)));
        let path = format!("/content/home/quokkas{below}");
        let rows = page["rows"].as_array().unwrap();
        assert!(rows.iter().any(|row| row["path"] == path.as_str()), "{page}");
    }
}
