//! A body that stops arriving ends its request, wherever it was sent to.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::program::{Running, basic, free_address, read_answer};

/// Sends a request whose body is never complete, and reads the answer.
fn send_half(address: SocketAddr, request: &str, headers: &str, half: &str) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    // Only so that a server that waits forever fails the test.
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let head = format!(
        "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 100000\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(half.as_bytes()).unwrap();
    read_answer(stream).unwrap().status
}

#[test]
fn a_body_that_stops_arriving_is_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("author");
    std::fs::create_dir_all(&home).unwrap();
    std::fs::write(home.join("tympan.toml"), "[listen]\nbody_timeout = \"1s\"\n").unwrap();
    let address = free_address();
    let listen = address.to_string();
    let _running =
        Running::start(&["author", "--home", home.to_str().unwrap(), "--listen", &listen]);
    let password = std::fs::read_to_string(home.join("initial-password")).unwrap();
    let login = format!("Authorization: {}\r\n", basic("admin", password.trim()));
    let typed = |media_type: &str| format!("{login}Content-Type: {media_type}\r\n");
    let form = typed("application/x-www-form-urlencoded");
    let json = typed("application/json");
    let parts = typed("multipart/form-data; boundary=x");
    let part =
        "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\nabc";
    for (request, headers, half) in [
        ("PUT /api/v1/nodes?path=/content/n", &json, "{\"properties\""),
        ("POST /api/v1/batch", &json, "{"),
        ("POST /api/v1/query", &json, "{"),
        ("PUT /api/v1/blob?path=/content/n", &typed("text/plain"), "abc"),
        ("POST /api/v1/packages", &typed("application/zip"), "PK"),
        ("POST /api/v1/jobs/stop", &form, "id="),
        ("POST /api/v1/workflows", &form, "model="),
        ("POST /content/n", &form, "a="),
        ("POST /content/n", &parts, part),
        ("PUT /content/n.txt", &typed("text/plain"), "abc"),
    ] {
        let status = send_half(address, request, headers, half);
        assert_eq!(status, 408, "{request} {half}");
    }
    // Elsewhere the request ends, too, whatever it is told.
    for (request, headers, half) in [
        ("POST /login", "Content-Type: application/x-www-form-urlencoded\r\n", "user="),
        ("POST /crx/packmgr/service.jsp", parts.as_str(), part),
        ("POST /bin/querybuilder.json", form.as_str(), "path="),
    ] {
        let status = send_half(address, request, headers, half);
        assert!((400..500).contains(&status), "{request}: {status}");
    }
}
