//! The manifest of a tree: the address of each file, and its dependencies.
//!
//! Input: one record for each file that is written or removed. Output: the files that a change affects, in time
//! proportional to the change. `docs/formats/export.md` describes the format.
//!
//! Invariants
//! * A record is on disk before its file gets its name, so that no file is served with unknown dependencies.
//! * After a crash, everything recorded since the last [`ExportManifest::record_exported_root`] is exported again, as a
//!   file may not have got its name.
//! * A truncated or damaged end loses the records behind it. Their addresses are exported again, because the recorded
//!   root is older than they are.
//!
//! Not here: the files (`folder`), rendering (`run`).

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tympan_render::{ChangedAspects, DependencySet};

/// The version of the record format.
const MANIFEST_FORMAT: u64 = 1;
/// Maximum number of obsolete records before the file is rewritten.
const MAX_OBSOLETE_RECORDS: usize = 10_000;

/// The record of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExportManifestEntry {
    /// Path of the file below the tree.
    pub file: String,
    /// Path of the resource that the file shows.
    pub source: String,
    /// The hash of the file; `None` while the address has a name but no file, because it was not requested yet or
    /// because it shows the user.
    pub hash: Option<String>,
    /// The dependencies of the file.
    pub dependencies: Arc<DependencySet>,
}

/// An opened manifest.
#[derive(Debug)]
pub(crate) struct ExportManifest {
    path: PathBuf,
    file: File,
    addressed_entries: Vec<Option<(Arc<str>, ExportManifestEntry)>>,
    index_by_address: HashMap<Arc<str>, usize>,
    address_by_file: HashMap<String, Arc<str>>,
    /// Entries by path hash. It may list entries that no longer read the path; the entry decides.
    indexes_by_path: HashMap<u64, Vec<usize>>,
    /// The content root that all files show, except for pending ones.
    exported_root: Option<String>,
    /// Addresses that have to be rendered again without a change.
    pending: BTreeSet<Arc<str>>,
    record_count: usize,
    has_unsynced: bool,
}

