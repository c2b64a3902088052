//! Requests that cost much are refused before they do, by who asks.

use std::fmt::Write as _;
use std::time::SystemTime;

use axum::body::Body;
use bytes::Bytes;
use http::Method;
use serde_json::{Value as Json, json};
use tympan_content::{Property, RevisionDetails, Subtree, ValueType};
use tympan_content_package::{AuditStamp, PackageFilter, PackageId, PackageSession};
use tympan_server::{InstanceRole, QueryBudgets};

use crate::support::{FormPart, TestInstance, path, zipped};

const QUERIES: &[&str] = &[
    "/bin/querybuilder.json?path=/content&type=nt:unstructured",
    "/api/v1/query?statement=SELECT%20*%20FROM%20%5Bnt:unstructured%5D",
    "/api/v1/search?text=word",
    "/api/v1/suggest?prefix=w",
    "/api/v1/spellcheck?text=w",
];

/// Makes so many nodes below `/content`, each with a property `a` of the same value.
fn fill(instance: &TestInstance, count: usize) {
    instance.edit(|session| {
        let mut folder = Subtree::new("many", "nt:unstructured");
        for number in 0..count {
            folder.put_child(
                Subtree::new(format!("n{number}"), "nt:unstructured").with_property("a", "same"),
            );
        }
        session.put_node(&path("/content/many"), folder).unwrap();
    });
}

async fn publisher(change: impl FnOnce(&mut QueryBudgets)) -> TestInstance {
    TestInstance::start(InstanceRole::Publish, |options| change(&mut options.query_budgets)).await
}

#[tokio::test]
async fn a_publisher_answers_no_queries_of_visitors_unless_the_site_opens_them() {
    let closed = TestInstance::publish().await;
    let open = publisher(|budgets| budgets.allows_visitors = true).await;
    let token = closed.user("ann", &[]).await;
    for target in QUERIES {
        assert_eq!(closed.visit(target).await.status, 403, "{target}");
        assert_eq!(open.visit(target).await.status, 200, "{target}");
        let member = closed.request(Method::GET, target).bearer(&token).send().await;
        assert_eq!(member.status, 200, "{target}");
    }
    for instance in [&closed, &open] {
        let form = instance.request(Method::POST, "/bin/querybuilder.json");
        let reply = form.form(&[("path", "/content")]).send().await;
        assert_eq!(reply.status.is_success(), std::ptr::eq(instance, &raw const open), "{reply:?}");
    }
}

#[tokio::test]
async fn a_query_of_a_visitor_has_a_smaller_budget_than_one_of_a_user() {
    let instance = publisher(|budgets| {
        budgets.allows_visitors = true;
        budgets.visitors.max_rows_read = 100;
        budgets.users.max_rows_read = 5_000;
    })
    .await;
    let token = instance.user("ann", &[]).await;
    fill(&instance, 50);
    let ask = async |statement: &str| {
        let encoded =
            percent_encoding::utf8_percent_encode(statement, percent_encoding::NON_ALPHANUMERIC);
        let target = format!("/api/v1/query?limit=10000&statement={encoded}");
        let visitor = instance.visit(&target).await;
        let user = instance.request(Method::GET, &target).bearer(&token).send().await;
        (visitor, user, instance.get(&target).await)
    };
    // A few rows are for everybody.
    let (visitor, user, administrator) = ask("SELECT * FROM [nt:unstructured]").await;
    assert_eq!([visitor.status, user.status, administrator.status], [200; 3], "{visitor:?}");
    // A join of everything with everything is for those who may cost something.
    let join =
        "SELECT * FROM [nt:unstructured] AS x INNER JOIN [nt:unstructured] AS y ON x.[a] = y.[a]";
    let (visitor, user, administrator) = ask(join).await;
    assert_eq!([user.status, administrator.status], [200; 2], "{user:?}");
    let (_, refused, _) =
        ask(&format!("{join} INNER JOIN [nt:unstructured] AS z ON y.[a] = z.[a]")).await;
    for refused in [visitor, refused] {
        assert_eq!(refused.status, 422, "{refused:?}");
        assert!(refused.text().contains("max_rows_read"), "{refused:?}");
    }
}

