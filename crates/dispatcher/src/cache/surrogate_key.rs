//! Surrogate keys: labels that renders attach to responses, and by which these are flushed together.
//!
//! Input: the header `Surrogate-Key` of stored responses. Output: the files that carry a key.
//!
//! The keys are stored in the header files, so that nothing is lost at a restart; the index in memory is built from
//! them when a key is flushed for the first time.
//!
//! Invariants
//! * A page that was requested before its key was flushed, and received after it, is not stored.
//! * A file found by a key is flushed only if it still carries it.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use http::{HeaderMap, HeaderName};
use parking_lot::Mutex;

use crate::cache::{CacheFileLookup, Docroot};

/// The header by which renders label responses, and by which flushes name keys.
pub(crate) const SURROGATE_KEY_HEADER: HeaderName = HeaderName::from_static("surrogate-key");
/// The name under which a header file stores the keys; visitors never see it.
pub(crate) const STORED_KEYS_HEADER: HeaderName = HeaderName::from_static("x-tympan-keys");

/// The maximum number of keys of one response; more are ignored.
const MAX_SURROGATE_KEYS: usize = 256;
/// The number of files checked per lock of the index.
const REMOVAL_BATCH_FILES: usize = 512;
/// The maximum number of flushes remembered for pending fetches.
const MAX_REMEMBERED_FLUSHES: usize = 4096;

/// The keys of one farm's files.
#[derive(Debug, Default)]
pub(crate) struct SurrogateKeyIndex(Mutex<SurrogateKeyIndexState>);

#[derive(Debug, Default)]
struct SurrogateKeyIndexState {
    files_by_key: HashMap<u64, HashSet<PathBuf>>,
    /// True if the files of earlier runs are included.
    is_complete: bool,
    flush_times: HashMap<u64, SystemTime>,
    /// Fetches that began before this time may be affected by flushes that are no longer remembered.
    forgotten_until: Option<SystemTime>,
}

/// Returns the keys of a response's head, up to the maximum.
pub(crate) fn surrogate_keys(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    header_keys(headers, name).take(MAX_SURROGATE_KEYS).map(str::to_owned).collect()
}

/// Returns the keys that a flush names. All of them are returned, as an omitted key would not be flushed.
pub(crate) fn flushed_keys(headers: &HeaderMap) -> Vec<String> {
    header_keys(headers, &SURROGATE_KEY_HEADER).map(str::to_owned).collect()
}

/// Returns the keys in a head; they may contain any characters.
fn header_keys<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter();
    let values = values.filter_map(|value| std::str::from_utf8(value.as_bytes()).ok());
    values.flat_map(str::split_ascii_whitespace)
}

