//! Policies of a real site's editable templates: what they allow where on its pages.

use tympan_content::{NodePath, Subtree};
use tympan_render::ContainerPolicy;

use crate::corpus::{self, commit, put_below};

#[test]
fn policies_of_the_wknd_site_hold_on_its_pages() {
    let Some(repository) = corpus::wknd() else { return };
    let path = |text: &str| NodePath::new(text).unwrap();
    let (article, home) = (
        "/content/wknd/us/en/magazine/arctic-surfing/jcr:content/root",
        "/content/wknd/us/en/jcr:content/root",
    );
    commit(&repository, |session| {
        for (name, group) in [
            ("teaser", "WKND.Content"),
            ("text", "WKND.Content"),
            ("container", "WKND.Structure"),
            ("form/container", "WKND.Form"),
        ] {
            let component = Subtree::new("", "cq:Component").with_property("componentGroup", group);
            put_below(session, &path(&format!("/apps/wknd/components/{name}")), component);
        }
        // What authors added to the places of the templates.
        for (place, kind) in [
            (format!("{article}/container/container/more"), "container"),
            (format!("{home}/container/more"), "container"),
            (format!("{home}/container/more/tabs"), "tabs"),
            (format!("{home}/container/more/tabs/item"), "accordion"),
        ] {
            let kind = format!("wknd/components/{kind}");
            let node = Subtree::new("", "nt:unstructured")
                .with_property("sling:resourceType", kind.as_str());
            session.put_node(&path(&place), node).unwrap();
        }
    });
    let snapshot = repository.snapshot().unwrap();
    let check = |place: String, policy: &str, allowed: &[&str]| {
        let node = snapshot.node(&path(&place)).unwrap().unwrap();
        let found = ContainerPolicy::of_container(&node).unwrap().unwrap();
        let known = ["teaser", "text", "container", "form/container"];
        let may = known
            .into_iter()
            .filter(|name| found.allows(&snapshot, &format!("wknd/components/{name}")).unwrap());
        assert!(found.source().ends_with(policy), "{place}: {}", found.source());
        assert_eq!(may.collect::<Vec<_>>(), allowed, "{place}");
    };
    let outer =
        "/conf/wknd/settings/wcm/policies/wknd/components/container/content-default/components";
    check(article.to_owned(), outer, &["teaser", "text", "container", "form/container"]);
    check(
        format!("{article}/container"),
        "/policy_213106331986985/components",
        &["teaser", "text"],
    );
    // The column beside the text lists its components one by one.
    let column = format!("{article}/container/container_223059690");
    check(column, "/policy_178507300498125/components", &["text"]);
    // The template of articles has no policy for containers that authors add; that of landing pages has.
    let none = "/templates/article-page-template/policies/jcr:content/cq:policy";
    check(format!("{article}/container/container/more"), none, &[]);
    let added = "/policy_213106331986985/components";
    check(format!("{home}/container/more"), added, &["teaser", "text"]);
    let tabs = "/tabs/policy_1594238204926/components";
    check(format!("{home}/container/more/tabs"), tabs, &["teaser", "text"]);
    let accordion = "/accordion/policy_1571070092603/components";
    check(format!("{home}/container/more/tabs/item"), accordion, &["text"]);
}