#[tokio::test]
async fn the_nodes_of_hits_are_counted_together() {
    let instance = publisher(|budgets| budgets.allows_visitors = true).await;
    fill(&instance, 6_000);
    let target = "/bin/querybuilder.json?path=/content&path.self=true&nodename=many&p.hits=full&p.nodedepth=1";
    let visitor = instance.visit(target).await;
    assert_eq!(visitor.status, 422, "{visitor:?}");
    assert_eq!(instance.get(target).await.status, 200);
}

#[tokio::test]
async fn the_headers_of_a_part_of_a_form_come_to_an_end() {
    let author = TestInstance::author().await;
    let head = "--b\r\nContent-Disposition: form-data; name=\"./x\"\r\nX-Long: ";
    let send = async |pieces: Vec<Bytes>| {
        let pieces = futures_util::stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>));
        let request = author.as_admin(Method::POST, "/content/n");
        let request = request.header("content-type", "multipart/form-data; boundary=b");
        request.body(Body::from_stream(pieces)).send().await
    };
    let piece = Bytes::from(vec![b'x'; 8 * 1024]);
    // A header that goes on and on is refused, whoever waits for its end.
    let endless =
        std::iter::once(Bytes::from(head)).chain(std::iter::repeat_n(piece.clone(), 1_000));
    let reply = send(endless.collect()).await;
    assert_eq!(reply.status, 413, "{reply:?}");
    assert!(reply.text().contains("bytes of headers"), "{reply:?}");
    // So is what comes before the first part.
    assert_eq!(send(std::iter::repeat_n(piece.clone(), 1_000).collect()).await.status, 413);
    // A header of an honest length, and a long text and file behind it, are not.
    let text = Bytes::from(vec![b'y'; 64 * 1024]);
    let part = |name: &str, file: &str| {
        Bytes::from(format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n"))
    };
    let end = || Bytes::from("\r\n");
    let pieces = vec![
        part("./x", ""),
        text.clone(),
        text.clone(),
        end(),
        part("./empty", "; filename=\"\""),
        text.clone(),
        text.clone(),
        end(),
        part("./f", "; filename=\"f.bin\""),
        text.clone(),
        text.clone(),
        end(),
        Bytes::from("--b--\r\n"),
    ];
    let reply = send(pieces).await;
    assert!(reply.status.is_success(), "{reply:?}");
    assert_eq!(author.property("/content/n", "x").len(), "String ".len() + 2 * text.len());
    assert_eq!(author.get("/content/n/f").await.body.len(), 2 * text.len());
}

/// A package whose filter covers `/content/many` and that brings an empty node there.
fn emptying_package() -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let files = [
        (
            "META-INF/vault/filter.xml",
            "<workspaceFilter version=\"1.0\"><filter root=\"/content/many\"/></workspaceFilter>",
        ),
        (
            "jcr_root/content/many/.content.xml",
            "<jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" \
             xmlns:nt=\"http://www.jcp.org/jcr/nt/1.0\" jcr:primaryType=\"nt:unstructured\"/>",
        ),
    ];
    for (name, text) in files {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut zip, text.as_bytes()).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[tokio::test]
async fn a_preview_of_a_package_compares_a_bounded_number_of_nodes() {
    let author = TestInstance::start(InstanceRole::Author, |options| {
        options.query_budgets.users.max_rows_in_memory = 200;
    })
    .await;
    let token = author.user("ann", &["content-authors"]).await;
    let package = emptying_package();
    let preview = async || {
        let request = author.request(Method::POST, "/api/v1/packages/diff").bearer(&token);
        request
            .header("content-type", "application/octet-stream")
            .body(package.clone())
            .send()
            .await
    };
    fill(&author, 100);
    assert_eq!(preview().await.status, 200);
    fill(&author, 300);
    let refused = preview().await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.text().contains("too many to compare"), "{refused:?}");
}

