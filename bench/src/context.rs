//! What rows share: how long to measure, where to work, and things that are made once.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use tempfile::TempDir;

use crate::Outcome;
use crate::site::Site;
use crate::sling::Sling;
use crate::tree::Tree;

/// The core that servers run on; generators run on the other.
pub(crate) const SERVER_CORE: usize = 0;
/// The core that load comes from.
pub(crate) const LOAD_CORE: usize = 1;

/// The run's settings and its shared things.
#[derive(Debug)]
pub(crate) struct Context {
    /// Whether each row has about twenty seconds.
    pub(crate) is_quick: bool,
    peers: Vec<String>,
    program: PathBuf,
    folder: TempDir,
    site: Option<Site>,
    tree: Option<Tree>,
    sling: Option<Result<Rc<Sling>, String>>,
}

impl Context {
    /// Reads the settings and makes a work folder on the disk that the program's build is on.
    pub(crate) fn from_environment() -> Outcome<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        let program =
            variable("TYMPAN").map_or_else(|| target.join("release/tympan"), PathBuf::from);
        let work = target.join("bench");
        std::fs::create_dir_all(&work)?;
        let folder = tempfile::Builder::new().prefix("work-").tempdir_in(work.canonicalize()?)?;
        let peers = variable("PEERS").unwrap_or_default();
        Ok(Self {
            is_quick: variable("QUICK").is_some_and(|value| value != "0"),
            peers: peers.split(',').map(str::to_owned).collect(),
            program,
            folder,
            site: None,
            tree: None,
            sling: None,
        })
    }

    /// Returns how many pairs to measure.
    pub(crate) fn pairs(&self) -> usize {
        if self.is_quick { 5 } else { 9 }
    }

    /// Returns how long one measurement under load takes, in seconds.
    pub(crate) fn seconds(&self) -> u64 {
        if self.is_quick { 1 } else { 4 }
    }

    /// Tells whether a peer that has to be asked for is asked for.
    pub(crate) fn has_peer(&self, name: &str) -> bool {
        self.peers.iter().any(|peer| peer == name)
    }

    /// Returns how many pages the large tree has.
    pub(crate) fn tree_pages(&self) -> usize {
        if self.is_quick { 4_000 } else { 40_000 }
    }

    /// Returns Sling, started on first use, or why there is none.
    pub(crate) fn sling(&mut self) -> Result<Rc<Sling>, String> {
        if !self.has_peer("sling") {
            return Err("set PEERS=sling".to_owned());
        }
        let work = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench/peer-sling");
        let start = || Sling::start(work).map(Rc::new).map_err(|error| error.to_string());
        self.sling.get_or_insert_with(start).clone()
    }

    /// Returns the program under test.
    pub(crate) fn program(&self) -> Outcome<&Path> {
        if self.program.is_file() {
            Ok(&self.program)
        } else {
            Err(format!(
                "there is no program at `{}`; run `make build`, or name it with TYMPAN",
                self.program.display()
            )
            .into())
        }
    }

    /// Makes an empty folder for one use.
    pub(crate) fn new_folder(&self, name: &str) -> Outcome<PathBuf> {
        let folder = tempfile::Builder::new()
            .prefix(name)
            .disable_cleanup(true)
            .tempdir_in(self.folder.path())?;
        Ok(folder.path().to_owned())
    }

    /// Returns the homes with the sample site, imported on first use.
    pub(crate) fn site(&mut self) -> Outcome<&Site> {
        if self.site.is_none() {
            let site = Site::import(self.program()?, &self.new_folder("site-")?)?;
            self.site = Some(site);
        }
        self.site.as_ref().ok_or_else(|| "no site".into())
    }

    /// Returns the large tree, built on first use: 1,000,000 nodes, or 100,000 in a quick run.
    pub(crate) fn tree(&mut self) -> Outcome<&mut Tree> {
        if self.tree.is_none() {
            self.tree = Some(Tree::build(&self.new_folder("tree-")?, self.tree_pages())?);
        }
        self.tree.as_mut().ok_or_else(|| "no tree".into())
    }
}
