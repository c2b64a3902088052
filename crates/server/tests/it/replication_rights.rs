//! Who may show something to visitors, or take it away: what goes along takes the same right as what is named.

use http::Method;
use serde_json::json;
use tympan_content::{Property, Subtree, ValueType};

use crate::support::{TestInstance, path};

fn page(title: &str) -> Subtree {
    let content = Subtree::new("jcr:content", "cq:PageContent").with_property("jcr:title", title);
    Subtree::new("", "cq:Page").with_child(content)
}

fn deny(privileges: &[&str]) -> Subtree {
    let privileges = Property::parse_list(ValueType::Name, privileges.iter().copied()).unwrap();
    let entry = Subtree::new("deny", "rep:DenyACE")
        .with_property("rep:principalName", "everyone")
        .with_property("rep:privileges", privileges);
    Subtree::new("rep:policy", "rep:ACL").with_child(entry)
}

/// An author with an agent, and pages: `open/page`; `closed/legal`, which nobody may activate; and `partly/staff`, which
/// nobody may see.
async fn author() -> TestInstance {
    let instance = TestInstance::author().await;
    instance.edit(|session| {
        for at in ["/etc", "/etc/replication", "/etc/replication/agents.author"] {
            session.put_node(&path(at), Subtree::new("", "sling:Folder")).unwrap();
        }
        let agent = Subtree::new("jcr:content", "nt:unstructured")
            .with_property("enabled", "true")
            .with_property("serializationType", "tympan")
            .with_property("transportUri", "http://10.1.2.3:4503");
        let agent = Subtree::new("", "cq:Page").with_child(agent);
        session.put_node(&path("/etc/replication/agents.author/publish"), agent).unwrap();
        for at in ["open", "open/page", "closed", "closed/legal", "partly", "partly/staff"] {
            session.put_node(&path(&format!("/content/{at}")), page(at)).unwrap();
        }
        let policy = path("/content/closed/legal/rep:policy");
        session.put_node(&policy, deny(&["crx:replicate"])).unwrap();
        session.put_node(&path("/content/partly/staff/rep:policy"), deny(&["jcr:all"])).unwrap();
    });
    instance
}

/// Asks by the form and by the API; gives both statuses, and what was told.
async fn ask(instance: &TestInstance, token: &str, action: &str, at: &str, deep: bool) -> [u16; 2] {
    let mut form = vec![(":operation", action)];
    if deep {
        form.push((":deep", "true"));
    }
    let form = instance.request(Method::POST, at).bearer(token).form(&form).send().await;
    let wish = serde_json::json!({ "action": action, "paths": [at], "deep": deep });
    let api = instance.request(Method::POST, "/api/v1/replication").bearer(token);
    let api = api.json(&wish).send().await;
    for reply in [&form, &api] {
        assert!(!reply.text().contains("staff"), "{reply:?}");
    }
    [form.status.as_u16(), api.status.as_u16()]
}

#[tokio::test]
async fn what_goes_along_takes_the_same_right() {
    let instance = author().await;
    let editor = instance.user("editor", &["content-authors"]).await;
    let admin = instance.token_of("admin").await;
    for (action, at, deep, expected) in [
        ("activate", "/content/open", true, 200),
        ("activate", "/content/closed", false, 200),
        ("activate", "/content/closed/legal", false, 403),
        ("activate", "/content/closed", true, 403),
        ("activate", "/content/partly", true, 403),
        ("activate", "/content", true, 403),
        // Nobody has it, so that nothing is taken away.
        ("deactivate", "/content/closed", false, 200),
    ] {
        let told = ask(&instance, &editor, action, at, deep).await;
        assert_eq!(told, [expected; 2], "{action} {at} {deep}");
    }
    assert_eq!(ask(&instance, &admin, "activate", "/content", true).await, [200; 2]);
    for (action, at, expected) in [
        ("deactivate", "/content/closed/legal", 403),
        ("deactivate", "/content/closed", 403),
        ("deactivate", "/content/partly", 403),
        ("deactivate", "/content/open", 200),
    ] {
        assert_eq!(
            ask(&instance, &editor, action, at, false).await,
            [expected; 2],
            "{action} {at}"
        );
    }
}

#[tokio::test]
async fn a_waiting_job_is_for_those_who_may_replicate_all_of_it() {
    let instance = author().await;
    let editor = instance.user("editor", &["content-authors"]).await;
    let admin = instance.token_of("admin").await;
    assert_eq!(ask(&instance, &admin, "activate", "/content/closed", true).await, [200; 2]);
    let queue = instance.get("/api/v1/queue").await.json();
    for item in queue["agents"][0]["items"].as_array().unwrap() {
        let cancel = format!("/api/v1/queue/cancel?id={}", item["id"]);
        let cancel = instance.request(Method::POST, &cancel).bearer(&editor).send().await;
        assert_eq!(cancel.status, 403, "{cancel:?}");
    }
}

#[tokio::test]
async fn why_a_job_failed_is_for_those_who_look_after_agents() {
    let instance = author().await;
    let powerless = instance.user("powerless", &[]).await;
    let admin = instance.token_of("admin").await;
    assert_eq!(ask(&instance, &admin, "activate", "/content/open", false).await, [200; 2]);
    sqlx::query("UPDATE job SET last_error = 'http://10.1.2.3:4503 refused the connection'")
        .execute(instance.state.pool())
        .await
        .unwrap();
    let queue = instance.request(Method::GET, "/api/v1/queue").bearer(&powerless).send().await;
    assert!(queue.text().contains("/content/open"), "{queue:?}");
    assert!(!queue.text().contains("10.1.2.3"), "{queue:?}");
    assert!(instance.get("/api/v1/queue").await.text().contains("refused the connection"));
}

#[tokio::test]
async fn what_visitors_still_have_names_no_place_that_is_hidden() {
    let instance = author().await;
    let editor = instance.user("editor", &["content-authors"]).await;
    instance.edit(|session| {
        session.put_node(&path("/content/partly/staff/page"), page("moved")).unwrap();
    });
    instance.edit(|session| {
        session.record_replication(Vec::new());
        for at in ["open/page", "partly/staff/page"] {
            let content = path(&format!("/content/{at}/jcr:content"));
            session.set_property(&content, "cq:lastReplicationAction", "Activate".into()).unwrap();
        }
    });
    // Both are moved, and nothing is sent yet: one to where the editor may not read, one from there.
    instance.edit(|session| {
        for (from, to) in [("open/page", "partly/staff/old"), ("partly/staff/page", "open/new")] {
            let at = |place: &str| path(&format!("/content/{place}"));
            session.move_node(&at(from), &at(to)).unwrap();
        }
    });
    let admin = instance.token_of("admin").await;
    let orphans = async |token: &str| {
        let request = instance.request(Method::GET, "/api/v1/replication/live?path=/content");
        let reply = request.bearer(token).send().await;
        let listed = reply.json()["orphans"].clone();
        let listed = listed.as_array().unwrap().iter();
        let places: Vec<_> =
            listed.map(|one| (one["path"].clone(), one["movedTo"].clone())).collect();
        (places, reply.text().contains("staff"))
    };
    let moved = |from: &str, to: &str| (json!(from), json!(to));
    assert_eq!(
        orphans(&admin).await,
        (
            vec![
                moved("/content/open/page", "/content/partly/staff/old"),
                moved("/content/partly/staff/page", "/content/open/new"),
            ],
            true
        )
    );
    assert_eq!(orphans(&editor).await, (vec![(json!("/content/open/page"), json!(null))], false));
}
