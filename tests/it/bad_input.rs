//! Bad input: what people and clients get wrong is refused, with what, where and what to do.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use tympan_testkit::condition_wait::wait_until;

use crate::program::{Running, ask, basic, free_address, get, post, read_answer, run};

/// Runs the program, which must fail, and returns its exit code and message.
fn fault(arguments: &[&str]) -> (i32, String) {
    let output = run(arguments);
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_home_in_use_names_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    let running = Running::start(&["author", "--home", home, "--listen", "127.0.0.1:0"]);
    for arguments in [
        vec!["author", "--home", home, "--listen", "127.0.0.1:0"],
        vec!["repo", "check", "--home", home],
        vec!["user", "list", "--home", home],
    ] {
        let (code, message) = fault(&arguments);
        assert_eq!(code, 3, "{message}");
        assert!(
            message.contains(&format!("{}", running.pid())),
            "{message} names no process {}",
            running.pid()
        );
    }
}

#[test]
fn a_port_in_use_names_the_role_and_the_address() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, message) = fault(&["publish", "--home", home, "--listen", &address]);
    assert_eq!(code, 3, "{message}");
    assert!(message.contains("publish") && message.contains(&address), "{message}");
    let free = [free_address().to_string(), free_address().to_string()];
    let demo = [
        "demo",
        "--home",
        home,
        "--author",
        &free[0],
        "--publish",
        &free[1],
        "--dispatcher",
        &address,
    ];
    let (code, message) = fault(&demo);
    assert_eq!(code, 3, "{message}");
    assert!(message.contains("dispatcher") && message.contains(&address), "{message}");
}

#[test]
fn configuration_faults_name_the_place_and_the_nearest_key() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    std::fs::write(dir.path().join("tympan.toml"), "[listen]\nmax_conections = 5\n").unwrap();
    let (code, message) = fault(&["author", "--home", home]);
    assert_eq!(code, 2, "{message}");
    assert!(
        message.contains("tympan.toml:2:1") && message.contains("did you mean `max_connections`"),
        "{message}"
    );
    let any = dir.path().join("dispatcher.any");
    std::fs::write(&any, "/farms {\n  /a {\n    /virtualhost { \"*\" }\n").unwrap();
    let (code, message) = fault(&["dispatcher", "--config", any.to_str().unwrap()]);
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("dispatcher.any:2:"), "{message}");
    assert!(message.contains("virtualhosts"), "{message}");
}

#[test]
fn arguments_are_checked() {
    for arguments in
        [&["nonsense"][..], &["demo", "--author", "here"], &["dispatcher"], &["package", "install"]]
    {
        assert_eq!(fault(arguments).0, 2, "{arguments:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let (code, message) = fault(&["repo", "check", "--home", dir.path().to_str().unwrap()]);
    assert_eq!(code, 2, "{message}");
    assert!(
        message.contains("is not the home of an instance: it has no folder `store`"),
        "{message}"
    );
}

#[test]
fn requests_over_the_limits_and_out_of_bounds_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("tympan.toml"),
        "[listen]\nmax_header = \"16 KiB\"\nmax_body = \"100 KiB\"\n",
    )
    .unwrap();
    let address = free_address();
    let home = dir.path().to_str().unwrap();
    let _running = Running::start(&["author", "--home", home, "--listen", &address.to_string()]);
    let password =
        std::fs::read_to_string(dir.path().join("initial-password")).unwrap().trim().to_owned();

    let long = [("X-Long", "x".repeat(20_000))];
    assert_eq!(ask(address, "GET", "/", &long, b"").unwrap().status, 431);
    let credentials = [("Authorization", basic("admin", &password))];
    let large = ask(address, "POST", "/x", &credentials, &[b'a'; 200_000]).unwrap();
    assert_eq!(large.status, 413, "{}", large.text());
    // A body that does not say how long it is.
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: {}\r\nContent-Type: \
         application/x-www-form-urlencoded\r\nTransfer-Encoding: chunked\r\n\r\n",
        basic("admin", &password)
    );
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..20 {
        // The server may answer and close before everything is sent.
        if stream.write_all(format!("2710\r\n{}\r\n", "a".repeat(10_000)).as_bytes()).is_err() {
            break;
        }
    }
    stream.write_all(b"0\r\n\r\n").ok();
    assert_eq!(read_answer(stream).unwrap().status, 413);

    for path in [
        "/../../etc/passwd",
        "/content/%2e%2e/%2e%2e/etc/passwd",
        "/content/..%2f..%2fetc/passwd",
        "/%00",
    ] {
        let answer = ask(address, "GET", path, &credentials, b"").unwrap();
        assert!(matches!(answer.status, 400 | 404), "{path}: {}", answer.status);
        assert!(!answer.text().contains("root:"), "{path}");
    }
    for form in ["./../../x=1", "./a%2F..%2F..%2F..%2Fb=1", "./x%00y=1", "./a%7Cb=1"] {
        let answer = post(address, &password, "/plain", form);
        assert!(matches!(answer.status, 400 | 422), "{form}: {} {}", answer.status, answer.text());
    }
    let upload = "--b\r\nContent-Disposition: form-data; name=\"*\"; filename=\"../../../escape\"\r\n\r\nx\r\n--b--\r\n";
    let mut headers = credentials.to_vec();
    headers.push(("Content-Type", "multipart/form-data; boundary=b".to_owned()));
    let answer = ask(address, "POST", "/uploads", &headers, upload.as_bytes()).unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert!(!dir.path().join("../escape").exists());
    assert!(answer.text().contains("/uploads/escape"), "{}", answer.text());
}

#[test]
fn the_admin_listener_answers_while_the_main_one_is_saturated() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tympan.toml"), "[listen]\nmax_connections = 2\n").unwrap();
    let (address, admin) = (free_address(), free_address());
    let home = dir.path().to_str().unwrap();
    let _running = Running::start(&[
        "publish",
        "--home",
        home,
        "--listen",
        &address.to_string(),
        "--admin-listen",
        &admin.to_string(),
    ]);
    // Two connections that send half a head hold the main listener.
    let hold: Vec<TcpStream> = (0..2)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
            stream
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(get(admin, "/health").status, 200);
    }
    assert!(get(admin, "/metrics").text().contains("tympan_requests_total"));
    assert_eq!(get(admin, "/content.html").status, 404, "content is for the main listener");
    drop(hold);
    // Until it sees that they are gone, the main listener turns others away.
    wait_until("the main listener goes on", || get(address, "/health").status == 200);
}
