//! The manifest of a tree: which file was drawn for which address, and from what.
//!
//! In: records, one for each file that is written or taken away. Out: the files that a change concerns, in time
//! proportional to the change. `docs/formats/export.md` has the bytes.
//!
//! Invariants
//! * A record is on the disk before its file has its name, so that no file is served whose dependencies nobody knows.
//! * What was recorded since the last [`Manifest::settle`] is due again after a crash, as its file may not have got its
//!   name.
//! * A cut or damaged end costs the records behind it, and what they were about is then due: the root that is settled
//!   is older than they.
//!
//! Not here: the files ([`super::folder`]), drawing ([`super::run`]).

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::folder::hex;
use crate::dependency::Dependencies;
use crate::touched::Touched;

/// The version of the records.
const FORMAT: u64 = 1;
/// Records that say nothing any more, before the file is written anew.
const SPARE_RECORDS: usize = 10_000;

/// What is known of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The file below the tree.
    pub file: String,
    /// The path of the resource that it shows.
    pub source: String,
    /// The hash of the file; nothing while the address has a name, but no file: as nobody asked for it, or as it shows who
    /// asks.
    pub hash: Option<String>,
    /// What the file was drawn from.
    pub reads: Arc<Dependencies>,
}

/// An opened manifest.
#[derive(Debug)]
pub(super) struct Manifest {
    path: PathBuf,
    file: File,
    entries: Vec<Option<(Arc<str>, Entry)>>,
    by_address: HashMap<Arc<str>, usize>,
    by_file: HashMap<String, Arc<str>>,
    /// Entries that read a path. It may name others, too; the entry decides.
    by_path: HashMap<u64, Vec<usize>>,
    /// The state of content that all files show, unless they are due.
    settled: Option<String>,
    /// What has to be drawn again although nothing changed.
    due: BTreeSet<Arc<str>>,
    records: usize,
    has_unsynced: bool,
}

