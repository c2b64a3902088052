//! Sites that come from AEM as packages: the example library of the Core Components.

use http::{Method, StatusCode};
use tympan_server::InstanceRole;
use tympan_testkit::fixture_folder::fixture_folder;

use crate::support::TestInstance;

/// The packages of the Core Components and of their example library, in the order of installation.
const LIBRARY_PACKAGES: [&str; 3] = [
    "core.wcm.components.content-2.29.0.zip",
    "core.wcm.components.examples.ui.apps-2.26.0.zip",
    "core.wcm.components.examples.ui.content-2.26.0.zip",
];

/// The folder of the example library.
const LIBRARY: &str = "/content/core-components-examples/library";

async fn install(author: &TestInstance, package: Vec<u8>) {
    let request = author.as_admin(Method::POST, "/api/v1/packages?install=true");
    let reply = request.header("content-type", "application/zip").body(package).send().await;
    assert!(reply.status.is_success(), "{reply:?}");
}

/// Starts an author with packages of the fixtures; `None` without fixtures.
async fn author_with(packages: &[&str]) -> Option<TestInstance> {
    let folder = fixture_folder("packages")?;
    let author = TestInstance::author().await;
    for package in packages {
        install(&author, std::fs::read(folder.join(package)).unwrap()).await;
    }
    Some(author)
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_the_example_library_show_what_their_components_say() {
    let Some(author) = author_with(&LIBRARY_PACKAGES).await else { return };
    let publish =
        TestInstance::start_on(author.repository.clone(), InstanceRole::Publish, |_| {}).await;
    let expected: [(&str, &[&str]); 2] = [
        (
            "core-content/title",
            &[
                "<!DOCTYPE HTML>",
                "<title>Title</title>",
                "<h1 class=\"cmp-title__text\">Title</h1>",
                "class=\"root responsivegrid",
                "aem-GridColumn aem-GridColumn--default--12",
                "cmp-examples-structure__main",
                "core-structure/navigation.html",
            ],
        ),
        ("core-content/text", &["class=\"cmp-text\"", "<h1>Text<sub>v2</sub></h1>"]),
    ];
    for (page, parts) in expected {
        let address = format!("{LIBRARY}/{page}.html");
        let reply = publish.visit(&address).await;
        assert_eq!(reply.status, StatusCode::OK, "{address}");
        let text = reply.text();
        for part in parts {
            assert!(text.contains(part), "{address} has no `{part}`:\n{text}");
        }
        assert!(!text.contains("tympan-error") && !text.contains("data-sly-"), "{address}");
    }
}
