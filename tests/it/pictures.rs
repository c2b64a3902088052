//! Assets of the whole program: an upload becomes renditions, and visitors get pictures in the sizes that they may ask for.

use std::net::SocketAddr;

use tympan_testkit::condition_wait::wait_until;

use crate::program::{Answer, Demo, Running, ask, basic, free_address, get, tympan};

const FOLDER: &str = "/content/dam/wayfare/coast";

/// A bitmap of soft colors; each number gives another one.
pub(crate) fn bitmap(width: u32, height: u32, number: u32) -> Vec<u8> {
    let row = (width * 3).div_ceil(4) * 4;
    let size = 54 + row * height;
    let mut bytes = b"BM".to_vec();
    for word in [size, 0, 54, 40, width, height, 0x0018_0001, 0, row * height, 2835, 2835, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    for y in 0..height {
        for x in 0..width {
            let wave = |a: u32, b: u32| ((x * a / 7 + y * b / 5 + number * 37) % 256) as u8;
            bytes.extend([wave(1, 2), wave(2, 1), wave(1, 1)]);
        }
        bytes.resize(bytes.len() + (row - width * 3) as usize, 0);
    }
    bytes
}

/// Uploads a file as the console does.
pub(crate) fn upload(
    address: SocketAddr,
    password: &str,
    folder: &str,
    (name, bytes): (&str, &[u8]),
) -> std::io::Result<Answer> {
    let mut body = format!(
        "--b\r\nContent-Disposition: form-data; name=\":operation\"\r\n\r\ncreateasset\r\n\
         --b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    )
    .into_bytes();
    body.extend_from_slice(bytes);
    body.extend_from_slice(b"\r\n--b--\r\n");
    let headers = [
        ("Authorization", basic("admin", password)),
        ("Accept", "application/json".to_owned()),
        ("Content-Type", "multipart/form-data; boundary=b".to_owned()),
    ];
    ask(address, "POST", folder, &headers, &body)
}

fn upload_and_wait(demo: &Demo, name: &str, bytes: &[u8]) -> String {
    let asset = format!("{FOLDER}/{name}");
    let answer = upload(demo.author, demo.password(), FOLDER, (name, bytes)).unwrap();
    assert!((200..300).contains(&answer.status), "{}", answer.text());
    wait_until("the asset has a state", || {
        let content = demo.get_as_admin(&format!("{asset}/jcr:content.json")).text();
        content.contains("dam:assetState")
    });
    asset
}

/// Waits until the assets of the sample site are processed.
fn settle(demo: &Demo) {
    wait_until("the sample's assets are processed", || {
        let jobs = demo.get_as_admin("/api/v1/jobs?topic=dam/update_asset").text();
        jobs.contains("\"jobs\":[]") && counter(demo, "assets_processed") > 0
    });
}

fn activate(demo: &Demo, path: &str) {
    let answer = demo.post(path, ":operation=activate");
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Returns a counter of the author.
fn counter(demo: &Demo, name: &str) -> u64 {
    let text = demo.get_as_admin("/metrics").text();
    let line = text.lines().find(|line| line.starts_with(&format!("tympan_{name}_total{{")));
    line.unwrap_or_else(|| panic!("{text}")).rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn visitors_get_pictures_in_the_sizes_that_they_may_ask_for() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let asset = upload_and_wait(&demo, "waves.bmp", &bitmap(600, 400, 1));
    let small = format!("{asset}.width-160.webp");
    assert_eq!(get(demo.publish, &small).status, 404, "nothing is published by being uploaded");
    activate(&demo, &asset);
    wait_until("the asset is published", || get(demo.publish, &asset).status == 200);

    let plain = get(demo.publish, &small);
    assert_eq!((plain.status, plain.header("content-type")), (200, Some("image/webp")));
    assert_eq!(plain.header("cache-control"), Some("max-age=300"));
    assert_eq!(plain.header("x-content-type-options"), Some("nosniff"));
    assert!(plain.body.starts_with(b"RIFF"));
    let tag = plain.header("etag").unwrap().to_owned();
    let same = ask(demo.publish, "GET", &small, &[("If-None-Match", tag)], b"").unwrap();
    assert_eq!((same.status, same.body.len()), (304, 0));
    let head = ask(demo.publish, "HEAD", &small, &[], b"").unwrap();
    assert_eq!(head.header("content-length"), Some(&*plain.body.len().to_string()));

    let content = demo.get_as_admin(&format!("{asset}/jcr:content.json")).text();
    let of = content.split("\"dam:processedOriginal\":\"").nth(1).unwrap();
    let hash = &of[..16];
    let cached = |path: &str| get(demo.publish, path).header("cache-control").unwrap().to_owned();
    assert_eq!(
        cached(&format!("{asset}.width-160.h-{hash}.webp")),
        "public, max-age=31536000, immutable"
    );
    // Another hash shows the present picture, and is not kept for good.
    let made_up = format!("{asset}.width-160.h-0123456789abcdef.webp");
    assert_eq!(cached(&made_up), "max-age=300");
    // Nor is a made-up hash or signature anything for the dispatcher's disk.
    let forged = format!("{asset}.width-160.sig-0123456789abcdef0123456789abcdef.webp");
    for (path, expected) in [
        (made_up, Some("no-cache")),
        (forged, Some("no-cache")),
        (format!("{asset}.width-160.h-{hash}.webp"), None),
        (small.clone(), None),
    ] {
        assert_eq!(get(demo.publish, &path).header("dispatcher"), expected, "{path}");
    }

    for (end, status) in [
        ("crop-160x90.jpeg", 200),
        ("width-161.webp", 403),
        ("crop-160x91.jpeg", 403),
        ("width-160.sig-0123456789abcdef0123456789abcdef.webp", 200),
        ("width-161.sig-0123456789abcdef0123456789abcdef.webp", 403),
        ("width-0.webp", 404),
        ("width-99999.webp", 404),
        ("width-160.webp/more", 404),
        ("width-%31%36%30.webp", 200),
    ] {
        let path = format!("{asset}.{end}");
        assert_eq!(get(demo.publish, &path).status, status, "{path}");
    }

    // The dispatcher keeps a picture like any file, and refuses no less than publish.
    for _ in 0..3 {
        let seen = get(demo.dispatcher, &small);
        assert_eq!((seen.status, seen.body == plain.body), (200, true));
    }
    assert_eq!(get(demo.dispatcher, &format!("{asset}.width-161.webp")).status, 403);
    assert_eq!(demo.renders_of(&small), 5, "by this test four times, and by the dispatcher once");
    // Flushed with the asset, whose path it begins with.
    let replaced = upload_and_wait(&demo, "waves.bmp", &bitmap(600, 400, 2));
    activate(&demo, &replaced);
    wait_until("the new picture is seen", || get(demo.dispatcher, &small).body != plain.body);
}

#[test]
fn queries_make_nobody_draw_again() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let asset = upload_and_wait(&demo, "waves.bmp", &bitmap(600, 400, 3));
    let small = format!("{asset}.width-320.jpeg");
    let first = demo.get_as_admin(&small);
    assert_eq!(first.header("cache-control"), Some("private, no-cache"));
    let (drawn, refused) = (counter(&demo, "images_rendered"), counter(&demo, "images_refused"));
    let long = "x".repeat(8000);
    for query in
        ["a=1", "width=9999", "%00%ff", "../../etc", "a=%3Cscript%3E", "sig-1.webp", &*long]
    {
        let answer = demo.get_as_admin(&format!("{small}?{query}"));
        assert_eq!((answer.status, answer.body == first.body), (200, true), "{query}");
        let unlisted = demo.get_as_admin(&format!("{asset}.width-321.jpeg?{query}"));
        assert_eq!(unlisted.status, 403, "{query}");
    }
    assert_eq!(counter(&demo, "images_rendered"), drawn);
    assert!(counter(&demo, "image_cache_hits") >= 7);
    assert_eq!(counter(&demo, "images_refused"), refused + 7);
    // Without a login an author shows nothing of it.
    assert!(matches!(get(demo.author, &small).status, 401..=404));
}

#[test]
fn templates_sign_the_sizes_that_they_name() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let asset = upload_and_wait(&demo, "waves.bmp", &bitmap(600, 400, 4));
    let script = format!(
        "<img src=\"{{{{ asset('{asset}').image(width=333) }}}}\" \
         srcset=\"{{{{ asset('{asset}').srcset(widths=[77, 555, 4000], format='jpeg') }}}}\">"
    );
    let headers = [("Authorization", basic("admin", demo.password()))];
    let folder = demo.post("/apps/test/picture", "jcr:primaryType=sling:Folder");
    assert!((200..300).contains(&folder.status), "{}", folder.text());
    let put = "/apps/test/picture/picture.html.j2";
    let put = ask(demo.author, "PUT", put, &headers, script.as_bytes()).unwrap();
    assert_eq!(put.status, 201, "{}", put.text());
    let page = "/content/wayfare/en/picture";
    let form = "jcr:primaryType=nt:unstructured&sling:resourceType=test/picture";
    assert_eq!(demo.post(page, form).status, 201);
    for path in ["/apps/test/picture", page, &*asset] {
        let answer = demo.post(path, ":operation=activate&:deep=true");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let url = format!("{page}.html");
    // Until then visitors get the site's page for what is not there.
    wait_until("the page is published", || get(demo.dispatcher, &url).status == 200);
    let html = get(demo.dispatcher, &url).text();
    let source = html.split("src=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let set = html.split("srcset=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let mut sources = vec![source];
    sources.extend(set.split(", ").map(|one| one.split(' ').next().unwrap()));
    assert_eq!(sources.len(), 4, "{html}");
    // Larger than the original is as large as the original.
    assert!(sources[3].contains(".width-600.") && set.ends_with(" 600w"), "{set}");
    for source in &sources {
        let answer = get(demo.dispatcher, source);
        assert_eq!(answer.status, 200, "{source}");
        let control = answer.header("cache-control").unwrap();
        assert!(control.contains("immutable"), "{source}: {control}");
    }
    let forged = source.replace("width-333", "width-334");
    assert_eq!(get(demo.dispatcher, &forged).status, 403, "{forged}");
}

#[test]
fn a_file_that_cannot_be_drawn_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    settle(&demo);
    let before = ["assets_processed", "assets_failed"].map(|name| counter(&demo, name));
    let asset = upload_and_wait(&demo, "broken.jpg", b"not a picture");
    let content = demo.get_as_admin(&format!("{asset}/jcr:content.json")).text();
    assert!(content.contains("\"dam:assetState\":\"failed\""), "{content}");
    assert!(content.contains("its content is not an image of a known format"), "{content}");
    let picture = demo.get_as_admin(&format!("{asset}.width-320.webp"));
    assert_eq!(picture.status, 404);
    assert!(picture.text().contains("its content is not an image"), "{}", picture.text());
    assert_eq!(counter(&demo, "images_rendered"), 0);
    // A sound file in its place is processed like any other.
    upload(demo.author, demo.password(), FOLDER, ("broken.jpg", &bitmap(300, 200, 5))).unwrap();
    wait_until("it is processed", || {
        let content = demo.get_as_admin(&format!("{asset}/jcr:content.json")).text();
        content.contains("\"dam:assetState\":\"processed\"")
    });
    wait_until("both are counted", || {
        let after = ["assets_processed", "assets_failed"].map(|name| counter(&demo, name));
        after == before.map(|count| count + 1)
    });
}

/// An upgrade replaces or removes the program's file while the old version still runs and starts workers.
#[test]
fn workers_start_after_the_program_file_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("tympan");
    std::fs::copy(tympan().get_program(), &program).unwrap();
    let home = dir.path().join("home");
    let author = free_address();
    let arguments = ["author", "--home", home.to_str().unwrap(), "--listen", &author.to_string()];
    let _running = Running::start_copy(&program, &arguments);
    std::fs::remove_file(&program).unwrap();

    let password = std::fs::read_to_string(home.join("initial-password")).unwrap();
    let password = password.trim();
    // A fresh home has the folder of assets.
    let answer = upload(author, password, "/content/dam", ("waves.bmp", &bitmap(600, 400, 1)));
    assert_eq!(answer.unwrap().status, 201);
    let headers = [("Authorization", basic("admin", password))];
    let content = || {
        let path = "/content/dam/waves.bmp/jcr:content.2.json";
        ask(author, "GET", path, &headers, b"").unwrap().text()
    };
    wait_until("the asset is processed", || content().contains("dam:assetState"));
    let content = content();
    assert!(content.contains("\"dam:assetState\":\"processed\""), "{content}");
    assert!(content.contains("cq5dam.web.1280.1280"), "{content}");
}

/// Vanity paths and aliases are resolved by indexes, which no package has to bring.
#[test]
fn fresh_homes_resolve_vanity_paths_and_aliases() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let author = free_address();
    let _running = Running::start(&[
        "author",
        "--home",
        home.to_str().unwrap(),
        "--listen",
        &author.to_string(),
    ]);
    let password = std::fs::read_to_string(home.join("initial-password")).unwrap();
    let headers = [
        ("Authorization", basic("admin", password.trim())),
        ("Content-Type", "application/x-www-form-urlencoded".to_owned()),
    ];
    let page = "jcr:primaryType=cq:Page&jcr:content/jcr:primaryType=cq:PageContent\
                &jcr:content/sling:vanityPath=/simple&jcr:content/sling:alias=other";
    let answer = ask(author, "POST", "/content/site/page", &headers, page.as_bytes()).unwrap();
    assert!((200..300).contains(&answer.status), "{}", answer.text());
    for path in ["/simple.json", "/content/site/other.json"] {
        wait_until(path, || ask(author, "GET", path, &headers, b"").unwrap().status == 200);
    }
}
