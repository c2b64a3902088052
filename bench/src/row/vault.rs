//! K1, K2, K4, K5, K8: folders that are saved and restored, beside restic, borg and tar.
//!
//! The data is that of `backup_gen.py` (peers): many small files, pictures that do not compress, a few large ones. `mixed`
//! has sizes as a content site; `small` has as many files as source 002's user, of about 1 KB. Every program has its own
//! cache, as in use. A round of K4 changes 1 % of the files, and then each program saves once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Outcome;
use crate::alternate::{Spread, alternate, ratio};
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::process::{is_installed, peer_script};
use crate::timed::{Taken, Timed};

/// A set of files.
struct Set {
    folder: PathBuf,
    /// Where programs keep what they keep.
    home: PathBuf,
    program: PathBuf,
    files: usize,
}

/// A program that saves folders.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Saver {
    Tympan,
    Restic,
    Borg,
}

impl Saver {
    const fn name(self) -> &'static str {
        match self {
            Self::Tympan => "tympan",
            Self::Restic => "restic",
            Self::Borg => "borg",
        }
    }

    fn is_there(self) -> bool {
        self == Self::Tympan || is_installed(self.name())
    }
}

impl Set {
    fn make(context: &Context, name: &str, files: usize, gib: f64) -> Outcome<Self> {
        let folder = context.new_folder(name)?;
        eprintln!("making {files} files, {gib} GiB");
        let (files_text, gib) = (files.to_string(), gib.to_string());
        let data = folder.join("data");
        generate(&["create", &data.to_string_lossy(), "--files", &files_text, "--gib", &gib])?;
        let home = folder.join("home");
        fs::create_dir_all(&home)?;
        Ok(Self { folder: data, home, program: context.program()?.to_owned(), files })
    }

    fn vault(&self, saver: Saver) -> PathBuf {
        self.home.join(format!("vault-{}", saver.name()))
    }

    fn command(&self, saver: Saver, words: &[&str]) -> Timed {
        let program = match saver {
            Saver::Tympan => self.program.as_os_str(),
            other => other.name().as_ref(),
        };
        let timed = Timed::new(program, &self.home);
        let vault = self.vault(saver);
        match saver {
            Saver::Tympan => {
                timed.args(["backup"]).args(words).args(["-r".as_ref(), vault.as_os_str()])
            }
            Saver::Restic => timed.args(["-q", "-r"]).args([vault]).args(words),
            Saver::Borg => timed.args(words),
        }
    }

    /// Makes an empty vault, in place of the one before.
    fn init(&self, saver: Saver) -> Outcome<()> {
        let vault = self.vault(saver);
        if vault.exists() {
            fs::remove_dir_all(&vault)?;
        }
        let text = vault.to_string_lossy();
        let words: &[&str] = match saver {
            Saver::Borg => &["init", "-e", "repokey-blake2", &text],
            _ => &["init"],
        };
        self.command(saver, words).run()?;
        Ok(())
    }

    fn save(&self, saver: Saver) -> Outcome<Taken> {
        let data = self.folder.to_string_lossy();
        let archive = format!("{}::{{now:%s%f}}", self.vault(saver).display());
        let words: &[&str] = match saver {
            Saver::Tympan => &["save", &data],
            Saver::Restic => &["backup", &data],
            Saver::Borg => &["create", "-C", "zstd,3", &archive, &data],
        };
        self.command(saver, words).run()
    }

    fn restore(&self, saver: Saver, out: &Path) -> Outcome<Taken> {
        let out = out.to_string_lossy();
        let words: &[&str] = match saver {
            Saver::Tympan => &["restore", "latest", "--to", &out],
            _ => &["restore", "latest", "--target", &out],
        };
        self.command(saver, words).run()
    }
}

/// Runs the generator of the data.
fn generate(arguments: &[&str]) -> Outcome<()> {
    let mut command = Command::new("python3");
    command.arg(peer_script("backup_gen.py")?).args(arguments).stdout(Stdio::null());
    if command.status()?.success() { Ok(()) } else { Err("the data cannot be made".into()) }
}

fn mixed(context: &Context) -> Outcome<Set> {
    let (files, gib) = if context.is_quick { (6_000, 0.15) } else { (31_000, 0.75) };
    Set::make(context, "mixed-", files, gib)
}

fn small(context: &Context) -> Outcome<Set> {
    let (files, gib) = if context.is_quick { (31_000, 0.03) } else { (155_000, 0.15) };
    Set::make(context, "small-", files, gib)
}

