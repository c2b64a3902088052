//! K3, K4: repositories that are saved.
//!
//! K3 is what an author does by schedule: it keeps the vault's key and index, locks the vault, saves its own store, and
//! unlocks. K4 is the program from its start to its end, beside restic on the same pages as files; and the same changes
//! in a tree of a tenth.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tympan_backup::{
    BackupProgress, BackupRepositorySource, KeyDerivationCost, LiveStore, LocalBackend,
    SaveOptions, SaveSession, SaveSummary, Vault, VaultIndex, VaultLock, VaultLockMode, VaultUser,
    save_repository,
};
use tympan_blobs::ReadOnlyBlobFolder;

use crate::Outcome;
use crate::alternate::{Spread, ratio};
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::timed::{Taken, Timed};
use crate::tree::{NODES_PER_PAGE, Tree, page_rows};

/// Saves of each kind that K3 makes.
const SAVES: usize = 21;

/// A vault that stays open.
struct Kept {
    vault: Arc<Vault>,
    index: Arc<VaultIndex>,
    who: VaultUser,
    blobs: ReadOnlyBlobFolder,
}

impl Kept {
    fn make(folder: &Path) -> Outcome<Self> {
        let who = VaultUser::this_process();
        let backend = Arc::new(LocalBackend::new(folder.join("vault")));
        let vault = Vault::init(backend, b"pw", KeyDerivationCost::default(), (&who, now()?))?;
        let blobs = ReadOnlyBlobFolder::new(&folder.join("blobs"));
        Ok(Self { vault: Arc::new(vault), index: Arc::default(), who, blobs })
    }

    /// Saves once; gives the milliseconds, and what came of it.
    fn save(&mut self, tree: &Tree) -> Outcome<(f64, Option<SaveSummary>)> {
        let begin = Instant::now();
        let lock =
            VaultLock::acquire(&self.vault, &self.who, VaultLockMode::Shared, Duration::ZERO)?;
        VaultIndex::catch_up(&mut self.index, &self.vault)?;
        let progress = BackupProgress::default();
        let session = SaveSession::new(&self.vault, &self.index, &lock, &progress);
        let base = LiveStore::new(tree.full.clone());
        let source = BackupRepositorySource {
            base: &base,
            blobs: &self.blobs,
            reference: "main",
            path: "/tympan/bench",
            view: None,
            base_owner: None,
            files: &[],
        };
        let saved = save_repository(&session, source, &SaveOptions::new(self.who.clone(), now()?))?;
        drop(lock);
        Ok((begin.elapsed().as_secs_f64() * 1e3, saved))
    }
}

fn now() -> Outcome<jiff::Timestamp> {
    Ok(std::time::SystemTime::now().try_into()?)
}

/// K3: nothing changed, and one edit.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    const ROW: &str = "K3";
    let folder = context.new_folder("vault-")?;
    let tree = context.tree()?;
    let nodes = tree.pages * NODES_PER_PAGE;
    let mut kept = Kept::make(&folder)?;
    let (first, _) = kept.save(tree)?;
    let (mut unchanged, mut edited, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..SAVES {
        tree.save(number * 97 % tree.pages)?;
        let (millis, saved) = kept.save(tree)?;
        let saved = saved.ok_or("an edit was not seen")?;
        edited.push(millis);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        bytes.push(saved.written.stored_bytes as f64 / 1024.0);
        let (millis, saved) = kept.save(tree)?;
        if saved.is_some() {
            return Err("a snapshot was made although nothing changed".into());
        }
        unchanged.push(millis);
    }
    let figure = |what: String, values: Vec<f64>, limit| {
        Figure::spread(ROW, what, &Spread::of(values), "ms").goal(Goal::AtMost(limit))
    };
    let note =
        format!("{:.0} KiB; the first save took {:.1} s", Spread::of(bytes).median, first / 1e3);
    Ok(vec![
        figure(format!("save of {nodes} nodes, nothing changed"), unchanged, 50.0),
        figure(format!("save of {nodes} nodes, one page edited"), edited, 100.0).note(note),
    ])
}

/// A repository as a home, the same pages as files, and a vault for each.
struct Pair {
    folder: PathBuf,
    program: PathBuf,
}

