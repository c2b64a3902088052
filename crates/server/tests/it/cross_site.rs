//! What another site makes a browser send changes nothing: each changing door with each kind of proof that a browser sends
//! by itself.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Method, StatusCode};

use crate::support::{PASSWORD, TestInstance, TestRequest, zipped};

/// Method, address, media type and body of a change.
type Change = (&'static str, &'static str, &'static str, &'static str);

const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";

/// The doors by which something is changed, each with what it takes.
const CHANGES: &[Change] = &[
    ("POST", "/content/made", FORM, "a=b"),
    ("POST", "/content/made", FORM, ":operation=delete"),
    ("POST", "/content", FORM, ":operation=import&:contentType=json&:content={}&:name=x"),
    (
        "POST",
        "/content/made",
        "multipart/form-data; boundary=b",
        "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--b--\r\n",
    ),
    // Forms may say nothing of what they are.
    ("POST", "/content/made", "", "a=b"),
    ("PUT", "/content/put.txt", "text/plain", "x"),
    ("PUT", "/api/v1/nodes?path=/content/api", JSON, "{}"),
    ("PATCH", "/api/v1/nodes?path=/content", JSON, "{}"),
    ("DELETE", "/api/v1/nodes?path=/content/made", "", ""),
    ("POST", "/api/v1/nodes/copy", JSON, "{\"from\":\"/content\",\"to\":\"/other\"}"),
    ("POST", "/api/v1/batch", JSON, "{\"operations\":[]}"),
    ("PUT", "/api/v1/blob?path=/content&property=x", "text/plain", "x"),
    ("POST", "/api/v1/users", JSON, "{\"name\":\"eve\",\"password\":\"violet-harbor-9\"}"),
    ("PUT", "/api/v1/user/password?name=spare", JSON, "{\"password\":\"violet-harbor-9\"}"),
    ("POST", "/api/v1/group/members", JSON, "{\"group\":\"administrators\",\"member\":\"spare\"}"),
    ("PUT", "/api/v1/permissions?path=/content", JSON, "{\"entries\":[]}"),
    ("POST", "/api/v1/branches", JSON, "{\"name\":\"b\"}"),
    ("POST", "/api/v1/versions", JSON, "{\"path\":\"/content\"}"),
    ("POST", "/api/v1/replication", JSON, "{\"action\":\"activate\",\"paths\":[\"/content\"]}"),
    ("POST", "/api/v1/jobs/retry", FORM, "id=1"),
    ("POST", "/api/v1/workflows", FORM, "model=/a&payload=/content"),
    ("POST", "/api/v1/schedules/run?name=a", "", ""),
    ("POST", "/api/v1/agents?name=a&command=clear", "", ""),
    ("POST", "/api/v1/packages", "application/zip", ""),
    ("POST", "/api/v1/packages/install?id=g:n:1", "", ""),
    ("POST", "/api/v1/types/cnd", "text/plain", "[evil] > nt:base"),
    ("POST", "/api/v1/indexes/rebuild", "", ""),
    ("POST", "/bin/replicate.json", FORM, "cmd=Activate&path=/content"),
    ("POST", "/bin/wcmcommand", FORM, "cmd=createPage&parentPath=/content&title=x"),
    ("POST", "/api/assets/x", JSON, "{\"class\":\"assetFolder\"}"),
    ("POST", "/api/assets/*", FORM, "name=x"),
    ("PUT", "/api/assets/x", "image/png", "x"),
    ("DELETE", "/api/assets/x", "", ""),
    ("COPY", "/api/assets/x", "", ""),
    ("POST", "/system/console/slingevent", FORM, "action=suspend&queue=x"),
    ("POST", "/system/console/configMgr/x", FORM, "apply=true"),
    ("POST", "/etc/workflow/instances", FORM, "model=/a&payload=/content"),
    ("POST", "/bin/workflow/inbox", FORM, "item=1"),
    ("POST", "/crx/packmgr/service/.json", FORM, "cmd=create&packageName=x"),
    ("POST", "/crx/packmgr/service.jsp", FORM, "cmd=create&packageName=x"),
    ("POST", "/crx/packmgr/service/script.html", FORM, "cmd=create&packageName=x"),
];

fn request<'a>(instance: &'a TestInstance, change: &Change) -> TestRequest<'a> {
    let (method, address, media_type, body) = *change;
    let request = instance.request(Method::from_bytes(method.as_bytes()).unwrap(), address);
    let request = match media_type {
        "" => request,
        media_type => request.header("content-type", media_type),
    };
    match address.ends_with("/packages") {
        true => request.body(zipped(&[])),
        false => request.body(body),
    }
}

/// The headers by which a browser says that a page of another site sends a request.
const FOREIGN: &[(&str, &str)] = &[
    ("origin", "https://evil.example"),
    ("origin", "http://localhost.evil.example"),
    ("origin", "http://localhost:8080"),
    ("origin", "null"),
    ("sec-fetch-site", "cross-site"),
    ("sec-fetch-site", "same-site"),
];