const fn rounds(context: &Context) -> usize {
    if context.is_quick { 3 } else { 5 }
}

/// The ratio of two programs' times, by the clock and by CPU.
fn compare(row: &str, what: &str, (ours, theirs): (&[Taken], &[Taken]), goal: Goal) -> Vec<Figure> {
    let median =
        |some: &[Taken], value: fn(&Taken) -> f64| Spread::of(some.iter().map(value)).median;
    let one = |unit: &str, value: fn(&Taken) -> f64| {
        let spread = ratio(ours, theirs, value);
        let note = format!("{:.2} s against {:.2} s", median(ours, value), median(theirs, value));
        Figure::spread(row, format!("{what}, {unit}"), &spread, "x").note(note)
    };
    vec![one("clock", |taken| taken.wall).goal(goal), one("CPU", |taken| taken.cpu)]
}

fn against(figures: Vec<Figure>, peer: &str) -> impl Iterator<Item = Figure> {
    figures.into_iter().map(move |figure| figure.against(peer.to_owned()))
}

/// K1: the first save.
pub(super) fn measure_full(context: &mut Context) -> Outcome<Vec<Figure>> {
    const ROW: &str = "K1";
    let mut figures = Vec::new();
    for (set, name) in [(mixed(context)?, "mixed"), (small(context)?, "small")] {
        let full = |saver: Saver| {
            let set = &set;
            move || {
                set.init(saver)?;
                set.save(saver)
            }
        };
        let packed = set.home.join("ref.tar.zst");
        let mut tar = || {
            let line = format!(
                "tar cf - -C '{}' . | zstd -q -3 -T0 -f -o '{}'",
                set.folder.display(),
                packed.display()
            );
            Timed::new("sh", &set.home).args(["-c", &line]).run()
        };
        let (mut ours, mut restic) = (full(Saver::Tympan), full(Saver::Restic));
        let [ours, restic, tar] = alternate(rounds(context), [&mut ours, &mut restic, &mut tar])?;
        let what = format!("first save of {} files ({name})", set.files);
        figures.extend(against(compare(ROW, &what, (&ours, &restic), Goal::AtMost(0.9)), "restic"));
        let cpu = ratio(&ours, &tar, |taken| taken.cpu);
        let goal = if name == "mixed" { Goal::AtMost(1.3) } else { Goal::None };
        let figure = Figure::spread(ROW, format!("{what}, CPU"), &cpu, "x").goal(goal);
        figures.push(figure.against("tar | zstd -3 -T0"));
        figures.extend(sizes(&set, name, (&ours, &restic))?);
    }
    Ok(figures)
}

/// K8: memory and size of the first saves.
fn sizes(set: &Set, name: &str, (ours, restic): (&[Taken], &[Taken])) -> Outcome<Vec<Figure>> {
    const ROW: &str = "K8";
    let peak = |some: &[Taken]| Spread::of(some.iter().map(|taken| taken.peak));
    // About one blob for each file, and one for each folder.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let limit = 150.0 + 60.0 * 1.1 * set.files as f64 / f64::from(1 << 20);
    let note = format!("restic {:.0} MiB", peak(restic).median);
    let memory =
        Figure::spread(ROW, format!("memory of the first save ({name})"), &peak(ours), "MiB");
    let (own, theirs) =
        (bytes_in(&set.vault(Saver::Tympan))?, bytes_in(&set.vault(Saver::Restic))?);
    let size = Figure::value(ROW, format!("size of the vault ({name})"), own / theirs, "x");
    let size_note = format!("{:.1} MB against {:.1} MB", own / 1e6, theirs / 1e6);
    Ok(vec![
        memory.goal(Goal::AtMost(limit)).note(note),
        size.goal(Goal::AtMost(1.02)).against("restic").note(size_note),
    ])
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn bytes_in(folder: &Path) -> Outcome<f64> {
    let mut total = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                total += entry.metadata()?.len();
            }
        }
    }
    Ok(total as f64)
}

