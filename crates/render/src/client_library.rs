//! Client libraries by category: style sheets and scripts of a folder, joined and minified, with their dependencies.
//!
//! Input: folders of the type `cq:ClientLibraryFolder` with `categories`, `dependencies` and `embed`, and their lists
//! `css.txt` and `js.txt`, as in AEM. Output: for a category, the addresses of its style sheets and scripts in
//! dependency order, and the text behind each address.
//!
//! Invariants
//! * An address changes with its text, so that browsers may cache it forever.
//! * A library that depends on itself, directly or not, is included once.
//! * A text that cannot be minified is served unchanged; a LESS file that cannot be compiled is left out, and a comment
//!   tells authors why.
//!
//! Not here: single files of libraries (`client_library_file`).

pub(crate) mod client_library_file;
mod less;
mod relative_path;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use minifier::css;
use tympan_content::BlobId;

use self::relative_path::{resolve_relative_path, rewrite_relative_urls};
use crate::page::link::encode_path;
use crate::render_options::RenderMode;
use crate::response::stored_file::short_digest_hex;

/// The kind of a library: style sheets or scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ClientLibraryKind {
    Css,
    Js,
}

impl ClientLibraryKind {
    pub(crate) const ALL_KINDS: [Self; 2] = [Self::Css, Self::Js];

    /// Returns the extension of its files.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::Css => "css",
            Self::Js => "js",
        }
    }
}

/// A folder of a client library, as stored in content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientLibrarySource {
    /// The names by which pages request it.
    pub categories: Vec<String>,
    /// The categories that pages must load before it.
    pub dependencies: Vec<String>,
    /// The categories whose texts are joined into it.
    pub embeds: Vec<String>,
    /// True if visitors may read it (`allowProxy`).
    pub is_proxied: bool,
    /// Its style sheets, scripts and lists, by their paths below the folder.
    pub files: BTreeMap<String, String>,
}

/// All libraries of one state of `/apps` and `/libs`.
#[derive(Debug, Default)]
pub(crate) struct ClientLibrarySet {
    libraries: HashMap<(String, ClientLibraryKind), BuiltClientLibrary>,
    /// The folders of each category, in the order of their paths.
    folders_by_category: BTreeMap<String, Vec<String>>,
    dependencies: HashMap<String, Vec<String>>,
    /// The style sheets that are left out, each once.
    faults: BTreeSet<StyleSheetFault>,
}

/// A style sheet in LESS that cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StyleSheetFault {
    /// The path of the file.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    pub reason: String,
}

/// Maximum number of characters of a reason; some quote the style sheet.
const MAX_REASON_CHARACTERS: usize = 300;

impl StyleSheetFault {
    fn new(folder: &str, fault: &less::LessFault) -> Self {
        let path = format!("{folder}/{}", fault.file);
        let mut reason: String = fault.reason.chars().take(MAX_REASON_CHARACTERS).collect();
        if reason.len() < fault.reason.len() {
            reason.push('…');
        }
        Self { path, line: fault.line, reason }
    }

    /// Returns the problem as one sentence without its place.
    pub(crate) fn message(&self) -> String {
        format!("cannot compile the style sheet: {}", self.reason)
    }

    /// Returns the comment that authors find in the compiled text.
    fn comment(&self) -> String {
        // The text may also be part of a page, in an element `style`.
        let text = format!("{}:{}: {}", self.path, self.line, self.message());
        format!("/* {} */\n", text.replace("*/", "* /").replace("</", "< /"))
    }
}

/// The texts of a library and of those that it embeds.
#[derive(Debug, Default)]
struct JoinedSources {
    text: String,
    faults: BTreeSet<StyleSheetFault>,
    visited_folders: BTreeSet<String>,
}

/// A joined text, ready to be served.
#[derive(Debug, Clone)]
pub(crate) struct BuiltClientLibrary {
    pub text: Bytes,
    pub hash: String,
}

impl ClientLibrarySet {
    /// Joins the libraries of some folders, for authors or for visitors.
    pub(crate) fn build(sources: &BTreeMap<String, ClientLibrarySource>, mode: RenderMode) -> Self {
        let mut libraries = Self::default();
        for (folder, source) in sources {
            for category in &source.categories {
                libraries
                    .folders_by_category
                    .entry(category.clone())
                    .or_default()
                    .push(folder.clone());
            }
            libraries.dependencies.insert(folder.clone(), source.dependencies.clone());
        }
        for (folder, source) in sources.iter().filter(|(_, source)| source.is_proxied) {
            for kind in ClientLibraryKind::ALL_KINDS {
                let mut joined = JoinedSources::default();
                libraries.append_sources(sources, folder, source, kind, &mut joined);
                if !joined.text.is_empty() {
                    let mut text = minify(&joined.text, kind, folder);
                    if mode == RenderMode::Author {
                        let comments = joined.faults.iter().map(StyleSheetFault::comment);
                        text.insert_str(0, &comments.collect::<String>());
                    }
                    let text = Bytes::from(text);
                    let hash = short_digest_hex(BlobId::hash_of(&text).digest());
                    libraries
                        .libraries
                        .insert((folder.clone(), kind), BuiltClientLibrary { text, hash });
                }
                libraries.faults.append(&mut joined.faults);
            }
        }
        libraries
    }

