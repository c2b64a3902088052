//! R7/sweep: a title that 10,000 pages show is activated under load, until visitors of the dispatcher find no old page.
//!
//! Author, publisher and dispatcher run as people start them; the publisher tells the dispatcher URL by URL. Visitors go on
//! asking for pages in turn, and one more asks for each page again and again until it shows the title.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::fresh::{PAGES, QUICK_PAGES, urls, write_pages};
use crate::Outcome;
use crate::context::Context;
use crate::crowd::{Group, meet};
use crate::figure::{Figure, Goal};
use crate::http::{Connection, post};
use crate::site::Demo;

const ROW: &str = "R7/sweep";
const AGENT: &str = "/etc/replication/agents.publish/flush";
/// A page whose title the navigation of every page shows, and one that nothing shows but itself.
const SHOWN: &str = "/content/site/s3";
const OTHER: &str = "/content/site/s1/p1";
/// Visitors, and how often each of them looks at a page.
const VISITORS: usize = 32;
const EVERY: Duration = Duration::from_millis(100);
/// Longer than this nothing here takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let pages = if context.is_quick { QUICK_PAGES } else { PAGES };
    let folder = context.new_folder("sweep-")?;
    let program = context.program()?;
    let demo = Demo::start(program, &folder)?;
    let demo = demo.reopened((program, &folder), |content| write_pages(content, pages))?;
    let all: Arc<[String]> = urls(pages).into();
    let editor = Editor { author: demo.author, credentials: &demo.credentials };
    editor.post(&format!("{AGENT}/jcr:content"), "./serializationType=precise")?;
    editor.post(AGENT, ":operation=activate")?;
    // The first change after a ledger begins empties the cache; what follows is told URL by URL.
    editor.publish(OTHER, "Begin")?;
    until_shown(demo.dispatcher, &[format!("{OTHER}.html")], "Begin", Instant::now())?;
    // Every page is in the cache then, and in the ledger.
    until_shown(demo.dispatcher, &all, "Section 3", Instant::now())?;
    let is_over = Arc::new(AtomicBool::new(false));
    let visitors = visit(demo.dispatcher, &all, &is_over);
    let began = Instant::now();
    let swept = editor
        .publish(SHOWN, "Everywhere")
        .and_then(|()| until_shown(demo.dispatcher, &all, "Everywhere", began));
    is_over.store(true, Ordering::Relaxed);
    let visited = visitors.join().map_err(|_| "the visitors' thread panicked")??;
    let (half, last) = swept?;
    let note = format!(
        "from the request to activate; half of them after {:.0} ms; {VISITORS} visitors looked at {} pages meanwhile",
        half.as_secs_f64() * 1e3,
        visited.0
    );
    let time = Figure::value(
        ROW,
        format!("a title on {pages} pages, under load: until the last old page is gone"),
        last.as_secs_f64() * 1e3,
        "ms",
    );
    let errors = Figure::value(ROW, "visitors who met an error meanwhile", visited.1, "requests");
    Ok(vec![time.note(note), errors.goal(Goal::Exactly(0.0))])
}

/// Somebody who edits and activates.
struct Editor<'a> {
    author: SocketAddr,
    credentials: &'a str,
}

impl Editor<'_> {
    fn post(&self, path: &str, form: &str) -> Outcome<()> {
        post(self.author, path, (self.credentials, form))
    }

    /// Gives a page another title and activates it.
    fn publish(&self, page: &str, title: &str) -> Outcome<()> {
        self.post(&format!("{page}/jcr:content"), &format!("./jcr:title={title}"))?;
        self.post(page, ":operation=activate")
    }
}

/// Looks at pages until each shows a text; tells since a moment when half of them did, and when all.
fn until_shown(
    dispatcher: SocketAddr,
    all: &[String],
    text: &str,
    since: Instant,
) -> Outcome<(Duration, Duration)> {
    let mut visitor = Connection::open(dispatcher, PATIENCE)?;
    let mut old: Vec<&String> = all.iter().collect();
    let mut half = None;
    while !old.is_empty() {
        let mut still_old = Vec::new();
        for url in &old {
            let answer = visitor.get(url)?;
            let is_shown =
                answer.status == 200 && String::from_utf8_lossy(&answer.body).contains(text);
            if !is_shown {
                still_old.push(*url);
            }
        }
        old = still_old;
        if 2 * old.len() <= all.len() {
            half.get_or_insert_with(|| since.elapsed());
        }
        if since.elapsed() > PATIENCE {
            return Err(format!("{} pages never show `{text}`", old.len()).into());
        }
    }
    let last = since.elapsed();
    Ok((half.unwrap_or(last), last))
}

/// How many pages were looked at, and how many answers were none.
type Visited = (usize, f64);

/// Has visitors look at pages in turn until it is over.
fn visit(
    dispatcher: SocketAddr,
    all: &Arc<[String]>,
    is_over: &Arc<AtomicBool>,
) -> std::thread::JoinHandle<Result<Visited, String>> {
    let (all, is_over) = (Arc::clone(all), Arc::clone(is_over));
    let path = move |user: usize, visit: usize| {
        all.get((user * 311 + visit * 7919) % all.len().max(1)).cloned().unwrap_or_default()
    };
    let group = Group { users: VISITORS, every: EVERY, path: Arc::new(path) };
    std::thread::spawn(move || {
        let mut visited = (0, 0.0);
        while !is_over.load(Ordering::Relaxed) {
            let times = (Duration::ZERO, Duration::from_secs(1));
            let met = meet(dispatcher, std::slice::from_ref(&group), times);
            for met in met.map_err(|error| error.to_string())? {
                visited.0 += met.times.len();
                visited.1 += f64::from(u32::try_from(met.errors).unwrap_or(u32::MAX));
            }
        }
        Ok(visited)
    })
}
