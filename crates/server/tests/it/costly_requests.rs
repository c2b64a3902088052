//! Requests that cost much are refused before they do, by who asks.

use std::fmt::Write as _;
use std::time::SystemTime;

use axum::body::Body;
use bytes::Bytes;
use http::Method;
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
