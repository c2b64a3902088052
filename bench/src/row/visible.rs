//! R5: from the moment that an activation was asked for until visitors of the dispatcher see it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::context::Context;
use crate::crowd::{Group, Met, meet};
use crate::figure::{Figure, Goal};
use crate::http::{Connection, post};
use crate::site::{Demo, HOME_PAGE};

const ROW: &str = "R5";
/// What is edited and looked at.
const PAGE: &str = "/content/wayfare/en/journal/night-train-to-lisbon";
/// Publications without load, and under load.
const IDLE: usize = 100;
const LOADED: usize = 60;
/// Longer than this a publication does not take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Visitors who make the load.
const VISITORS: usize = 64;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let folder = context.new_folder("visible-")?;
    let demo = Demo::start(context.program()?, &folder)?;
    let mut editor = Editor::new(&demo)?;
    // The first publications open connections and fill caches.
    editor.publish(5)?;
    let count = |all| if context.is_quick { all / 3 } else { all };
    let idle = editor.publish(count(IDLE))?;
    let mut figures = vec![
        figure("idle, half of the publications", idle.percentile(50.0)).goal(Goal::AtMost(50.0)),
        figure("idle, 99 of 100", idle.percentile(99.0)).goal(Goal::AtMost(250.0)).note(format!(
            "from the request to activate until the dispatcher sends the new page; {} publications, longest {:.0} ms",
            idle.times.len(),
            idle.percentile(100.0)
        )),
    ];
    figures.push(under_load(&demo, &mut editor, count(LOADED))?);
    Ok(figures)
}

fn figure(what: &str, measured: f64) -> Figure {
    Figure::value(ROW, format!("published until visible, {what}"), measured, "ms")
}

/// Publishes while visitors ask for four fifths of what the dispatcher can give them.
fn under_load(demo: &Demo, editor: &mut Editor, count: usize) -> Outcome<Figure> {
    let most = capacity(demo.dispatcher)?;
    let every = Duration::from_secs_f64(to_f64(VISITORS) / (0.8 * most));
    let is_over = Arc::new(AtomicBool::new(false));
    let address = demo.dispatcher;
    let visitors = {
        let is_over = Arc::clone(&is_over);
        std::thread::spawn(move || -> Result<usize, String> {
            let mut errors = 0;
            while !is_over.load(Ordering::Relaxed) {
                let times = (Duration::ZERO, Duration::from_secs(2));
                let met =
                    meet(address, &[visitors(every)], times).map_err(|error| error.to_string())?;
                errors += met.iter().map(|met| met.errors).sum::<usize>();
            }
            Ok(errors)
        })
    };
    std::thread::sleep(Duration::from_secs(1));
    let published = editor.publish(count);
    is_over.store(true, Ordering::Relaxed);
    let errors = visitors.join().map_err(|_| "the visitors' thread panicked")??;
    let published = published?;
    let note = format!(
        "{:.0} requests/s by {VISITORS} visitors, four fifths of the {most:.0} that it gives beside its load generator; {} publications, \
         median {:.0} ms, longest {:.0} ms; visitors met {errors} errors",
        0.8 * most,
        published.times.len(),
        published.percentile(50.0),
        published.percentile(100.0)
    );
    let figure = figure("under load, 99 of 100", published.percentile(99.0));
    Ok(figure.goal(Goal::AtMost(1000.0)).note(note))
}

/// Finds out how many requests in a second the dispatcher answers while it shares the machine with who asks.
fn capacity(address: SocketAddr) -> Outcome<f64> {
    let times = (Duration::from_secs(1), Duration::from_secs(3));
    let met = meet(address, &[visitors(Duration::ZERO)], times)?;
    let answers: usize = met.iter().map(|met| met.times.len()).sum();
    Ok(to_f64(answers) / times.1.as_secs_f64())
}

/// Visitors who look at the home page and at the page that is edited.
fn visitors(every: Duration) -> Group {
    let path = |user: usize, visit: usize| match (user + visit) % 4 {
        0 => format!("{PAGE}.html"),
        _ => HOME_PAGE.to_owned(),
    };
    Group { users: VISITORS, every, path: Arc::new(path) }
}

#[expect(clippy::cast_precision_loss, reason = "a small count")]
fn to_f64(count: usize) -> f64 {
    count as f64
}

/// Edits a page and looks at it as a visitor.
struct Editor {
    author: SocketAddr,
    credentials: String,
    visitor: Connection,
    edits: usize,
}

impl Editor {
    fn new(demo: &Demo) -> Outcome<Self> {
        let visitor = Connection::open(demo.dispatcher, PATIENCE)?;
        Ok(Self { author: demo.author, credentials: demo.credentials.clone(), visitor, edits: 0 })
    }

    /// Publishes edits one after another; gives the time of each until a visitor sees it.
    fn publish(&mut self, count: usize) -> Outcome<Met> {
        let mut met = Met::default();
        for _ in 0..count {
            self.edits += 1;
            let title = format!("Edit-{}", self.edits);
            let form = format!("./jcr:title={title}");
            post(self.author, &format!("{PAGE}/jcr:content"), (&self.credentials, &form))?;
            let began = Instant::now();
            post(self.author, PAGE, (&self.credentials, ":operation=activate"))?;
            let text = format!("{title}<");
            loop {
                let answer = self.visitor.get(&format!("{PAGE}.html"))?;
                if String::from_utf8_lossy(&answer.body).contains(&text) {
                    break;
                }
                if began.elapsed() > PATIENCE {
                    return Err(format!("`{title}` was never seen").into());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            met.times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        met.times.sort_by(f64::total_cmp);
        Ok(met)
    }
}