#[tokio::test]
async fn a_built_package_holds_a_bounded_number_of_nodes() {
    let author = TestInstance::start(InstanceRole::Author, |options| {
        options.query_budgets.users.max_rows_in_memory = 200;
    })
    .await;
    let token = author.user("ann", &[]).await;
    let filter = "<workspaceFilter version=\"1.0\"><filter root=\"/content\"/></workspaceFilter>";
    let put_folders = |folder: &str| {
        author.edit(|session| {
            let mut tree = Subtree::new("", "sling:Folder");
            (0..150).for_each(|number| {
                tree.put_child(Subtree::new(format!("f{number}"), "sling:Folder"));
            });
            session.put_node(&path(folder), tree).unwrap();
        });
    };
    let build = async |token: &str| {
        let request = author.request(Method::POST, "/api/v1/packages/build?id=g:n:1");
        request.bearer(token).header("content-type", "text/plain").body(filter).send().await
    };
    put_folders("/content/some");
    assert_eq!(build(&token).await.status, 200);
    put_folders("/content/more");
    let refused = build(&token).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.text().contains("more than 200 nodes"), "{refused:?}");
    let admin = author.token_of("admin").await;
    assert_eq!(build(&admin).await.status, 200);
    // A stored package that a user may write is built within the same limits.
    author.edit(|session| {
        let stamp = AuditStamp { user: "admin".to_owned(), time: SystemTime::UNIX_EPOCH };
        let id = PackageId::parse("g:n:1");
        let filter = PackageFilter::parse("filter.xml", filter.as_bytes()).unwrap();
        PackageSession::new(session).create(&id, &filter, &stamp).unwrap();
        let all = Property::parse_list(ValueType::Name, ["jcr:all"]).unwrap();
        let entry = Subtree::new("allow", "rep:GrantACE")
            .with_property("rep:principalName", "ann")
            .with_property("rep:privileges", all);
        let policy = Subtree::new("rep:policy", "rep:ACL").with_child(entry);
        session.put_node(&path("/etc/packages/rep:policy"), policy).unwrap();
    });
    for (token, is_built) in [(&token, false), (&admin, true)] {
        let target = "/crx/packmgr/service/.json/etc/packages/g/n-1.zip";
        let request = author.request(Method::POST, target).bearer(token);
        let reply = request.form(&[("cmd", "build")]).send().await;
        let answer: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(answer["success"], is_built, "{answer}");
        let is_limited = answer["msg"].as_str().unwrap().contains("more than 200 nodes");
        assert_eq!(is_limited, !is_built, "{answer}");
    }
}

#[tokio::test]
async fn a_comparison_of_a_branch_reads_a_bounded_number_of_nodes() {
    let author = TestInstance::start(InstanceRole::Author, |options| {
        options.query_budgets.users.max_rows_read = 100;
        options.query_budgets.users.max_rows_in_memory = 20;
    })
    .await;
    let token = author.user("ann", &[]).await;
    let closed = Subtree::new("rep:policy", "rep:ACL").with_child(
        Subtree::new("deny", "rep:DenyACE")
            .with_property("rep:principalName", "everyone")
            .with_property(
                "rep:privileges",
                Property::parse_list(ValueType::Name, ["jcr:read"]).unwrap(),
            ),
    );
    author.edit(|session| {
        let folder = || Subtree::new("", "sling:Folder");
        session.put_node(&path("/content/closed"), folder().with_child(closed.clone())).unwrap();
        session.put_node(&path("/content/open"), folder()).unwrap();
    });
    let revising = || RevisionDetails { user: "admin", message: "m", time: SystemTime::now() };
    author.repository.create_branch("work", revising()).unwrap();
    let work = author.repository.open_branch("work").unwrap();
    let put_folders = |parent: &str, count: usize| {
        let mut session = work.session("system").unwrap();
        for number in 0..count {
            let at = path(&format!("/content/{parent}/f{number}"));
            session.put_node(&at, Subtree::new("", "sling:Folder")).unwrap();
        }
        session.commit("work", SystemTime::now()).unwrap();
    };
    let compare = async |token: &str, more: &str| {
        let target = format!("/api/v1/branches/diff?name=work{more}");
        author.request(Method::GET, &target).bearer(token).send().await
    };
    put_folders("open", 30);
    let listed = |reply: crate::support::Reply| {
        let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        (body["changes"].as_array().unwrap().len(), body["isComplete"] == true)
    };
    assert_eq!(listed(compare(&token, "").await), (30, true));
    assert_eq!(listed(compare(&token, "&details=true").await), (20, false));
    // What is hidden is not listed, but read.
    put_folders("closed", 101);
    let refused = compare(&token, "").await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.text().contains("it has read 100 nodes"), "{refused:?}");
    assert_eq!(listed(compare(&token, "&path=/content/open").await), (30, true));
    assert_eq!(listed(compare(&token, "&path=/content/open/f1").await), (1, true));
    let admin = author.token_of("admin").await;
    assert_eq!(listed(compare(&admin, "").await), (131, true));
}

