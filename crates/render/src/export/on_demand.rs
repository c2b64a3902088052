//! A file that a web server did not find: drawn, placed, and handed out.
//!
//! In: the URL that was asked for. Out: an answer, and perhaps a file.
//!
//! Only resources by their own address, and names that an exported page links to, become files: no visitor can have
//! files made at will. The query of the request means nothing, as the file is found whatever the query is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use percent_encoding::percent_decode_str;
use tympan_content::{Node, NodePath, Snapshot};

use super::draw::{Content, Desk, Drawn, Fate};
use super::manifest::Entry;
use super::place::{Address, EXPORT_NAME, Kind, Place, Unexported, checked};
use super::{Error, Exporter, Press, Result};
use crate::dependency::Dependencies;
use crate::link::encode_path;
use crate::response::Blob;
use crate::url::mangle;

/// Drawings of one request that changes may overtake.
const MAX_DRAWINGS: usize = 3;

/// What a visitor gets who asked for a file that was not there.
#[derive(Debug)]
pub enum OnDemand {
    /// The file's bytes, drawn now.
    Bytes {
        /// The bytes.
        bytes: Bytes,
        /// Their media type.
        content_type: String,
    },
    /// The file is a stored binary.
    Blob {
        /// The binary.
        blob: Blob,
        /// Its media type.
        content_type: String,
    },
    /// It is not exported, and is found at this path.
    Elsewhere(String),
    /// There is no such thing.
    Missing,
    /// It could not be drawn.
    Failed(String),
}

/// The address of a file, or why it has none, with the address that would be its own.
type Found = std::result::Result<Address, (Unexported, Option<Address>)>;

/// The folders that have been given names.
#[derive(Debug, Default)]
pub(super) struct Names(Option<Arc<BTreeMap<String, String>>>);

impl Names {
    /// Has them looked for again.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}

impl Exporter {
    /// Answers for a file that was not found, and makes it if it is exported.
    ///
    /// # Errors
    /// If content cannot be read or the disk refuses; what is served stays.
    pub fn on_demand(&self, press: Press<'_>, url: &str) -> Result<OnDemand> {
        let path = url.split(['?', '#']).next().unwrap_or_default();
        let files = self.files_of(path);
        if files.is_empty() {
            return Ok(OnDemand::Missing);
        }
        for _ in 0..MAX_DRAWINGS {
            let followed = self.followed.load(Ordering::Acquire);
            let snapshot = press.repository.snapshot()?;
            let desk = self.desk(press, &snapshot)?;
            let address = match self.address_of_one(&desk, &files)? {
                Ok(address) => address,
                Err(otherwise) => return Ok(self.otherwise(otherwise, path)),
            };
            let drawn = match desk.draw(&address) {
                Fate::File(drawn) => drawn,
                Fate::Unexported(reason) => {
                    return Ok(self.otherwise((reason, Some(address)), path));
                }
                Fate::Personal(_) => {
                    return Ok(self.otherwise((Unexported::Personal, Some(address)), path));
                }
                Fate::Failed(reason) => return Ok(OnDemand::Failed(reason)),
            };
            if self.place_one(press, (&address, &drawn), followed)? {
                return Ok(answer(*drawn));
            }
        }
        // Changes come faster than drawings: the answer is right now, the file would not stay so.
        Ok(OnDemand::Failed("it changes faster than it can be drawn".to_owned()))
    }

    /// Returns the files that a URL may mean, each with its name in the folder of its rule: a path without its server may be
    /// that of several rules.
    fn files_of(&self, url: &str) -> Vec<(String, String)> {
        let of_rules = self.options().rules.iter().filter_map(|rule| {
            let inner = named(rule.after_prefix(url)?)?;
            Some((rule.place(&inner), inner))
        });
        let plain = url.strip_prefix(self.options().prefix.as_str()).and_then(named);
        of_rules.chain(plain.map(|name| (name.clone(), name))).collect()
    }

    /// Finds the address of the first file that has one.
    fn address_of_one(&self, desk: &Desk<'_>, files: &[(String, String)]) -> Result<Found> {
        let mut refused = (Unexported::Missing, None);
        for (file, inner) in files {
            match self.address_for(desk, file, inner)? {
                Ok(address) => return Ok(Ok(address)),
                Err(other) if refused.0 == Unexported::Missing => refused = other,
                Err(_) => {}
            }
        }
        Ok(Err(refused))
    }

    /// Says where visitors find what is no file.
    fn otherwise(&self, (reason, address): (Unexported, Option<Address>), asked: &str) -> OnDemand {
        let is_there = !matches!(reason, Unexported::Missing | Unexported::Malformed(_));
        match address.filter(|_| is_there) {
            Some(address) => {
                let elsewhere = format!("{}{address}", self.options().dynamic_prefix);
                if elsewhere == asked { OnDemand::Missing } else { OnDemand::Elsewhere(elsewhere) }
            }
            None => OnDemand::Missing,
        }
    }

    /// Finds the address of a file, which has the name `inner` in the folder of its rule.
    fn address_for(&self, desk: &Desk<'_>, file: &str, inner: &str) -> Result<Found> {
        let known = {
            let tree = self.tree.lock();
            let known = tree.as_ref().and_then(|tree| tree.manifest.address_of(file));
            known.map(Address::of)
        };
        if let Some(address) = known {
            return Ok(Ok(address));
        }
        let mut refused = (Unexported::Missing, None);
        for path in self.candidates(&desk.snapshot, inner)? {
            let place = desk.find(&Address { path: encode_path(&path), query: String::new() });
            let Place { address, kind, file: named, is_plain, .. } = place;
            match named {
                Ok(named) if named == file && is_plain && kind == Kind::Resource => {
                    return Ok(Ok(address));
                }
                Err(reason) if refused.1.is_none() && reason != Unexported::Missing => {
                    refused = (reason, Some(address));
                }
                _ => {}
            }
        }
        Ok(Err(refused))
    }