impl Manifest {
    /// Makes the manifest of a new tree.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn create(path: &Path, settings: &str) -> io::Result<Self> {
        let file = File::options().create(true).truncate(true).write(true).open(path)?;
        let mut manifest = Self::over(path, file);
        manifest.append(&json!({ "tympan-export": FORMAT, "settings": settings }))?;
        manifest.sync()?;
        Ok(manifest)
    }

    /// Reads a manifest. One that was made with other settings is none.
    ///
    /// # Errors
    /// If the file cannot be read, or was made by a newer program.
    pub(super) fn open(path: &Path, settings: &str) -> io::Result<Option<Self>> {
        let file = File::options().read(true).write(true).open(path)?;
        let mut manifest = Self::over(path, file);
        let mut reader = BufReader::new(manifest.file.try_clone()?);
        let (mut line, mut end) = (Vec::new(), 0);
        let mut is_ours = false;
        loop {
            line.clear();
            let length = reader.read_until(b'\n', &mut line)?;
            let Some(record) = read_line(&line).filter(|_| length > 0) else { break };
            if end == 0 {
                match record.get("tympan-export").and_then(Value::as_u64) {
                    Some(FORMAT) => is_ours = record.get("settings") == Some(&settings.into()),
                    Some(newer) if newer > FORMAT => {
                        let text = format!("a newer program wrote it, in format {newer}");
                        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
                    }
                    _ => {}
                }
                if !is_ours {
                    return Ok(None);
                }
            }
            manifest.take(&record);
            end += length as u64;
        }
        if !is_ours {
            return Ok(None);
        }
        // What a crash left of a record would spoil the next one.
        manifest.file.set_len(end)?;
        manifest.file.seek(io::SeekFrom::Start(end))?;
        Ok(Some(manifest))
    }

    fn over(path: &Path, file: File) -> Self {
        Self {
            path: path.to_owned(),
            file,
            entries: Vec::new(),
            by_address: HashMap::new(),
            by_file: HashMap::new(),
            by_path: HashMap::new(),
            settled: None,
            due: BTreeSet::new(),
            records: 0,
            has_unsynced: false,
        }
    }

    /// Takes up a record that was read.
    fn take(&mut self, record: &Value) {
        self.records += 1;
        let text = |name: &str| record.get(name).and_then(Value::as_str);
        if let Some(root) = text("settled") {
            self.settled = Some(root.to_owned());
            self.due.clear();
        } else if let Some(address) = text("gone") {
            self.drop_entry(address);
        } else if let Some(address) = text("due") {
            self.due.insert(address.into());
        } else if let (Some(address), Some(file)) = (text("address"), text("file")) {
            let reads = text("reads").and_then(|reads| STANDARD_NO_PAD.decode(reads).ok());
            let reads = reads.and_then(|reads| Dependencies::from_bytes(&reads));
            let hash = text("hash").map(str::to_owned);
            // What cannot be read depends on everything.
            let reads = reads.unwrap_or_else(Dependencies::anything);
            let source = text("source").unwrap_or_default().to_owned();
            let entry = Entry { file: file.to_owned(), source, hash, reads: Arc::new(reads) };
            if entry.hash.is_some() {
                self.due.insert(address.into());
            }
            self.put(address, entry);
        }
    }

    fn put(&mut self, address: &str, entry: Entry) {
        let known = self.by_address.get(address).copied();
        let at = known.unwrap_or(self.entries.len());
        let old = known.and_then(|at| self.entries.get(at)?.as_ref().map(|(_, old)| old.clone()));
        for path in entry.reads.paths() {
            if old.as_ref().is_none_or(|old| old.reads.aspects_of(path).is_empty()) {
                self.by_path.entry(path).or_default().push(at);
            }
        }
        let is_own = |known: Option<&Arc<str>>| known.is_some_and(|known| **known == *address);
        if let Some(old) = old.filter(|old| old.file != entry.file)
            && is_own(self.by_file.get(&old.file))
        {
            self.by_file.remove(&old.file);
        }
        let address: Arc<str> = address.into();
        self.by_file.insert(entry.file.clone(), Arc::clone(&address));
        match self.entries.get_mut(at) {
            Some(place) => *place = Some((address, entry)),
            None => {
                self.by_address.insert(Arc::clone(&address), at);
                self.entries.push(Some((address, entry)));
            }
        }
    }

    fn drop_entry(&mut self, address: &str) {
        self.due.remove(address);
        if let Some(at) = self.by_address.remove(address)
            && let Some((_, entry)) = self.entries.get_mut(at).and_then(Option::take)
            && self.by_file.get(&entry.file).is_some_and(|known| **known == *address)
        {
            self.by_file.remove(&entry.file);
        }
    }

    /// Returns what is known of an address.
    pub(super) fn get(&self, address: &str) -> Option<&Entry> {
        let at = *self.by_address.get(address)?;
        self.entries.get(at)?.as_ref().map(|(_, entry)| entry)
    }

    /// Returns the address of a file.
    pub(super) fn address_of(&self, file: &str) -> Option<&str> {
        self.by_file.get(file).map(|address| &**address)
    }

    /// Returns all addresses with what is known of them.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().flatten().map(|(address, entry)| (&**address, entry))
    }

    /// Returns how many addresses there are.
    pub(super) fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Returns the root that is settled.
    pub(super) fn settled(&self) -> Option<&str> {
        self.settled.as_deref()
    }

    /// Returns what has to be drawn again although nothing changed.
    pub(super) fn due(&self) -> impl Iterator<Item = &str> {
        self.due.iter().map(|address| &**address)
    }

    /// Returns the addresses whose files a change may concern.
    pub(super) fn concerned(&self, touched: &Touched) -> BTreeSet<Arc<str>> {
        if touched.is_everything() {
            return self.by_address.keys().cloned().collect();
        }
        let mut found = BTreeSet::new();
        for (path, aspects) in touched.paths() {
            for at in self.by_path.get(&path).into_iter().flatten() {
                if let Some(Some((address, entry))) = self.entries.get(*at)
                    && entry.reads.aspects_of(path).overlaps(aspects)
                {
                    found.insert(Arc::clone(address));
                }
            }
        }
        found
    }

    /// Records what a file is about to show.
    ///
    /// # Errors
    /// If the disk refuses; nothing is recorded then.
    pub(super) fn record(&mut self, address: &str, entry: Entry) -> io::Result<()> {
        self.append(&line_of(address, &entry))?;
        self.due.remove(address);
        self.put(address, entry);
        Ok(())
    }

    /// Records that an address is no more.
    ///
    /// # Errors
    /// As [`Manifest::record`].
    pub(super) fn forget(&mut self, address: &str) -> io::Result<()> {
        self.append(&json!({ "gone": address }))?;
        self.drop_entry(address);
        Ok(())
    }

    /// Records that all files show a state, but for some that have to be drawn again.
    ///
    /// # Errors
    /// As [`Manifest::record`].
    pub(super) fn settle(&mut self, root: &str, due: &BTreeSet<String>) -> io::Result<()> {
        let is_same =
            self.settled.as_deref() == Some(root) && self.due.is_empty() && due.is_empty();
        if is_same && !self.has_unsynced {
            return Ok(());
        }
        self.append(&json!({ "settled": root }))?;
        for address in due {
            self.append(&json!({ "due": address }))?;
        }
        self.sync()?;
        self.settled = Some(root.to_owned());
        self.due = due.iter().map(|address| address.as_str().into()).collect();
        if self.records > 2 * self.len() + SPARE_RECORDS {
            self.compact()?;
        }
        Ok(())
    }

    /// Waits until all records are on the disk.
    ///
    /// # Errors
    /// If the disk fails.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.has_unsynced) {
            self.file.sync_data()?;
        }
        Ok(())
    }

    fn append(&mut self, record: &Value) -> io::Result<()> {
        let begin = self.file.stream_position()?;
        let written = self.file.write_all(to_line(record).as_bytes());
        if let Err(error) = written {
            // A part of a record would hide what comes after it.
            self.file.set_len(begin)?;
            self.file.seek(io::SeekFrom::Start(begin))?;
            return Err(error);
        }
        self.has_unsynced = true;
        self.records += 1;
        Ok(())
    }

    /// Writes the file anew, without records that say nothing any more.
    fn compact(&mut self) -> io::Result<()> {
        let mut reader = BufReader::new(File::open(&self.path)?);
        let mut head = String::new();
        reader.read_line(&mut head)?;
        let beside = self.path.with_extension("manifest.new");
        let mut file = File::create(&beside)?;
        let mut out = io::BufWriter::new(&file);
        out.write_all(head.as_bytes())?;
        for (address, entry) in self.all() {
            out.write_all(to_line(&line_of(address, entry)).as_bytes())?;
        }
        if let Some(root) = &self.settled {
            out.write_all(to_line(&json!({ "settled": root })).as_bytes())?;
        }
        for address in &self.due {
            out.write_all(to_line(&json!({ "due": &**address })).as_bytes())?;
        }
        out.flush()?;
        drop(out);
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
        file.seek(io::SeekFrom::End(0))?;
        self.file = file;
        self.records = self.len() + 2 + self.due.len();
        self.entries.retain(Option::is_some);
        self.by_address.clear();
        self.by_path.clear();
        for (at, (address, entry)) in self.entries.iter().flatten().enumerate() {
            self.by_address.insert(Arc::clone(address), at);
            for path in entry.reads.paths() {
                self.by_path.entry(path).or_default().push(at);
            }
        }
        Ok(())
    }
}