#[tokio::test]
async fn a_form_activates_a_bounded_number_of_nodes() {
    let author = TestInstance::author().await;
    author.edit(|session| {
        let mut folder = Subtree::new("", "sling:Folder");
        (0..1_001).for_each(|number| {
            folder.put_child(Subtree::new(format!("f{number}"), "sling:Folder"));
        });
        session.put_node(&path("/content/many"), folder).unwrap();
    });
    for action in ["activate", "deactivate"] {
        let form = [(":operation", action), (":applyTo", "/content/many/*")];
        let refused = author.try_post("/content", &form).await;
        assert_eq!(refused.status, 400, "{refused:?}");
        assert!(refused.text().contains("at most 1000"), "{refused:?}");
    }
}

#[tokio::test]
async fn what_walks_a_site_has_the_budget_of_a_query() {
    let author = TestInstance::start(InstanceRole::Author, |options| {
        options.query_budgets.users.max_rows_in_memory = 20;
        options.query_budgets.users.max_rows_read = 40;
    })
    .await;
    let (ann, admin) = (author.user("ann", &[]).await, author.token_of("admin").await);
    let put_folders = |folder: &str| {
        author.edit(|session| {
            let mut tree = Subtree::new("", "sling:Folder");
            (0..50).for_each(|number| {
                tree.put_child(Subtree::new(format!("f{number}"), "sling:Folder"));
            });
            session.put_node(&path(folder), tree).unwrap();
        });
    };
    let targets = [
        "/api/v1/references?path=/content/some&deep=true",
        "/api/v1/replication/companions?path=/content/some&deep=true",
        "/api/v1/assets/duplicates?path=/content/some",
    ];
    author.edit(|session| {
        session.put_node(&path("/content/some"), Subtree::new("", "sling:Folder")).unwrap();
    });
    let status = async |target: &str, token: &str| {
        author.request(Method::GET, target).bearer(token).send().await.status.as_u16()
    };
    for target in targets {
        assert_eq!(status(target, &ann).await, 200, "{target}");
    }
    put_folders("/content/some");
    for target in targets {
        assert_eq!(status(target, &ann).await, 422, "{target}");
        assert_eq!(status(target, &admin).await, 200, "{target}");
    }
    assert_eq!(status("/api/v1/references?path=/content/some", &ann).await, 200);
}

/// Takes minutes if each check of a property reads the node.
#[tokio::test]
async fn a_node_of_many_properties_is_read_once_to_check_them() {
    let author = TestInstance::author().await;
    author.edit(|session| {
        session.put_node(&path("/content/dam"), Subtree::new("", "sling:Folder")).unwrap();
    });
    let token = author.user("ann", &["dam-users"]).await;
    let numbers = 0..20_000;
    let properties = |value: &str| -> serde_json::Value {
        let properties = numbers.clone().map(|number| (format!("p{number}"), value.into()));
        let properties: serde_json::Map<_, _> = properties.collect();
        serde_json::json!({ "properties": properties })
    };
    let node = "/api/v1/nodes?path=/content/dam/large";
    for (method, value, status) in
        [(Method::PUT, "a", 201), (Method::PUT, "b", 200), (Method::PATCH, "c", 200)]
    {
        let request = author.request(method.clone(), node).bearer(&token);
        let reply = request.json(&properties(value)).send().await;
        assert_eq!(reply.status.as_u16(), status, "{method}");
        assert_eq!(author.property("/content/dam/large", "p19999"), format!("String {value}"));
    }
    let mut docview =
        "<jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" jcr:primaryType=\"nt:unstructured\""
            .to_owned();
    numbers.for_each(|number| write!(docview, " p{number}=\"d\"").unwrap());
    docview.push_str("/>");
    for (at, status) in [("large", 200), ("imported", 201)] {
        let target = format!("/content/dam/{at}");
        let form = [
            (":operation", "import"),
            (":contentType", "jcr.xml"),
            (":replaceProperties", "true"),
            (":content", &docview),
        ];
        let request = author.request(Method::POST, &target).bearer(&token).form(&form);
        let reply = request.send().await;
        assert_eq!(reply.status.as_u16(), status, "{at}");
        assert_eq!(author.property(&target, "p19999"), "String d", "{at}");
    }
}

