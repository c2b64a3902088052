//! Index maps compared with those that the content makes, and made again.

use std::time::SystemTime;

use tympan_content::{IndexMapRebuilder, JCR_CONTENT, Repository, RevisionDetails, Subtree};
use tympan_store::{ChunkBatch, MapValue, RefUpdate, SortedMap, StoreRoot};

use crate::session::{commit, path};

fn site() -> Repository {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let definition = Subtree::new("n", "oak:QueryIndexDefinition")
        .with_property("type", "property")
        .with_property("propertyNames", "jcr:content/n");
    let definitions = Subtree::new("oak:index", "nt:unstructured").with_child(definition);
    session.put_node(&path("/oak:index"), definitions).unwrap();
    let mut site = Subtree::new("content", "sling:OrderedFolder");
    for number in 0..40 {
        let content = Subtree::new(JCR_CONTENT, "cq:PageContent")
            .with_property("jcr:title", format!("Page {number}").as_str())
            .with_property("jcr:uuid", format!("id-{number}").as_str())
            .with_property("link", "/content/p7")
            .with_property("sling:resourceType", "x/page")
            .with_property(
                "cq:lastModified",
                tympan_content::JcrDate::parse("2020-01-01T00:00:00.000Z")
                    .map(tympan_content::Value::Date)
                    .unwrap(),
            )
            .with_property("n", format!("{}", number % 7).as_str());
        site.put_child(Subtree::new(format!("p{number}"), "cq:Page").with_child(content));
    }
    session.put_node(&path("/content"), site).unwrap();
    commit(&mut session);
    repository.build_indexes().unwrap();
    repository
}

/// Changes one map of the newest state, past everything that would keep it right.
fn harm(repository: &Repository, map: &str, key: &[u8], value: Option<MapValue>) {
    let store = &**repository.chunks();
    let head = repository.head_root().unwrap();
    let mut root = StoreRoot::read(store, &head).unwrap();
    let mut batch = ChunkBatch::new();
    let edited = root.map(map).edit(store, &mut batch, [(key.to_vec(), value)].into()).unwrap();
    root.maps.insert(map.to_owned(), edited);
    let new = Some(root.write(&mut batch).unwrap());
    batch.add_ref_update(RefUpdate {
        name: "main".to_owned(),
        expected_root: Some(head),
        new_root: new,
        updated_at: SystemTime::UNIX_EPOCH,
        author: "test".to_owned(),
        message: "harm".to_owned(),
    });
    store.commit(batch).unwrap();
}

fn faults(repository: &Repository) -> Vec<String> {
    let found = IndexMapRebuilder::new(&**repository.chunks()).find_faults().unwrap();
    found.iter().map(ToString::to_string).collect()
}

fn keys(repository: &Repository, map: SortedMap) -> Vec<Vec<u8>> {
    let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
    map.range(&**repository.chunks(), all).map(|entry| entry.unwrap().0.to_vec()).collect()
}

#[test]
fn an_entry_that_is_wrong_missing_or_too_many_is_found_in_each_map_and_mended() {
    let repository = site();
    assert_eq!(faults(&repository), Vec::<String>::new());
    let store = repository.chunks().clone();
    let whole = StoreRoot::read(&*store, &repository.head_root().unwrap()).unwrap();
    let indexes: Vec<&String> = whole.maps.keys().filter(|map| **map != "content").collect();
    assert!(indexes.len() >= 9, "{indexes:?}");
    let present = || Some(MapValue { bytes: bytes::Bytes::new(), body: None });
    let odd = || Some(MapValue { bytes: bytes::Bytes::from_static(b"x"), body: None });
    for map in indexes {
        // The last entry, so that one too many behind it is found as well.
        let last = keys(&repository, whole.map(map)).pop().unwrap();
        let Some(end) = last.last().copied() else { continue };
        let flipped = [&last[..last.len() - 1], &[end ^ 0x40]].concat();
        let harms = [
            ("1 entries missing, 0 too many", vec![(&last, None)]),
            ("0 entries missing, 1 too many", vec![(&flipped, present())]),
            ("1 entries missing, 1 too many", vec![(&last, None), (&flipped, present())]),
            ("1 entries missing, 1 too many", vec![(&last, odd())]),
        ];
        for (kind, harms) in harms {
            harms.into_iter().for_each(|(key, value)| harm(&repository, map, key, value));
            let found = faults(&repository);
            assert_eq!(found.len(), 1, "{map}: {found:?}");
            assert!(found[0].ends_with(kind) && found[0].contains("first at `/"), "{found:?}");
            IndexMapRebuilder::new(&*store)
                .rebuild_ref("main", SystemTime::UNIX_EPOCH)
                .unwrap()
                .unwrap();
            assert_eq!(faults(&repository), Vec::<String>::new(), "{map}");
            let now = StoreRoot::read(&*store, &repository.head_root().unwrap()).unwrap();
            assert_eq!(now, whole, "{map}");
        }
    }
}

#[test]
fn a_wrong_entry_is_named_by_its_index_and_path() {
    let repository = site();
    harm(&repository, "uuid", b"id-11\0/content/p11/jcr:content", None);
    assert_eq!(
        faults(&repository),
        [
            "main: index `uuid` differs from the content, first at `/content/p11/jcr:content`: 1 entries missing, 0 too many"
        ]
    );
}

#[test]
fn branches_are_compared_by_what_they_differ_in() {
    let repository = site();
    let by = RevisionDetails { user: "ann", message: "draft", time: SystemTime::UNIX_EPOCH };
    repository.create_branch("draft", by).unwrap();
    let branch = repository.open_branch("draft").unwrap();
    let mut session = branch.session("ann").unwrap();
    session.set_property(&path("/content/p3/jcr:content"), "jcr:title", "Other".into()).unwrap();
    commit(&mut session);
    assert_eq!(faults(&repository), Vec::<String>::new());
    harm(&repository, "type", b"cq:Page\0/content/p3", None);
    let found = faults(&repository);
    assert!(found.len() == 1 && found[0].starts_with("main: index `type`"), "{found:?}");
}
