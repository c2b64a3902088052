//! Two authors on one database: what one withdraws, the other does not grant.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::json;
use tympan_content::{Property, Repository, Subtree, ValueType};
use tympan_server::InstanceRole;
use tympan_testkit::StateDatabase;
use tympan_testkit::blobs::{BlobStore, MemoryBlobStore};
use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::postgres_server::PostgresServer;
use tympan_testkit::store::{ByteSize, PostgresOptions, PostgresStore};

use crate::support::{PASSWORD, Reply, TestInstance, path};

/// Two authors that share their content, blobs and logins.
struct AuthorPair {
    first: TestInstance,
    second: TestInstance,
}

impl AuthorPair {
    async fn start() -> Self {
        let schemas = [PostgresServer::unique_schema_name(), PostgresServer::unique_schema_name()];
        let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobStore::default());
        let start = async || {
            let options = PostgresOptions {
                schema: schemas[0].clone(),
                max_connections: 4,
                wait_timeout: Duration::from_secs(20),
                cache_size: ByteSize::from_bytes(1 << 20),
                ..PostgresOptions::new(PostgresServer::shared_server().url())
            };
            let blobs = Arc::clone(&blobs);
            let opened = tokio::task::spawn_blocking(move || {
                Repository::open(Arc::new(PostgresStore::open(options).unwrap()), blobs).unwrap()
            });
            let url = PostgresServer::shared_server().url();
            let state = StateDatabase::connect(&url, &schemas[1]).await.unwrap();
            let repository = opened.await.unwrap();
            let role = InstanceRole::Author;
            TestInstance::start_with_state(repository, state, role, |_| {}).await
        };
        let first = start().await;
        Self { first, second: start().await }
    }

    /// Waits until the second author reads the newest state of the first.
    fn until_followed(&self) {
        let newest = self.first.repository.head_root().unwrap();
        wait_until("the other author reads the newest state", || {
            self.second.repository.head_root().unwrap() == newest
        });
    }
}

