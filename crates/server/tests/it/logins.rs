//! Logins: guesses, sessions, tokens, and what others on the machine and in the net may see.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, StatusCode};
use serde_json::json;
use tympan_content::{Property, RevisionDetails};
use tympan_server::{
    InstanceRole, LoginTokenScope, Logins, TokenOwner, TokenTerms, create_user, set_password,
};
use tympan_web::ip_network::IpNetwork;

use crate::support::{PASSWORD, Reply, TestInstance, TestRequest, zipped};

/// Tries a password as a visitor whom a dispatcher on this machine passes on.
async fn log_in(instance: &TestInstance, from: &str, user: &str, password: &str) -> Reply {
    login_request(instance, from, user, password).send().await
}

fn login_request<'a>(
    instance: &'a TestInstance,
    from: &str,
    user: &str,
    password: &str,
) -> TestRequest<'a> {
    let request = instance.request(Method::POST, "/login").header("x-forwarded-for", from);
    request.form(&[("user", user), ("password", password)])
}

/// Returns the cookies that an answer sets, as a browser sends them back.
fn cookies(reply: &Reply) -> String {
    let cookies = reply.headers.get_all("set-cookie").iter().map(|one| one.to_str().unwrap());
    cookies.filter_map(|one| one.split(';').next()).collect::<Vec<_>>().join("; ")
}

#[tokio::test]
async fn a_stranger_cannot_keep_the_owner_out() {
    let author = TestInstance::author().await;
    let before = log_in(&author, "203.0.113.7", "admin", PASSWORD).await;
    assert_eq!(before.status, 200, "{before:?}");
    for _ in 0..11 {
        log_in(&author, "198.51.100.9", "admin", "wrong").await;
    }
    let stranger = log_in(&author, "198.51.100.9", "admin", PASSWORD).await;
    assert_eq!(stranger.status, StatusCode::TOO_MANY_REQUESTS);
    // From another address, and from the same one with a browser that the owner has used.
    assert_eq!(log_in(&author, "192.0.2.1", "admin", PASSWORD).await.status, 200);
    let owner = login_request(&author, "198.51.100.9", "admin", PASSWORD);
    let owner = owner.header("cookie", &cookies(&before)).send().await;
    assert_eq!(owner.status, 200, "{owner:?}");
}

/// With the challenge `Basic`, a browser would open a dialog above the login of the interface.
#[tokio::test]
async fn only_navigations_and_programs_are_challenged_for_a_password() {
    let author = TestInstance::author().await;
    let challenge = async |headers: &[(&str, &str)]| {
        let mut request = author.request(Method::GET, "/api/v1/me");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let reply = request.send().await;
        assert_eq!(reply.status, StatusCode::UNAUTHORIZED);
        reply.header("www-authenticate").split(' ').next().unwrap().to_owned()
    };
    assert_eq!(challenge(&[]).await, "Basic");
    assert_eq!(challenge(&[("sec-fetch-mode", "navigate")]).await, "Basic");
    assert_eq!(challenge(&[("sec-fetch-mode", "cors")]).await, "Session");
    assert_eq!(challenge(&[("x-requested-with", "XMLHttpRequest")]).await, "Session");
    let wrong = login_request(&author, "203.0.113.7", "admin", "wrong");
    let wrong = wrong.header("x-requested-with", "XMLHttpRequest").send().await;
    assert!(wrong.header("www-authenticate").starts_with("Session "), "{wrong:?}");
}

