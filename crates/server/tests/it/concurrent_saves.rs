//! Saves of one node at the same time.

use serde_json::{Value, json};

use crate::blocking_instance::{BlockingInstance, basic};
use crate::support::PASSWORD;

#[test]
fn concurrent_saves_are_all_stored_or_refused() {
    let author = BlockingInstance::author();
    let path = "/api/v1/nodes?path=/content/n";
    author.done("PUT", path, &json!({ "properties": { "start": 1 } }));
    let tag = author.ask("admin", "GET", path, &Value::Null).header("etag").unwrap().to_owned();
    let save = |number: usize, tag: Option<&str>| {
        let mut headers = vec![
            ("authorization", basic("admin", PASSWORD)),
            ("content-type", "application/json".to_owned()),
        ];
        headers.extend(tag.map(|tag| ("if-match", tag.to_owned())));
        let body = json!({ "properties": { format!("p{number}"): number } }).to_string();
        author.send("PATCH", path, &headers, body.as_bytes()).status
    };
    // Of those that saw the same state, one wins; the others are told.
    let save = &save;
    let together = |tag: Option<&str>| -> Vec<u16> {
        std::thread::scope(|scope| {
            let tag = tag.map(str::to_owned);
            let threads: Vec<_> = (0..8)
                .map(|number| {
                    let tag = tag.clone();
                    scope.spawn(move || save(number, tag.as_deref()))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    let mut told = together(Some(&tag));
    told.sort_unstable();
    assert_eq!(told, [vec![200], vec![412; 7]].concat());
    // Without a condition, different properties never clash.
    assert_eq!(together(None), [200; 8]);
    let properties = author.get(path)["properties"].clone();
    assert!(
        (0..8).all(|number| properties[format!("p{number}")]["value"] == number),
        "{properties}"
    );
}
