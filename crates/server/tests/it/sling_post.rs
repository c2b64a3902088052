//! Sling's POST protocol, one line for each rule: the form, the status, and what is there afterwards.

use serde_json::{Value, json};

use crate::blocking_instance::{Answer, BlockingInstance, basic};
use crate::support::PASSWORD;

fn send(
    author: &BlockingInstance,
    method: &str,
    path: &str,
    headers: &[(&'static str, &str)],
    body: &[u8],
) -> Answer {
    let mut all = vec![("authorization", basic("admin", PASSWORD))];
    all.extend(headers.iter().map(|(name, value)| (*name, (*value).to_owned())));
    author.send(method, path, &all, body)
}

/// Posts a form; blanks of the line separate its fields.
fn post(author: &BlockingInstance, path: &str, form: &str) -> Answer {
    author.post(path, &form.split_whitespace().collect::<Vec<_>>().join("&"))
}

fn read(author: &BlockingInstance, path: &str) -> Value {
    send(author, "GET", path, &[], b"").json()
}

/// Posts, then compares the named members of what is there.
#[track_caller]
fn check(
    author: &BlockingInstance,
    path: &str,
    form: &str,
    status: u16,
    (read_path, expected): (&str, &Value),
) {
    let answer = post(author, path, form);
    assert_eq!(answer.status, status, "{path} {form}: {}", answer.text());
    let stored = read(author, read_path);
    let Value::Object(members) = expected else {
        return assert_eq!(stored, *expected, "{path} {form}");
    };
    for (name, value) in members {
        let is = stored.get(name).unwrap_or(&Value::Null);
        assert_eq!(is, value, "{path} {form}: `{name}` of {stored}");
    }
}

/// An author whose node `/content/t/n` forms are posted to.
struct PostedNode {
    author: BlockingInstance,
}

impl PostedNode {
    fn create() -> Self {
        let posted = Self { author: BlockingInstance::author() };
        posted.check(
            "./a=1 ./jcr:primaryType=nt:unstructured",
            201,
            &json!({ "a": "1", "jcr:primaryType": "nt:unstructured" }),
        );
        posted
    }

    #[track_caller]
    fn check(&self, form: &str, status: u16, expected: &Value) {
        check(&self.author, "/content/t/n", form, status, ("/content/t/n.json", expected));
    }
}

#[test]
fn properties_follow_the_table() {
    let posted = PostedNode::create();
    let check = |form: &str, status: u16, expected: Value| posted.check(form, status, &expected);
    // A repeated name is a list; an empty value removes.
    check("./a=1 ./a=2", 200, json!({ "a": ["1", "2"] }));
    check("./b=x", 200, json!({ "b": "x" }));
    check("./b=", 200, json!({ "b": null }));
    // Names with a path leave the plain ones out; commands and `j_` are never stored.
    check("./c=1 d=2 :e=3", 200, json!({ "c": "1", "d": null, ":e": null }));
    check("d=2 j_user=x", 200, json!({ "d": "2", "j_user": null }));
    check("./x=%FC ./y=1 _charset_=iso-8859-1", 200, json!({ "x": "ü" }));
    // Deeper names make the nodes on their way.
    check("./sub/deep/p=1", 200, json!({}));
    assert_eq!(read(&posted.author, "/content/t/n/sub/deep.json")["p"], "1");
}

#[test]
fn types_of_properties_follow_the_table() {
    let posted = PostedNode::create();
    let check = |form: &str, status: u16, expected: Value| posted.check(form, status, &expected);
    check("./long=7 ./long@TypeHint=Long", 200, json!({ "long": 7 }));
    check("./longs=7 ./longs@TypeHint=Long[]", 200, json!({ "longs": [7] }));
    check("./flag=true ./flag@TypeHint=Boolean", 200, json!({ "flag": true }));
    check("./bad=x ./bad@TypeHint=Long", 400, json!({ "bad": null }));
    for date in [
        "Sat+Nov+21+2026+00:50:16+GMT%2B0000",
        "2026-11-21T00:50:16.000%2B00:00",
        "2026-11-21T00:50:16.000%2B0000",
        "2026-11-21T00:50:16",
        "21.11.2026+00:50:16",
    ] {
        let form = format!("./date={date} ./date@TypeHint=Date");
        check(&form, 200, json!({ "date": "Sat Nov 21 2026 00:50:16 GMT+0000" }));
    }
    for date in ["2026-11-21", "21.11.2026"] {
        let form = format!("./day={date} ./day@TypeHint=Date");
        check(&form, 200, json!({ "day": "Sat Nov 21 2026 00:00:00 GMT+0000" }));
    }
}

#[test]
fn suffixes_of_properties_follow_the_table() {
    let posted = PostedNode::create();
    let check = |form: &str, status: u16, expected: Value| posted.check(form, status, &expected);
    check("./e= ./e@DefaultValue=std", 200, json!({ "e": "std" }));
    check("./f@DefaultValue=std", 200, json!({ "f": null }));
    check("./f@DefaultValue=std ./f@UseDefaultWhenMissing=true", 200, json!({ "f": "std" }));
    check("./g=1 ./g= ./g=2 ./g@IgnoreBlanks=true", 200, json!({ "g": ["1", "2"] }));
    check("./h@ValueFrom=other other=v ./i=1", 200, json!({ "i": "1" }));
    check("./a@Delete=true ./a2=new", 200, json!({ "a": null, "a2": "new" }));
    check("./set=a ./set=b ./set@TypeHint=String[]", 200, json!({ "set": ["a", "b"] }));
    check("./set=%2Bc ./set=-a ./set=%2Bb ./set@Patch=true", 200, json!({ "set": ["b", "c"] }));
    check("./moved@MoveFrom=a2", 200, json!({ "a2": null, "moved": "new" }));
    check("./copied@CopyFrom=moved", 200, json!({ "copied": "new", "moved": "new" }));
    check("./jcr:lastModifiedBy=", 200, json!({ "jcr:lastModifiedBy": "admin" }));
    // Work is done in its order: delete, move, copy, then set.
    check(
        "./moved=2 ./kept@CopyFrom=moved ./moved@TypeHint=Long",
        200,
        json!({ "kept": "new", "moved": 2 }),
    );
}

#[test]
fn names_of_new_nodes_follow_the_table() {
    let author = BlockingInstance::author();
    let check = |path: &str, form: &str, status: u16, read: &str, expected: Value| {
        check(&author, path, form, status, (read, &expected));
    };
    check(
        "/content/o",
        "./jcr:primaryType=sling:OrderedFolder",
        201,
        "/content/o.json",
        json!({ "jcr:primaryType": "sling:OrderedFolder" }),
    );
    for (form, name) in [
        (":name=Exact.Name ./a=1", "Exact.Name"),
        (":nameHint=Hello+World ./a=1", "hello_world"),
        (":nameHint=Hello+World ./a=1", "hello_world_0"),
        ("./jcr:title=2+Beds", "_2_beds"),
        ("./description=Text", "text"),
    ] {
        let answer = post(&author, "/content/o/*", form);
        assert_eq!(answer.status, 201, "{form}: {}", answer.text());
        assert_eq!(answer.header("location"), Some(&*format!("/content/o/{name}")), "{form}");
    }
    assert_eq!(post(&author, "/content/o/", "./x=1").status, 201);
    // Selectors and extension of the URL are cut off.
    check("/content/o/cut.a.html", "./p=1", 201, "/content/o/cut.json", json!({ "p": "1" }));
}

/// An author with the nodes `a`, `b` and `c` in an ordered folder, `o2`, and in another one, `s`.
fn author_with_folders() -> BlockingInstance {
    let author = BlockingInstance::author();
    post(&author, "/content/o2", "./jcr:primaryType=sling:OrderedFolder");
    for folder in ["s", "o2"] {
        for name in ["a", "b", "c"] {
            post(&author, &format!("/content/{folder}/{name}"), "./x=1");
        }
    }
    author
}

#[test]
fn the_order_of_nodes_follows_the_table() {
    let author = author_with_folders();
    let order = || {
        let names = read(&author, "/content/o2.1.json");
        names.as_object().unwrap().keys().filter(|key| key.len() == 1).cloned().collect::<String>()
    };
    for (node, place, expected) in [
        ("c", "first", "cab"),
        ("c", "last", "abc"),
        ("c", "before+b", "acb"),
        ("a", "after+b", "cba"),
        ("a", "0", "acb"),
        ("a", "2", "cba"),
    ] {
        let answer = post(&author, &format!("/content/o2/{node}"), &format!(":order={place}"));
        assert_eq!((answer.status, order().as_str()), (200, expected), "{node} {place}");
    }
    assert_eq!(post(&author, "/content/o2/a", ":order=sideways").status, 400);
}

#[test]
fn copies_moves_and_deletions_follow_the_table() {
    let author = author_with_folders();
    let check = |path: &str, form: &str, status: u16, read: &str, expected: Value| {
        check(&author, path, form, status, (read, &expected));
    };
    check(
        "/content/o2/a",
        ":operation=copy :dest=/content/o2/d",
        200,
        "/content/o2/d.json",
        json!({ "x": "1" }),
    );
    check(
        "/content/o2/a",
        ":operation=copy :dest=/content/o2/d",
        412,
        "/content/o2/d.json",
        json!({ "x": "1" }),
    );
    check(
        "/content/o2/a",
        ":operation=copy :dest=/content/o2/d :replace=true",
        200,
        "/content/o2/d.json",
        json!({ "x": "1" }),
    );
    check(
        "/content/o2/d",
        ":operation=move :dest=/content/o2/e",
        200,
        "/content/o2/d.json",
        Value::Null,
    );
    check(
        "/content/o2/e",
        ":operation=move :dest=/content/s/",
        200,
        "/content/s/e.json",
        json!({ "x": "1" }),
    );
    check(
        "/content",
        ":operation=copy :applyTo=/content/o2/a :applyTo=/content/o2/b :applyTo=/none :dest=/content/o3",
        400,
        "/content/o3.json",
        Value::Null,
    );
    post(&author, "/content/o3", "./x=1");
    check(
        "/content",
        ":operation=copy :applyTo=/content/o2/* :dest=/content/o3/",
        200,
        "/content/o3/c.json",
        json!({ "x": "1" }),
    );
    // Delete.
    check(
        "/content",
        ":operation=delete :applyTo=/content/o3/*",
        200,
        "/content/o3/c.json",
        Value::Null,
    );
    check("/content/o3", ":operation=delete", 200, "/content/o3.json", Value::Null);
    assert_eq!(post(&author, "/content/o3", ":operation=delete").status, 404);
}

#[test]
fn other_operations_follow_the_table() {
    let author = BlockingInstance::author();
    assert_eq!(post(&author, "/content", ":operation=nop").status, 200);
    assert_eq!(post(&author, "/content", ":operation=nop :nopstatus=418").status, 418);
    assert_eq!(post(&author, "/content", ":operation=nonsense").status, 400);
}

#[test]
fn operations_on_versions_follow_the_table() {
    let author = BlockingInstance::author();
    let check = |path: &str, form: &str, status: u16, read: &str, expected: Value| {
        check(&author, path, form, status, (read, &expected));
    };
    let form = "./v=1 ./jcr:mixinTypes=mix:versionable ./jcr:mixinTypes@TypeHint=Name[] :checkinNewVersionableNodes=true";
    check("/content/v", form, 201, "/content/v.json", json!({ "v": "1" }));
    assert_ne!(post(&author, "/content/v", "./v=2").status, 200, "what is checked in is read-only");
    check("/content/v", ":operation=checkout", 200, "/content/v.json", json!({ "v": "1" }));
    check("/content/v", "./v=2", 200, "/content/v.json", json!({ "v": "2" }));
    check("/content/v", ":operation=checkin", 200, "/content/v.json", json!({ "v": "2" }));
    check(
        "/content/v",
        "./v=3 :autoCheckout=true",
        200,
        "/content/v.json;v=1.0",
        json!({ "v": "1" }),
    );
    check(
        "/content/v",
        ":operation=restore :version=1.1",
        200,
        "/content/v.json",
        json!({ "v": "2" }),
    );
}

#[test]
fn imports_follow_the_table() {
    let author = BlockingInstance::author();
    let content = "%7B%22jcr:primaryType%22:%22nt:unstructured%22,%22n%22:1,%22l%22:%5B%22a%22,%22b%22%5D,%22child%22:%7B%22t%22:true%7D%7D";
    let import = |form: &str, status: u16, read: &str, expected: Value| {
        check(
            &author,
            "/content/i",
            &format!(":operation=import {form}"),
            status,
            (read, &expected),
        );
    };
    import(
        &format!(":contentType=json :name=j :content={content}"),
        201,
        "/content/i/j.1.json",
        json!({ "n": 1, "l": ["a", "b"], "child": { "jcr:primaryType": "nt:unstructured", "t": true } }),
    );
    import(
        ":contentType=json :name=j :content=%7B%22n%22:2,%22m%22:3%7D",
        200,
        "/content/i/j.json",
        json!({ "n": 1, "m": 3 }),
    );
    import(
        ":contentType=json :name=j :replaceProperties=true :content=%7B%22n%22:2%7D",
        200,
        "/content/i/j.json",
        json!({ "n": 2, "m": 3 }),
    );
    import(
        ":contentType=json :name=j :replace=true :content=%7B%22o%22:1%7D",
        200,
        "/content/i/j.json",
        json!({ "n": null, "o": 1 }),
    );
    let xml = "%3Cnode%3E%3Cname%3Ex%3C/name%3E%3CprimaryNodeType%3Ent:unstructured%3C/primaryNodeType%3E%3Cproperty%3E%3Cname%3Ep%3C/name%3E%3Cvalue%3E5%3C/value%3E%3Ctype%3ELong%3C/type%3E%3C/property%3E%3C/node%3E";
    import(
        &format!(":contentType=xml :content={xml}"),
        201,
        "/content/i/x.json",
        json!({ "p": 5 }),
    );
    let docview = "%3Cjcr:root+xmlns:jcr=%22http://www.jcp.org/jcr/1.0%22+jcr:primaryType=%22nt:unstructured%22+p=%22%7BLong%7D6%22/%3E";
    import(
        &format!(":contentType=jcr.xml :name=d :content={docview}"),
        201,
        "/content/i/d.json",
        json!({ "p": 6 }),
    );
    assert_eq!(
        post(&author, "/content/i", ":operation=import :contentType=rtf :content=x").status,
        400
    );
    assert_eq!(
        post(&author, "/content/i", ":operation=import :contentType=json :name=k :content=%7B")
            .status,
        422
    );
}

/// A field of a form: its name, its file name if it is a file, and its text.
type FormField<'a> = (&'a str, Option<&'a str>, &'a str);

/// Sends a form with files to `/content/f`, and returns the status.
fn upload(author: &BlockingInstance, fields: &[FormField<'_>]) -> u16 {
    let mut body = String::new();
    for (name, file, text) in fields {
        let file = file.map(|file| format!("; filename=\"{file}\"")).unwrap_or_default();
        body.push_str(&format!(
            "--b\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{text}\r\n"
        ));
    }
    body.push_str("--b--\r\n");
    let headers = [("content-type", "multipart/form-data; boundary=b")];
    send(author, "POST", "/content/f", &headers, body.as_bytes()).status
}

fn author_with_folder_of_files() -> BlockingInstance {
    let author = BlockingInstance::author();
    post(&author, "/content/f", "./jcr:primaryType=sling:Folder");
    author
}

#[test]
fn files_arrive_whole_and_in_parts() {
    let author = author_with_folder_of_files();
    let upload = |fields: &[FormField<'_>]| upload(&author, fields);
    assert_eq!(upload(&[("*", Some("a.txt"), "whole")]), 200);
    assert_eq!(send(&author, "GET", "/content/f/a.txt", &[], b"").text(), "whole");
    assert_eq!(
        upload(&[
            ("./big", Some("b.txt"), "first "),
            ("./big@Offset", None, "0"),
            ("./big@Length", None, "12")
        ]),
        200
    );
    assert_eq!(
        upload(&[
            ("./big", Some("b.txt"), "again"),
            ("./big@Offset", None, "3"),
            ("./big@Length", None, "12")
        ]),
        400
    );
    assert_eq!(
        upload(&[
            ("./big", Some("b.txt"), "second"),
            ("./big@Offset", None, "6"),
            ("./big@Length", None, "12")
        ]),
        200
    );
    assert_eq!(send(&author, "GET", "/content/f/big", &[], b"").text(), "first second");
}

#[test]
fn files_in_parts_are_compared_with_their_digest() {
    let author = author_with_folder_of_files();
    let upload = |fields: &[FormField<'_>]| upload(&author, fields);
    // The digest of `first second`, and that of nothing known; parts stay as they are when they are refused together.
    let right = "92088ec140fc553e4b1ede202edccb65a807bbf8a38d765a3ad38013c0f13688";
    let other = "0".repeat(64);
    let part = |offset: &str, text: &str, digest: &str| {
        upload(&[
            ("./named", Some("b.txt"), text),
            ("./named@Offset", None, offset),
            ("./named@Length", None, "12"),
            ("./named@Digest", None, digest),
        ])
    };
    assert_eq!(part("0", "first ", right), 200);
    assert_eq!(part("6", "second", &other), 400);
    assert_eq!(part("6", "seconds", right), 400);
    assert_eq!(part("6", "second", "no digest"), 400);
    assert_eq!(part("6", "second", right), 200);
    assert_eq!(send(&author, "GET", "/content/f/named", &[], b"").text(), "first second");
}

#[test]
fn files_are_put() {
    let author = author_with_folder_of_files();
    let digest = [("repr-digest", "sha-256=:50FWGxhikB4XIAZcgUT5enU5t9lqI+Rm7LZnAAhHMUE=:")];
    assert_eq!(send(&author, "PUT", "/content/f/put.txt", &digest, b"put that").status, 400);
    assert_eq!(send(&author, "GET", "/content/f/put.txt", &[], b"").status, 404);
    let put = send(&author, "PUT", "/content/f/put.txt", &digest, b"put it");
    assert_eq!((put.status, put.header("location")), (201, Some("/content/f/put.txt")));
    assert_eq!(send(&author, "PUT", "/content/f/put.txt", &[], b"put again").status, 204);
    let read = send(&author, "GET", "/content/f/put.txt", &[], b"");
    assert_eq!(
        (read.text().as_str(), read.header("content-type")),
        ("put again", Some("text/plain"))
    );
    assert_eq!(send(&author, "PUT", "/content/none/put.txt", &[], b"x").status, 409);
    assert_eq!(send(&author, "PUT", "/content/f", &[], b"x").status, 409);
}

#[test]
fn answers_are_as_sling_gives_them() {
    let author = BlockingInstance::author();
    let answer = post(&author, "/content/a/n", "./x=1 ./y=2");
    let body = answer.json();
    let keys: Vec<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
    for key in [
        "changes",
        "isCreate",
        "location",
        "parentLocation",
        "path",
        "referer",
        "status.code",
        "status.message",
        "title",
    ] {
        assert!(keys.contains(&key), "{key} is not among {keys:?}");
    }
    assert_eq!(
        (&body["isCreate"], &body["status.code"], &body["parentLocation"]),
        (&json!(true), &json!(201), &json!("/content/a"))
    );
    assert_eq!(body["title"], "Content created /content/a/n");
    let changes = body["changes"].as_array().unwrap();
    assert!(
        changes.contains(&json!({ "type": "modified", "argument": "/content/a/n/x" })),
        "{body}"
    );
    let copied = post(&author, "/content/a/n", ":operation=copy :dest=/content/a/m");
    let body = copied.json();
    assert_eq!(
        body["changes"][0],
        json!({ "type": "copied", "argument": ["/content/a/n", "/content/a/m"] })
    );
}

#[test]
fn answers_lead_where_the_form_says() {
    let author = BlockingInstance::author();
    assert_eq!(post(&author, "/content/a/n", "./x=1 ./y=2").status, 201);
    for (form, status, location) in [
        ("./x=2 :redirect=/content/*.html", 302, Some("/content/n.html")),
        (
            "./x=2 :redirect=/content/list/ :displayExtension=html",
            302,
            Some("/content/list/n.html"),
        ),
        ("./x=2 :redirect=http://example.org/", 200, None),
        (
            "./x=z ./x@TypeHint=Long :errorpage=/content/error.html",
            302,
            Some("/content/error.html"),
        ),
        ("./x=z ./x@TypeHint=Long :status=browser :http-equiv-accept=text/html", 200, None),
        ("./x=z ./x@TypeHint=Long :sendError=true", 400, None),
    ] {
        let answer = post(&author, "/content/a/n", form);
        assert_eq!((answer.status, answer.header("location")), (status, location), "{form}");
    }
    let html = post(&author, "/content/a/n", "./x=3 :http-equiv-accept=text/html").text();
    assert!(html.contains("<div id=\"Status\">200</div>"), "{html}");
}

/// Creates that come at once under a name that is chosen here all get a node of their own, be they as equal as can be.
#[test]
fn names_that_are_chosen_at_once_differ() {
    const USERS: usize = 4;
    const EACH: usize = 12;
    let author = BlockingInstance::author();
    for (folder, form) in [
        ("/content/folder", "./jcr:primaryType=sling:Folder"),
        ("/content/ordered", "./jcr:primaryType=sling:OrderedFolder"),
        ("/content/page", "./jcr:primaryType=cq:Page ./jcr:content/jcr:primaryType=cq:PageContent"),
        ("/content/page/jcr:content/par", "./jcr:primaryType=nt:unstructured"),
    ] {
        assert_eq!(post(&author, folder, form).status, 201, "{folder}");
    }
    for folder in ["/content/folder", "/content/ordered", "/content/page/jcr:content/par"] {
        for form in ["./jcr:primaryType=nt:unstructured", "./jcr:title=Same ./a=1"] {
            let create = || {
                let answer = post(&author, &format!("{folder}/*"), form);
                assert_eq!(answer.status, 201, "{folder} {form}: {}", answer.text());
                answer.header("location").unwrap().to_owned()
            };
            let mut places: Vec<String> = std::thread::scope(|scope| {
                let users: Vec<_> = (0..USERS)
                    .map(|_| scope.spawn(|| (0..EACH).map(|_| create()).collect::<Vec<_>>()))
                    .collect();
                users.into_iter().flat_map(|user| user.join().unwrap()).collect()
            });
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), USERS * EACH, "{folder} {form}");
        }
        let listed = read(&author, &format!("{folder}.1.json"));
        let nodes = listed.as_object().unwrap().values().filter(|value| value.is_object());
        assert_eq!(nodes.count(), 2 * USERS * EACH, "{folder}");
    }
}
