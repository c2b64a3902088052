//! Nobody gets in without credentials, and nothing is written without the token of a session.

use http::Method;
use tympan_content::Subtree;

use crate::blocking_instance::{BlockingInstance, basic, first_cookie, form_type};
use crate::support::{PASSWORD, TestInstance, path};

#[test]
fn nobody_gets_in_without_a_login() {
    let author = BlockingInstance::author();
    for path in [
        "/content.json",
        "/home/users/admin.json",
        "/api/v1/pages?path=/",
        "/metrics",
        "/api/v1/queue",
    ] {
        assert_eq!(author.send("GET", path, &[], b"").status, 401, "{path}");
    }
    assert_eq!(author.send("POST", "/x", &[], b"./a=1").status, 401);
    let wrong = [("authorization", basic("admin", "wrong")), form_type()];
    assert_eq!(author.send("POST", "/x", &wrong, b"./a=1").status, 401);
}

#[test]
fn nothing_is_written_without_the_token_of_the_session() {
    let author = BlockingInstance::author();
    let login = author.log_in("admin", PASSWORD);
    assert_eq!(login.status, 200);
    let cookie = first_cookie(&login);
    let csrf = login.json()["csrf"].as_str().unwrap().to_owned();
    let with_cookie = |token: Option<&str>| {
        let mut headers = vec![
            ("cookie", cookie.clone()),
            form_type(),
            ("accept", "application/json".to_owned()),
        ];
        headers.extend(token.map(|token| ("x-csrf-token", token.to_owned())));
        author.send("POST", "/guarded", &headers, b"./a=1").status
    };
    assert_eq!(with_cookie(None), 403);
    assert_eq!(with_cookie(Some("0")), 403);
    assert_eq!(with_cookie(Some(&csrf)), 201);

    // Credentials that a browser remembers are no consent to what another site asks.
    let foreign = [
        ("authorization", basic("admin", PASSWORD)),
        form_type(),
        ("sec-fetch-site", "cross-site".to_owned()),
    ];
    assert_eq!(author.send("POST", "/guarded", &foreign, b"./a=1").status, 403);
}

#[test]
fn programs_with_a_token_need_no_token_of_a_session() {
    let author = BlockingInstance::author();
    assert_eq!(author.post("/guarded", "./a=1").status, 201);
    let bearer = ("authorization", format!("Bearer {}", author.token("admin")));
    let read = author.send("GET", "/guarded.json", std::slice::from_ref(&bearer), b"");
    assert_eq!(read.status, 200);
    assert_eq!(author.send("POST", "/guarded", &[bearer, form_type()], b"./a=2").status, 200);
    // A token of somebody who is not there opens nothing.
    let ghost = [("authorization", format!("Bearer {}", author.token("ghost")))];
    assert_eq!(author.send("GET", "/guarded.json", &ghost, b"").status, 401);
}

#[test]
fn the_hash_of_a_password_is_shown_to_nobody() {
    let author = BlockingInstance::author();
    let admin = [("authorization", basic("admin", PASSWORD))];
    let user = author.send("GET", "/home/users/admin.json", &admin, b"");
    assert!(user.status == 200 && !user.text().contains("argon2"), "{}", user.text());
}

/// A value that no index can hold must not hide others.
#[test]
fn values_and_types_that_make_no_sense_do_no_harm() {
    let author = BlockingInstance::author();
    assert_eq!(author.post("/odd", "./sling:resourceType=cq/Component%00x").status, 201);
    let unknown = author.post("/typed", "./jcr:primaryType=no:type");
    assert_eq!(unknown.status, 422, "{}", unknown.text());
    assert!(unknown.text().contains("OakConstraint0001"), "{}", unknown.text());
    let page = "./jcr:primaryType=cq:Page&./jcr:content/jcr:primaryType=cq:PageContent";
    assert_eq!(author.post("/content/p", page).status, 201);
    let admin = [("authorization", basic("admin", PASSWORD))];
    assert_eq!(author.send("GET", "/api/v1/page?path=/content/p", &admin, b"").status, 200);
}

#[test]
fn guessing_is_slowed_down_for_the_guesser() {
    let author = BlockingInstance::author();
    let wrong: Vec<u16> = (0..6).map(|_| author.log_in("admin", "wrong").status).collect();
    assert_eq!(wrong[..5], [401; 5]);
    // The wait after ten failures is a second, which the next attempt may have outlasted.
    let answer =
        (0..20).map(|_| author.log_in("admin", "wrong")).find(|answer| answer.status == 429);
    let answer = answer.expect("no attempt was put off");
    let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=64).contains(&wait), "{wait}");
    // Another user from the same address is asked for its password.
    assert_eq!(author.log_in("nobody", "wrong").status, 401);
}

#[tokio::test]
async fn no_field_of_a_dialog_shows_the_hash_of_a_password() {
    let author = TestInstance::author().await;
    author.user("ann", &[]).await;
    let home = author.repository.account_path("ann").unwrap().unwrap();
    let (folder, name) = (home.parent().unwrap(), home.name().to_owned());
    let field = |name: &str, kind: &str| {
        let kind = format!("granite/ui/components/coral/foundation/form/{kind}");
        Subtree::new("", "nt:unstructured")
            .with_property("name", name)
            .with_property("sling:resourceType", &*kind)
    };
    let named = |name: &str, mut field: Subtree| {
        name.clone_into(&mut field.name);
        field
    };
    let inner = Subtree::new("items", "nt:unstructured")
        .with_child(named("hash", field("rep:password", "textfield")))
        .with_child(named("deep", field("x/rep:password", "textfield")))
        .with_child(named("principal", field("rep:principalName", "textfield")));
    let composite = named("field", field("./x", "container")).with_child(inner);
    let items = Subtree::new("items", "nt:unstructured")
        .with_child(named("own", field("rep:password", "textfield")))
        .with_child(named("below", field(&format!("./{name}/rep:password"), "password")))
        .with_child(named("principal", field(&format!("{name}/rep:principalName"), "textfield")))
        .with_child(
            named("list", field("./", "multifield"))
                .with_property("composite", "true")
                .with_child(composite),
        );
    author.edit(|session| {
        session.put_node(&path("/apps"), Subtree::new("", "sling:Folder")).unwrap();
        let dialog = Subtree::new("cq:dialog", "nt:unstructured").with_child(items);
        let component = Subtree::new("", "cq:Component").with_child(dialog);
        // The type of a node without a resource type names its component.
        for at in [&folder, &home] {
            let kind = session.node(at).unwrap().unwrap().primary_type().to_owned();
            session.put_node(&path(&format!("/apps/{kind}")), component.clone()).unwrap();
        }
    });
    let below = format!("{name}/rep:principalName");
    for (at, shown) in [(&folder, below.as_str()), (&home, "rep:principalName")] {
        let reply = author.as_admin(Method::GET, &format!("/api/v1/dialog?path={at}")).send().await;
        let values = &reply.json()["values"];
        assert_eq!(values[shown], "ann", "{reply:?}");
        assert!(!reply.text().contains("$argon2"), "{reply:?}");
    }
}
