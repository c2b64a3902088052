//! Sites that come from AEM as packages: the example library of the Core Components, and WKND.

use std::collections::{BTreeMap, BTreeSet};

use http::{Method, StatusCode};
use tympan_content::{LookupIndex, NodePath, Subtree, Value};
use tympan_server::InstanceRole;
use tympan_testkit::fixture_folder::fixture_folder;

use crate::support::{Reply, TestInstance};

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
    let expected: [(&str, &[&str]); 3] = [
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
        // Visitors may not read the model in `/conf`.
        (
            "core-content/content-fragment",
            &[
                "<h3 class=\"cmp-contentfragment__title\">Adobe Headquarters</h3>",
                "<dt class=\"cmp-contentfragment__element-title\">City</dt>",
                "San Jose",
            ],
        ),
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

/// The content packages of WKND. The package with its components is not among the fixtures: [`WKND_COMPONENTS`].
const WKND_PACKAGES: [&str; 3] =
    ["wknd-shared.fragments.zip", "wknd.ui.content.zip", "wknd.ui.content.sample.zip"];

/// The components of WKND with the types that they extend.
const WKND_COMPONENTS: [(&str, &str); 27] = [
    ("accordion", "core/wcm/components/accordion/v1/accordion"),
    ("breadcrumb", "core/wcm/components/breadcrumb/v3/breadcrumb"),
    ("button", "core/wcm/components/button/v2/button"),
    ("carousel", "core/wcm/components/carousel/v1/carousel"),
    ("container", "core/wcm/components/container/v1/container"),
    ("contentfragment", "core/wcm/components/contentfragment/v1/contentfragment"),
    ("download", "core/wcm/components/download/v2/download"),
    ("experiencefragment", "core/wcm/components/experiencefragment/v2/experiencefragment"),
    ("form/button", "core/wcm/components/form/button/v2/button"),
    ("form/hidden", "core/wcm/components/form/hidden/v2/hidden"),
    ("form/sign-in-buttons", "core/wcm/components/button/v2/button"),
    ("form/sign-in-form", "core/wcm/components/form/container/v2/container"),
    ("form/text", "core/wcm/components/form/text/v2/text"),
    ("image", "core/wcm/components/image/v3/image"),
    ("image-list", "core/wcm/components/list/v4/list"),
    ("languagenavigation", "core/wcm/components/languagenavigation/v2/languagenavigation"),
    ("list", "core/wcm/components/list/v4/list"),
    ("navigation", "core/wcm/components/navigation/v2/navigation"),
    ("page", "core/wcm/components/page/v3/page"),
    ("search", "core/wcm/components/search/v2/search"),
    ("separator", "core/wcm/components/separator/v1/separator"),
    ("sharing", "core/wcm/components/sharing/v1/sharing"),
    ("tabs", "core/wcm/components/tabs/v1/tabs"),
    ("teaser", "core/wcm/components/teaser/v2/teaser"),
    ("text", "core/wcm/components/text/v2/text"),
    ("title", "core/wcm/components/title/v3/title"),
    ("xfpage", "cq/experience-fragments/components/xfpage"),
];

/// The one component of WKND with a Java class of its own.
const BYLINE_SCRIPT: &str = "<div data-sly-use.byline=\"com.adobe.aem.guides.wknd.core.models.Byline\" \
    class=\"cmp-byline\"><h2 data-sly-test=\"${!byline.empty}\">${byline.name}</h2></div>";

/// Stores the components of WKND.
fn add_wknd_components(author: &TestInstance) {
    author.edit(|session| {
        let mut put = |path: &str, tree: Subtree| {
            session.put_node(&NodePath::new(path).unwrap(), tree).unwrap();
        };
        for folder in ["/apps/wknd", "/apps/wknd/components", "/apps/wknd/components/form"] {
            put(folder, Subtree::new("", "nt:folder"));
        }
        for (name, super_type) in WKND_COMPONENTS {
            let component = Subtree::new("", "cq:Component")
                .with_property("jcr:title", name)
                .with_property("sling:resourceSuperType", super_type);
            put(&format!("/apps/wknd/components/{name}"), component);
        }
        put("/apps/wknd/components/byline", Subtree::new("", "cq:Component"));
    });
    author.edit(|session| {
        let blob = session.put_blob(&mut BYLINE_SCRIPT.as_bytes()).unwrap();
        let resource = Subtree::new("jcr:content", "nt:resource")
            .with_property("jcr:data", tympan_content::Property::Single(Value::Binary(blob)));
        let script = Subtree::new("byline.html", "nt:file").with_child(resource);
        let path = NodePath::new("/apps/wknd/components/byline/byline.html").unwrap();
        session.put_node(&path, script).unwrap();
    });
}

/// Returns the messages for authors in a page, and how often each is there.
fn findings(reply: &Reply) -> BTreeMap<String, usize> {
    let mut findings = BTreeMap::new();
    let text = reply.text();
    for part in text.split("<div class=\"tympan-error\" role=\"alert\">").skip(1) {
        let message = part.split("</pre>").next().unwrap_or_default();
        *findings.entry(message.replace("<pre>", "")).or_default() += 1;
    }
    findings
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_of_the_example_library_and_of_wknd_is_drawn() {
    let packages: Vec<&str> = LIBRARY_PACKAGES.into_iter().chain(WKND_PACKAGES).collect();
    let Some(author) = author_with(&packages).await else { return };
    add_wknd_components(&author);
    let publish =
        TestInstance::start_on(author.repository.clone(), InstanceRole::Publish, |_| {}).await;
    let roots = [
        "/content/core-components-examples/library",
        "/content/experience-fragments",
        "/content/wknd",
    ];
    let pages = author.snapshot().look_up_paths(LookupIndex::Type, "cq:Page").unwrap();
    let pages = pages
        .into_iter()
        .filter(|page| roots.iter().any(|root| page.is_within(&NodePath::new(root).unwrap())));
    let mut faults = Vec::new();
    let mut messages = BTreeSet::new();
    let mut page_count = 0;
    for page in pages {
        page_count += 1;
        let address = format!("{page}.html");
        let for_visitors = publish.visit(&address).await;
        let for_authors = author.get(&address).await;
        for (role, reply) in [("publish", &for_visitors), ("author", &for_authors)] {
            let text = reply.text();
            let is_redirect = reply.status == StatusCode::FOUND;
            if !is_redirect && (reply.status != StatusCode::OK || !text.contains("</html>")) {
                faults.push(format!("{role} {address}: {}", reply.status));
            }
            for sign in ["data-sly-", "${"] {
                if text.contains(sign) {
                    faults.push(format!("{role} {address}: contains `{sign}`"));
                }
            }
        }
        if !findings(&for_visitors).is_empty() {
            faults.push(format!("publish {address}: {:?}", findings(&for_visitors)));
        }
        messages.extend(findings(&for_authors));
    }
    assert!(page_count > 150, "{page_count} pages");
    assert_eq!(faults, [""; 0]);
    // Each component says once which class it lacks.
    let library = "/apps/core-components-examples/components/version";
    let byline = "/apps/wknd/components/byline/byline.html:1";
    let expected = [
        format!("{library}/footer/footer.html:16: no class `CoreComponentsBundle` is available"),
        format!("{library}/title/title.html:16: no class `CoreComponentsBundle` is available"),
        format!("{byline}: no class `com.adobe.aem.guides.wknd.core.models.Byline` is available"),
    ];
    assert_eq!(messages, expected.map(|message| (message, 1)).into());
}
