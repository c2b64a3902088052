//! C7: editors who save components and look at the console's list, among very many pages.
//!
//! Each editor saves a component of a random page every two seconds and lists that page's folder in between, on a
//! connection of its own for each request, as a program without keep-alive does. The clock of each editor does not wait
//! for answers that are late: a late answer counts with the time since it was due.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::changes::{ask, login};
use super::open::copy;
use crate::Outcome;
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::random::Random;
use crate::site::Server;
use crate::tree::{COMPONENTS, Tree, component_path, page_path};

const ROW: &str = "C7";
const PAGES: usize = 100_000;
const EDITORS: usize = 20;
const PAUSE: Duration = Duration::from_secs(2);
/// How many saves of each editor count; one more comes before them.
const SAVES: u32 = 20;

/// What one editor waited for, in milliseconds.
#[derive(Debug, Default)]
struct Waits {
    saves: Vec<f64>,
    lists: Vec<f64>,
}

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let (pages, saves) = if context.is_quick { (PAGES / 10, SAVES / 4) } else { (PAGES, SAVES) };
    let folder = context.new_folder("editors-")?;
    let home = folder.join("home");
    let tree = Tree::build(&folder, pages)?;
    tree.full.close()?;
    copy(tree.full.folder(), &home.join("store"))?;
    drop(tree);
    let home_text = home.to_str().ok_or("the work folder has a name that is not UTF-8")?;
    let arguments = ["author", "--home", home_text, "--listen", "127.0.0.1:0"];
    let server = Server::start(context.program()?, &arguments, &folder)?;
    let login = login(&home)?;
    let (address, begin) = (server.address, Instant::now() + Duration::from_secs(1));
    let waits = std::thread::scope(|scope| -> Outcome<Waits> {
        let editors: Vec<_> = (0..EDITORS)
            .map(|number| {
                let editor = Editor { address, login: &login, pages, number };
                scope.spawn(move || editor.work(begin, saves).map_err(|error| error.to_string()))
            })
            .collect();
        let mut all = Waits::default();
        for editor in editors {
            let waits = editor.join().map_err(|_| "an editor panicked")??;
            all.saves.extend(waits.saves);
            all.lists.extend(waits.lists);
        }
        Ok(all)
    })?;
    let figure = |what: &str, waits: Vec<f64>, goal: f64| {
        let count = waits.len();
        let (median, high) = (percentile(&waits, 50), percentile(&waits, 95));
        let note =
            format!("{count} by {EDITORS} editors among {pages} pages; median {median:.1} ms");
        Figure::value(ROW, what, high, "ms").goal(Goal::AtMost(goal)).note(note)
    };
    Ok(vec![
        figure("save of a component, 95th percentile", waits.saves, 100.0),
        figure("list of a folder in the console, 95th percentile", waits.lists, 150.0),
    ])
}

/// One editor.
struct Editor<'a> {
    address: SocketAddr,
    login: &'a str,
    pages: usize,
    number: usize,
}

impl Editor<'_> {
    /// Saves and lists in turn; the first save and list are not counted.
    fn work(&self, begin: Instant, saves: u32) -> Outcome<Waits> {
        let mut random = Random::new(self.number as u64 + 1);
        let mut waits = Waits::default();
        // Editors begin one after the other within the pause.
        let shift = PAUSE * u32::try_from(self.number)? / u32::try_from(EDITORS)?;
        for round in 0..=saves {
            let due = begin + shift + PAUSE * round;
            let page = random.below(self.pages);
            let save = wait_from(due, || {
                let path = component_path(page, random.below(COMPONENTS));
                let form = format!("./text=Round+{round}+of+editor+{}", self.number);
                ask(self.address, "POST", &path, self.login, &form).map(drop)
            })?;
            let path = page_path(page);
            let folder = path.rsplit_once('/').map_or("/", |(folder, _)| folder);
            let list = wait_from(due + PAUSE / 2, || {
                let path = format!("/api/v1/pages?path={folder}");
                ask(self.address, "GET", &path, self.login, "").map(drop)
            })?;
            if round > 0 {
                waits.saves.push(save);
                waits.lists.push(list);
            }
        }
        Ok(waits)
    }
}

/// Returns the value that `percent` of all do not exceed.
fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// Waits until something is due, does it, and returns the milliseconds since it was due.
fn wait_from(due: Instant, act: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
    act()?;
    Ok(due.elapsed().as_secs_f64() * 1e3)
}