/// K2: a save where nothing changed.
pub(super) fn measure_unchanged(context: &mut Context) -> Outcome<Vec<Figure>> {
    const ROW: &str = "K2";
    let set = small(context)?;
    let mut figures = Vec::new();
    let what = format!("nothing changed in {} files", set.files);
    for (peer, limit) in [(Saver::Restic, 0.35), (Saver::Borg, 0.3)] {
        if !peer.is_there() {
            let figure =
                Figure::missing(ROW, what.as_str(), format!("{} is not installed", peer.name()));
            figures.push(figure.goal(Goal::AtMost(limit)).against(peer.name()));
            continue;
        }
        for saver in [Saver::Tympan, peer] {
            set.init(saver)?;
            set.save(saver)?;
        }
        let (mut ours, mut theirs) = (|| set.save(Saver::Tympan), || set.save(peer));
        let [ours, theirs] = alternate(rounds(context), [&mut ours, &mut theirs])?;
        let compared = compare(ROW, &what, (&ours, &theirs), Goal::AtMost(limit));
        figures.extend(against(compared, peer.name()));
    }
    let data = set.folder.to_string_lossy();
    let walk = ["fd", "fdfind"].into_iter().find(|program| is_installed(program));
    let mut ours = || set.save(Saver::Tympan);
    let mut theirs = || match walk {
        Some(program) => Timed::new(program, &set.home)
            .args(["-u", "--changed-within", "100years", ".", &data])
            .run(),
        None => Timed::new("find", &set.home).args([&data, "-printf", "%s %T@ %C@ %i\n"]).run(),
    };
    let [ours, theirs] = alternate(rounds(context), [&mut ours, &mut theirs])?;
    let goal = if walk.is_some() { Goal::AtMost(4.0) } else { Goal::None };
    let compared = compare(ROW, &what, (&ours, &theirs), goal);
    figures.extend(against(compared, if walk.is_some() { "an fd walk" } else { "a find walk" }));
    Ok(figures)
}

/// K4: a save after 1 % of the files changed.
pub(super) fn measure_changed(context: &mut Context) -> Outcome<Vec<Figure>> {
    const ROW: &str = "K4";
    let set = small(context)?;
    for saver in [Saver::Tympan, Saver::Restic] {
        set.init(saver)?;
        set.save(saver)?;
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds(context) {
        generate(&["mutate", &set.folder.to_string_lossy(), &round.to_string()])?;
        ours.push(set.save(Saver::Tympan)?);
        theirs.push(set.save(Saver::Restic)?);
    }
    let what = format!("1 % changed in {} files", set.files);
    let compared = compare(ROW, &what, (&ours, &theirs), Goal::AtMost(0.4));
    Ok(against(compared, "restic").collect())
}

/// K5: a restore.
pub(super) fn measure_restore(context: &mut Context) -> Outcome<Vec<Figure>> {
    const ROW: &str = "K5";
    let set = mixed(context)?;
    for saver in [Saver::Tympan, Saver::Restic] {
        set.init(saver)?;
        set.save(saver)?;
    }
    let packed = set.home.join("ref.tar.zst");
    let line =
        format!("tar cf - -C '{}' . | zstd -q -3 -o '{}'", set.folder.display(), packed.display());
    Timed::new("sh", &set.home).args(["-c", &line]).run()?;
    let out = set.home.join("out");
    let empty = || -> Outcome<()> {
        if out.exists() {
            fs::remove_dir_all(&out)?;
        }
        Ok(fs::create_dir_all(&out)?)
    };
    let restore = |saver: Saver| {
        let (set, out, empty) = (&set, &out, &empty);
        move || {
            empty()?;
            set.restore(saver, out)
        }
    };
    let mut tar = || {
        empty()?;
        let line = format!("zstd -dc '{}' | tar xf -", packed.display());
        Timed::new("sh", &set.home).args(["-c", &line]).within(&out).run()
    };
    let (mut ours, mut restic) = (restore(Saver::Tympan), restore(Saver::Restic));
    let [ours, restic, tar] = alternate(rounds(context), [&mut ours, &mut restic, &mut tar])?;
    let what = format!("restore of {} files (mixed)", set.files);
    let mut figures: Vec<Figure> =
        against(compare(ROW, &what, (&ours, &restic), Goal::AtMost(0.9)), "restic").collect();
    figures
        .extend(against(compare(ROW, &what, (&ours, &tar), Goal::AtMost(1.5)), "zstd -d | tar x"));
    let peak = Spread::of(ours.iter().map(|taken| taken.peak));
    let note =
        format!("restic {:.0} MiB", Spread::of(restic.iter().map(|taken| taken.peak)).median);
    figures.push(
        Figure::spread("K5/memory", "memory of the restore (mixed)", &peak, "MiB").note(note),
    );
    Ok(figures)
}
