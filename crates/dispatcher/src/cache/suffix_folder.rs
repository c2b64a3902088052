//! Cache folders for the suffix pages of a page: `/a.html/x.html` is in `a.html.s~`, next to the file `a.html`.
//!
//! A folder `a.html` would prevent caching of the page `/a.html`, and the file `a.html` that of its suffix pages.
//! Therefore each segment of a URL that looks like a page gets a different folder name if more segments follow. Folders
//! whose names merely contain a dot (`etc.clientlibs`, `v1.2`) keep their plain names, as other programs expect them.
//!
//! Invariants
//! * No URL has a file whose last name is the name of such a folder, and two paths never share a file.
//! * The name of the folder begins with the name of the page and a dot, so that a flush of the page names it as well.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// The suffix that is appended to a page's name for the folder of its suffix pages.
const SUFFIX_FOLDER_MARK: &str = ".s~";

/// The extensions of pages, pictures and files. A segment with such an extension is a page, even if more segments
/// follow; any other segment followed by more is a folder.
const PAGE_EXTENSIONS: [&str; 68] = [
    "html", "htm", "xhtml", "json", "xml", "txt", "csv", "md", "rss", "atom", "pdf", "css", "js",
    "mjs", "map", "wasm", "svg", "jpg", "jpeg", "jpe", "png", "gif", "webp", "avif", "bmp", "ico",
    "tif", "tiff", "heic", "mp4", "m4v", "webm", "ogv", "mov", "mp3", "ogg", "wav", "m4a", "woff",
    "woff2", "ttf", "otf", "eot", "zip", "gz", "doc", "docx", "xls", "xlsx", "ppt", "pptx", "odt",
    "ods", "odp", "ics", "vcf", "bin", "dat", "res", "model", "php", "jsp", "jspx", "asp", "aspx",
    "do", "action", "cgi",
];

/// Returns true if a segment with this extension is a page even if more segments follow.
pub(crate) fn is_page_extension(extension: &str) -> bool {
    PAGE_EXTENSIONS.iter().any(|page_extension| page_extension.eq_ignore_ascii_case(extension))
}

/// Returns true if a name is that of a folder of suffix pages.
pub(crate) fn is_suffix_folder_name(name: &str) -> bool {
    name.ends_with(SUFFIX_FOLDER_MARK)
}

/// Returns the name of the folder of a page's suffix pages; `None` for a name that is not a page's.
fn suffix_folder_name(segment: &str) -> Option<String> {
    let (_, extension) = segment.rsplit_once('.')?;
    is_page_extension(extension).then(|| format!("{segment}{SUFFIX_FOLDER_MARK}"))
}

/// Returns the file of a path below the document root; the last name stays unchanged.
pub(crate) fn cache_file_of_path(path: PathBuf) -> PathBuf {
    let is_plain = path.parent().is_none_or(|parent| {
        parent.iter().all(|name| name.to_str().and_then(suffix_folder_name).is_none())
    });
    if is_plain {
        return path;
    }
    let mut file = PathBuf::with_capacity(path.as_os_str().len() + SUFFIX_FOLDER_MARK.len());
    let mut names = path.iter().peekable();
    while let Some(name) = names.next() {
        let is_last = names.peek().is_none();
        let folder = name.to_str().filter(|_| !is_last).and_then(suffix_folder_name);
        match folder {
            Some(folder) => file.push(folder),
            None => file.push(name),
        }
    }
    file
}

/// Returns the URL path of a file below the document root.
pub(crate) fn url_path_of_file(file: &str) -> Cow<'_, str> {
    if !file.contains(SUFFIX_FOLDER_MARK) {
        return Cow::Borrowed(file);
    }
    let Some((folders, name)) = file.rsplit_once('/') else { return Cow::Borrowed(file) };
    let mut path = String::with_capacity(file.len());
    for folder in folders.split('/') {
        path.push_str(folder.strip_suffix(SUFFIX_FOLDER_MARK).unwrap_or(folder));
        path.push('/');
    }
    path.push_str(name);
    Cow::Owned(path)
}

/// Returns the folder of the suffix pages of the page with this file.
pub(crate) fn suffix_folder_of_page(file: &Path) -> Option<PathBuf> {
    let name = file.file_name().and_then(|name| name.to_str()).and_then(suffix_folder_name)?;
    Some(file.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::{cache_file_of_path, suffix_folder_of_page, url_path_of_file};
    use proptest::prelude::*;
    use std::path::{Path, PathBuf};

    fn of(path: &str) -> String {
        cache_file_of_path(PathBuf::from(path)).into_os_string().into_string().unwrap()
    }

    #[test]
    fn pages_and_suffix_pages_lie_side_by_side() {
        for (path, expected) in [
            ("a.html", "a.html"),
            ("a/b.c/d.html", "a/b.c/d.html"),
            ("etc.clientlibs/site/main.js", "etc.clientlibs/site/main.js"),
            ("content/dam/v1.2/x.jpg", "content/dam/v1.2/x.jpg"),
            ("example.com/en.html", "example.com/en.html"),
            ("a.html/x.html", "a.html.s~/x.html"),
            ("a.print.HTML/b/x.html", "a.print.HTML.s~/b/x.html"),
            ("a.html/b.html/x.html", "a.html.s~/b.html.s~/x.html"),
            ("dam/a.jpg/_jcr_content/x.png", "dam/a.jpg.s~/_jcr_content/x.png"),
        ] {
            assert_eq!(of(path), expected);
            assert_eq!(url_path_of_file(expected), path);
        }
        assert_eq!(
            suffix_folder_of_page(Path::new("a/b.html")),
            Some(PathBuf::from("a/b.html.s~"))
        );
        assert_eq!(suffix_folder_of_page(Path::new("a/b.2")), None);
    }

    proptest! {
        /// A page and its suffix pages never need a file and a folder with the same name.
        #[test]
        fn no_file_stands_where_a_folder_is_needed(
            one in "([ab]{1,2}(\\.(html|s~|2))?(/[ab](\\.(html|2))?){0,3})\\.html",
            other in "([ab]{1,2}(\\.(html|2))?(/[ab](\\.(html|2))?){0,3})\\.html",
        ) {
            let (first, second) = (of(&one), of(&other));
            prop_assert_eq!(one == other, first == second);
            prop_assert!(one == other || !Path::new(&second).starts_with(&first), "{} {}", first, second);
        }
    }
}