impl ExportManifest {
    /// Creates the manifest of a new tree.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn create(path: &Path, settings: &str) -> io::Result<Self> {
        let file = File::options().create(true).truncate(true).write(true).open(path)?;
        let mut manifest = Self::with_file(path, file);
        manifest
            .append_record(&json!({ "tympan-export": MANIFEST_FORMAT, "settings": settings }))?;
        manifest.sync()?;
        Ok(manifest)
    }

    /// Opens a manifest; `None` if it was made with other settings.
    ///
    /// # Errors
    /// If the file cannot be read, or was made by a newer program.
    pub(crate) fn open(path: &Path, settings: &str) -> io::Result<Option<Self>> {
        let file = File::options().read(true).write(true).open(path)?;
        let mut manifest = Self::with_file(path, file);
        let mut reader = BufReader::new(manifest.file.try_clone()?);
        let (mut line, mut end) = (Vec::new(), 0);
        let mut is_ours = false;
        loop {
            line.clear();
            let length = reader.read_until(b'\n', &mut line)?;
            let Some(record) = parse_line(&line).filter(|_| length > 0) else { break };
            if end == 0 {
                match record.get("tympan-export").and_then(Value::as_u64) {
                    Some(MANIFEST_FORMAT) => {
                        is_ours = record.get("settings") == Some(&settings.into())
                    }
                    Some(newer) if newer > MANIFEST_FORMAT => {
                        let text = format!("it was written by a newer program, in format {newer}");
                        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
                    }
                    _ => {}
                }
                if !is_ours {
                    return Ok(None);
                }
            }
            manifest.apply_record(&record);
            end += length as u64;
        }
        if !is_ours {
            return Ok(None);
        }
        // A partial record left by a crash would corrupt the next one.
        manifest.file.set_len(end)?;
        manifest.file.seek(io::SeekFrom::Start(end))?;
        Ok(Some(manifest))
    }

    fn with_file(path: &Path, file: File) -> Self {
        Self {
            path: path.to_owned(),
            file,
            addressed_entries: Vec::new(),
            index_by_address: HashMap::new(),
            address_by_file: HashMap::new(),
            indexes_by_path: HashMap::new(),
            exported_root: None,
            pending: BTreeSet::new(),
            record_count: 0,
            has_unsynced: false,
        }
    }

    /// Applies a record that was read.
    fn apply_record(&mut self, record: &Value) {
        self.record_count += 1;
        let text = |name: &str| record.get(name).and_then(Value::as_str);
        if let Some(root) = text("settled") {
            self.exported_root = Some(root.to_owned());
            self.pending.clear();
        } else if let Some(address) = text("gone") {
            self.remove_entry(address);
        } else if let Some(address) = text("due") {
            self.pending.insert(address.into());
        } else if let (Some(address), Some(file)) = (text("address"), text("file")) {
            let reads = text("reads").and_then(|reads| STANDARD_NO_PAD.decode(reads).ok());
            let reads = reads.and_then(|reads| DependencySet::from_bytes(&reads));
            let hash = text("hash").map(str::to_owned);
            // Unreadable dependencies depend on everything.
            let reads = reads.unwrap_or_else(DependencySet::on_anything);
            let source = text("source").unwrap_or_default().to_owned();
            let entry = ExportManifestEntry {
                file: file.to_owned(),
                source,
                hash,
                dependencies: Arc::new(reads),
            };
            if entry.hash.is_some() {
                self.pending.insert(address.into());
            }
            self.put_entry(address, entry);
        }
    }

    fn put_entry(&mut self, address: &str, entry: ExportManifestEntry) {
        let known_index = self.index_by_address.get(address).copied();
        let at = known_index.unwrap_or(self.addressed_entries.len());
        let old = known_index
            .and_then(|at| self.addressed_entries.get(at)?.as_ref().map(|(_, old)| old.clone()));
        for path in entry.dependencies.path_hashes() {
            if old.as_ref().is_none_or(|old| old.dependencies.aspects_with_scopes(path).is_empty())
            {
                self.indexes_by_path.entry(path).or_default().push(at);
            }
        }
        let is_own = |owner: Option<&Arc<str>>| owner.is_some_and(|owner| **owner == *address);
        if let Some(old) = old.filter(|old| old.file != entry.file)
            && is_own(self.address_by_file.get(&old.file))
        {
            self.address_by_file.remove(&old.file);
        }
        let address: Arc<str> = address.into();
        self.address_by_file.insert(entry.file.clone(), Arc::clone(&address));
        match self.addressed_entries.get_mut(at) {
            Some(slot) => *slot = Some((address, entry)),
            None => {
                self.index_by_address.insert(Arc::clone(&address), at);
                self.addressed_entries.push(Some((address, entry)));
            }
        }
    }

    fn remove_entry(&mut self, address: &str) {
        self.pending.remove(address);
        if let Some(at) = self.index_by_address.remove(address)
            && let Some((_, entry)) = self.addressed_entries.get_mut(at).and_then(Option::take)
            && self.address_by_file.get(&entry.file).is_some_and(|owner| **owner == *address)
        {
            self.address_by_file.remove(&entry.file);
        }
    }

    /// Returns the record of an address.
    pub(crate) fn get(&self, address: &str) -> Option<&ExportManifestEntry> {
        let at = *self.index_by_address.get(address)?;
        self.addressed_entries.get(at)?.as_ref().map(|(_, entry)| entry)
    }

    /// Returns the address of a file.
    pub(crate) fn address_of_file(&self, file: &str) -> Option<&str> {
        self.address_by_file.get(file).map(|address| &**address)
    }

    /// Returns all addresses with their records.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &ExportManifestEntry)> {
        self.addressed_entries.iter().flatten().map(|(address, entry)| (&**address, entry))
    }

    /// Returns the number of addresses.
    pub(crate) fn len(&self) -> usize {
        self.index_by_address.len()
    }

    /// Returns the content root that the files show.
    pub(crate) fn exported_root(&self) -> Option<&str> {
        self.exported_root.as_deref()
    }

    /// Returns the addresses that have to be rendered again without a change.
    pub(crate) fn pending(&self) -> impl Iterator<Item = &str> {
        self.pending.iter().map(|address| &**address)
    }

    /// Returns the addresses whose files a change may affect.
    pub(crate) fn affected_addresses(&self, touched: &ChangedAspects) -> BTreeSet<Arc<str>> {
        if touched.is_everything_changed() {
            return self.index_by_address.keys().cloned().collect();
        }
        let mut addresses = BTreeSet::new();
        for (path, aspects) in touched.changed_paths() {
            for at in self.indexes_by_path.get(&path).into_iter().flatten() {
                if let Some(Some((address, entry))) = self.addressed_entries.get(*at)
                    && entry.dependencies.aspects_with_scopes(path).overlaps(aspects)
                {
                    addresses.insert(Arc::clone(address));
                }
            }
        }
        addresses
    }

    /// Records what a file is about to show.
    ///
    /// # Errors
    /// If the disk fails; nothing is recorded then.
    pub(crate) fn record_entry(
        &mut self,
        address: &str,
        entry: ExportManifestEntry,
    ) -> io::Result<()> {
        self.append_record(&entry_record(address, &entry))?;
        self.pending.remove(address);
        self.put_entry(address, entry);
        Ok(())
    }

    /// Records that an address was removed.
    ///
    /// # Errors
    /// As [`ExportManifest::record_entry`].
    pub(crate) fn record_removal(&mut self, address: &str) -> io::Result<()> {
        self.append_record(&json!({ "gone": address }))?;
        self.remove_entry(address);
        Ok(())
    }

    /// Records that all files show a state, except for some that have to be rendered again.
    ///
    /// # Errors
    /// As [`ExportManifest::record_entry`].
    pub(crate) fn record_exported_root(
        &mut self,
        root: &str,
        due: &BTreeSet<String>,
    ) -> io::Result<()> {
        let is_same = self.exported_root.as_deref() == Some(root)
            && self.pending.is_empty()
            && due.is_empty();
        if is_same && !self.has_unsynced {
            return Ok(());
        }
        self.append_record(&json!({ "settled": root }))?;
        for address in due {
            self.append_record(&json!({ "due": address }))?;
        }
        self.sync()?;
        self.exported_root = Some(root.to_owned());
        self.pending = due.iter().map(|address| address.as_str().into()).collect();
        if self.record_count > 2 * self.len() + MAX_OBSOLETE_RECORDS {
            self.rewrite_compacted()?;
        }
        Ok(())
    }

    /// Waits until all records are on disk.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.has_unsynced) {
            self.file.sync_data()?;
        }
        Ok(())
    }

    fn append_record(&mut self, record: &Value) -> io::Result<()> {
        let begin = self.file.stream_position()?;
        let written = self.file.write_all(format_line(record).as_bytes());
        if let Err(error) = written {
            // A partial record would hide the records after it.
            self.file.set_len(begin)?;
            self.file.seek(io::SeekFrom::Start(begin))?;
            return Err(error);
        }
        self.has_unsynced = true;
        self.record_count += 1;
        Ok(())
    }

    /// Rewrites the file without obsolete records.
    fn rewrite_compacted(&mut self) -> io::Result<()> {
        let mut reader = BufReader::new(File::open(&self.path)?);
        let mut head = String::new();
        reader.read_line(&mut head)?;
        let beside = self.path.with_extension("manifest.new");
        let mut file = File::create(&beside)?;
        let mut out = io::BufWriter::new(&file);
        out.write_all(head.as_bytes())?;
        for (address, entry) in self.iter() {
            out.write_all(format_line(&entry_record(address, entry)).as_bytes())?;
        }
        if let Some(root) = &self.exported_root {
            out.write_all(format_line(&json!({ "settled": root })).as_bytes())?;
        }
        for address in &self.pending {
            out.write_all(format_line(&json!({ "due": &**address })).as_bytes())?;
        }
        out.flush()?;
        drop(out);
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
        file.seek(io::SeekFrom::End(0))?;
        self.file = file;
        self.record_count = self.len() + 2 + self.pending.len();
        self.addressed_entries.retain(Option::is_some);
        self.index_by_address.clear();
        self.indexes_by_path.clear();
        for (at, (address, entry)) in self.addressed_entries.iter().flatten().enumerate() {
            self.index_by_address.insert(Arc::clone(address), at);
            for path in entry.dependencies.path_hashes() {
                self.indexes_by_path.entry(path).or_default().push(at);
            }
        }
        Ok(())
    }
}

