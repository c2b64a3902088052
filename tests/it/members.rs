//! What members of a site get from a publisher's memory.

use serde_json::{Value, json};

use crate::program::{Answer, Running, ask, basic, free_address, get};

const PASSWORD: &str = "a long password";
const FILE: &str = "/content/club/letter.txt";
/// A file that is large enough to be kept in memory by itself.
const LETTER: &[u8] = &[b'x'; 50_000];

#[test]
fn a_file_is_answered_from_memory_for_members_who_see_no_more_than_visitors() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    let address = free_address();
    let author = Running::start(&["author", "--home", home, "--listen", &address.to_string()]);
    let password = std::fs::read_to_string(dir.path().join("initial-password")).unwrap();
    let send = |method: &str, path: &str, media_type: &str, body: &[u8]| -> Answer {
        let headers = [
            ("Authorization", basic("admin", password.trim())),
            ("Content-Type", media_type.to_owned()),
        ];
        let answer = ask(address, method, path, &headers, body).unwrap();
        assert!(answer.status < 300, "{method} {path}: {}", answer.text());
        answer
    };
    let done = |method: &str, path: &str, body: &Value| {
        send(method, path, "application/json", body.to_string().as_bytes());
    };
    let folder = json!({ "type": "sling:Folder" });
    done("PUT", "/api/v1/nodes?path=/content/club", &folder);
    send("PUT", FILE, "text/plain", LETTER);
    let entry = |allow: bool, principal: &str| {
        let privileges = ["jcr:read"];
        json!({ "allow": allow, "principal": principal, "privileges": privileges })
    };
    for group in ["members", "board"] {
        done("POST", "/api/v1/groups", &json!({ "name": group }));
        done("PUT", &format!("/api/v1/nodes?path=/content/club/{group}"), &folder);
        let entries = json!({ "entries": [entry(false, "everyone"), entry(true, group)] });
        done("PUT", &format!("/api/v1/permissions?path=/content/club/{group}"), &entries);
    }
    for (user, groups) in [
        ("guest", json!([])),
        ("ann", json!(["members"])),
        ("ben", json!(["members"])),
        ("cem", json!(["board"])),
        ("dora", json!(["members", "board"])),
    ] {
        let user = json!({ "name": user, "password": PASSWORD, "groups": groups });
        done("POST", "/api/v1/users", &user);
    }
    assert!(author.stop());

    let (address, admin) = (free_address(), free_address());
    let (listen, observe) = (address.to_string(), admin.to_string());
    let arguments = ["publish", "--home", home, "--listen", &listen, "--admin-listen", &observe];
    let _publish = Running::start(&arguments);
    let answered_at_once = || -> u64 {
        let metrics = get(admin, "/metrics").text();
        let line =
            metrics.lines().find(|line| line.starts_with("tympan_response_cache_hits_total{"));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap()
    };
    assert_eq!(get(address, FILE).body, LETTER);
    for (user, expected) in [("", 1), ("guest", 1), ("ann", 0), ("ben", 0), ("cem", 0), ("dora", 0)]
    {
        let before = answered_at_once();
        let answer = match user {
            "" => get(address, FILE),
            user => {
                let headers = [("Authorization", basic(user, PASSWORD))];
                ask(address, "GET", FILE, &headers, b"").unwrap()
            }
        };
        assert_eq!(answer.body, LETTER);
        assert_eq!(answered_at_once() - before, expected, "{user}");
    }
}