/// The children `n0`, `n1`, … as members of JSON, each with a property `v`.
fn many_children(count: usize, child: impl Fn(usize) -> Json) -> serde_json::Map<String, Json> {
    (0..count).map(|number| (format!("n{number}"), child(number))).collect()
}

/// Takes minutes for some thousand children if the document is written back for each of them.
#[tokio::test]
async fn a_document_of_many_nodes_is_encoded_once_for_each_request() {
    let author = TestInstance::author().await;
    author.edit(|session| {
        session.put_node(&path("/content/dam"), Subtree::new("", "sling:Folder")).unwrap();
    });
    let token = author.user("ann", &["dam-users"]).await;
    let api = async |method: Method, body: &Json, status: u16| {
        let request = author.request(method.clone(), "/api/v1/nodes?path=/content/dam/large");
        let reply = request.bearer(&token).json(body).send().await;
        assert_eq!(reply.status.as_u16(), status, "{method} {}", reply.text());
    };
    let import = async |kind: &str, content: &str| {
        let parts: [FormPart<'_>; 4] = [
            (":operation", None, b"import"),
            (":contentType", None, kind.as_bytes()),
            (":replaceProperties", None, b"true"),
            (":contentFile", Some(("content", "text/plain")), content.as_bytes()),
        ];
        let request = author.request(Method::POST, "/content/dam/large").bearer(&token);
        let reply = request.multipart(&parts).send().await;
        assert_eq!(reply.status, 200, "{kind} {}", reply.text());
    };
    let value = |number: usize| author.property(&format!("/content/dam/large/n{number}"), "v");
    for count in [1_000, 2_000, 4_000] {
        let before = author.repository.documents_encoded();
        let decoded_before = author.repository.documents_decoded();
        let mut requests = 0;
        let mut check_work = |wanted: &str, number: usize| {
            requests += 1;
            assert_eq!(value(number), wanted, "{requests} of {count}");
            let encoded = author.repository.documents_encoded() - before;
            let decoded = author.repository.documents_decoded() - decoded_before;
            assert!(encoded <= requests && decoded <= 10 * requests, "{encoded} {decoded}");
        };
        let put = |value: &str| {
            let child = |_| json!({ "properties": { "v": value } });
            json!({ "children": many_children(count, child) })
        };
        api(Method::PUT, &put("a"), if count == 1_000 { 201 } else { 200 }).await;
        check_work("String a", count - 1);
        api(Method::PUT, &put("b"), 200).await;
        check_work("String b", count - 1);
        // The same again changes nothing.
        api(Method::PUT, &put("b"), 200).await;
        check_work("String b", count - 1);
        let patch = |number: usize| match number % 2 {
            0 => json!({ "properties": { "v": "c" } }),
            _ => Json::Null,
        };
        api(Method::PATCH, &json!({ "children": many_children(count, patch) }), 200).await;
        check_work("String c", count - 2);
        assert_eq!(value(count - 1), "-");
        let content = Json::Object(many_children(count, |_| json!({ "v": "d" })));
        import("json", &content.to_string()).await;
        check_work("String d", count - 1);
        let mut xml = "<node><primaryNodeType>nt:unstructured</primaryNodeType>".to_owned();
        for number in 0..count {
            write!(
                xml,
                "<node><name>n{number}</name><primaryNodeType>nt:unstructured</primaryNodeType>\
                 <property><name>v</name><value>e</value><type>String</type></property></node>"
            )
            .unwrap();
        }
        xml.push_str("</node>");
        import("xml", &xml).await;
        check_work("String e", count - 1);
        let fields: Vec<_> = (0..900).map(|number| format!("./n{number}/v")).collect();
        let removed: Vec<_> = (0..900).map(|number| format!("./m{number}@Delete")).collect();
        let form: Vec<(&str, &str)> =
            fields.iter().chain(&removed).map(|field| (field.as_str(), "f")).collect();
        let request = author.request(Method::POST, "/content/dam/large").bearer(&token);
        assert_eq!(request.form(&form).send().await.status, 200);
        check_work("String f", 899);
        let operations: Vec<Json> = (0..900)
            .map(|number| {
                let at = format!("/content/dam/large/n{number}");
                json!({ "op": "patch", "path": at, "patch": { "properties": { "v": "g" } } })
            })
            .collect();
        let request = author.request(Method::POST, "/api/v1/batch").bearer(&token);
        let reply = request.json(&json!({ "operations": operations })).send().await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        check_work("String g", 899);
    }
}

