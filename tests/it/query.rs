//! Queries over HTTP and on the command line.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::program::{Demo, get, run, run_ok};

#[test]
fn queries_page_explain_and_refuse() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("demo");
    let demo = Demo::start(&home);
    let ask = |path: &str| -> Value {
        let answer = demo.get_as_admin(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        serde_json::from_str(&answer.text()).unwrap()
    };
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();

    // AEM's form.
    let built = ask("/bin/querybuilder.json?path=/content&type=cq:Page&p.limit=2&orderby=path");
    assert_eq!(
        (&built["success"], &built["results"], &built["more"]),
        (&true.into(), &2.into(), &true.into())
    );
    let total = built["total"].as_u64().unwrap();
    assert!(
        total > 2 && built["hits"][0]["path"].as_str().unwrap().starts_with("/content/"),
        "{built}"
    );
    let all = ask(
        "/bin/querybuilder.json?path=/content&type=cq:Page&p.limit=-1&p.hits=selective&p.properties=jcr:content/jcr:title",
    );
    assert_eq!(all["results"], total);
    assert!(
        all["hits"].as_array().unwrap().iter().all(|hit| hit["jcr:content/jcr:title"].is_string()),
        "{all}"
    );

    // The JSON API, page by page.
    let statement =
        encode("SELECT [jcr:path] FROM [cq:Page] AS p WHERE ISDESCENDANTNODE(p, '/content')");
    let (mut count, mut cursor) = (0, String::new());
    loop {
        let page = ask(&format!("/api/v1/query?statement={statement}&limit=3{cursor}"));
        count += page["rows"].as_array().unwrap().len();
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(count as u64, total);
    let plan = ask(&format!("/api/v1/query?statement={statement}&explain=analyze"));
    assert_eq!(
        (plan["steps"][0]["index"].as_str(), plan["measured"]["rows"].as_u64()),
        (Some("node type cq:Page"), Some(total))
    );

    let wrong = demo
        .get_as_admin(&format!("/api/v1/query?statement={}", encode("SELECT * FORM [cq:Page]")));
    assert_eq!(wrong.status, 400);
    assert!(wrong.text().contains("column 10: expected `FROM`, not `FORM`"), "{}", wrong.text());
    assert_eq!(get(demo.author, "/bin/querybuilder.json?type=cq:Page").status, 401);

    // What no index serves is listed.
    ask(&format!(
        "/api/v1/query?statement={}",
        encode("SELECT * FROM [nt:base] WHERE [no index] = 'x'")
    ));
    let slow = ask("/api/v1/query/slow");
    let statements = slow["statements"].as_array().unwrap();
    assert!(
        statements.iter().any(|one| one["statement"].as_str().unwrap().contains("[no index] = $v")),
        "{slow}"
    );
    assert!(demo.running.stop());

    let author = home.join("author");
    let author = author.to_str().unwrap();
    let status: Value =
        serde_json::from_str(&run_ok(&["index", "status", "--json", "--home", author])).unwrap();
    assert!(
        status["indexes"].as_array().unwrap().iter().all(|index| index["state"] == "ready"),
        "{status}"
    );
    let text = run_ok(&[
        "index",
        "explain",
        "SELECT * FROM [nt:base] WHERE ISSAMENODE('/content')",
        "--home",
        author,
    ]);
    assert!(text.contains("path, about 1 nodes"), "{text}");
    assert!(run_ok(&["index", "rebuild", "cqTags", "--home", author]).contains("1 maps built"));
    assert_eq!(run(&["index", "rebuild", "nope", "--home", author]).status.code(), Some(2));
    assert_eq!(run(&["index", "explain", "SELECT", "--home", author]).status.code(), Some(2));
}

#[test]
fn words_of_a_new_page_are_found_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(&dir.path().join("demo"));
    let form = "jcr:primaryType=cq:Page&jcr:content/jcr:primaryType=cq:PageContent\
                &jcr:content/jcr:title=Quokkas&jcr:content/text/jcr:primaryType=nt:unstructured\
                &jcr:content/text/text=A+zyzzyva+sleeps";
    let saved = demo.post("/content/wayfare/quokkas", form);
    assert!(matches!(saved.status, 200 | 201), "{}", saved.text());
    let ask = |path: &str| -> Value {
        let answer = demo.get_as_admin(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        serde_json::from_str(&answer.text()).unwrap()
    };
    let built = ask("/bin/querybuilder.json?path=/content&type=cq:Page&fulltext=zyzzyva");
    assert_eq!(built["hits"][0]["path"], "/content/wayfare/quokkas", "{built}");
    for (node_type, below) in [
        ("cq:Page", ""),
        ("cq:PageContent", "/jcr:content"),
        ("nt:unstructured", "/jcr:content/text"),
    ] {
        let statement = format!(
            "SELECT [jcr:path] FROM [{node_type}] AS a \
             WHERE ISDESCENDANTNODE(a, '/content') AND CONTAINS(a.*, 'zyzzyva')"
        );
        let statement = utf8_percent_encode(&statement, NON_ALPHANUMERIC).to_string();
        let page = ask(&format!("/api/v1/query?statement={statement}"));
        let path = format!("/content/wayfare/quokkas{below}");
        let rows = page["rows"].as_array().unwrap();
        assert!(rows.iter().any(|row| row["path"] == path.as_str()), "{page}");
    }
    assert!(demo.running.stop());
}
