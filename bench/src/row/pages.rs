//! R2: every page of the sample site, one at a time, by the server's own clock.

use std::time::Duration;

use tympan_content::NodePath;

use crate::Outcome;
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::http::Connection;

const ROW: &str = "R2";
const SITE: &str = "/content/wayfare";

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let site = context.site()?;
    let paths = page_paths(&site.open()?)?;
    // Visitors are told no times otherwise.
    site.configure("[timing]\nheader = \"everybody\"\n")?;
    let server = site.publish();
    site.configure("")?;
    let server = server?;
    let mut connection = Connection::open(server.address, Duration::from_secs(20))?;
    let mut ask = |path: &String| -> Outcome<Option<f64>> {
        let answer = connection.get(path)?;
        // Steps of the portal send those away who did not begin with the first.
        if answer.status == 302 {
            return Ok(None);
        }
        if answer.status != 200 {
            return Err(format!("{path} answers {}", answer.status).into());
        }
        let timing = answer
            .header("server-timing")
            .and_then(|value| value.strip_prefix("render;dur=")?.parse().ok());
        timing.map(Some).ok_or_else(|| format!("{path} does not tell its time").into())
    };
    // The first pass fills the caches of the store and compiles templates; no page is cached.
    paths.iter().try_for_each(|path| ask(path).map(drop))?;
    let asked = paths.iter().map(ask).collect::<Outcome<Vec<_>>>()?;
    let mut times: Vec<f64> = asked.iter().copied().flatten().collect();
    if times.is_empty() {
        return Err("every page sends its visitor elsewhere".into());
    }
    times.sort_by(f64::total_cmp);
    let share = |percent: usize| {
        times
            .get((times.len() * percent).div_ceil(100).saturating_sub(1))
            .copied()
            .unwrap_or_default()
    };
    let note = format!(
        "server time of {} pages, wall clock; {} others send elsewhere",
        times.len(),
        asked.len() - times.len()
    );
    let figure = |percent, limit| {
        Figure::value(ROW, format!("{percent} % of the pages take at most"), share(percent), "ms")
            .goal(Goal::AtMost(limit))
    };
    Ok(vec![figure(70, 5.0).note(note), figure(95, 10.0), figure(99, 25.0), figure(100, 100.0)])
}

fn page_paths(repository: &tympan_content::Repository) -> Outcome<Vec<String>> {
    let site = repository
        .snapshot()?
        .node(&NodePath::new(SITE)?)?
        .ok_or("the sample site is not there")?;
    let pages = site.listed_descendants()?.into_iter().filter(tympan_content::Node::is_page);
    Ok(pages.map(|page| format!("{}.html", page.path().as_str())).collect())
}
