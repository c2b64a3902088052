//! Content to measure with, stored in a scripted author.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_tools::Result;
use tympan_lab_tools::content_generator::{
    AuthorContentSink, ContentItem, ContentSink, ContentSpec, ContentTotals, CountingContentSink,
    MAX_CHILDREN,
};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

fn wish() -> ContentSpec {
    ContentSpec {
        name: "lab".to_owned(),
        pages_per_increment: 7,
        images_per_increment: 2,
        tags_per_increment: 1,
        first_increment: 0,
        increment_count: 1,
        children_per_node: 800,
        seed: 3,
    }
}

#[derive(Default)]
struct Kept(Vec<ContentItem>);

impl ContentSink for Kept {
    fn store(&mut self, item: &ContentItem, _: u64) -> Result<()> {
        self.0.push(item.clone());
        Ok(())
    }
}

fn items(wish: &ContentSpec) -> Vec<ContentItem> {
    let mut kept = Kept::default();
    wish.store_all(&mut kept, &mut |_, _| ()).unwrap();
    kept.0
}

fn path(item: &ContentItem) -> String {
    match item {
        ContentItem::Folder { path }
        | ContentItem::Tag { path, .. }
        | ContentItem::Page { path, .. } => path.clone(),
        ContentItem::Image { folder, name, .. } => format!("{folder}/{name}"),
    }
}

#[test]
fn increments_together_are_what_is_made_at_once() {
    let first = items(&ContentSpec { increment_count: 2, ..wish() });
    let mut later = items(&wish());
    later.extend(items(&ContentSpec { first_increment: 1, ..wish() }));
    assert_eq!(first, later);
    assert_eq!(items(&wish()), items(&wish()));
    assert_ne!(items(&wish()), items(&ContentSpec { seed: 4, ..wish() }));
}

#[test]
fn no_node_has_more_children_than_it_may_and_parents_come_first() {
    for children in [3, 4, 800] {
        let wish = ContentSpec {
            pages_per_increment: 2000,
            images_per_increment: 0,
            tags_per_increment: 900,
            children_per_node: children,
            ..wish()
        };
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        let mut known: BTreeSet<String> =
            ["/content", "/content/cq:tags"].map(str::to_owned).into();
        for item in items(&wish) {
            let path = path(&item);
            let parent = path.rsplit_once('/').unwrap().0.to_owned();
            assert!(known.contains(&parent), "{path} comes before what holds it");
            *counts.entry(parent).or_default() += 1;
            if matches!(item, ContentItem::Page { .. }) {
                // Its `jcr:content`.
                *counts.entry(path.clone()).or_default() += 1;
            }
            assert!(known.insert(path.clone()), "{path} twice");
        }
        counts.remove("/content");
        assert_eq!(counts.values().max(), Some(&children));
    }
    let images = ContentSpec { images_per_increment: 1700, ..wish() };
    let folders: Vec<String> = items(&images)
        .iter()
        .filter(|item| matches!(item, ContentItem::Folder { .. }))
        .map(path)
        .collect();
    assert_eq!(
        folders,
        ["/content/dam/lab", "/content/dam/lab/f0", "/content/dam/lab/f1", "/content/dam/lab/f2"]
    );
}

#[test]
fn pages_carry_tags_that_are_there() {
    let made = items(&ContentSpec { pages_per_increment: 50, tags_per_increment: 9, ..wish() });
    let known: BTreeSet<String> = made
        .iter()
        .filter(|item| matches!(item, ContentItem::Tag { .. }))
        .map(|item| path(item).replacen("/content/cq:tags/", "", 1).replacen('/', ":", 1))
        .collect();
    let mut carried = 0;
    for item in &made {
        let ContentItem::Page { tags, .. } = item else { continue };
        carried += tags.len();
        assert_eq!(tags.iter().collect::<BTreeSet<_>>().len(), tags.len(), "{tags:?}");
        assert!(tags.iter().all(|tag| tag.starts_with("lab:") && known.contains(tag)), "{tags:?}");
    }
    assert!(carried > 50);
}