#[tokio::test]
async fn a_session_changes_nothing_without_its_token() {
    let instance = TestInstance::author().await;
    instance.user("spare", &[]).await;
    let login = instance.request(Method::POST, "/login");
    let login = login.form(&[("user", "admin"), ("password", PASSWORD)]).send().await;
    assert_eq!(login.status, 200, "{login:?}");
    let cookie = login.header("set-cookie").split(';').next().unwrap().to_owned();
    for flag in ["HttpOnly", "SameSite=Lax", "Path=/"] {
        assert!(login.header("set-cookie").contains(flag), "{login:?}");
    }
    let csrf = login.json()["csrf"].as_str().unwrap().to_owned();
    for change in CHANGES {
        let with_cookie = || request(&instance, change).header("cookie", &cookie);
        let without = with_cookie().send().await;
        assert_eq!(without.status, 403, "{change:?} {without:?}");
        for token in ["", "guessed", &csrf[1..], &csrf.to_uppercase()] {
            let wrong = with_cookie().header("x-csrf-token", token).send().await;
            assert_eq!(wrong.status, 403, "{change:?} {token} {wrong:?}");
        }
        let right = with_cookie().header("x-csrf-token", &csrf).send().await;
        let is_refused = matches!(right.status, StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED);
        assert!(!is_refused, "{change:?} {right:?}");
    }
    // What clones read is not for a browser at all.
    let store = instance.request(Method::GET, "/bin/store/refs").header("cookie", &cookie);
    assert_eq!(store.header("x-csrf-token", &csrf).send().await.status, 401);
}

#[tokio::test]
async fn remembered_credentials_change_nothing_for_another_site() {
    let instance = TestInstance::author().await;
    instance.user("spare", &[]).await;
    let basic = format!("Basic {}", STANDARD.encode(format!("admin:{PASSWORD}")));
    for change in CHANGES {
        for (name, value) in FOREIGN {
            let foreign = request(&instance, change).header("authorization", &basic);
            let foreign = foreign.header(name, value).send().await;
            assert_eq!(foreign.status, 403, "{change:?} {name}: {value} {foreign:?}");
        }
    }
    // A page of this site, and a program.
    for (name, value) in [("origin", "http://localhost"), ("sec-fetch-site", "same-origin")] {
        let own = request(&instance, &CHANGES[0]).header("authorization", &basic);
        let own = own.header(name, value).send().await;
        assert!(own.status.is_success(), "{own:?}");
    }
}

#[tokio::test]
async fn another_site_logs_nobody_in_or_out() {
    let instance = TestInstance::author().await;
    for (name, value) in FOREIGN {
        for address in ["/login", "/logout"] {
            let foreign = instance.request(Method::POST, address).header(name, value);
            let foreign = foreign.form(&[("user", "admin"), ("password", PASSWORD)]).send().await;
            assert_eq!(foreign.status, 403, "{address} {name}: {value} {foreign:?}");
            assert_eq!(foreign.header("set-cookie"), "");
        }
    }
    // Where a login leads to is on this site.
    for target in
        ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
    {
        let address = format!("/login?resource={target}");
        let login = instance.request(Method::POST, &address);
        let login = login.form(&[("user", "admin"), ("password", PASSWORD)]).send().await;
        assert_eq!((login.status.as_u16(), login.header("location")), (200, ""), "{target}");
    }
}

#[tokio::test]
async fn a_header_or_a_field_makes_no_other_method_of_a_request() {
    let instance = TestInstance::author().await;
    instance.post("/content/made", &[("a", "b")]).await;
    for name in ["x-http-method-override", "x-http-method", "x-method-override"] {
        let request = instance.as_admin(Method::GET, "/api/v1/nodes?path=/content/made");
        assert_eq!(request.header(name, "DELETE").send().await.status, 200);
        let request = instance.as_admin(Method::POST, "/content/made").header(name, "DELETE");
        assert!(request.form(&[("c", "d")]).send().await.status.is_success());
    }
    instance.post("/content/made?_method=DELETE", &[("_method", "DELETE")]).await;
    assert_eq!(instance.property("/content/made", "c"), "String d");
}

#[tokio::test]
async fn credentials_are_taken_from_this_machine_or_over_tls() {
    let instance = TestInstance::author().await;
    let token = instance.token_of("admin").await;
    let request = instance.request(Method::GET, "/api/v1/me").with_foreign_address();
    let request = request.header("x-forwarded-proto", "https").bearer(&token);
    assert_eq!(request.send().await.status, 403);
    assert_eq!(instance.request(Method::GET, "/api/v1/me").bearer(&token).send().await.status, 200);
    for authorization in
        ["Bearer", "Bearer x", "bearer\u{9}x", "Negotiate x", "Basic", "Basic !!", "Basic OjpA"]
    {
        let request = instance.request(Method::GET, "/api/v1/me");
        assert_eq!(request.header("authorization", authorization).send().await.status, 401);
    }
}