    /// Adds the texts of the libraries that a folder embeds, then those of the folder itself.
    fn append_sources(
        &self,
        sources: &BTreeMap<String, ClientLibrarySource>,
        folder: &str,
        source: &ClientLibrarySource,
        kind: ClientLibraryKind,
        joined: &mut JoinedSources,
    ) {
        if !joined.visited_folders.insert(folder.to_owned()) {
            return;
        }
        for embedded in self.category_folders(&source.embeds) {
            if let Some(inner) = sources.get(&embedded) {
                self.append_sources(sources, &embedded, inner, kind, joined);
            }
        }
        for file in listed_files(source, kind) {
            let Some(part) = source.files.get(&file) else {
                tracing::warn!(path = folder, file, "a client library lists a missing file");
                continue;
            };
            match kind {
                ClientLibraryKind::Css if file.ends_with(".less") => {
                    match less::compile_less(&source.files, &file) {
                        Ok(part) => {
                            let part = rebase_css_urls(&part, &format!("{folder}/{file}"));
                            joined.text.push_str(&part);
                        }
                        Err(fault) => {
                            joined.faults.insert(StyleSheetFault::new(folder, &fault));
                        }
                    }
                }
                ClientLibraryKind::Css => {
                    let part = rebase_css_urls(part, &format!("{folder}/{file}"));
                    joined.text.push_str(&part);
                }
                ClientLibraryKind::Js => joined.text.push_str(part),
            }
            // A script may end without a semicolon, and what follows may begin with a bracket.
            joined.text.push_str(if kind == ClientLibraryKind::Js { "\n;\n" } else { "\n" });
        }
    }

    /// Returns the style sheets that are left out, sorted by path and line.
    pub(crate) fn faults(&self) -> impl Iterator<Item = &StyleSheetFault> {
        self.faults.iter()
    }

    /// Returns the folders of some categories, each once.
    fn category_folders(&self, categories: &[String]) -> Vec<String> {
        let mut folders: Vec<String> = Vec::new();
        for folder in categories
            .iter()
            .filter_map(|category| self.folders_by_category.get(category))
            .flatten()
        {
            if !folders.contains(folder) {
                folders.push(folder.clone());
            }
        }
        folders
    }

    /// Returns the library addresses that pages need for some categories, dependencies first.
    pub(crate) fn library_addresses(
        &self,
        categories: &[String],
        kind: ClientLibraryKind,
    ) -> Vec<String> {
        let mut ordered = Vec::new();
        self.order_by_dependency(categories, &mut (BTreeSet::new(), &mut ordered));
        let built = ordered.into_iter().filter_map(|folder| {
            let built = self.libraries.get(&(folder.clone(), kind))?;
            Some(library_address(&folder, &built.hash, kind))
        });
        built.collect()
    }

    fn order_by_dependency(
        &self,
        categories: &[String],
        (visited_folders, ordered): &mut (BTreeSet<String>, &mut Vec<String>),
    ) {
        for folder in self.category_folders(categories) {
            if !visited_folders.insert(folder.clone()) {
                continue;
            }
            let mut inner = (std::mem::take(visited_folders), &mut **ordered);
            if let Some(needed) = self.dependencies.get(&folder) {
                self.order_by_dependency(needed, &mut inner);
            }
            *visited_folders = inner.0;
            ordered.push(folder);
        }
    }

    /// Returns the joined texts of the libraries that pages need for some categories, dependencies first.
    pub(crate) fn joined_text(&self, categories: &[String], kind: ClientLibraryKind) -> String {
        let mut ordered = Vec::new();
        self.order_by_dependency(categories, &mut (BTreeSet::new(), &mut ordered));
        let built = ordered.into_iter().filter_map(|folder| self.libraries.get(&(folder, kind)));
        built.map(|built| String::from_utf8_lossy(&built.text).into_owned()).collect()
    }

    /// Returns the address of the folder of a category, for files beside its style sheets and scripts.
    pub(crate) fn category_path(&self, category: &str) -> Option<String> {
        let folder = self.folders_by_category.get(category)?.first()?;
        let name = ["/apps/", "/libs/"].iter().find_map(|path| folder.strip_prefix(path))?;
        Some(encode_path(&format!("/etc.clientlibs/{name}")))
    }

