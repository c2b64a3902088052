//! Purges of caches that have no notion of handles.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use tokio::sync::watch;
use tympan_content::{Property, Repository};

use crate::agent::{Cache, Ledger, STUMBLING, page, put, put_agent, queues, replicator};

#[tokio::test(flavor = "multi_thread")]
async fn a_list_goes_on_behind_a_purge_that_failed_once() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let cache = Cache::start();
    let properties = [
        ("transportUri", Property::text(&*cache.target)),
        ("serializationType", Property::text("purge")),
    ];
    put_agent(&repository, "publish", "one", &properties);
    put(&repository, "/content/a", page("a", "x"));
    let queues = queues(&dir).await;
    let sender = replicator("publish", &repository, &queues);
    sender.set_url_resolver(Arc::new(Ledger));
    sender.store_flushes(SystemTime::now()).await.unwrap();
    put(&repository, "/content/a", page("a", "y"));
    assert_eq!(sender.store_flushes(SystemTime::now()).await.unwrap(), 1);
    cache.status.store(STUMBLING, Ordering::SeqCst);
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(sender.clone().run(stopped));
    let seen = cache.wait_for(6).await;
    let lines: Vec<&str> = seen.iter().map(|one| one.lines().next().unwrap()).collect();
    // Each is sent until it succeeds, and none before it is sent again.
    for pair in lines.chunks(2) {
        assert_eq!(pair[0], pair[1], "{lines:?}");
    }
    for url in ["/content/a", "/content/a.html", "/content/teaser.html"] {
        let line = format!("PURGE {url} HTTP/1.1");
        assert_eq!(lines.iter().filter(|one| **one == line).count(), 2, "{lines:?}");
    }
    stop.send_replace(true);
    running.await.unwrap();
}