fn key_hash(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

impl SurrogateKeyIndex {
    /// Records that `file` carries `keys`.
    pub(crate) fn record_keys(&self, file: &Path, keys: &[String]) {
        let mut state = self.0.lock();
        for key in keys {
            state.files_by_key.entry(key_hash(key)).or_default().insert(file.to_owned());
        }
    }

    /// Returns true if one of the keys was flushed since `fetched`.
    pub(crate) fn is_flushed(&self, keys: &[String], fetched: SystemTime) -> bool {
        if keys.is_empty() {
            return false;
        }
        let state = self.0.lock();
        state.forgotten_until.is_some_and(|forgotten| fetched < forgotten)
            || keys.iter().any(|key| {
                state.flush_times.get(&key_hash(key)).is_some_and(|flushed| fetched < *flushed)
            })
    }

    /// Removes files that no longer exist, so that the index does not outgrow the cache.
    pub(crate) fn remove_missing_files(&self, docroot: &Docroot) {
        let keys: Vec<u64> = self.0.lock().files_by_key.keys().copied().collect();
        for key in keys {
            let tagged_files =
                self.0.lock().files_by_key.get(&key).map(|files| files.iter().cloned().collect());
            let tagged_files: Vec<PathBuf> = tagged_files.unwrap_or_default();
            // A file is recorded after it is stored, so one that is stored again concurrently is not lost.
            for batch in tagged_files.chunks(REMOVAL_BATCH_FILES) {
                let mut state = self.0.lock();
                let Some(files) = state.files_by_key.get_mut(&key) else { break };
                for file in batch.iter().filter(|file| !docroot.exists(file)) {
                    files.remove(file);
                }
                if files.is_empty() {
                    state.files_by_key.remove(&key);
                }
            }
        }
    }

    /// Reads the keys of files from earlier runs, at the first call.
    pub(crate) fn load_existing_keys(&self, docroot: &Docroot) {
        if self.0.lock().is_complete {
            return;
        }
        // Files stored during the walk are recorded by their fetches.
        docroot.for_each_file(&mut |file| self.record_keys(file, &read_stored_keys(docroot, file)));
        self.0.lock().is_complete = true;
    }

    /// Records a flush of `keys` at `now` and returns the files that carry them; must run while no file is put into
    /// place.
    pub(crate) fn flush_keys(
        &self,
        keys: &[String],
        now: SystemTime,
        docroot: &Docroot,
    ) -> Vec<PathBuf> {
        let mut state = self.0.lock();
        if state.flush_times.len() + keys.len() > MAX_REMEMBERED_FLUSHES {
            state.forgotten_until = Some(now);
            state.flush_times.clear();
        }
        let mut files = HashSet::new();
        for key in keys {
            state.flush_times.insert(key_hash(key), now);
            files.extend(state.files_by_key.remove(&key_hash(key)).unwrap_or_default());
        }
        drop(state);
        let carries =
            |file: &PathBuf| read_stored_keys(docroot, file).iter().any(|own| keys.contains(own));
        files.into_iter().filter(carries).collect()
    }
}

fn read_stored_keys(docroot: &Docroot, file: &Path) -> Vec<String> {
    match docroot.look_up_file(file, false) {
        Ok(CacheFileLookup::File(cached)) => cached
            .headers
            .map(|stored| surrogate_keys(&stored.headers, &STORED_KEYS_HEADER))
            .unwrap_or_default(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        MAX_SURROGATE_KEYS, SURROGATE_KEY_HEADER, SurrogateKeyIndex, flushed_keys, surrogate_keys,
    };
    use crate::cache::Docroot;
    use http::{HeaderMap, HeaderValue};
    use std::path::Path;
    use std::sync::Arc;

    #[test]
    fn a_flush_names_all_its_keys_whatever_their_letters() {
        let keys: Vec<String> =
            (0..2 * MAX_SURROGATE_KEYS).map(|number| format!("/ä{number}")).collect();
        let value = HeaderValue::from_bytes(keys.join(" ").as_bytes()).unwrap();
        let headers = HeaderMap::from_iter([(SURROGATE_KEY_HEADER, value)]);
        assert_eq!(flushed_keys(&headers), keys);
        assert_eq!(surrogate_keys(&headers, &SURROGATE_KEY_HEADER), keys[..MAX_SURROGATE_KEYS]);
    }

    #[test]
    fn the_index_forgets_files_that_are_gone() {
        let folder = tempfile::tempdir().unwrap();
        let docroot = Docroot::open(folder.path(), 0o755, Arc::default()).unwrap();
        let (tags, key_list) = (SurrogateKeyIndex::default(), |key: &str| vec![key.to_owned()]);
        for number in 0..2000 {
            tags.record_keys(Path::new(&format!("{number}.html")), &key_list("all"));
        }
        tags.record_keys(Path::new("gone.html"), &key_list("alone"));
        std::fs::write(folder.path().join("7.html"), "x").unwrap();
        tags.remove_missing_files(&docroot);
        let state = tags.0.lock();
        let files: Vec<_> = state.files_by_key.values().flatten().collect();
        assert_eq!(files, [Path::new("7.html")]);
        assert_eq!(state.files_by_key.len(), 1);
    }
}