    /// Returns paths of URLs whose file this may be.
    fn candidates(&self, snapshot: &Snapshot, file: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for (name, folder) in &*self.names(snapshot)? {
            let inner = match name.as_str() {
                "" => Some(file),
                name => file.strip_prefix(name).filter(|rest| rest.starts_with(['/', '.'])),
            };
            if let Some(inner) = inner {
                let slash = if name.is_empty() { "/" } else { "" };
                let folder = folder.trim_end_matches('/');
                found.push(format!("{folder}{slash}{inner}"));
                // The folder that stands for the top keeps a name of its own.
                if let (true, Some(parent)) = (name.is_empty(), folder.rfind('/')) {
                    found.push(format!("{}/{inner}", folder.get(..parent).unwrap_or_default()));
                }
            }
        }
        let plain = format!("/{file}");
        found.push(plain.clone());
        let plain_index = plain.strip_suffix("index_export.html");
        found.extend(plain_index.map(str::to_owned));
        // What is drawn without an extension gets one.
        let without: Vec<String> = found
            .iter()
            .filter_map(|path| path.rsplit_once('.'))
            .filter(|(_, ending)| !ending.contains('/'))
            .map(|(stem, _)| stem.to_owned())
            .collect();
        found.extend(without);
        Ok(found)
    }

    /// Returns the names that folders have been given.
    fn names(&self, snapshot: &Snapshot) -> Result<Arc<BTreeMap<String, String>>> {
        if let Some(names) = &self.names.lock().0 {
            return Ok(Arc::clone(names));
        }
        let mut names = BTreeMap::new();
        for root in &self.options().roots {
            let Ok(root) = NodePath::new(root) else { continue };
            let mut pending: Vec<Node> = snapshot.node(&root)?.into_iter().collect();
            while let Some(node) = pending.pop() {
                let own = node.text(EXPORT_NAME);
                let text = match own {
                    Some(text) => Some(text),
                    None => node.content()?.and_then(|content| content.text(EXPORT_NAME)),
                };
                if let Some(text) = text {
                    let name = text.trim().trim_matches('/').to_owned();
                    names.entry(name).or_insert_with(|| mangle(node.path().as_str()));
                }
                pending.extend(node.listed_children()?);
            }
        }
        let names = Arc::new(names);
        self.names.lock().0 = Some(Arc::clone(&names));
        Ok(names)
    }

    /// Makes the file of a drawing; tells whether no change overtook it.
    fn place_one(
        &self,
        press: Press<'_>,
        (address, drawn): (&Address, &Drawn),
        followed: u64,
    ) -> Result<bool> {
        let failed = |error| self.failed(error);
        let Ok(file) = &drawn.place.file else { return Ok(true) };
        let mut content = drawn.content.open(press.repository).map_err(failed)?;
        let mut waiting = self.folder.stage(&mut *content).map_err(failed)?;
        waiting.sync().map_err(failed)?;
        let mut tree = self.tree.lock();
        if self.followed.load(Ordering::Acquire) != followed {
            return Ok(false);
        }
        // Without a tree, or while a run changes it, there is an answer and no file.
        let Some(tree) = tree.as_mut() else { return Ok(true) };
        let text = address.to_string();
        if tree.manifest.address_of(file).is_some_and(|other| other != text) {
            return Ok(true);
        }
        let entry = Entry {
            file: file.clone(),
            source: drawn.place.source.clone(),
            hash: Some(waiting.hash.clone()),
            reads: Arc::clone(&drawn.reads),
        };
        for link in drawn.links.iter().filter(|link| !link.is_plain) {
            tree.note_name(link).map_err(failed)?;
        }
        tree.manifest.record(&text, entry).map_err(failed)?;
        tree.manifest.sync().map_err(failed)?;
        let number = tree.number;
        match self.folder.place(number, &waiting, file) {
            Ok(()) => Ok(true),
            Err(error) => {
                tree.manifest.forget(&text).map_err(failed)?;
                match super::is_full(&error) {
                    true => Err(Error::Folder { dir: self.options().dir.clone(), source: error }),
                    // Another file's name is in the way: visitors get the answer each time.
                    false => Ok(true),
                }
            }
        }
    }
}

/// Returns the name of the file that a path means; nothing if it can be none.
fn named(path: &str) -> Option<String> {
    let decoded = percent_decode_str(path).decode_utf8().ok()?;
    checked(decoded.into_owned()).ok()
}

impl super::Tree {
    /// Records the name of something that a page links to.
    pub(super) fn note_name(&mut self, link: &Place) -> std::io::Result<()> {
        let text = link.address.to_string();
        let Ok(file) = &link.file else { return Ok(()) };
        if self.manifest.get(&text).is_some() || self.manifest.address_of(file).is_some() {
            return Ok(());
        }
        let reads = Arc::new(Dependencies::default());
        let entry = Entry { file: file.clone(), source: link.source.clone(), hash: None, reads };
        self.manifest.record(&text, entry)
    }
}

fn answer(drawn: Drawn) -> OnDemand {
    let content_type = drawn.content_type;
    match drawn.content {
        Content::Bytes(bytes) => OnDemand::Bytes { bytes, content_type },
        Content::Blob(blob) => OnDemand::Blob { blob, content_type },
    }
}
