//! Backups: sources (repository, directory), the vault in restic's repository format, save, restore, forget, check.
//!
//! It saves states, not meanings: it knows roots, chunks and blobs, never node types or access control. The vault
//! format is restic's repository version 2, so that stock restic restores what Tympan saved.
