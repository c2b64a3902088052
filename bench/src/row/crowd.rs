//! R6 and CROWD: source 004's load, and more visitors at once than there are places.

use std::sync::Arc;
use std::time::Duration;

use tympan_content::{NodePath, Property, Repository, Subtree, Value};

use crate::context::Context;
use crate::crowd::{Group, Met, meet, slow_back_end};
use crate::figure::{Figure, Goal};
use crate::site::{BENCH_PAGE, HOME_PAGE, Server};
use crate::{Outcome, ab, cpu};

const ROW: &str = "R6";
const CROWD: &str = "CROWD";
/// The back end's time.
const BACK_END: Duration = Duration::from_millis(50);
/// Between two requests of a user.
const EVERY: Duration = Duration::from_secs(2);
/// Users of the page with data, and of the others.
const WITH_DATA: usize = 1_000;
const OTHERS: usize = 10_000;
const DATA_PAGE: &str = "/content/crowd/status";

/// A page as the portal of the source has it: a frame of components that are kept, and the state of the user's orders.
const STATUS: &str = "<!DOCTYPE html><html><head><title>{{ page.title }}</title></head><body>\
    {{ include_children(resource) }}\
    {% set state = data(\"legacy\", \"/orders/\" ~ (request.suffix or \"/0\")|urlencode) %}\
    {% if state %}<h1>{{ state.state }}</h1><ul>{% for one in state.orders %}<li>{{ one.number }}: {{ one.sum }}</li>{% endfor %}</ul>\
    {% else %}<p>The status cannot be shown now.</p>{% endif %}</body></html>";
const PART: &str = "<section><h2>{{ properties[\"jcr:title\"] }}</h2>\
    {% for n in range(5) %}<p>{{ n }} {{ properties.text }}</p>{% endfor %}</section>";
const PARTS: usize = 8;

/// Measures R6: source 004's load, straight at the publisher.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let back_end = slow_back_end(BACK_END)?;
    let is_quick = context.is_quick;
    let site = context.site()?;
    let others = {
        let repository = site.open()?;
        put_pages(&repository)?;
        pages_of(&repository)?
    };
    site.configure(&format!(
        "[listen]\nmax_connections = 12000\n\n[work]\npermits = 128\n\n\
         [back_ends.legacy]\nurl = \"http://{back_end}\"\nconnections = 100\nmax_age = \"0ms\"\nmax_stale = \"0ms\"\n"
    ))?;
    let server = site.publish_unpinned()?;
    let with_data = Group {
        users: WITH_DATA,
        every: EVERY,
        // Each user has orders of its own, so that no answer of the back end serves two.
        path: Arc::new(|user, visit| format!("{DATA_PAGE}.html/{user}-{visit}")),
    };
    let on_others = Group {
        users: OTHERS,
        every: EVERY,
        path: Arc::new(move |user, visit| {
            others.get((user * 7 + visit) % others.len().max(1)).cloned().unwrap_or_default()
        }),
    };
    let before = cpu::of_tree(server.pid());
    let lasting = Duration::from_secs(if is_quick { 12 } else { 40 });
    let met = meet(server.address, &[with_data, on_others], (Duration::from_secs(10), lasting))?;
    let spent = cpu::of_tree(server.pid()) - before;
    let memory = cpu::resident_mib(server.pid()).unwrap_or_default();
    context.site()?.configure("")?;
    let [data, others] = met.as_slice() else { return Err("two groups are asked for".into()) };
    Ok(figures(data, others, (memory, spent / (lasting.as_secs_f64() + 10.0))))
}

fn figures(data: &Met, others: &Met, (memory, cores): (f64, f64)) -> Vec<Figure> {
    let errors = data.errors + others.errors;
    let first = [data, others].into_iter().find_map(|met| met.first_error.clone());
    let answers = format!(
        "{} answers with data, {} others; open loop on {} connections; the server used {cores:.2} cores; {}",
        data.times.len(),
        others.times.len(),
        WITH_DATA + OTHERS,
        first.unwrap_or_default()
    );
    let back_end_ms = BACK_END.as_secs_f64() * 1e3;
    let spread = |met: &Met| {
        format!(
            "median {:.1} ms, 95 of 100 {:.1} ms, longest {:.0} ms",
            met.percentile(50.0),
            met.percentile(95.0),
            met.percentile(100.0)
        )
    };
    vec![
        Figure::value(ROW, "errors", to_f64(errors), "").goal(Goal::Exactly(0.0)).note(answers),
        Figure::value(
            ROW,
            "page with data of a back end of 50 ms: 99 of 100, beyond the back end",
            data.percentile(99.0) - back_end_ms,
            "ms",
        )
        .goal(Goal::AtMost(50.0))
        .note(spread(data)),
        Figure::value(ROW, "other pages: 99 of 100", others.percentile(99.0), "ms")
            .goal(Goal::AtMost(50.0 + back_end_ms))
            .note(spread(others)),
        Figure::value(ROW, "memory of the publisher", memory, "MiB").goal(Goal::AtMost(300.0)),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "a small count")]
