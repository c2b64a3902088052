//! Plain copies as ZIP files, and reading them for an import.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::sink::{CopySink, target_error};
use crate::error::{Error, Result};
use crate::source::repository_layout::{
    METADATA_FILE_NAME, README_FILE_NAME, STATE_FOLDER, SavedRepositoryMetadata,
};

/// Files that are longer than this, before or after compression, record their lengths in ZIP64 form. Incompressible
/// data grows by less than the margin to the limit of the old form.
const ZIP64_THRESHOLD_BYTES: u64 = (4 << 30) - (64 << 20);

/// A ZIP file being written under a temporary name in the same folder.
pub(super) struct ZipCopyWriter {
    path: PathBuf,
    zip: ZipWriter<NamedTempFile>,
}

impl ZipCopyWriter {
    pub(super) fn create(path: &Path) -> Result<Self> {
        if path.exists() {
            let text = format!(
                "`{}` already exists; a ZIP file is always a full copy, so give a new name",
                path.display()
            );
            return Err(Error::InvalidRequest(text));
        }
        let folder = parent_folder(path);
        std::fs::create_dir_all(folder).map_err(target_error(folder))?;
        let file = NamedTempFile::new_in(folder).map_err(target_error(path))?;
        Ok(Self { path: path.to_owned(), zip: ZipWriter::new(file) })
    }

    fn add(&mut self, name: &str, (length, content): (u64, &mut dyn Read)) -> io::Result<()> {
        let options = SimpleFileOptions::default()
            .large_file(length >= ZIP64_THRESHOLD_BYTES)
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(1))
            .last_modified_time(zip::DateTime::default());
        self.zip.start_file(name, options)?;
        io::copy(content, &mut self.zip)?;
        Ok(())
    }

    /// Writes the metadata of the state and renames the file to its final name.
    pub(super) fn finish_archive(
        mut self,
        facts: &SavedRepositoryMetadata,
        readme: &str,
    ) -> Result<()> {
        let path = self.path.clone();
        let failed = || target_error(&path);
        let json = serde_json::to_vec_pretty(facts).unwrap_or_default();
        self.add(README_FILE_NAME, (readme.len() as u64, &mut readme.as_bytes()))
            .map_err(failed())?;
        self.add(METADATA_FILE_NAME, (json.len() as u64, &mut json.as_slice())).map_err(failed())?;
        let file = self.zip.finish().map_err(|error| failed()(error.into()))?;
        file.as_file().sync_all().map_err(failed())?;
        file.persist_noclobber(&path).map_err(|error| failed()(error.error))?;
        let folder = File::open(parent_folder(&path)).and_then(|folder| folder.sync_all());
        folder.map_err(failed())
    }
}

fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl CopySink for ZipCopyWriter {
    fn contains(&self, _: &str) -> bool {
        false
    }

    fn write_file(&mut self, name: &str, content: (u64, &mut dyn Read)) -> Result<bool> {
        let path = format!("{STATE_FOLDER}/{name}");
        self.add(&path, content).map_err(target_error(&self.path))?;
        Ok(true)
    }
}

/// A ZIP file that contains a copy.
pub(crate) struct ZipCopyReader {
    path: PathBuf,
    zip: ZipArchive<File>,
}

impl ZipCopyReader {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let failed = |source| Error::Source { path: path.to_owned(), source };
        let zip = ZipArchive::new(File::open(path).map_err(failed)?);
        Ok(Self { path: path.to_owned(), zip: zip.map_err(|error| failed(error.into()))? })
    }

    /// Reads the metadata of the copy.
    pub(crate) fn read_metadata(&mut self) -> Result<Vec<u8>> {
        let path = self.path.clone();
        let failed = |source| Error::Source { path: path.join(METADATA_FILE_NAME), source };
        let mut entry =
            self.zip.by_name(METADATA_FILE_NAME).map_err(|error| failed(error.into()))?;
        let mut json = Vec::new();
        (&mut entry).take(1 << 20).read_to_end(&mut json).map_err(failed)?;
        Ok(json)
    }

    /// Calls a function for each file of the state, with its name and length.
    pub(crate) fn for_each_file(
        &mut self,
        take: &mut dyn FnMut(&str, u64, &mut dyn Read) -> Result<()>,
    ) -> Result<()> {
        for number in 0..self.zip.len() {
            let failed = |source| Error::Source { path: self.path.clone(), source };
            let mut entry = self.zip.by_index(number).map_err(|error| failed(error.into()))?;
            let path = entry.name().map_err(|error| failed(error.into()))?.into_owned();
            let length = entry.size();
            if let Some(name) =
                path.strip_prefix(STATE_FOLDER).and_then(|rest| rest.strip_prefix('/'))
            {
                take(name, length, &mut entry)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::copy_metadata;

    /// A stream of zeros with other bytes at its start and end.
    fn long(length: u64) -> impl Read {
        b"begin".chain(io::repeat(0).take(length - 8)).chain(b"end".as_slice())
    }

    #[test]
    fn a_blob_of_more_than_4_gib_is_in_the_file_and_comes_out_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy.zip");
        let mut archive = ZipCopyWriter::create(&path).unwrap();
        let length = (4 << 30) + 4096;
        assert!(archive.write_file("blob", (length, &mut long(length))).unwrap());
        assert!(archive.write_file("after", (5, &mut b"after".as_slice())).unwrap());
        let root = tympan_store::ChunkId::hash_of(b"root");
        archive.finish_archive(&copy_metadata("main", &root, None), "read me").unwrap();
        let mut files = Vec::new();
        let mut opened = ZipCopyReader::open(&path).unwrap();
        let mut take = |name: &str, declared_length: u64, content: &mut dyn Read| {
            // Reading to the end verifies the checksum.
            files.push((
                name.to_owned(),
                declared_length,
                io::copy(content, &mut io::sink()).unwrap(),
            ));
            Ok(())
        };
        opened.for_each_file(&mut take).unwrap();
        assert_eq!(files, [("blob".to_owned(), length, length), ("after".to_owned(), 5, 5)]);
    }
}
