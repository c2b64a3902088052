//! What stays out of a backup, compared with what the stock restic leaves out by the same patterns.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use std::time::Duration;

use tympan_backup::{
    BackupProgress, Error, ExcludeRules, FolderMark, IndexedVault, ParentSelection, SaveOptions,
    SaveSession, SaveSummary, VaultLock, VaultLockMode, VaultUser, find_path, save_stream,
    walk_tree, write_file_content,
};

use crate::vault_bench::{Bench, noise, now, save_with};

/// Names that patterns tell apart: by bytes and characters, by case, and by what patterns mean specially.
const NAMES: [&str; 16] = [
    "a",
    "b",
    "ab",
    "A",
    "äpfel.txt",
    "apfel.txt",
    "Äpfel.TXT",
    "x.tmp",
    "a*b",
    "!a",
    "^a",
    "[a]",
    "a\\b",
    "ß",
    "€x",
    "deep",
];

/// Parts of patterns.
const PARTS: [&str; 26] = [
    "a",
    "b",
    "A",
    "*",
    "**",
    "?",
    "??",
    "?pfel.txt",
    "*.txt",
    "*.TXT",
    "[a-b]",
    "[!a]",
    "[^a]",
    "[!a]*",
    "[^a]*",
    "a\\*b",
    "a\\\\b",
    "\\[a\\]",
    "[ä-ü]pfel*",
    "**b",
    "deep",
    "a*b",
    "*a*",
    "ß",
    "?x",
    "[]",
];

fn pattern() -> impl Strategy<Value = String> {
    let parts = prop::collection::vec(prop::sample::select(PARTS.to_vec()), 1..4);
    let start = prop::sample::select(vec!["", "", "", "!", "SOURCE/", "!SOURCE/", "/", "./"]);
    (start, parts, prop::bool::weighted(0.2)).prop_map(|(start, parts, has_slash)| {
        format!("{start}{}{}", parts.join("/"), if has_slash { "/" } else { "" })
    })
}

fn tree() -> impl Strategy<Value = BTreeSet<Vec<&'static str>>> {
    let path = prop::collection::vec(prop::sample::select(NAMES.to_vec()), 1..4);
    prop::collection::btree_set(path, 4..24)
}

/// Makes a tree; a path through what is a file already becomes none.
fn plant_tree(root: &Path, tree: &BTreeSet<Vec<&'static str>>) {
    fs::create_dir(root).unwrap();
    for names in tree {
        let path: PathBuf = std::iter::once(root).chain(names.iter().map(Path::new)).collect();
        if fs::create_dir_all(path.parent().unwrap()).is_ok() && !path.exists() {
            fs::write(path, "x").unwrap();
        }
    }
}

/// Lists what was saved below the source.
fn paths_of(bench: &Bench, saved: &SaveSummary) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    let index = bench.index();
    walk_tree(
        IndexedVault::new(&bench.vault, &index),
        &saved.snapshot.tree,
        Path::new("/"),
        &mut |path, _| {
            paths.insert(path.display().to_string());
            Ok(())
        },
    )
    .unwrap();
    paths
}

fn save_without(bench: &Bench, excludes: ExcludeRules) -> Result<SaveSummary, Error> {
    let options = SaveOptions::new(VaultUser::this_process(), now());
    let options = SaveOptions { excludes, parent: ParentSelection::Nothing, ..options };
    save_with(&bench.vault, &[bench.source()], &options, &BackupProgress::default())
}