async fn change_title(instance: &TestInstance, token: &str, title: &str) -> Reply {
    let patch = json!({ "properties": { "jcr:title": title } });
    let request = instance.request(Method::PATCH, "/api/v1/nodes?path=/content/dam/a");
    request.bearer(token).json(&patch).send().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_withdrawn_on_one_author_counts_on_the_other() {
    let pair = AuthorPair::start().await;
    let AuthorPair { first, second } = &pair;
    first.edit(|session| {
        session.put_node(&path("/content/dam"), Subtree::new("", "sling:Folder")).unwrap();
        session.put_node(&path("/content/dam/a"), Subtree::new("", "nt:unstructured")).unwrap();
    });
    let token = first.user("ann", &["dam-users"]).await;
    pair.until_followed();
    for (number, way) in ["the group", "a policy", "the account"].into_iter().enumerate() {
        let before = change_title(second, &token, &format!("before {number}")).await;
        assert_eq!(before.status, 200, "{way} {before:?}");
        wait_until("the first author reads the change", || {
            first.property("/content/dam/a", "jcr:title") == format!("String before {number}")
        });
        let change = |is_withdrawn: bool| {
            first.edit(|session| match (number, is_withdrawn) {
                (0, true) => session.accounts().remove_member("dam-users", "ann").unwrap(),
                (0, false) => session.accounts().add_member("dam-users", "ann").unwrap(),
                (1, true) => {
                    let privileges = Property::parse_list(ValueType::Name, ["jcr:all"]).unwrap();
                    let entry = Subtree::new("deny", "rep:DenyACE")
                        .with_property("rep:principalName", "ann")
                        .with_property("rep:privileges", privileges);
                    let policy = Subtree::new("", "rep:ACL").with_child(entry);
                    session.put_node(&path("/content/dam/rep:policy"), policy).unwrap();
                }
                (1, false) => session.remove_node(&path("/content/dam/rep:policy")).unwrap(),
                (_, true) => session.accounts().set_disabled("ann", Some("left")).unwrap(),
                (_, false) => {}
            });
        };
        change(true);
        // The commit is checked against the newest state, whether or not the other author has heard of it.
        let refused = change_title(second, &token, "refused").await;
        assert!(matches!(refused.status.as_u16(), 401 | 403 | 404), "{way} {refused:?}");
        pair.until_followed();
        let expected = match number {
            0 => 200,
            1 => 404,
            _ => 401,
        };
        let read = second.request(Method::GET, "/api/v1/nodes?path=/content/dam/a");
        let read = read.bearer(&token).send().await;
        assert_eq!(read.status.as_u16(), expected, "{way} {read:?}");
        assert_eq!(
            second.property("/content/dam/a", "jcr:title"),
            format!("String before {number}"),
            "{way}"
        );
        change(false);
        pair.until_followed();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_and_tokens_that_end_on_one_author_end_on_the_other() {
    let pair = AuthorPair::start().await;
    let AuthorPair { first, second } = &pair;
    first.user("ann", &["dam-users"]).await;
    pair.until_followed();
    let me = async |instance: &TestInstance, name: &str, value: &str| {
        instance.request(Method::GET, "/api/v1/me").header(name, value).send().await.status.as_u16()
    };
    let log_in = async |instance: &TestInstance, password: &str| {
        let form = [("user", "ann"), ("password", password)];
        let reply = instance.request(Method::POST, "/login").form(&form).send().await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let cookie = reply.header("set-cookie").split(';').next().unwrap().to_owned();
        (cookie, reply.json()["csrf"].as_str().unwrap().to_owned())
    };
    // A session that begins on one is one of both, and ends on both.
    let (cookie, secret) = log_in(first, PASSWORD).await;
    assert_eq!(me(second, "cookie", &cookie).await, 200);
    let logout = first.request(Method::POST, "/logout").header("cookie", &cookie);
    let logout = logout.header("x-csrf-token", &secret).send().await;
    assert!(logout.status.is_success() || logout.status.is_redirection(), "{logout:?}");
    for instance in [first, second] {
        assert_eq!(me(instance, "cookie", &cookie).await, 401);
    }
    // So does a token that is revoked.
    let made = first.as_admin(Method::POST, "/api/v1/user/tokens?name=ann");
    let made = made.json(&json!({})).send().await;
    assert_eq!(made.status, 201, "{made:?}");
    let token = format!("Bearer {}", made.json()["token"].as_str().unwrap());
    assert_eq!(me(second, "authorization", &token).await, 200);
    let listed = first.get("/api/v1/user/tokens?name=ann").await.json();
    for listed in listed["tokens"].as_array().unwrap() {
        let id = listed["id"].as_str().unwrap();
        let revoked = first.as_admin(Method::DELETE, &format!("/api/v1/user/tokens?id={id}"));
        let revoked = revoked.send().await;
        assert_eq!(revoked.status, 204, "{revoked:?}");
    }
    for instance in [first, second] {
        assert_eq!(me(instance, "authorization", &token).await, 401);
    }
    // Another password ends all, and so does the end of the account.
    for way in 0..3 {
        let (cookie, _) = log_in(second, PASSWORD).await;
        let token = format!("Bearer {}", second.token_of("ann").await);
        let basic = crate::blocking_instance::basic("ann", PASSWORD);
        let keys = [("cookie", &cookie), ("authorization", &token), ("authorization", &basic)];
        for (name, value) in keys {
            assert_eq!(me(second, name, value).await, 200, "{way} {name}");
        }
        first.edit(|session| match way {
            0 => tympan_server::set_password(session, "ann", "another-violet-lantern").unwrap(),
            1 => session.accounts().set_disabled("ann", Some("left")).unwrap(),
            _ => session.accounts().remove_account("ann").unwrap(),
        });
        pair.until_followed();
        for (name, value) in keys {
            assert_eq!(me(second, name, value).await, 401, "{way} {name}");
        }
        first.edit(|session| {
            if way == 1 {
                session.accounts().set_disabled("ann", None).unwrap();
            } else if way == 0 {
                tympan_server::set_password(session, "ann", PASSWORD).unwrap();
            }
        });
        pair.until_followed();
    }
    assert!(second.repository.can_log_in("admin").unwrap());
}
