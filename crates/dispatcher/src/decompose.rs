//! A URL path in its parts, by text alone, as no repository is at hand.
//!
//! The first dot splits: before it stands the path; from it to the next slash selectors and extension; from that slash
//! on the suffix. A path without a dot has neither.

/// The parts of a URL path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts<'a> {
    /// Before the first dot.
    pub(crate) path: &'a str,
    /// Between path and extension, joined by dots.
    pub(crate) selectors: Option<&'a str>,
    /// After the last dot of the segment that holds the first dot.
    pub(crate) extension: Option<&'a str>,
    /// From the next slash on.
    pub(crate) suffix: Option<&'a str>,
}

/// Splits `url_path`.
#[must_use]
pub(crate) fn decompose(url_path: &str) -> Parts<'_> {
    let Some((path, rest)) = url_path.split_once('.') else {
        return Parts { path: url_path, selectors: None, extension: None, suffix: None };
    };
    let (dotted, suffix) = match rest.find('/') {
        Some(slash) => {
            let (dotted, suffix) = rest.split_at(slash);
            (dotted, Some(suffix))
        }
        None => (rest, None),
    };
    let (selectors, extension) = match dotted.rsplit_once('.') {
        Some((selectors, extension)) => (Some(selectors), extension),
        None => (None, dotted),
    };
    let present = |text: &&str| !text.is_empty();
    Parts {
        path,
        selectors: selectors.filter(present),
        extension: Some(extension).filter(present),
        suffix,
    }
}

#[cfg(test)]
mod tests {
    use super::decompose;

    #[test]
    fn splits_paths() {
        let check = |path: &str, expected: &str| {
            let parts = decompose(path);
            let mut text = format!("path={}", parts.path);
            for (name, value) in
                [("sel", parts.selectors), ("ext", parts.extension), ("suffix", parts.suffix)]
            {
                if let Some(value) = value {
                    text.push_str(&format!(" {name}={value}"));
                }
            }
            assert_eq!(text, expected, "{path}");
        };
        check("/a/b.html", "path=/a/b ext=html");
        check("/a/b.print.a4.html", "path=/a/b sel=print.a4 ext=html");
        check("/a/b.html/c/d", "path=/a/b ext=html suffix=/c/d");
        check("/a/b.x.html/c.d/e.f", "path=/a/b sel=x ext=html suffix=/c.d/e.f");
        check("/home/path/suffix.ext", "path=/home/path/suffix ext=ext");
        check("/a/b", "path=/a/b");
        check("/a.b/", "path=/a ext=b suffix=/");
        check("/", "path=/");
        check("/a.", "path=/a");
        check("/content.tidy.-1.blubber.json", "path=/content sel=tidy.-1.blubber ext=json");
        check("/.stat", "path=/ ext=stat");
    }
}
