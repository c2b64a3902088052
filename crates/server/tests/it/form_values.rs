//! Values of Sling's POST protocol: what the fields of a form and their hints make of properties, and parts of files.

use http::Method;
use tympan_content::{Property, Subtree, ValueType};

use crate::support::{FormPart, TestInstance, path};

/// Splits `a=1 b=2` into fields.
fn fields(form: &str) -> Vec<(&str, &str)> {
    form.split(' ').filter_map(|pair| pair.split_once('=')).collect()
}

#[tokio::test]
async fn no_value_of_a_form_is_lost() {
    let author = TestInstance::author().await;
    // What is there before, the form, and what is there then.
    for (before, form, expected) in [
        ("-", "m=a m= m=b m@TypeHint=String[]", "String [a, , b]"),
        ("-", "m=a m= m=b", "String [a, , b]"),
        ("-", "m=a m=b m@TypeHint=String", "String [a, b]"),
        ("-", "m=1 m=2 m@TypeHint=Long", "Long [1, 2]"),
        ("-", "m=a m= m=b m@IgnoreBlanks=true", "String [a, b]"),
        ("-", "m= m= m@TypeHint=String[]", "String [, ]"),
        ("-", "m= m@TypeHint=String[]", "String []"),
        ("one", "m=a m=b", "String [a, b]"),
        ("one", "m=a", "String a"),
        ("one", "m=", "-"),
        ("one", "m= m@IgnoreBlanks=true", "String one"),
        ("one", "m= m@DefaultValue=:ignore", "String one"),
        ("one", "m= m@DefaultValue=:null", "-"),
        ("one", "m@ValueFrom=none", "String one"),
        ("one", "m@TypeHint=String", "String one"),
        ("one", "m=+b m@Patch=true", "String one"),
        ("list", "m=z", "String [z]"),
        ("list", "m=", "String []"),
        ("list", "m= m= m=", "String [, , ]"),
        ("list", "m= m@DefaultValue=:ignore", "-"),
        ("list", "m=+z m=-y m@Patch=true", "String [x, z]"),
        ("list", "m=none m@Patch=true", "String [x, y]"),
        ("long", "m=7", "Long 7"),
        ("long", "m=7 m=x", "refused"),
    ] {
        author.edit(|session| {
            let node = Subtree::new("n", "nt:unstructured");
            let list = |texts: [&str; 2]| Property::parse_list(ValueType::String, texts).unwrap();
            let node = match before {
                "one" => node.with_property("m", "one"),
                "list" => node.with_property("m", list(["x", "y"])),
                "long" => node.with_property("m", tympan_content::Value::Long(5)),
                _ => node,
            };
            session.put_node(&path("/content/n"), node).unwrap();
        });
        let was = author.property("/content/n", "m");
        let reply = author.try_post("/content/n", &fields(form)).await;
        let now = author.property("/content/n", "m");
        match expected {
            "refused" => {
                assert_eq!((reply.status.as_u16(), now), (400, was), "{before} {form} {reply:?}");
            }
            expected => assert_eq!(now, expected, "{before} {form} {reply:?}"),
        }
    }
}

#[tokio::test]
async fn a_value_comes_from_a_field_that_is_no_content_itself() {
    let author = TestInstance::author().await;
    author.post("/content/n", &fields("./h@ValueFrom=other other=v other=w ./i=1")).await;
    assert_eq!(author.property("/content/n", "h"), "String [v, w]");
    assert_eq!(author.property("/content/n", "other"), "-");
}

#[tokio::test]
async fn who_made_a_node_is_filled_in_once() {
    let author = TestInstance::author().await;
    author.post("/content/n", &fields("createdBy= x=1")).await;
    assert_eq!(author.property("/content/n", "createdBy"), "String admin");
    author.edit(|session| {
        session.set_property(&path("/content/n"), "createdBy", Property::text("ann")).unwrap();
    });
    author.post("/content/n", &fields("createdBy= lastModifiedBy=")).await;
    assert_eq!(author.property("/content/n", "createdBy"), "String ann");
    assert_eq!(author.property("/content/n", "lastModifiedBy"), "String admin");
}

