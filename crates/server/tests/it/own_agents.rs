//! Editing the flush agents of a publisher at the publisher itself.

use http::{Method, StatusCode};

use crate::support::TestInstance;

const AGENT: &str = "/etc/replication/agents.publish/flush";

#[tokio::test]
async fn an_administrator_edits_a_flush_agent_at_the_publisher() {
    let publish = TestInstance::publish().await;
    let content = format!("{AGENT}/jcr:content");
    let form = [
        ("./enabled", "true"),
        ("./transportUri", "http://127.0.0.1:8080/dispatcher/invalidate.cache"),
        ("./serializationType", "flush"),
    ];
    publish.post(&content, &form).await;
    assert_eq!(publish.property(&content, "serializationType"), "String flush");
    publish.post(&content, &[("./serializationType", "flush_refetch")]).await;
    assert_eq!(publish.property(&content, "serializationType"), "String flush_refetch");
    publish.post(&content, &[("./transportUri@Delete", "")]).await;
    assert_eq!(publish.property(&content, "transportUri"), "-");
}

#[tokio::test]
async fn nobody_else_and_nothing_else_is_edited_there() {
    let publish = TestInstance::publish().await;
    publish.post(&format!("{AGENT}/jcr:content"), &[("./enabled", "true")]).await;
    let before = publish.repository.head_root().unwrap();
    let editor = publish.user("ann", &[]).await;
    let after = publish.repository.head_root().unwrap();
    assert_ne!(before, after);
    let refused =
        async |path: &str, form: &[(&str, &str)]| publish.try_post(path, form).await.status;
    for (path, form) in [
        ("/content/page", &[("./title", "x")][..]),
        ("/etc/replication/agents.author/a", &[("./enabled", "true")]),
        ("/etc/replication/agents.publish", &[("./enabled", "true")]),
        ("/etc/replication/agents.publish/%2e%2e/x", &[("./enabled", "true")]),
        (AGENT, &[("/content/x", "y")]),
        (AGENT, &[("./../../../../content/x", "y")]),
        (AGENT, &[("./a@CopyFrom", "/home/users")]),
        (AGENT, &[("./a@MoveFrom", "/content")]),
        (AGENT, &[(":operation", "delete")]),
        (AGENT, &[(":operation", "move"), (":dest", "/content/x")]),
        (AGENT, &[(":operation", "copy"), (":dest", "/content/x")]),
        (AGENT, &[(":operation", "activate")]),
        (AGENT, &[(":operation", "import"), (":contentType", "json"), (":content", "{}")]),
        (AGENT, &[(":name", "../../x"), ("./a", "b")]),
        // Fields that a page may hide in its form.
        (AGENT, &[(":nameHint", "../x"), ("./a", "b")]),
        (AGENT, &[("../x@Delete", "")]),
        (AGENT, &[("/content@Delete", "")]),
        (AGENT, &[("/content/x@ValueFrom", "./a"), ("./a", "b")]),
        (AGENT, &[("./a/../../../../../content/x@TypeHint", "String"), ("./b", "c")]),
        (AGENT, &[("/content/x@UseDefaultWhenMissing", "true"), ("/content/x@DefaultValue", "y")]),
        (AGENT, &[("../../../../home/users/admin@Delete", "")]),
        (AGENT, &[("./a@MoveFrom", "../../agents.author")]),
        (AGENT, &[(":operation", "delete"), (":applyTo", "/content")]),
        (AGENT, &[(":operation", "restore"), (":version", "1.0")]),
        (AGENT, &[(":operation", "checkin")]),
        (AGENT, &[(":operation", "createasset")]),
        ("/etc/replication/agents.publish/*", &[(":name", "a/../../../x"), ("./a", "b")]),
        ("/etc/replication/agents.publish/flush/../../x", &[("./a", "b")]),
    ] {
        let status = refused(path, form).await;
        assert!(status.is_client_error(), "{path} {form:?}: {status}");
    }
    let form = [("./enabled", "false")];
    for proof in [Some(&*editor), None] {
        let mut request = publish.request(Method::POST, AGENT).form(&form);
        if let Some(token) = proof {
            request = request.bearer(token);
        }
        let status = request.send().await.status;
        assert!(matches!(status, StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED), "{status}");
    }
    assert_eq!(publish.repository.head_root().unwrap(), after, "nothing has changed");
}
