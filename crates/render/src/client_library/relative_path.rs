//! Relative paths in the lists and style sheets of client libraries.

/// Resolves a relative path against a folder; the result never leaves the root.
pub(super) fn resolve_relative_path(base: &str, relative: &str) -> String {
    let mut names: Vec<&str> =
        base.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
    for name in relative.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.join("/")
}

/// Rewrites the relative addresses in `url(…)` of a style sheet. The function is given an address without its query.
pub(super) fn rewrite_relative_urls(text: &str, rewrite: impl Fn(&str) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("url(") {
        let (before, after) = rest.split_at(at + "url(".len());
        out.push_str(before);
        let inner = after.trim_start_matches(|character: char| {
            character.is_ascii_whitespace() || character == '"' || character == '\''
        });
        let quote = after.get(..after.len() - inner.len()).unwrap_or_default();
        let end = inner.find(['"', '\'', ')']).unwrap_or(inner.len());
        let address = inner.get(..end).unwrap_or_default().trim_end();
        // A variable of LESS may hold an absolute address.
        let is_relative = !address.is_empty()
            && !address.starts_with(['/', '#', '@', '~'])
            && !address.split(['/', '?']).next().unwrap_or_default().contains(':');
        out.push_str(quote);
        if is_relative {
            let (file, query) = address.split_at(address.find(['?', '#']).unwrap_or(address.len()));
            out.push_str(&rewrite(file));
            out.push_str(query);
            rest = inner.get(address.len()..).unwrap_or_default();
        } else {
            rest = inner;
        }
    }
    out.push_str(rest);
    out
}

/// Returns the relative path from one folder to another.
pub(super) fn relative_folder(from: &str, to: &str) -> String {
    let names = |path: &str| -> Vec<String> {
        path.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect()
    };
    let (from, to) = (names(from), names(to));
    let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
    let up = from.iter().skip(common).map(|_| "../".to_owned());
    let down = to.iter().skip(common).map(|name| format!("{name}/"));
    up.chain(down).collect()
}