/// Saves the source with restic; nothing where it says that a pattern is malformed, or that nothing is left.
fn restic_paths(bench: &Bench, arguments: &[String]) -> Option<BTreeSet<String>> {
    let source = bench.source().display().to_string();
    let mut line = vec!["backup", "--quiet", "--force", "--tag", "restic", &source];
    line.extend(arguments.iter().map(String::as_str));
    let saved = bench.restic(&line).unwrap();
    if !saved.status.success() {
        let said = String::from_utf8_lossy(&saved.stderr).into_owned();
        assert!(said.contains("invalid pattern") || said.contains("snapshot is empty"), "{said}");
        return None;
    }
    let listed = bench.restic(&["ls", "--json", "--tag", "restic", "latest"]).unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let lines = String::from_utf8(listed.stdout).unwrap();
    let nodes = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    Some(nodes.filter_map(|node| Some(node.get("path")?.as_str()?.to_owned())).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn patterns_leave_out_what_restic_leaves_out(
        tree in tree(),
        patterns in prop::collection::vec(pattern(), 1..4),
        is_case_ignored in prop::bool::weighted(0.25),
    ) {
        let bench = Bench::new();
        if bench.restic(&["version"]).is_none() {
            return Ok(());
        }
        plant_tree(&bench.source(), &tree);
        let source = bench.source().display().to_string();
        let patterns: Vec<String> =
            patterns.iter().map(|one| one.replace("SOURCE", &source)).collect();
        let option = if is_case_ignored { "--iexclude" } else { "--exclude" };
        let arguments: Vec<String> =
            patterns.iter().map(|pattern| format!("{option}={pattern}")).collect();
        // Of a source that stays out, restic saves the folders above it; here that is nothing to save.
        let theirs = restic_paths(&bench, &arguments).filter(|paths| paths.contains(&source));
        let excludes = match is_case_ignored {
            true => ExcludeRules::default().with_ignore_case_patterns(&patterns),
            false => ExcludeRules::new(patterns.clone()),
        };
        let ours = match excludes.and_then(|excludes| save_without(&bench, excludes)) {
            Ok(saved) => Some(paths_of(&bench, &saved)),
            Err(Error::InvalidRequest(_)) => None,
            Err(error) => panic!("{error}"),
        };
        prop_assert_eq!(ours, theirs, "{:?}", patterns);
    }
}

/// Marks and sizes leave out what restic leaves out.
#[test]
fn marks_and_sizes_leave_out_what_restic_leaves_out() {
    let bench = Bench::new();
    if bench.restic(&["version"]).is_none() {
        return;
    }
    let source = bench.source();
    for folder in ["plain", "marked", "headed", "both/below"] {
        fs::create_dir_all(source.join(folder)).unwrap();
        fs::write(source.join(folder).join("small"), "x").unwrap();
        fs::write(source.join(folder).join("large"), vec![b'x'; 2049]).unwrap();
        fs::write(source.join(folder).join("exact"), vec![b'x'; 2048]).unwrap();
    }
    fs::write(source.join("marked/.nobackup"), "anything").unwrap();
    fs::write(source.join("headed/TAG"), "leave this out, please").unwrap();
    fs::write(source.join("plain/TAG"), "something else").unwrap();
    fs::write(source.join("both/.nobackup"), "").unwrap();
    fs::write(source.join("both/TAG"), "leave this out").unwrap();
    let mark = |name: &str, header: &str| FolderMark {
        name: name.to_owned(),
        header: header.as_bytes().to_vec(),
    };
    let cases = [
        (vec!["--exclude-if-present=.nobackup"], vec![mark(".nobackup", "")], None),
        (
            vec!["--exclude-if-present=TAG:leave this out"],
            vec![mark("TAG", "leave this out")],
            None,
        ),
        (
            vec!["--exclude-if-present=.nobackup", "--exclude-if-present=TAG:leave this out"],
            vec![mark(".nobackup", ""), mark("TAG", "leave this out")],
            None,
        ),
        (vec!["--exclude-larger-than=2k"], Vec::new(), Some(2048)),
    ];
    for (arguments, marks, larger_than) in cases {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let theirs = restic_paths(&bench, &arguments);
        let mut excludes = ExcludeRules::default();
        (excludes.marks, excludes.max_file_bytes) = (marks, larger_than);
        let saved = save_without(&bench, excludes).unwrap();
        assert_eq!(Some(paths_of(&bench, &saved)), theirs, "{arguments:?}");
    }
}

/// A stream becomes a file of a snapshot, which restic reads too; of one that gives nothing, nothing is saved.
#[test]
fn a_stream_becomes_a_file() {
    let bench = Bench::new();
    let bytes = noise(3 << 20, 11);
    let save = |name: &str, bytes: &[u8]| {
        let options = SaveOptions::new(VaultUser::this_process(), now());
        let who = VaultUser::this_process();
        let lock =
            VaultLock::acquire(&bench.vault, &who, VaultLockMode::Shared, Duration::ZERO).unwrap();
        let (index, progress) = (bench.index(), BackupProgress::default());
        let session = SaveSession::new(&bench.vault, &index, &lock, &progress);
        save_stream(&session, bytes, name, &options)
    };
    let saved = save("dumps/all.sql", &bytes).unwrap();
    assert_eq!(saved.snapshot.paths, ["/dumps/all.sql"]);
    let node = find_path(&bench.vault, &bench.index(), &saved.snapshot, "/dumps/all.sql").unwrap();
    assert_eq!(node.size, bytes.len() as u64);
    let mut read = Vec::new();
    write_file_content(IndexedVault::new(&bench.vault, &bench.index()), &node, &mut read).unwrap();
    assert!(read == bytes);
    let again = save("dumps/all.sql", &bytes).unwrap();
    assert_eq!((again.written.pieces, again.snapshot.parent), (0, Some(saved.snapshot.id)));
    assert!(matches!(save("stdin", b""), Err(Error::InvalidRequest(_))));
    assert!(matches!(save("../x", b"x"), Err(Error::InvalidRequest(_))));
    bench.restic_ok(&["check", "--read-data"]);
    if let Some(dumped) = bench.restic(&["dump", "latest", "/dumps/all.sql"]) {
        assert!(dumped.status.success() && dumped.stdout == bytes);
    }
}

/// A source that is not there keeps no other from being saved, and is told; nothing is saved if none is there.
#[test]
fn a_missing_source_is_a_fault_and_the_rest_is_saved() {
    let bench = Bench::new();
    plant_tree(&bench.source(), &BTreeSet::from([vec!["a"]]));
    let options = SaveOptions::new(VaultUser::this_process(), now());
    let missing = bench.path("no-such-share");
    let sources = [missing.clone(), bench.source()];
    let save = |sources: &[PathBuf]| {
        save_with(&bench.vault, sources, &options, &BackupProgress::default())
    };
    let saved = save(&sources).unwrap();
    assert_eq!(saved.faults.iter().map(|fault| &fault.path).collect::<Vec<_>>(), [&missing]);
    assert!(saved.snapshot.is_incomplete(), "{:?}", saved.snapshot);
    assert!(paths_of(&bench, &saved).contains(&bench.source().join("a").display().to_string()));
    // Once it is there, the save belongs to the one before, and reads only what it lacked.
    fs::write(&missing, "there again").unwrap();
    let later = save(&sources).unwrap();
    assert_eq!(later.snapshot.parent, Some(saved.snapshot.id));
    assert_eq!((later.written.pieces, later.snapshot.is_incomplete()), (1, false));
    fs::remove_file(&missing).unwrap();
    assert!(matches!(save(&[missing]), Err(Error::Source { .. })));
}
