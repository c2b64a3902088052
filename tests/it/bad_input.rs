//! Bad input: what people and clients get wrong is refused, with what, where and what to do.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

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
fn nobody_gets_in_without_a_login_and_nothing_is_written_without_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let home = dir.path().to_str().unwrap();
    let _running = Running::start(&["author", "--home", home, "--listen", &address.to_string()]);
    let password =
        std::fs::read_to_string(dir.path().join("initial-password")).unwrap().trim().to_owned();
    for path in [
        "/content.json",
        "/home/users/admin.json",
        "/api/v1/pages?path=/",
        "/metrics",
        "/api/v1/queue",
    ] {
        assert_eq!(get(address, path).status, 401, "{path}");
    }
    assert_eq!(ask(address, "POST", "/x", &[], b"./a=1").unwrap().status, 401);
    assert_eq!(post(address, "wrong", "/x", "./a=1").status, 401);

    let form = [("Content-Type", "application/x-www-form-urlencoded".to_owned())];
    let login =
        ask(address, "POST", "/login", &form, format!("user=admin&password={password}").as_bytes())
            .unwrap();
    assert_eq!(login.status, 200);
    let cookie = login.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let csrf = serde_json::from_slice::<serde_json::Value>(&login.body).unwrap()["csrf"]
        .as_str()
        .unwrap()
        .to_owned();
    let with_cookie = |extra: Option<&str>| {
        let mut headers = vec![
            ("Cookie", cookie.clone()),
            form[0].clone(),
            ("Accept", "application/json".to_owned()),
        ];
        headers.extend(extra.map(|token| ("X-CSRF-Token", token.to_owned())));
        ask(address, "POST", "/guarded", &headers, b"./a=1").unwrap().status
    };
    assert_eq!(with_cookie(None), 403);
    assert_eq!(with_cookie(Some("0")), 403);
    assert_eq!(with_cookie(Some(&csrf)), 201);

    // Credentials that a browser remembers are no consent to what another site asks.
    let mut foreign = vec![("Authorization", basic("admin", &password)), form[0].clone()];
    foreign.push(("Sec-Fetch-Site", "cross-site".to_owned()));
    assert_eq!(ask(address, "POST", "/guarded", &foreign, b"./a=1").unwrap().status, 403);
    let ghost = crate::program::run_ok(&["user", "token", "ghost", "--home", home]);
    let ghost = [("Authorization", format!("Bearer {}", ghost.trim()))];
    assert_eq!(ask(address, "GET", "/guarded.json", &ghost, b"").unwrap().status, 401);
    let admin = [("Authorization", basic("admin", &password))];
    let user = ask(address, "GET", "/home/users/admin.json", &admin, b"").unwrap();
    assert!(user.status == 200 && !user.text().contains("argon2"), "{}", user.text());
    // A value that no index can hold must not hide others.
    assert_eq!(
        post(address, &password, "/odd", "./sling:resourceType=cq/Component%00x").status,
        201
    );
    let unknown = post(address, &password, "/typed", "./jcr:primaryType=no:type");
    assert_eq!(unknown.status, 422, "{}", unknown.text());
    assert!(unknown.text().contains("OakConstraint0001"), "{}", unknown.text());
    let page = "./jcr:primaryType=cq:Page&./jcr:content/jcr:primaryType=cq:PageContent";
    assert_eq!(post(address, &password, "/content/p", page).status, 201);
    assert_eq!(
        ask(address, "GET", "/api/v1/page?path=/content/p", &admin, b"").unwrap().status,
        200
    );

    let token = crate::program::run_ok(&["user", "token", "admin", "--home", home]);
    let bearer = [("Authorization", format!("Bearer {}", token.trim()))];
    assert_eq!(ask(address, "GET", "/guarded.json", &bearer, b"").unwrap().status, 200);
    let headers = [bearer[0].clone(), form[0].clone()];
    assert_eq!(
        ask(address, "POST", "/guarded", &headers, b"./a=2").unwrap().status,
        200,
        "programs need no CSRF token"
    );
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
    let started = Instant::now();
    while get(address, "/health").status != 200 {
        assert!(started.elapsed() < Duration::from_secs(60), "the main listener does not go on");
    }
}