fn line_of(address: &str, entry: &Entry) -> Value {
    let mut line = json!({ "address": address, "file": entry.file, "source": entry.source });
    if let Some(object) = line.as_object_mut() {
        if let Some(hash) = &entry.hash {
            object.insert("hash".to_owned(), hash.as_str().into());
        }
        let reads = STANDARD_NO_PAD.encode(entry.reads.to_bytes());
        object.insert("reads".to_owned(), reads.into());
    }
    line
}

/// Writes a record with the beginning of its hash.
fn to_line(record: &Value) -> String {
    let text = record.to_string();
    format!("{} {text}\n", check_of(text.as_bytes()))
}

fn check_of(text: &[u8]) -> String {
    hex(Sha256::digest(text).get(..4).unwrap_or_default())
}

/// Reads a whole and unharmed line.
fn read_line(line: &[u8]) -> Option<Value> {
    let line = line.strip_suffix(b"\n")?;
    let (check, text) = line.split_at_checked(9)?;
    let check = check.strip_suffix(b" ")?;
    (check_of(text).as_bytes() == check).then_some(())?;
    serde_json::from_slice(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dependency::Aspects;
    use tympan_content::NodePath;

    fn entry(file: &str, reads: &str) -> Entry {
        let path = NodePath::new(reads).unwrap();
        Entry {
            file: file.to_owned(),
            source: reads.to_owned(),
            hash: Some(hex(&Sha256::digest(file))),
            reads: Arc::new(Dependencies::of(&[(path, Aspects::HEAD)])),
        }
    }

    fn state(manifest: &Manifest) -> (Vec<(String, Entry)>, Option<String>, Vec<String>) {
        let mut all: Vec<_> =
            manifest.all().map(|(address, entry)| (address.to_owned(), entry.clone())).collect();
        all.sort_by(|left, right| left.0.cmp(&right.0));
        let due = manifest.due().map(str::to_owned).collect();
        (all, manifest.settled().map(str::to_owned), due)
    }

    #[test]
    fn a_cut_at_any_byte_leaves_what_is_whole_and_makes_it_due() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tree.manifest");
        let mut manifest = Manifest::create(&path, "s").unwrap();
        manifest.record("/a.html", entry("a.html", "/a")).unwrap();
        manifest.settle("r1", &BTreeSet::new()).unwrap();
        let settled = state(&manifest);
        let settled_at = fs::metadata(&path).unwrap().len() as usize;
        manifest.record("/b.html", entry("b.html", "/b")).unwrap();
        manifest.forget("/a.html").unwrap();
        manifest.sync().unwrap();
        let whole = fs::read(&path).unwrap();
        for length in settled_at..=whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let mut again = Manifest::open(&path, "s").unwrap().unwrap();
            let found = state(&again);
            assert_eq!(found.1.as_deref(), Some("r1"));
            if !found.0.iter().any(|(address, _)| address == "/b.html") {
                assert_eq!(found, settled, "{length}");
            } else {
                assert_eq!(found.2, ["/b.html"], "{length}");
            }
            // What is recorded next is read back after what was whole.
            again.record("/c.html", entry("c.html", "/c")).unwrap();
            again.settle("r2", &BTreeSet::new()).unwrap();
            let last = state(&Manifest::open(&path, "s").unwrap().unwrap());
            assert_eq!(last, state(&again));
            assert!(last.2.is_empty() && last.0.iter().any(|(address, _)| address == "/c.html"));
        }
        let head = whole.iter().position(|byte| *byte == b'\n').unwrap();
        for length in 0..=head {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(Manifest::open(&path, "s").unwrap().is_none(), "{length}");
        }
    }

    #[test]
    fn other_settings_and_newer_formats_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tree.manifest");
        Manifest::create(&path, "s").unwrap();
        assert!(Manifest::open(&path, "other").unwrap().is_none());
        fs::write(&path, to_line(&json!({ "tympan-export": 2, "settings": "s" }))).unwrap();
        assert!(Manifest::open(&path, "s").is_err());
        fs::write(&path, "something else").unwrap();
        assert!(Manifest::open(&path, "s").unwrap().is_none());
    }

    #[test]
    fn what_failed_is_due_again_and_names_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tree.manifest");
        let mut manifest = Manifest::create(&path, "s").unwrap();
        manifest.record("/a.html", entry("a.html", "/a")).unwrap();
        manifest.record("/a.html", entry("n/a.html", "/a")).unwrap();
        assert_eq!(manifest.address_of("n/a.html"), Some("/a.html"));
        assert_eq!(manifest.address_of("a.html"), None);
        let due = BTreeSet::from(["/broken.html".to_owned()]);
        manifest.settle("r1", &due).unwrap();
        let again = Manifest::open(&path, "s").unwrap().unwrap();
        assert_eq!(again.due().collect::<Vec<_>>(), ["/broken.html"]);
    }

    #[test]
    fn a_manifest_written_anew_says_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tree.manifest");
        let mut manifest = Manifest::create(&path, "s").unwrap();
        for number in 0..50 {
            let address = format!("/{}.html", number % 10);
            manifest.record(&address, entry(&format!("{number}.html"), "/a")).unwrap();
        }
        manifest.forget("/3.html").unwrap();
        manifest.settle("r", &BTreeSet::from(["/4.html".to_owned()])).unwrap();
        let before = (state(&manifest), fs::metadata(&path).unwrap().len());
        manifest.compact().unwrap();
        assert_eq!(state(&manifest), before.0);
        assert!(fs::metadata(&path).unwrap().len() < before.1);
        manifest.record("/5.html", entry("new.html", "/a")).unwrap();
        let again = Manifest::open(&path, "s").unwrap().unwrap();
        assert_eq!(again.get("/5.html").unwrap().file, "new.html");
        assert_eq!(again.len(), manifest.len());
    }
}