/// A viewer who does not see all of a document does not make each edit write it back.
#[tokio::test]
async fn a_document_with_hidden_nodes_is_encoded_once_for_each_request() {
    let author = TestInstance::author().await;
    author.edit(|session| {
        session.put_node(&path("/content/dam"), Subtree::new("", "sling:Folder")).unwrap();
    });
    let token = author.user("ann", &["dam-users"]).await;
    let child = |value: &str| json!({ "properties": { "v": value } });
    author.edit(|session| {
        let mut tree = Subtree::new("", "nt:unstructured");
        let node = Subtree::new("", "nt:unstructured").with_property("v", "a");
        for number in 0..1_000 {
            tree.put_child(Subtree { name: format!("n{number}"), ..node.clone() });
        }
        tree.put_child(Subtree { name: "hidden".to_owned(), ..node });
        let glob = Property::parse_list(ValueType::String, ["/hidden*"]).unwrap();
        let restrictions = Subtree::new("rep:restrictions", "rep:Restrictions")
            .with_property("rep:glob", glob.values()[0].clone());
        let entry = Subtree::new("deny", "rep:DenyACE")
            .with_property("rep:principalName", "everyone")
            .with_property(
                "rep:privileges",
                Property::parse_list(ValueType::Name, ["jcr:read"]).unwrap(),
            )
            .with_child(restrictions);
        let policy = Subtree::new("rep:policy", "rep:ACL").with_child(entry);
        tree.properties.insert(
            "jcr:mixinTypes".to_owned(),
            Property::parse_list(ValueType::Name, ["rep:AccessControllable"]).unwrap(),
        );
        session.put_node(&path("/content/dam/large"), tree.with_child(policy)).unwrap();
    });
    let before = author.repository.documents_encoded();
    let children = many_children(1_000, |_| child("b"));
    let request = author.request(Method::PATCH, "/api/v1/nodes?path=/content/dam/large");
    let reply = request.bearer(&token).json(&json!({ "children": children })).send().await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(author.repository.documents_encoded() - before, 1);
    assert_eq!(author.property("/content/dam/large/n999", "v"), "String b");
    // The hidden node is neither changed nor replaced.
    let patch = json!({ "children": { "hidden": child("b") } });
    let request = author.request(Method::PATCH, "/api/v1/nodes?path=/content/dam/large");
    assert_eq!(request.bearer(&token).json(&patch).send().await.status, 403);
    assert_eq!(author.property("/content/dam/large/hidden", "v"), "String a");
}

