//! Client libraries by category: style sheets and scripts of a folder, joined, made small, with what they need.
//!
//! In: folders of the type `cq:ClientLibraryFolder` with `categories`, `dependencies` and `embed`, and the lists `css.txt`
//! and `js.txt` in them, as in AEM. Out: for a category, the addresses of its style sheets and scripts in the order in
//! which pages need them, and the text behind each address.
//!
//! Invariants
//! * An address changes with its text, so that browsers may keep it for good.
//! * A library that needs itself, directly or not, is taken once.
//! * A text that cannot be made small is served as it is.
//!
//! Not here: single files of libraries (`library`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use bytes::Bytes;
use minifier::{css, js};
use tympan_content::BlobId;

use crate::file::short_hash;
use crate::link::encode_path;

/// What a library is: style sheets or scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Css,
    Js,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Css, Self::Js];

    /// Returns the extension of its files.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::Css => "css",
            Self::Js => "js",
        }
    }
}

/// A folder of a client library, as content has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LibrarySource {
    /// The names by which pages ask for it.
    pub categories: Vec<String>,
    /// The categories that pages need before it.
    pub dependencies: Vec<String>,
    /// The categories whose texts become a part of it.
    pub embeds: Vec<String>,
    /// Whether visitors may have it (`allowProxy`).
    pub is_proxied: bool,
    /// Its style sheets, scripts and lists, by their paths below the folder.
    pub files: BTreeMap<String, String>,
}

/// All libraries of one state of `/apps` and `/libs`.
#[derive(Debug, Default)]
pub(crate) struct ClientLibraries {
    built: HashMap<(String, Kind), Built>,
    /// The folders of each category, in the order of their paths.
    categories: BTreeMap<String, Vec<String>>,
    dependencies: HashMap<String, Vec<String>>,
}

/// A text that is ready to be served.
#[derive(Debug, Clone)]
pub(crate) struct Built {
    pub text: Bytes,
    pub hash: String,
}

impl ClientLibraries {
    /// Joins the libraries of some folders.
    pub(crate) fn build(sources: &BTreeMap<String, LibrarySource>) -> Self {
        let mut libraries = Self::default();
        for (folder, source) in sources {
            for category in &source.categories {
                libraries.categories.entry(category.clone()).or_default().push(folder.clone());
            }
            libraries.dependencies.insert(folder.clone(), source.dependencies.clone());
        }
        for (folder, source) in sources.iter().filter(|(_, source)| source.is_proxied) {
            for kind in Kind::ALL {
                let mut text = String::new();
                libraries.join(sources, (folder, source), kind, (&mut text, &mut BTreeSet::new()));
                if !text.is_empty() {
                    let text = Bytes::from(small(&text, kind, folder));
                    let hash = short_hash(BlobId::of(&text).digest());
                    libraries.built.insert((folder.clone(), kind), Built { text, hash });
                }
            }
        }
        libraries
    }

    /// Adds the texts of a folder and of what it embeds, those first.
    fn join(
        &self,
        sources: &BTreeMap<String, LibrarySource>,
        (folder, source): (&str, &LibrarySource),
        kind: Kind,
        (text, seen): (&mut String, &mut BTreeSet<String>),
    ) {
        if !seen.insert(folder.to_owned()) {
            return;
        }
        for embedded in self.folders(&source.embeds) {
            if let Some(inner) = sources.get(&embedded) {
                self.join(sources, (&embedded, inner), kind, (text, seen));
            }
        }
        for file in listed(source, kind) {
            let Some(part) = source.files.get(&file) else {
                tracing::warn!(
                    path = folder,
                    file,
                    "a client library lists a file that is not there"
                );
                continue;
            };
            match kind {
                Kind::Css => text.push_str(&rebased(part, &format!("{folder}/{file}"))),
                Kind::Js => text.push_str(part),
            }
            // A script may end without a semicolon, and what follows may begin with a bracket.
            text.push_str(if kind == Kind::Js { "\n;\n" } else { "\n" });
        }
    }

    /// Returns the folders of some categories, each once.
    fn folders(&self, categories: &[String]) -> Vec<String> {
        let mut folders: Vec<String> = Vec::new();
        for folder in categories.iter().filter_map(|one| self.categories.get(one)).flatten() {
            if !folders.contains(folder) {
                folders.push(folder.clone());
            }
        }
        folders
    }