fn to_f64(count: usize) -> f64 {
    count as f64
}

/// Puts the page with data, and says that components of the site may be kept.
fn put_pages(repository: &Repository) -> Outcome<()> {
    let mut session = repository.session("bench")?;
    for path in ["/apps/crowd", "/apps/crowd/status", "/apps/crowd/part", "/content/crowd"] {
        session.put_node(&NodePath::new(path)?, Subtree::new("", "sling:Folder"))?;
    }
    for folder in ["/apps/crowd/part", "/apps/wayfare", "/apps/tympan-bench"] {
        let folder = NodePath::new(folder)?;
        if session.node(&folder)?.is_some() {
            session.set_property(&folder, "cache", "always".into())?;
        }
    }
    for (name, text) in [("status", STATUS), ("part", PART)] {
        let path = NodePath::new(&format!("/apps/crowd/{name}/{name}.html.j2"))?;
        let blob = repository.blobs().put(&mut text.as_bytes())?;
        let data = Subtree::new("jcr:content", "nt:resource")
            .with_property("jcr:data", Property::Single(Value::Binary(blob)))
            .with_property("jcr:mimeType", "text/plain");
        session.put_node(&path, Subtree::new(path.name(), "nt:file").with_child(data))?;
    }
    let mut content = Subtree::new("jcr:content", "cq:PageContent")
        .with_property("sling:resourceType", "crowd/status")
        .with_property("jcr:title", "Your orders");
    for number in 0..PARTS {
        content = content.with_child(
            Subtree::new(&format!("part{number}"), "nt:unstructured")
                .with_property("sling:resourceType", "crowd/part")
                .with_property("jcr:title", format!("Part {number}").as_str())
                .with_property("text", "A line of text that is long enough to look like one"),
        );
    }
    let path = NodePath::new(DATA_PAGE)?;
    session.put_node(&path, Subtree::new(path.name(), "cq:Page").with_child(content))?;
    session.commit("crowd", std::time::SystemTime::now())?;
    Ok(())
}

/// Returns the URLs of the sample site's pages.
fn pages_of(repository: &Repository) -> Outcome<Vec<String>> {
    let site = repository.snapshot()?.node(&NodePath::new("/content/wayfare/en")?)?;
    let site = site.ok_or("the sample site is not there")?;
    let pages = site.listed_descendants()?.into_iter().filter(tympan_content::Node::is_page);
    Ok(pages.map(|page| format!("{}.html", page.path().as_str())).collect())
}

/// Measures CROWD: `ab` with 200 and 2,000 at once, on pages that are drawn for each request.
pub(super) fn measure_at_once(context: &mut Context) -> Outcome<Vec<Figure>> {
    let server = context.site()?.publish_unpinned()?;
    let mut figures = Vec::new();
    for (what, path) in [("bench page", BENCH_PAGE), ("home page", HOME_PAGE)] {
        ab::run(server.address, path, (10, 500))?;
        for at_once in [200, 2000] {
            figures.extend(at_once_on(&server, (what, path), at_once)?);
        }
    }
    Ok(figures)
}

fn at_once_on(server: &Server, (what, path): (&str, &str), at_once: u32) -> Outcome<Vec<Figure>> {
    let run = ab::run(server.address, path, (at_once, 10_000))?;
    let what = format!("{what}, {at_once} at once");
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let failed = run.failed as f64;
    let note = format!(
        "{:.0} requests/s, median {:.0} ms, 98 of 100 {:.0} ms, 99 of 100 {:.0} ms, longest {:.0} ms",
        run.per_second, run.p50, run.p98, run.p99, run.max
    );
    let mut figures = vec![
        Figure::value(CROWD, format!("{what}: failed of 10,000 requests"), failed, "")
            .goal(Goal::Exactly(0.0))
            .note(note),
    ];
    if at_once == 200 {
        let ratio = run.p99 / run.p50.max(0.001);
        let figure =
            Figure::value(CROWD, format!("{what}: 99 of 100 against the median"), ratio, "x");
        figures.push(figure.goal(Goal::AtMost(3.0)));
    }
    Ok(figures)
}
