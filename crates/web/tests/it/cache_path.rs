//! URL path to file.

use proptest::prelude::*;
use tympan_web::cache_path::{
    CanonicalPath, CanonicalPathError, EncodedSlashes, resolve_encoded_path,
    resolve_path_with_slashes,
};

#[track_caller]
fn check(raw: &str, expected: Result<&str, CanonicalPathError>) {
    let path = CanonicalPath::parse(raw);
    assert_eq!(path.as_ref().map(CanonicalPath::as_str), expected.as_ref().copied(), "{raw}");
}

#[test]
fn paths_have_one_form() {
    check("/", Ok("/"));
    check("/content/en.html", Ok("/content/en.html"));
    check("//content///en.html", Ok("/content/en.html"));
    check("/content/./en.html", Ok("/content/en.html"));
    check("/content/../libs/x", Ok("/libs/x"));
    check("/content/", Ok("/content/"));
    check("/content/.", Ok("/content/"));
    check("/content/a/..", Ok("/content/"));
    check("/a/..", Ok("/"));
    check("/page.qu%65ry.js%6Fn", Ok("/page.query.json"));
    check("/a%20b/%C3%A4.html", Ok("/a b/\u{e4}.html"));
    check("/a/%2e%2e/b", Ok("/b"));
    check("/a;x=1/b", Ok("/a;x=1/b"));
    check("/a/%252e%252e/b", Ok("/a/%2e%2e/b"));
    check("/a/.../b", Ok("/a/.../b"));
    check("/a\\..\\b", Ok("/a\\..\\b"));
}

#[test]
fn dangerous_paths_are_refused() {
    check("", Err(CanonicalPathError::NotAbsolute));
    check("content", Err(CanonicalPathError::NotAbsolute));
    check("/..", Err(CanonicalPathError::AboveRoot));
    check("/a/../../etc/passwd", Err(CanonicalPathError::AboveRoot));
    check("/%2e%2e/etc", Err(CanonicalPathError::AboveRoot));
    check("/a/..;/b", Err(CanonicalPathError::AboveRoot));
    check("/a/.;x/b", Err(CanonicalPathError::AboveRoot));
    check("/a/..%3bx/b", Err(CanonicalPathError::AboveRoot));
    check("/a%00.html", Err(CanonicalPathError::Nul));
    check("/a\0.html", Err(CanonicalPathError::Nul));
    check("/a%2fb", Err(CanonicalPathError::EncodedSlash));
    check("/a%2Fb", Err(CanonicalPathError::EncodedSlash));
    check("/a%zz", Err(CanonicalPathError::BadEscape));
    check("/a%2", Err(CanonicalPathError::BadEscape));
    check("/%ff", Err(CanonicalPathError::NotUtf8));
}

#[test]
fn encoded_slashes_are_decoded_or_kept_where_that_is_chosen() {
    let check = |slashes, raw: &str, expected: Result<(&str, &str), CanonicalPathError>| {
        let path = CanonicalPath::parse_with_slashes(raw, slashes);
        let wire = resolve_path_with_slashes(raw, slashes);
        let both = path.and_then(|path| Ok((path.as_str().to_owned(), wire?)));
        let both = both.as_ref().map(|(path, wire)| (path.as_str(), wire.as_str()));
        assert_eq!(both.map_err(|fault| *fault), expected, "{slashes:?} {raw}");
    };
    let refused = Err(CanonicalPathError::EncodedSlash);
    use EncodedSlashes::{Decode, Keep, Refuse};
    check(Refuse, "/a%2Fb", refused);
    check(Decode, "/a%2Fb%2f%2fc", Ok(("/a/b/c", "/a/b/c")));
    check(Decode, "/a/..%2F..%2Fb", Err(CanonicalPathError::AboveRoot));
    check(Decode, "/a%252Fb", Ok(("/a%2Fb", "/a%252Fb")));
    check(Keep, "/a%2fb%20c/d", Ok(("/a%2Fb c/d", "/a%2Fb%20c/d")));
    check(
        Keep,
        "/img/http:%2F%2Fh%2Fx.png",
        Ok(("/img/http:%2F%2Fh%2Fx.png", "/img/http:%2F%2Fh%2Fx.png")),
    );
    check(Keep, "/a/../b%2Fc", Ok(("/b%2Fc", "/b%2Fc")));
    // Another server could read each of these as another path of this cache.
    for raw in ["/a%252Fb", "/a%252fb", "/a%2F..%2Fb", "/a%2F%2e%2e", "/.%2Fa", "/a%2F."] {
        check(Keep, raw, refused);
    }
    check(Keep, "/..;x%2Fa", Err(CanonicalPathError::AboveRoot));
    check(Keep, "/a%2", Err(CanonicalPathError::BadEscape));
}

#[test]
fn what_is_sent_on_keeps_its_escapes() {
    let check =
        |raw: &str, expected: &str| assert_eq!(resolve_encoded_path(raw).unwrap(), expected);
    check("/a//b/./c%2b%20d/../e%2b.html", "/a/b/e%2b.html");
    check("/a/%2e%2e/%2E/b%2B", "/b%2B");
    check("/a%20b/", "/a%20b/");
    assert_eq!(resolve_encoded_path("/%2e%2e"), Err(CanonicalPathError::AboveRoot));
}

proptest! {
    #[test]
    fn both_forms_name_the_same_place(raw in "(/(%2e|%2E|\\.|;|a|%20|%c3%a4){0,4}){1,6}") {
        let wire = resolve_encoded_path(&raw);
        let path = CanonicalPath::parse(&raw);
        prop_assert_eq!(wire.is_ok(), path.is_ok());
        if let (Ok(wire), Ok(path)) = (wire, path) {
            prop_assert_eq!(CanonicalPath::parse(&wire), Ok(path));
        }
    }

    #[test]
    fn a_canonical_path_stays_below_the_root(raw in "/([a-z.%;/]|%2e|%2E|\\.\\.|/){0,40}") {
        let Ok(path) = CanonicalPath::parse(&raw) else { return Ok(()) };
        let file = path.relative_file_path();
        prop_assert!(file.is_relative());
        prop_assert!(file.components().all(|part| matches!(part, std::path::Component::Normal(_))));
        prop_assert!(!path.as_str().contains("//"));
    }

    #[test]
    fn a_path_that_was_resolved_stays_as_it_is(raw in "(/[a-z.]{1,3}){1,6}/?") {
        let Ok(path) = CanonicalPath::parse(&raw) else { return Ok(()) };
        prop_assert_eq!(CanonicalPath::parse(path.as_str()), Ok(path.clone()));
    }
}