    /// Returns the addresses of what pages need for some categories, what others need first.
    pub(crate) fn addresses(&self, categories: &[String], kind: Kind) -> Vec<String> {
        let mut ordered = Vec::new();
        self.order(categories, &mut (BTreeSet::new(), &mut ordered));
        let built = ordered.into_iter().filter_map(|folder| {
            let built = self.built.get(&(folder.clone(), kind))?;
            Some(address_of(&folder, &built.hash, kind))
        });
        built.collect()
    }

    fn order(
        &self,
        categories: &[String],
        (seen, ordered): &mut (BTreeSet<String>, &mut Vec<String>),
    ) {
        for folder in self.folders(categories) {
            if !seen.insert(folder.clone()) {
                continue;
            }
            let mut inner = (std::mem::take(seen), &mut **ordered);
            if let Some(needed) = self.dependencies.get(&folder) {
                self.order(needed, &mut inner);
            }
            *seen = inner.0;
            ordered.push(folder);
        }
    }

    /// Tells whether a category exists.
    pub(crate) fn has(&self, category: &str) -> bool {
        self.categories.contains_key(category)
    }

    /// Finds the text behind the name of an address: `wayfare/clientlibs/site` and its kind.
    pub(crate) fn find(&self, name: &str, kind: Kind) -> Option<&Built> {
        let places = ["/apps/", "/libs/"].into_iter();
        places.into_iter().find_map(|place| self.built.get(&(format!("{place}{name}"), kind)))
    }
}

/// Returns the address of a library.
fn address_of(folder: &str, hash: &str, kind: Kind) -> String {
    let name = ["/apps/", "/libs/"].iter().find_map(|place| folder.strip_prefix(place));
    let name = name.unwrap_or_else(|| folder.trim_start_matches('/'));
    encode_path(&format!("/etc.clientlibs/{name}.{hash}.{}", kind.extension()))
}

/// Reads the list of a kind: a file on each line, below what `#base=` names.
fn listed(source: &LibrarySource, kind: Kind) -> Vec<String> {
    let Some(list) = source.files.get(&format!("{}.txt", kind.extension())) else {
        return Vec::new();
    };
    let mut base = String::new();
    let mut files = Vec::new();
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match (line.strip_prefix("#base="), line.starts_with('#')) {
            (Some(given), _) => base = given.trim().trim_matches('/').to_owned(),
            (None, true) => {}
            (None, false) => files.push(resolve(&base, line)),
        }
    }
    files
}

/// Resolves a relative path against a folder; it cannot leave the top.
fn resolve(base: &str, relative: &str) -> String {
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

/// Writes the relative addresses in a style sheet as they are from the host on.
fn rebased(text: &str, path: &str) -> String {
    let name = ["/apps/", "/libs/"].iter().find_map(|place| path.strip_prefix(place));
    let folder = name.unwrap_or(path).rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("url(") {
        let (before, after) = rest.split_at(at + "url(".len());
        out.push_str(before);
        let inner = after
            .trim_start_matches(|one: char| one.is_ascii_whitespace() || one == '"' || one == '\'');
        let quote = after.get(..after.len() - inner.len()).unwrap_or_default();
        let end = inner.find(['"', '\'', ')']).unwrap_or(inner.len());
        let address = inner.get(..end).unwrap_or_default().trim_end();
        let is_relative = !address.is_empty()
            && !address.starts_with(['/', '#'])
            && !address.split(['/', '?']).next().unwrap_or_default().contains(':');
        out.push_str(quote);
        if is_relative {
            let (file, query) = address.split_at(address.find(['?', '#']).unwrap_or(address.len()));
            // Writing to a string cannot fail.
            write!(out, "/etc.clientlibs/{}{query}", resolve(folder, file)).ok();
            rest = inner.get(address.len()..).unwrap_or_default();
        } else {
            rest = inner;
        }
    }
    out.push_str(rest);
    out
}

/// Makes a text small.
fn small(text: &str, kind: Kind, folder: &str) -> String {
    let made = match kind {
        Kind::Css => css::minify(text).map(|small| small.to_string()).map_err(str::to_owned),
        Kind::Js => js::minify(text).map(|small| small.to_string()).map_err(str::to_owned),
    };
    made.unwrap_or_else(|reason| {
        tracing::warn!(path = folder, reason, "a client library stays as large as it is");
        text.to_owned()
    })
}