#[tokio::test]
async fn files_arrive_in_parts_whatever_their_type_and_place() {
    let author = TestInstance::author().await;
    author.edit(|session| {
        for (name, kind) in
            [("sling", "sling:Folder"), ("nt", "nt:folder"), ("node", "nt:unstructured")]
        {
            session.put_node(&path(&format!("/content/{name}")), Subtree::new(name, kind)).unwrap();
        }
    });
    for folder in ["sling", "nt", "node"] {
        for hint in ["", "nt:file", "nt:resource"] {
            if folder == "nt" && hint == "nt:resource" {
                continue;
            }
            let name = format!("./big{}.bin", hint.len());
            let at = format!("/content/{folder}/{}", &name[2..]);
            // Twice: a file that is there is replaced when the last part has come.
            for (round, text) in ["first second", "other second"].into_iter().enumerate() {
                for (offset, part) in [(0, &text[..6]), (6, &text[6..])] {
                    let (offset_name, length_name, hint_name) = (
                        format!("{name}@Offset"),
                        format!("{name}@Length"),
                        format!("{name}@TypeHint"),
                    );
                    let offset_text = offset.to_string();
                    let mut parts: Vec<FormPart<'_>> = vec![
                        (&offset_name, None, offset_text.as_bytes()),
                        (&length_name, None, b"12"),
                        (&name, Some(("b.bin", "text/plain")), part.as_bytes()),
                    ];
                    if !hint.is_empty() {
                        parts.insert(0, (&hint_name, None, hint.as_bytes()));
                    }
                    let request = author.as_admin(Method::POST, &format!("/content/{folder}"));
                    let reply = request.multipart(&parts).send().await;
                    assert!(reply.status.is_success(), "{at} {hint} {offset} {reply:?}");
                    let expected = match (round, offset) {
                        (0, 0) => "",
                        (1, 0) => "first second",
                        _ => text,
                    };
                    assert_eq!(author.get(&at).await.text(), expected, "{at} {hint} {offset}");
                }
            }
            let holder =
                if author.snapshot().node(&path(&format!("{at}/jcr:content"))).unwrap().is_some() {
                    format!("{at}/jcr:content")
                } else {
                    at.clone()
                };
            let node = author.snapshot().node(&path(&holder)).unwrap().unwrap();
            assert!(node.children().unwrap().is_empty(), "{at}");
            assert_eq!(author.property(&holder, "jcr:mixinTypes"), "-", "{at}");
        }
    }
}

#[tokio::test]
async fn apply_to_a_star_means_the_children() {
    let author = TestInstance::author().await;
    for (folder, target) in [("/content/a", "*"), ("/content/b.c", "*"), ("/content/d", "/*")] {
        for name in ["x", "y"] {
            author.edit(|session| {
                if session.node(&path(folder)).unwrap().is_none() {
                    let node = Subtree::new(path(folder).name(), "nt:unstructured");
                    session.put_node(&path(folder), node).unwrap();
                }
                let at = path(folder).child(name).unwrap();
                session.put_node(&at, Subtree::new(name, "nt:unstructured")).unwrap();
            });
        }
        author.post(folder, &[(":operation", "delete"), (":applyTo", target)]).await;
        let node = author.snapshot().node(&path(folder)).unwrap().unwrap();
        assert!(node.children().unwrap().is_empty(), "{folder} {target}");
    }
}

#[tokio::test]
async fn a_form_for_a_service_that_is_not_there_makes_no_content() {
    let author = TestInstance::author().await;
    for target in [
        "/bin/wcm/cmd",
        "/bin/unheard",
        "/bin/unheard.json",
        "/bin/*",
        "/bin/",
        "/bin",
        "/system/console/bundles",
        "/system/userManager/user.create.html",
        "/crx/unheard",
        "/libs/unheard",
        "/libs",
        "/mnt/overlay/unheard",
    ] {
        let reply = author.try_post(target, &[("a", "1")]).await;
        assert_eq!(reply.status, 404, "{target} {reply:?}");
    }
    let deep = author.try_post("/content/n", &[("/bin/x/p", "1")]).await;
    assert_eq!(deep.status, 404);
    let import = [
        (":operation", "import"),
        (":contentType", "json"),
        (":content", "{\"a\":1}"),
        (":name", "x"),
    ];
    assert_eq!(author.try_post("/bin/", &import).await.status, 404);
    assert_eq!(author.as_admin(Method::PUT, "/bin/x").body("x").send().await.status, 404);
    let file: (&str, Option<(&str, &str)>, &[u8]) = ("./f", Some(("f.txt", "text/plain")), b"x");
    let upload = author.as_admin(Method::POST, "/bin").multipart(&[file]).send().await;
    assert_eq!(upload.status, 404);
    for name in ["/bin", "/system", "/crx"] {
        assert!(author.snapshot().node(&path(name)).unwrap().is_none(), "{name}");
    }
}