#[tokio::test]
async fn a_made_up_browser_helps_nobody() {
    let author = TestInstance::author().await;
    let cookie = "tympan-known=0123456789abcdef0123456789abcdef.0123456789abcdef";
    let mut last = StatusCode::OK;
    for _ in 0..11 {
        let guess = login_request(&author, "198.51.100.9", "admin", "wrong");
        last = guess.header("cookie", cookie).send().await.status;
    }
    assert_eq!(last, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn addresses_are_believed_of_proxies_alone() {
    let author = TestInstance::author().await;
    // A visitor who comes directly says that each attempt is somebody else's.
    let mut last = StatusCode::OK;
    for number in 0..11 {
        let guess = login_request(&author, &format!("192.0.2.{number}"), "admin", "wrong");
        last = guess.with_address(IpAddr::from([198, 51, 100, 9])).send().await.status;
    }
    assert_eq!(last, StatusCode::TOO_MANY_REQUESTS);
    // Through a proxy, what a visitor has put in front of the proxy's own word counts for nothing.
    for number in 0..11 {
        let chain = format!("192.0.2.{number}, 203.0.113.5");
        last = log_in(&author, &chain, "admin", "wrong").await.status;
    }
    assert_eq!(last, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(log_in(&author, "203.0.113.6", "admin", PASSWORD).await.status, 200);
}

#[tokio::test]
async fn a_proxy_on_another_machine_is_believed_when_it_is_named() {
    let author = TestInstance::start(InstanceRole::Author, |options| {
        let proxies: [IpNetwork; 1] = ["10.0.0.0/28".parse().unwrap()];
        options.logins = options.logins.clone().with_trusted_proxies(&proxies);
    })
    .await;
    let from = async |proxy: [u8; 4], visitor: &str, password: &str| {
        let attempt = login_request(&author, visitor, "admin", password);
        attempt.with_address(IpAddr::from(proxy)).send().await.status
    };
    for _ in 0..11 {
        from([10, 0, 0, 7], "198.51.100.9", "wrong").await;
    }
    assert_eq!(from([10, 0, 0, 7], "198.51.100.9", PASSWORD).await, 429);
    assert_eq!(from([10, 0, 0, 7], "198.51.100.10", PASSWORD).await, 200);
    // The next proxy of the chain has seen the same visitor.
    assert_eq!(from([10, 0, 0, 8], "198.51.100.9, 10.0.0.7", PASSWORD).await, 429);
}

#[tokio::test]
async fn one_password_tried_at_many_accounts_is_slowed_down() {
    let author = TestInstance::author().await;
    let mut last = StatusCode::OK;
    for number in 0..21 {
        last = log_in(&author, "198.51.100.9", &format!("user{number}"), "spring2026").await.status;
    }
    assert_eq!(last, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(log_in(&author, "203.0.113.6", "admin", PASSWORD).await.status, 200);
}

#[tokio::test]
async fn accounts_that_are_there_answer_as_those_that_are_not() {
    let author = TestInstance::author().await;
    let mut answers = Vec::new();
    for (number, user) in ["admin", "nobody"].into_iter().enumerate() {
        let from = format!("198.51.100.{number}");
        let mut statuses = Vec::new();
        for _ in 0..11 {
            let reply = log_in(&author, &from, user, "wrong").await;
            statuses.push((reply.status, reply.text(), reply.headers.contains_key("set-cookie")));
        }
        answers.push(statuses);
    }
    assert_eq!(answers[0], answers[1]);
}

#[tokio::test]
async fn the_cookie_of_a_known_browser_goes_to_logins_alone() {
    let author = TestInstance::author().await;
    let reply = log_in(&author, "203.0.113.7", "admin", PASSWORD).await;
    let cookies: Vec<_> = reply.headers.get_all("set-cookie").iter().collect();
    assert_eq!(cookies.len(), 2, "{reply:?}");
    let known = cookies[1].to_str().unwrap();
    assert!(known.starts_with("tympan-known=") && known.contains("; Path=/login; HttpOnly"));
    assert!(!known.contains(PASSWORD) && !known.contains("argon2"), "{known}");
}

/// Asks who is logged in by the cookies of a login and returns the status.
async fn me(author: &TestInstance, begun: &Reply) -> http::StatusCode {
    let request = author.request(Method::GET, "/api/v1/me").header("cookie", &cookies(begun));
    request.send().await.status
}

#[tokio::test]
async fn a_session_ends_when_nobody_uses_it() {
    let author = TestInstance::start(InstanceRole::Author, |options| {
        options.logins = options.logins.clone().with_session_idle_timeout(Duration::ZERO);
    })
    .await;
    let begun = log_in(&author, "192.0.2.1", "admin", PASSWORD).await;
    assert_eq!(me(&author, &begun).await, 401);
    let author = TestInstance::author().await;
    let begun = log_in(&author, "192.0.2.1", "admin", PASSWORD).await;
    assert_eq!(me(&author, &begun).await, 200);
    // It was used three hours ago, which no later use can mend.
    let age = "UPDATE login SET seen = created - 10800, created = created - 10800";
    sqlx::query(age).execute(author.state.pool()).await.unwrap();
    assert_eq!(me(&author, &begun).await, 401);
    // One that is used from time to time goes on.
    let age = "UPDATE login SET seen = seen + 7200";
    sqlx::query(age).execute(author.state.pool()).await.unwrap();
    assert_eq!(me(&author, &begun).await, 200);
    let age = "UPDATE login SET seen = seen - 7100";
    sqlx::query(age).execute(author.state.pool()).await.unwrap();
    assert_eq!(me(&author, &begun).await, 200, "noted by the one before");
}

#[tokio::test]
async fn a_token_may_be_for_reading_and_may_end() {
    let author = TestInstance::author().await;
    let now = SystemTime::now();
    let issue = async |life, scope| {
        let owner = TokenOwner { user: "admin", account: None };
        let terms = TokenTerms { lifetime: life, scope };
        Logins::issue_token(author.state.pool(), owner, now, terms).await.unwrap()
    };
    let reading = issue(Some(Duration::from_secs(3600)), LoginTokenScope::Read).await;
    let ask = |method, target| author.request(method, target).bearer(&reading);
    assert_eq!(ask(Method::GET, "/content.json").send().await.status, 200);
    let query = json!({ "statement": "SELECT * FROM [nt:base]" });
    assert_eq!(ask(Method::POST, "/api/v1/query").json(&query).send().await.status, 200);
    let form = ask(Method::POST, "/bin/querybuilder.json").form(&[("path", "/content")]);
    assert_eq!(form.send().await.status, 200);
    for request in [
        ask(Method::POST, "/content/n").form(&[("a", "1")]),
        ask(Method::PUT, "/content/n").body("x"),
        ask(Method::PUT, "/api/v1/nodes?path=/content/n").json(&json!({})),
        ask(Method::DELETE, "/api/v1/nodes?path=/content"),
        ask(Method::POST, "/api/v1/users").json(&json!({ "name": "eve", "password": PASSWORD })),
    ] {
        let reply = request.send().await;
        assert_eq!(reply.status, 403, "{reply:?}");
        assert!(reply.text().contains("this token is read-only"), "{reply:?}");
    }
    assert!(author.snapshot().node(&crate::support::path("/content/n")).unwrap().is_none());
    let ended = issue(Some(Duration::ZERO), LoginTokenScope::All).await;
    let reply = author.request(Method::GET, "/content.json").bearer(&ended).send().await;
    assert_eq!(reply.status, 401);
    let listed = Logins::list_tokens(author.state.pool(), Some("admin"), now).await.unwrap();
    assert!(listed.iter().any(|token| token.scope == "read" && token.expires.is_some()));
}

/// A package with one user, whose password has another hash.
fn package_with_user(folder: &str, user: &str, identifier: &str, hash: &str) -> Vec<u8> {
    let filter = format!(
        "<workspaceFilter version=\"1.0\"><filter root=\"{folder}/{user}\"/></workspaceFilter>"
    );
    let content = format!(
        "<jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" xmlns:rep=\"internal\" jcr:primaryType=\"rep:User\" \
         jcr:uuid=\"{identifier}\" rep:authorizableId=\"{user}\" rep:principalName=\"{user}\" rep:password=\"{hash}\"/>"
    );
    let properties = "<?xml version=\"1.0\"?><properties><entry key=\"group\">g</entry>\
                      <entry key=\"name\">users</entry><entry key=\"version\">1</entry></properties>";
    zipped(&[
        ("META-INF/vault/properties.xml", properties),
        ("META-INF/vault/filter.xml", &filter),
        (&format!("jcr_root{folder}/{user}/.content.xml"), &content),
    ])
}

/// A user with a session, a token, a login link and Basic credentials that are remembered.
struct Opened {
    session: Reply,
    token: String,
    link: String,
}

impl Opened {
    async fn of(author: &TestInstance, user: &str) -> Self {
        let session = log_in(author, "192.0.2.1", user, PASSWORD).await;
        assert_eq!(session.status, 200, "{session:?}");
        let token = author.token_of(user).await;
        let logins = Logins::new(author.state.pool().clone(), author.repository.clone());
        let link = logins.create_login_link(user, SystemTime::now()).await.unwrap();
        let opened = Self { session, token, link };
        assert_eq!(opened.statuses(author, user).await, [200, 200, 200]);
        opened
    }

    /// Asks with the session, the token and the Basic credentials.
    async fn statuses(&self, author: &TestInstance, user: &str) -> [u16; 3] {
        let ask = || author.request(Method::GET, "/api/v1/me");
        let basic = STANDARD.encode(format!("{user}:{PASSWORD}"));
        let basic = ask().header("authorization", &format!("Basic {basic}")).send().await;
        let bearer = ask().bearer(&self.token).send().await;
        [me(author, &self.session).await.as_u16(), bearer.status.as_u16(), basic.status.as_u16()]
    }

    async fn link_cookie(&self, author: &TestInstance) -> String {
        let used = author.visit(&format!("/login/link?token={}", self.link)).await;
        used.header("set-cookie").to_owned()
    }
}

#[tokio::test]
async fn a_changed_password_ends_all_logins_whatever_changed_it() {
    let doors =
        ["form", "PUT", "PATCH", "batch", "package", "POST", "command", "branch", "earlier state"];
    for door in doors {
        let author = TestInstance::author().await;
        author.edit(|session| {
            create_user(session, "ann", "an older password").unwrap();
            // What another password looks like.
            create_user(session, "bob", "another password").unwrap();
        });
        let at = author.repository.account_path("ann").unwrap().unwrap();
        let stored = || author.snapshot().node(&at).unwrap().unwrap();
        let earlier = author.repository.head_root().unwrap();
        author.edit(|session| set_password(session, "ann", PASSWORD).unwrap());
        let bob = author.repository.account_path("bob").unwrap().unwrap();
        let hash = author.snapshot().node(&bob).unwrap().unwrap().text("rep:password").unwrap();
        let opened = Opened::of(&author, "ann").await;
        let bystander = author.token_of("bob").await;
        let before = stored().text("rep:password").unwrap();
        let typed = json!({ "type": "String", "value": hash });
        let target = format!("/api/v1/nodes?path={at}");
        let reply = match door {
            "form" => {
                let request = author.as_admin(Method::PUT, "/api/v1/user/password?name=ann");
                request.json(&json!({ "password": "violet-harbor-9" })).send().await
            }
            "PUT" => {
                let mut properties = serde_json::Map::new();
                for name in ["jcr:uuid", "rep:authorizableId", "rep:principalName"] {
                    let value = stored().text(name).unwrap();
                    properties.insert(name.to_owned(), json!({ "type": "String", "value": value }));
                }
                properties.insert("rep:password".to_owned(), typed);
                let node = json!({ "type": "rep:User", "properties": properties });
                author.as_admin(Method::PUT, &target).json(&node).send().await
            }
            "PATCH" => {
                let patch = json!({ "properties": { "rep:password": typed } });
                let request = author.as_admin(Method::PATCH, &target).body(patch.to_string());
                request.header("content-type", "application/merge-patch+json").send().await
            }
            "batch" => {
                let patch = json!({ "op": "patch", "path": at.as_str(), "patch": { "properties": { "rep:password": typed } } });
                let request = author.as_admin(Method::POST, "/api/v1/batch");
                request.json(&json!({ "operations": [patch] })).send().await
            }
            "package" => {
                let identifier = stored().text("jcr:uuid").unwrap();
                let folder = at.parent().unwrap();
                let package = package_with_user(folder.as_str(), "ann", &identifier, &hash);
                let request = author.as_admin(Method::POST, "/api/v1/packages?install=true");
                request.header("content-type", "application/zip").body(package).send().await
            }
            "POST" => author.try_post(at.as_str(), &[("rep:password", hash.as_str())]).await,
            "branch" => {
                let revising = RevisionDetails {
                    user: "admin",
                    message: "create a branch",
                    time: SystemTime::now(),
                };
                author.repository.create_branch("b", revising).unwrap();
                let branch = author.repository.open_branch("b").unwrap();
                let mut session = branch.session("system").unwrap();
                set_password(&mut session, "ann", "violet-harbor-9").unwrap();
                session.commit("change the password", SystemTime::now()).unwrap();
                let merge = author.as_admin(Method::POST, "/api/v1/branches/merge");
                merge.json(&json!({ "name": "b" })).send().await
            }
            "command" => {
                author.edit(|session| set_password(session, "ann", "violet-harbor-9").unwrap());
                author.visit("/health").await
            }
            _ => {
                let revising =
                    RevisionDetails { user: "admin", message: "revert", time: SystemTime::now() };
                author.repository.revert_to_root(earlier, revising).unwrap();
                author.visit("/health").await
            }
        };
        let has_changed = stored().text("rep:password").unwrap() != before;
        // Where nodes are written, nobody writes what the repository alone sets.
        if ["PUT", "PATCH", "batch", "POST"].contains(&door) {
            assert!(!has_changed && reply.status == 422, "{door}: {reply:?}");
            continue;
        }
        assert!(has_changed, "{door}: {reply:?}");
        assert!(reply.status.is_success(), "{door}: {reply:?}");
        assert_eq!(opened.statuses(&author, "ann").await, [401, 401, 401], "{door}");
        assert_eq!(opened.link_cookie(&author).await, "", "{door}");
        let other = author.request(Method::GET, "/api/v1/me").bearer(&bystander).send().await;
        assert_eq!(other.status, 200, "{door}");
        // And they are gone for good, also with the old password back.
        let logins = Logins::new(author.state.pool().clone(), author.repository.clone());
        logins.remove_stale_tokens(SystemTime::now()).await.unwrap();
        author.edit(|session| {
            session.set_property(&at, "rep:password", Property::text(before.clone())).unwrap();
        });
        assert_eq!(opened.statuses(&author, "ann").await, [401, 401, 200], "{door}");
    }
}

#[tokio::test]
async fn the_session_that_changes_its_own_password_goes_on() {
    let author = TestInstance::author().await;
    author.user("ann", &[]).await;
    let opened = Opened::of(&author, "ann").await;
    let own = log_in(&author, "192.0.2.1", "ann", PASSWORD).await;
    let asked = author.request(Method::GET, "/api/v1/me").header("cookie", &cookies(&own));
    let csrf = asked.send().await.json()["csrf"].as_str().unwrap().to_owned();
    let body = json!({ "password": "violet-harbor-9", "current": PASSWORD });
    let request = author.request(Method::PUT, "/api/v1/user/password?name=ann").json(&body);
    let request = request.header("cookie", &cookies(&own)).header("x-csrf-token", &csrf);
    let reply = request.send().await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(me(&author, &own).await, 200);
    assert_eq!(opened.statuses(&author, "ann").await, [401, 401, 401]);
    let logins = Logins::new(author.state.pool().clone(), author.repository.clone());
    logins.remove_stale_tokens(SystemTime::now()).await.unwrap();
    assert_eq!(me(&author, &own).await, 200);
}

#[tokio::test]
async fn a_disabled_or_removed_account_has_no_logins_when_it_comes_back() {
    let author = TestInstance::author().await;
    author.user("ann", &[]).await;
    let at = author.repository.account_path("ann").unwrap().unwrap();
    // As a package or a write to the node does it.
    let opened = Opened::of(&author, "ann").await;
    author.edit(|session| session.accounts().set_disabled("ann", Some("on leave")).unwrap());
    assert_eq!(opened.statuses(&author, "ann").await, [401, 401, 401]);
    author.edit(|session| session.accounts().set_disabled("ann", None).unwrap());
    assert_eq!(opened.statuses(&author, "ann").await, [401, 401, 200], "used while disabled");
    assert_eq!(opened.link_cookie(&author).await, "", "one that was not used is gone with them");
    let opened = Opened::of(&author, "ann").await;
    author.edit(|session| session.accounts().set_disabled("ann", Some("on leave")).unwrap());
    let logins = Logins::new(author.state.pool().clone(), author.repository.clone());
    logins.remove_stale_tokens(SystemTime::now()).await.unwrap();
    author.edit(|session| session.accounts().set_disabled("ann", None).unwrap());
    assert_eq!(opened.statuses(&author, "ann").await, [401, 401, 200], "tidied while disabled");
    let opened = Opened::of(&author, "ann").await;
    author.edit(|session| session.remove_node(&at).unwrap());
    assert_eq!(opened.statuses(&author, "ann").await, [401, 401, 401]);
    author.edit(|session| create_user(session, "ann", PASSWORD).unwrap());
    assert_eq!(opened.statuses(&author, "ann").await, [401, 401, 200], "another of this name");
}

#[tokio::test]
async fn logins_of_an_earlier_version_are_bound_to_the_password_at_the_start() {
    let author = TestInstance::author().await;
    author.user("ann", &[]).await;
    let opened = Opened::of(&author, "ann").await;
    let pool = author.state.pool();
    sqlx::query("UPDATE login SET password_mark = NULL").execute(pool).await.unwrap();
    let logins = Logins::new(pool.clone(), author.repository.clone());
    logins.remove_stale_tokens(SystemTime::now()).await.unwrap();
    assert_eq!(opened.statuses(&author, "ann").await, [200, 200, 200]);
    author.edit(|session| set_password(session, "ann", "violet-harbor-9").unwrap());
    assert_eq!(opened.statuses(&author, "ann").await, [401, 401, 401]);
}

#[tokio::test]
async fn common_passwords_are_refused_for_accounts_old_and_new() {
    let author = TestInstance::author().await;
    for (password, status) in [("password123", 422), ("eve12345", 422), (PASSWORD, 201)] {
        let body = json!({ "name": "eve", "password": password });
        let reply = author.as_admin(Method::POST, "/api/v1/users").json(&body).send().await;
        assert_eq!(reply.status, status, "{password} {reply:?}");
    }
    let body = json!({ "password": "Qwertyuiop" });
    let reply = author.as_admin(Method::PUT, "/api/v1/user/password?name=eve").json(&body);
    assert_eq!(reply.send().await.status, 422);
}

#[tokio::test]
async fn folders_of_a_home_are_closed_whatever_the_mask_of_modes() {
    let author = TestInstance::author().await;
    author.visit("/content.html").await;
    for folder in ["logs", "spool", "search"] {
        let mode = author.dir().join(folder).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{folder} {mode:o}");
    }
    for file in std::fs::read_dir(author.dir().join("logs")).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o077, 0, "{file:?}");
    }
}