#[tokio::test]
async fn structured_content_is_imported_within_the_limits_of_the_user() {
    let author = TestInstance::start(InstanceRole::Author, |options| {
        options.query_budgets.users.max_rows_in_memory = 20;
    })
    .await;
    author.edit(|session| {
        session.put_node(&path("/content/dam"), Subtree::new("", "sling:Folder")).unwrap();
    });
    let token = author.user("ann", &["dam-users"]).await;
    let admin = author.token_of("admin").await;
    let import = async |token: &str, kind: &str, content: &str| {
        let form = [
            (":operation", "import"),
            (":contentType", kind),
            (":nameHint", kind),
            (":content", content),
        ];
        author.request(Method::POST, "/content/dam").bearer(token).form(&form).send().await
    };
    let json = |count: usize| Json::Object(many_children(count, |_| json!({}))).to_string();
    let xml = |count: usize| {
        let child = |number| format!("<node><name>n{number}</name></node>");
        format!("<node>{}</node>", (0..count).map(child).collect::<String>())
    };
    let docview = |count: usize| {
        let child = |number| format!("<n{number} jcr:primaryType=\"nt:unstructured\"/>");
        format!(
            "<jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" jcr:primaryType=\"nt:unstructured\">{}</jcr:root>",
            (0..count).map(child).collect::<String>()
        )
    };
    // With the node that holds them there is one more.
    for (kind, few, many) in [
        ("json", json(19), json(20)),
        ("xml", xml(19), xml(20)),
        ("jcr.xml", docview(19), docview(20)),
    ] {
        let refused = import(&token, kind, &many).await;
        assert_eq!(refused.status, 422, "{kind} {refused:?}");
        let reason =
            if kind == "jcr.xml" { "more nodes than the limit" } else { "limit of 20 nodes" };
        assert!(refused.text().contains(reason), "{kind} {refused:?}");
        assert_eq!(import(&token, kind, &few).await.status, 201, "{kind}");
        assert_eq!(import(&admin, kind, &many).await.status, 201, "{kind}");
    }
    // Braces in texts are no nodes.
    let text = json!({ "text": "{\"{{{{{{{{{{{{{{{{{{{{{{\\", "more": ",[{\"" }).to_string();
    let reply = import(&token, "json", &text).await;
    assert_eq!(reply.status, 201, "{reply:?}");
    // A list of a million values is for administrators.
    let list = format!("{{\"l\":[{}0]}}", "0,".repeat(1_000_000));
    let refused = import(&token, "json", &list).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.text().contains("limit of 1000000 properties and values"), "{refused:?}");
}

/// Each copy of what holds copies doubles them: a batch could fill the memory.
#[tokio::test]
async fn copies_of_copies_come_to_an_end() {
    let author = TestInstance::start(InstanceRole::Author, |options| {
        options.query_budgets.users.max_rows_in_memory = 1_000;
    })
    .await;
    author.edit(|session| {
        session.put_node(&path("/content/dam"), Subtree::new("", "sling:Folder")).unwrap();
    });
    let token = author.user("ann", &["dam-users"]).await;
    let folder = |name: &str, kind: &str| json!({ "op": "put", "path": format!("/content/dam/{name}"), "node": { "type": kind } });
    // Documents, nodes inside one document, and a folder that moves into another.
    for (name, kind) in [("folders", "sling:Folder"), ("nodes", "nt:unstructured")] {
        let doubled = |times: usize| {
            let mut operations = vec![folder(name, kind), folder(&format!("{name}/0"), kind)];
            for number in 0..times {
                let next = number + 1;
                operations.push(folder(&format!("{name}/{next}"), kind));
                for half in ["a", "b"] {
                    operations.push(json!({
                        "op": "copy",
                        "from": format!("/content/dam/{name}/{number}"),
                        "to": format!("/content/dam/{name}/{next}/{half}"),
                    }));
                }
            }
            operations.push(json!({ "op": "delete", "path": format!("/content/dam/{name}") }));
            json!({ "operations": operations })
        };
        let send = async |batch: Json| {
            let request = author.request(Method::POST, "/api/v1/batch").bearer(&token);
            request.json(&batch).send().await
        };
        let few = send(doubled(6)).await;
        assert_eq!(few.status, 200, "{name} {few:?}");
        let refused = send(doubled(100)).await;
        assert_eq!(refused.status, 422, "{name} {refused:?}");
        assert!(refused.text().contains("the copies exceed the limit"), "{name} {refused:?}");
    }
    // A form copies one node many times.
    let mut tree = Subtree::new("", "nt:unstructured");
    (0..100).for_each(|number| {
        tree.put_child(Subtree::new(format!("n{number}"), "nt:unstructured"));
    });
    author.edit(|session| session.put_node(&path("/content/dam/tree"), tree).unwrap());
    for (times, status) in [(5, 201), (100, 422)] {
        let fields: Vec<String> = (0..times).map(|copy| format!("./c{copy}@CopyFrom")).collect();
        let form: Vec<(&str, &str)> =
            fields.iter().map(|field| (field.as_str(), "/content/dam/tree")).collect();
        let request = author.request(Method::POST, &format!("/content/dam/copies{times}"));
        let reply = request.bearer(&token).form(&form).send().await;
        assert_eq!(reply.status.as_u16(), status, "{reply:?}");
    }
}