    /// Returns true if a category exists.
    pub(crate) fn has_category(&self, category: &str) -> bool {
        self.folders_by_category.contains_key(category)
    }

    /// Finds the text by the name in an address, such as `wayfare/clientlibs/site`, and its kind.
    pub(crate) fn find(&self, name: &str, kind: ClientLibraryKind) -> Option<&BuiltClientLibrary> {
        let search_paths = ["/apps/", "/libs/"].into_iter();
        search_paths
            .into_iter()
            .find_map(|search_path| self.libraries.get(&(format!("{search_path}{name}"), kind)))
    }
}

/// Returns the address of a library.
fn library_address(folder: &str, hash: &str, kind: ClientLibraryKind) -> String {
    let name = ["/apps/", "/libs/"].iter().find_map(|search_path| folder.strip_prefix(search_path));
    let name = name.unwrap_or_else(|| folder.trim_start_matches('/'));
    encode_path(&format!("/etc.clientlibs/{name}.{hash}.{}", kind.extension()))
}

/// Reads the list of a kind: one file per line, relative to the folder that `#base=` names.
fn listed_files(source: &ClientLibrarySource, kind: ClientLibraryKind) -> Vec<String> {
    let Some(list) = source.files.get(&format!("{}.txt", kind.extension())) else {
        return Vec::new();
    };
    let mut base = String::new();
    let mut files = Vec::new();
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match (line.strip_prefix("#base="), line.starts_with('#')) {
            (Some(base_path), _) => base = base_path.trim().trim_matches('/').to_owned(),
            (None, true) => {}
            (None, false) => files.push(resolve_relative_path(&base, line)),
        }
    }
    files
}

/// Rewrites the relative addresses in a style sheet to absolute paths on the host.
fn rebase_css_urls(text: &str, path: &str) -> String {
    let name = ["/apps/", "/libs/"].iter().find_map(|search_path| path.strip_prefix(search_path));
    let folder = name.unwrap_or(path).rsplit_once('/').map_or("", |(folder, _)| folder);
    rewrite_relative_urls(text, |file| {
        format!("/etc.clientlibs/{}", resolve_relative_path(folder, file))
    })
}

/// Makes a text smaller without changing what it does.
fn minify(text: &str, kind: ClientLibraryKind, folder: &str) -> String {
    match kind {
        ClientLibraryKind::Css => match css::minify(text) {
            Ok(small) => small.to_string(),
            Err(reason) => {
                tracing::warn!(
                    path = folder,
                    reason,
                    "cannot minify a client library; serving it as it is"
                );
                text.to_owned()
            }
        },
        ClientLibraryKind::Js => trim_script_lines(text),
    }
}

/// Removes the blanks around the lines of a script, empty lines, and lines that are a comment.
///
/// Line breaks stay: a statement may end at one without a semicolon (ECMAScript 12.10, Automatic Semicolon Insertion),
/// which the crate that minifies style sheets does not regard. A script with a text of several lines is not changed.
fn trim_script_lines(text: &str) -> String {
    let has_long_texts = text.contains('`') || text.lines().any(|line| line.ends_with('\\'));
    if has_long_texts {
        return text.to_owned();
    }
    let mut trimmed = String::with_capacity(text.len());
    // A comment may stand inside another one, which its line may end.
    let is_comment = |line: &str| line.starts_with("//") && !line.contains("*/");
    let lines = text.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !is_comment(line)) {
        trimmed.push_str(line);
        trimmed.push('\n');
    }
    trimmed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_keep_the_line_breaks_that_end_statements() {
        for (script, expected) in [
            ("  var a = true\n\n  if (a) {\n    b();\n  }\n", "var a = true\nif (a) {\nb();\n}\n"),
            ("// gone\n/* a\n// b */ c();\n", "/* a\n// b */ c();\n"),
            ("var t = `a\n   b`;\n", "var t = `a\n   b`;\n"),
            ("var t = 'a\\\n   b';\n", "var t = 'a\\\n   b';\n"),
        ] {
            assert_eq!(minify(script, ClientLibraryKind::Js, "/apps/a"), expected);
        }
    }

    #[test]
    fn addresses_of_imported_style_sheets_lead_into_the_library() {
        let files = [
            ("styles/index.less", "@import 'base/fonts';"),
            ("styles/base/fonts.less", "a { src: url('../../resources/f.woff2'); }"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        let compiled = less::compile_less(&files, "styles/index.less").unwrap();
        let rebased = rebase_css_urls(&compiled, "/apps/site/theme/styles/index.less");
        assert!(
            rebased.contains("url('/etc.clientlibs/site/theme/resources/f.woff2')"),
            "{rebased}"
        );
    }
}
