//! Purges of caches that have no notion of handles.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use tokio::sync::watch;
use tympan_content::{Property, Repository};

use crate::agent::{Cache, Ledger, STUMBLING, page, put, put_agent, queues, replicator, texts};

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

/// Sends the flush of a change of `/content/a`, and then of a path of which nobody knows what shows it.
async fn purges_of_changes(properties: &[(&str, Property)], count: usize) -> Vec<String> {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let network = Cache::start();
    let target = [
        ("transportUri", Property::text(&*network.target)),
        ("serializationType", Property::text("purge_template")),
    ];
    put_agent(&repository, "publish", "cdn", &[&target[..], properties].concat());
    put(&repository, "/content/a", page("a", "x"));
    let queues = queues(&dir).await;
    let sender = replicator("publish", &repository, &queues);
    sender.set_url_resolver(Arc::new(Ledger));
    sender.store_flushes(SystemTime::now()).await.unwrap();
    put(&repository, "/content/a", page("a", "y"));
    sender.store_flushes(SystemTime::now()).await.unwrap();
    // The first answer is an error; nothing is lost.
    network.status.store(STUMBLING, Ordering::SeqCst);
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(sender.clone().run(stopped));
    let seen = network.wait_for(2 * count).await;
    stop.send_replace(true);
    running.await.unwrap();
    assert_eq!(seen.len(), 2 * count, "{seen:?}");
    let each: Vec<String> = seen.chunks(2).map(|pair| pair[1].clone()).collect();
    assert!(seen.chunks(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
    each
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_delivery_network_gets_the_requests_of_its_template() {
    let seen = purges_of_changes(
        &[
            ("protocolHTTPHeaders", texts(&["Fastly-Key: secret", "Surrogate-Key: {keys}"])),
            ("batchSize", Property::text("2")),
            ("requestsPerMinute", Property::text("60000")),
        ],
        2,
    )
    .await;
    for (request, keys) in
        seen.iter().zip(["/content/a /content/a.html\n", "/content/teaser.html\n"])
    {
        assert!(request.starts_with("POST /invalidate HTTP/1.1"), "{request}");
        assert!(request.contains("fastly-key: secret\n"), "{request}");
        assert!(request.contains(&format!("surrogate-key: {keys}")), "{request}");
    }
    let seen = purges_of_changes(
        &[
            ("protocolHTTPHeaders", Property::text("Authorization: Bearer secret")),
            ("requestBody", Property::text("{\"files\":{urls_json}}")),
            ("publicUrl", Property::text("https://www.example.com")),
        ],
        1,
    )
    .await;
    let body = seen[0].split_once("\n\n").unwrap().1;
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    let mut files: Vec<&str> =
        body["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap()).collect();
    files.sort_unstable();
    let expected = ["/content/a", "/content/a.html", "/content/teaser.html"]
        .map(|path| format!("https://www.example.com{path}"));
    assert_eq!(files, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_with_a_wrong_number_blocks_its_agent() {
    let repository = Repository::in_memory().unwrap();
    let properties = [
        ("transportUri", Property::text("https://api.example/")),
        ("serializationType", Property::text("purge_template")),
        ("batchSize", Property::text("many")),
    ];
    put_agent(&repository, "publish", "cdn", &properties);
    let agents = tympan_replicate::read_agents(&repository.snapshot().unwrap(), "publish").unwrap();
    let fault = agents[0].config_error.as_deref().unwrap();
    assert!(fault.contains("`many` in `batchSize`"), "{fault}");
}
