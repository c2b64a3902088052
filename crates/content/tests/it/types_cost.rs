//! What judging a commit costs: chunks read, counted at the store.

use std::time::SystemTime;

use tympan_blobs::MemoryBlobStore;
use tympan_content::{NodePath, Repository, Session, Subtree, Value};

use crate::cost::counting;
use crate::session::{page, path};

const A: &str = "0e4c1c6b-1f5f-4a3c-9f25-3d2e0e2f3a10";

fn commit(session: &mut Session) {
    session.commit("edit", SystemTime::UNIX_EPOCH).unwrap();
}

/// A page that is different from all others, so that its body is a chunk of its own.
fn long_page(number: usize) -> Subtree {
    page("p", &format!("Page {number} {}", "with a long title ".repeat(30)))
}

/// Returns the chunks read by a commit that changes one of many pages, and by one that changes a type none is of.
fn reads(pages: usize) -> [u64; 3] {
    let (store, _) = counting();
    let open = || Repository::open(store.clone(), std::sync::Arc::new(MemoryBlobStore::default()));
    let repository = open().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.types().register_types("[t] - p (string) [u] - p (string)").unwrap();
    session.add_node(&path("/content"), "sling:Folder").unwrap();
    session.put_node(&path("/u"), Subtree::new("u", "u").with_property("p", "x")).unwrap();
    for number in 0..pages {
        let name = format!("p{number:06}");
        session.put_node(&path("/content").child(&name).unwrap(), long_page(number)).unwrap();
    }
    commit(&mut session);
    let measure = |edit: &dyn Fn(&mut Session)| {
        let mut session = open().unwrap().session("ann").unwrap();
        edit(&mut session);
        session.has_changes().unwrap();
        store.take_read_count();
        commit(&mut session);
        store.take_read_count()
    };
    let content =
        |number: usize| NodePath::new(&format!("/content/p{number:06}/jcr:content")).unwrap();
    [
        measure(&|session| {
            session.set_property(&content(pages / 2), "jcr:title", "new".into()).unwrap();
        }),
        measure(&|session| {
            let dangling = Value::WeakReference(A.into());
            session.set_property(&content(pages / 3), "weak", dangling.into()).unwrap();
        }),
        // Stricter than before, so that the one node of the type is judged again.
        measure(&|session| session.types().register_types("[u] - p (string) < 'x'").unwrap()),
    ]
}

#[test]
fn the_work_follows_the_change_and_not_the_content() {
    let (few, many) = (reads(40), reads(2_000));
    for (few, many) in few.into_iter().zip(many) {
        // The tree is deeper by a level or two, in each of the maps.
        assert!(many <= few + 24, "{few} chunks read beside 40 pages, {many} beside 2,000");
    }
}