#[test]
fn sums_tell_counts_and_bytes_per_increment() {
    let wish = ContentSpec { images_per_increment: 400, increment_count: 2, ..wish() };
    let mut sums = Vec::new();
    let whole = wish
        .store_all(&mut CountingContentSink, &mut |increment, sum: ContentTotals| {
            sums.push((increment, sum))
        })
        .unwrap();
    assert_eq!(sums.iter().map(|(increment, _)| *increment).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((sums[0].1.pages, sums[0].1.images, sums[0].1.tags), (7, 400, 1));
    // 400 images are every unique file once, so each increment weighs the same, whatever the seed.
    assert_eq!(sums[0].1.image_bytes, sums[1].1.image_bytes);
    let mean = sums[0].1.image_bytes / 400;
    assert!((mean as i64 - (37 + 594) * 512).abs() < 1024, "{mean}");
    assert_eq!(whole.pages, 14);
    assert_eq!(whole.text_bytes, sums[0].1.text_bytes + sums[1].1.text_bytes);
}

#[test]
fn an_impossible_request_is_refused() {
    for wish in [
        ContentSpec { name: "a/b".to_owned(), ..wish() },
        ContentSpec { name: String::new(), ..wish() },
        ContentSpec { children_per_node: MAX_CHILDREN + 1, ..wish() },
        ContentSpec { children_per_node: 2, ..wish() },
        ContentSpec { images_per_increment: 700_000, ..wish() },
    ] {
        assert!(
            wish.store_all(&mut CountingContentSink, &mut |_, _| ()).unwrap_err().is_usage(),
            "{wish:?}"
        );
    }
}

#[test]
fn an_author_hears_forms_and_files_with_credentials() {
    let origin = OriginServer::start_constant(OriginResponse::with_status(201));
    let login = RequestAuthorization::basic("admin:s3cret");
    let debug = format!("{login:?}");
    assert!(!debug.contains("s3cret") && !debug.contains("YWRtaW46"), "{debug}");
    let url = format!("http://{}", origin.addr());
    let mut author = AuthorContentSink::new(&url, login, Duration::from_secs(60)).unwrap();
    wish().store_all(&mut author, &mut |_, _| ()).unwrap();
    let seen = origin.requests();
    let targets: Vec<&str> = seen.iter().map(|seen| seen.target.as_str()).collect();
    assert_eq!(
        targets[..6],
        [
            "/content/dam/lab",
            "/content/cq%3Atags/lab",
            "/content/dam/lab/f0",
            "/content/dam/lab/f0",
            "/content/dam/lab/f0",
            "/content/lab"
        ]
    );
    assert_eq!(targets.len(), 12);
    assert!(seen.iter().all(|seen| seen.header("authorization") == Some("Basic YWRtaW46czNjcmV0")));
    let page = String::from_utf8(seen[5].body.clone()).unwrap();
    assert!(page.contains("cq%3APage") && page.contains("jcr%3Acontent"), "{page}");
    let image = &seen[3].body;
    assert!(image.len() > 37 * 1024);
    assert!(image.windows(8).any(|part| part == b"\x89PNG\r\n\x1a\n"));
}

#[test]
fn an_author_that_refuses_ends_it_with_its_reason() {
    let origin = OriginServer::start(|seen| match seen.target.ends_with("p2") {
        true => OriginResponse::with_status(403).with_body("no\n right"),
        false => OriginResponse::with_status(200),
    });
    let login = RequestAuthorization::basic("x:y");
    let url = format!("http://{}", origin.addr());
    let mut author = AuthorContentSink::new(&url, login, Duration::from_secs(60)).unwrap();
    let error = wish().store_all(&mut author, &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("status 403: no right"), "{error}");
    assert_eq!(origin.request_count_for("/content/lab/p3"), 0);
}