/// A pattern that comes many times would list a folder as often.
#[tokio::test]
async fn targets_that_come_many_times_are_listed_once() {
    let author = TestInstance::start(InstanceRole::Author, |options| {
        options.query_budgets.users.max_rows_in_memory = 100;
    })
    .await;
    let token = author.user("ann", &["dam-users"]).await;
    author.edit(|session| {
        session.put_node(&path("/content/dam"), Subtree::new("", "sling:Folder")).unwrap();
    });
    let put_folder = |name: &str, count: usize| {
        let mut folder = Subtree::new("", "sling:Folder");
        for number in 0..count {
            folder.put_child(Subtree::new(format!("f{number}"), "sling:Folder"));
        }
        author.edit(|session| session.put_node(&path(name), folder).unwrap());
    };
    put_folder("/content/dam/some", 60);
    put_folder("/content/dam/many", 101);
    let delete = async |folder: &str| {
        let pattern = format!("{folder}/*");
        let mut form = vec![(":operation", "delete")];
        form.extend(std::iter::repeat_n((":applyTo", pattern.as_str()), 1_000));
        author.request(Method::POST, "/content/dam").bearer(&token).form(&form).send().await
    };
    let deleted = delete("/content/dam/some").await;
    assert_eq!(deleted.status, 200, "{deleted:?}");
    let refused = delete("/content/dam/many").await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.text().contains("max_rows_in_memory"), "{refused:?}");
}

/// An archive whose directory says that its only file has so many bytes.
fn archive_declaring(bytes: u32) -> Vec<u8> {
    let mut archive = zipped(&[("a.txt", "a")]);
    let directory = archive.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    archive[directory + 24..directory + 28].copy_from_slice(&bytes.to_le_bytes());
    archive
}

#[tokio::test]
async fn an_archive_is_imported_within_the_limits_of_the_user() {
    let author = TestInstance::start(InstanceRole::Author, |options| {
        options.query_budgets.users.max_rows_in_memory = 20;
    })
    .await;
    author.edit(|session| {
        session.put_node(&path("/content/dam"), Subtree::new("", "sling:Folder")).unwrap();
    });
    let token = author.user("ann", &["dam-users"]).await;
    let admin = author.token_of("admin").await;
    let import = async |token: &str, name: &str, archive: &[u8]| {
        let parts: [FormPart<'_>; 4] = [
            (":operation", None, b"import"),
            (":contentType", None, b"zip"),
            (":name", None, name.as_bytes()),
            (":contentFile", Some(("a.zip", "application/zip")), archive),
        ];
        let request = author.request(Method::POST, "/content/dam").bearer(token);
        request.multipart(&parts).send().await
    };
    let names: Vec<String> = (0..21).map(|number| format!("{number}.txt")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "a")).collect();
    let (many, few) = (zipped(&files), zipped(&files[..20]));
    let refused = import(&token, "many", &many).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.text().contains("more than 20 entries"), "{refused:?}");
    assert_eq!(import(&token, "few", &few).await.status, 201);
    assert_eq!(import(&admin, "many", &many).await.status, 201);
    // A GiB is for administrators, and nobody has 4.
    let large = archive_declaring((1 << 30) + 1);
    let refused = import(&token, "large", &large).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.text().contains("limit of 1073741824 bytes"), "{refused:?}");
    let damaged = import(&admin, "large", &large).await;
    assert!(!damaged.text().contains("limit of"), "{damaged:?}");
}
