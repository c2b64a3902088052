//! Versions of what is activated.

use tympan_replicate::ActivationVersioning;

use crate::blocking_instance::BlockingInstance;

const PAGE: &str = "/content/page";

/// Activates a changed page, and counts the versions that this created.
fn count_versions(versioning: ActivationVersioning) -> usize {
    let author =
        BlockingInstance::author_with(|options| options.activation_versioning = versioning);
    let agent = "jcr:primaryType=cq:Page&jcr:content/jcr:primaryType=nt:unstructured\
                 &jcr:content/enabled=true&jcr:content/transportUri=http://127.0.0.1:1/bin/receive";
    let page = "jcr:primaryType=cq:Page&jcr:content/jcr:primaryType=cq:PageContent";
    for (path, form) in [("/etc/replication/agents.author/publish", agent), (PAGE, page)] {
        let made = author.post(path, form);
        assert_eq!(made.status, 201, "{path}: {}", made.text());
    }
    let edit = author.post(&format!("{PAGE}/jcr:content"), "./jcr:title=Kept");
    assert_eq!(edit.status, 200, "{}", edit.text());
    let activated = author.post(PAGE, ":operation=activate");
    assert_eq!(activated.status, 200, "{}", activated.text());
    let versions = author.get(&format!("/api/v1/versions?path={PAGE}")).to_string();
    versions.matches("\"user\":\"admin\",\"comment\":\"activated\"").count()
}

#[test]
fn activating_keeps_a_version() {
    assert_eq!(count_versions(ActivationVersioning::CreateVersion), 1);
}

#[test]
fn activating_keeps_no_version_when_it_is_turned_off() {
    assert_eq!(count_versions(ActivationVersioning::NoVersion), 0);
}