fn entry_record(address: &str, entry: &ExportManifestEntry) -> Value {
    let mut line = json!({ "address": address, "file": entry.file, "source": entry.source });
    if let Some(object) = line.as_object_mut() {
        if let Some(hash) = &entry.hash {
            object.insert("hash".to_owned(), hash.as_str().into());
        }
        let reads = STANDARD_NO_PAD.encode(entry.dependencies.to_bytes());
        object.insert("reads".to_owned(), reads.into());
    }
    line
}

/// Formats a record with the beginning of its hash.
fn format_line(record: &Value) -> String {
    let text = record.to_string();
    format!("{} {text}\n", line_checksum(text.as_bytes()))
}

fn line_checksum(text: &[u8]) -> String {
    format!("{:.8}", hex::encode(Sha256::digest(text)))
}

/// Parses a line; `None` if it is truncated or damaged.
fn parse_line(line: &[u8]) -> Option<Value> {
    let line = line.strip_suffix(b"\n")?;
    let (check, text) = line.split_at_checked(9)?;
    let check = check.strip_suffix(b" ")?;
    (line_checksum(text).as_bytes() == check).then_some(())?;
    serde_json::from_slice(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tympan_content::NodePath;
    use tympan_render::PathAspects;

    fn entry(file: &str, reads: &str) -> ExportManifestEntry {
        let path = NodePath::new(reads).unwrap();
        ExportManifestEntry {
            file: file.to_owned(),
            source: reads.to_owned(),
            hash: Some(hex::encode(Sha256::digest(file))),
            dependencies: Arc::new(DependencySet::from_recorded(&[(
                path,
                PathAspects::NAVIGATION_HEAD,
            )])),
        }
    }

    fn state(
        manifest: &ExportManifest,
    ) -> (Vec<(String, ExportManifestEntry)>, Option<String>, Vec<String>) {
        let mut all: Vec<_> =
            manifest.iter().map(|(address, entry)| (address.to_owned(), entry.clone())).collect();
        all.sort_by(|left, right| left.0.cmp(&right.0));
        let due = manifest.pending().map(str::to_owned).collect();
        (all, manifest.exported_root().map(str::to_owned), due)
    }

    #[test]
    fn a_cut_at_any_byte_leaves_what_is_whole_and_makes_it_due() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tree.manifest");
        let mut manifest = ExportManifest::create(&path, "s").unwrap();
        manifest.record_entry("/a.html", entry("a.html", "/a")).unwrap();
        manifest.record_exported_root("r1", &BTreeSet::new()).unwrap();
        let settled = state(&manifest);
        let settled_at = fs::metadata(&path).unwrap().len() as usize;
        manifest.record_entry("/b.html", entry("b.html", "/b")).unwrap();
        manifest.record_removal("/a.html").unwrap();
        manifest.sync().unwrap();
        let whole = fs::read(&path).unwrap();
        for length in settled_at..=whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let mut again = ExportManifest::open(&path, "s").unwrap().unwrap();
            let reopened_state = state(&again);
            assert_eq!(reopened_state.1.as_deref(), Some("r1"));
            if !reopened_state.0.iter().any(|(address, _)| address == "/b.html") {
                assert_eq!(reopened_state, settled, "{length}");
            } else {
                assert_eq!(reopened_state.2, ["/b.html"], "{length}");
            }
            // The next records are read back after the intact ones.
            again.record_entry("/c.html", entry("c.html", "/c")).unwrap();
            again.record_exported_root("r2", &BTreeSet::new()).unwrap();
            let last = state(&ExportManifest::open(&path, "s").unwrap().unwrap());
            assert_eq!(last, state(&again));
            assert!(last.2.is_empty() && last.0.iter().any(|(address, _)| address == "/c.html"));
        }
        let head = whole.iter().position(|byte| *byte == b'\n').unwrap();
        for length in 0..=head {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(ExportManifest::open(&path, "s").unwrap().is_none(), "{length}");
        }
    }

    #[test]
    fn other_settings_and_newer_formats_are_distinguished() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tree.manifest");
        ExportManifest::create(&path, "s").unwrap();
        assert!(ExportManifest::open(&path, "other").unwrap().is_none());
        fs::write(&path, format_line(&json!({ "tympan-export": 2, "settings": "s" }))).unwrap();
        assert!(ExportManifest::open(&path, "s").is_err());
        fs::write(&path, "something else").unwrap();
        assert!(ExportManifest::open(&path, "s").unwrap().is_none());
    }

    #[test]
    fn what_failed_is_due_again_and_names_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tree.manifest");
        let mut manifest = ExportManifest::create(&path, "s").unwrap();
        manifest.record_entry("/a.html", entry("a.html", "/a")).unwrap();
        manifest.record_entry("/a.html", entry("n/a.html", "/a")).unwrap();
        assert_eq!(manifest.address_of_file("n/a.html"), Some("/a.html"));
        assert_eq!(manifest.address_of_file("a.html"), None);
        let due = BTreeSet::from(["/broken.html".to_owned()]);
        manifest.record_exported_root("r1", &due).unwrap();
        let again = ExportManifest::open(&path, "s").unwrap().unwrap();
        assert_eq!(again.pending().collect::<Vec<_>>(), ["/broken.html"]);
    }

    #[test]
    fn a_manifest_written_anew_says_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tree.manifest");
        let mut manifest = ExportManifest::create(&path, "s").unwrap();
        for number in 0..50 {
            let address = format!("/{}.html", number % 10);
            manifest.record_entry(&address, entry(&format!("{number}.html"), "/a")).unwrap();
        }
        manifest.record_removal("/3.html").unwrap();
        manifest.record_exported_root("r", &BTreeSet::from(["/4.html".to_owned()])).unwrap();
        let before = (state(&manifest), fs::metadata(&path).unwrap().len());
        manifest.rewrite_compacted().unwrap();
        assert_eq!(state(&manifest), before.0);
        assert!(fs::metadata(&path).unwrap().len() < before.1);
        manifest.record_entry("/5.html", entry("new.html", "/a")).unwrap();
        let again = ExportManifest::open(&path, "s").unwrap().unwrap();
        assert_eq!(again.get("/5.html").unwrap().file, "new.html");
        assert_eq!(again.len(), manifest.len());
    }
}