impl Pair {
    fn make(folder: PathBuf, program: &Path, tree: &Tree) -> Outcome<Self> {
        let pair = Self { folder, program: program.to_owned() };
        let home = pair.folder.join("home");
        fs::create_dir_all(home.join("blobs"))?;
        std::os::unix::fs::symlink(tree.full.folder().canonicalize()?, home.join("store"))?;
        for page in 0..tree.pages {
            pair.write(page, 0)?;
        }
        pair.ours(&["init"])?;
        pair.restic(&["init"])?;
        pair.save(tree)?;
        pair.restic(&["backup", &pair.files()])?;
        Ok(pair)
    }

    fn files(&self) -> String {
        self.folder.join("files").to_string_lossy().into_owned()
    }

    /// Writes a page as a file, as an export has it.
    fn write(&self, page: usize, version: u64) -> Outcome<()> {
        let folder =
            self.folder.join("files").join(format!("s{}", page / 200)).join(format!("p{page}"));
        fs::create_dir_all(&folder)?;
        let rows: String = page_rows(page)
            .iter()
            .map(|(path, node)| format!("<{path}>{:?}</{version}>\n", node.properties))
            .collect();
        Ok(fs::write(folder.join(".content.xml"), rows)?)
    }

    fn ours(&self, words: &[&str]) -> Outcome<Taken> {
        let vault = self.folder.join("vault");
        let timed = Timed::new(&self.program, &self.folder).args(["backup"]).args(words);
        timed.args(["-r".as_ref(), vault.as_os_str()]).run()
    }

    fn save(&self, tree: &Tree) -> Outcome<Taken> {
        // What was committed must be in the files that another process reads.
        tree.full.close()?;
        let source = format!("repo:{}", self.folder.join("home").display());
        self.ours(&["save", &source])
    }

    fn restic(&self, words: &[&str]) -> Outcome<Taken> {
        let repository = self.folder.join("restic");
        let timed = Timed::new("restic", &self.folder).args(["-q", "-r"]);
        timed.args([repository]).args(words).run()
    }
}

/// K4/repository: 1 % of the pages changed.
pub(super) fn measure_changed(context: &mut Context) -> Outcome<Vec<Figure>> {
    const ROW: &str = "K4/repository";
    let program = context.program()?.to_owned();
    let rounds = if context.is_quick { 3 } else { 5 };
    let (large_folder, small_folder) =
        (context.new_folder("large-")?, context.new_folder("tenth-")?);
    let small_tree = Tree::build(&small_folder.join("tree"), context.tree_pages() / 10)?;
    let small = Pair::make(small_folder, &program, &small_tree)?;
    let tree = context.tree()?;
    let large = Pair::make(large_folder, &program, tree)?;
    let changes = tree.pages / 100;
    let (mut ours, mut theirs, mut tenth) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        for number in 0..changes {
            let page = (number * 100 + round) % tree.pages;
            tree.save(page)?;
            large.write(page, round as u64)?;
            small_tree.save((number * 10 + round) % small_tree.pages)?;
        }
        ours.push(large.save(tree)?);
        theirs.push(large.restic(&["backup", &large.files()])?);
        tenth.push(small.save(&small_tree)?);
    }
    let median = |some: &[Taken]| Spread::of(some.iter().map(|taken| taken.wall)).median;
    let what = format!("{changes} of {} pages changed, clock", tree.pages);
    let beside = Figure::spread(ROW, what, &ratio(&ours, &theirs, |taken| taken.wall), "x");
    let note = format!("{:.2} s against {:.2} s", median(&ours), median(&theirs));
    let size = ratio(&ours, &tenth, |taken| taken.wall);
    let size = Figure::spread(
        ROW,
        format!("{changes} changes in 10 times the content, clock"),
        &size,
        "x",
    );
    let size_note = format!("{:.2} s against {:.2} s", median(&ours), median(&tenth));
    Ok(vec![
        beside.goal(Goal::AtMost(0.15)).against("restic on the pages as files").note(note),
        size.goal(Goal::AtMost(1.3)).note(size_note),
    ])
}
