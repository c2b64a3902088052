//! Each component of a page by itself, beside the whole page: what each takes, and whether the parts are more than the whole.
//!
//! In: a page of a server that tells which components it has, as [`crate::components`] reads them. Out: a [`Sheet`].
//!
//! Everything is asked for one at a time. Times are the server's where it tells them (`Server-Timing`), else the client's.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::browse::{Ask, Got, basic, browse};
use crate::components::{self, Profile, Row};
use crate::goal::show;
use crate::net::Url;
use crate::page::server_timing;
use crate::report::sheet::{Grid, Part, Sheet, Tone};
use crate::{Error, Result};

/// What was measured of one address.
#[derive(Debug, Clone, Default)]
struct Timed {
    times: Vec<Duration>,
    /// Why it could not be had, if it could not.
    failure: Option<String>,
    is_by_server: bool,
}

impl Timed {
    fn add(&mut self, got: &Got) {
        if !got.is_ok() {
            let why = got.failure.clone().unwrap_or_else(|| format!("status {}", got.status));
            self.failure = Some(why);
            return;
        }
        let phases = server_timing(&got.head);
        let render = phases.iter().find(|(name, _)| name == "render").map(|phase| phase.1);
        let told = render.and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok());
        self.is_by_server = told.is_some();
        self.times.push(told.unwrap_or_else(|| got.elapsed()));
    }

    /// Returns why it could never be had.
    fn lost(&self) -> Option<&String> {
        self.failure.as_ref().filter(|_| self.times.is_empty())
    }

    fn median(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

/// Draws each component of a page alone, and the page.
///
/// # Errors
/// [`Error::Url`]; [`Error::Input`] if the server tells no components; [`Error::Engine`].
pub fn run(profile: &Profile) -> Result<Sheet> {
    let page = Url::parse(&profile.url)?;
    let asked = components::ask(profile)?;
    let answered: Vec<&Got> = asked.iter().filter(|got| got.is_ok()).collect();
    let rows: Vec<Row> = components::rows(&answered)
        .into_iter()
        .filter(|row| row.depth == 1 && row.path.starts_with('/'))
        .collect();
    if rows.is_empty() {
        return Err(Error::Input(format!(
            "`{}` names no components; Tympan does where the login of an administrator is given (--login)",
            profile.url
        )));
    }
    let mut urls = vec![page.clone()];
    urls.extend(rows.iter().map(|row| Url { target: address(&row.path), ..page.clone() }));
    // The server's caches are passed by: each is to be drawn.
    for url in urls.iter_mut().filter(|_| profile.login.is_some()) {
        let sign = if url.target.contains('?') { '&' } else { '?' };
        url.target.push_str(&format!("{sign}_flex=nocache"));
    }
    let timed = measure(&urls, profile)?;
    Ok(tell(profile, &rows, &timed))
}

/// Returns the address at which the node at `path` is drawn by itself: `jcr:content` is `_jcr_content` there, as in Sling.
fn address(path: &str) -> String {
    let segment = |segment: &str| match segment.split_once(':') {
        Some((prefix, name)) => format!("_{prefix}_{name}"),
        None => segment.replace(' ', "%20"),
    };
    format!("{}.html", path.split('/').map(segment).collect::<Vec<_>>().join("/"))
}

/// Asks for all addresses in turn, as often as it is wanted.
fn measure(urls: &[Url], profile: &Profile) -> Result<Vec<Timed>> {
    let mut headers = profile.headers.clone();
    headers.extend(profile.login.as_deref().map(basic));
    let timed: Arc<Mutex<Vec<Timed>>> = Arc::new(Mutex::new(vec![Timed::default(); urls.len()]));
    let kept = Arc::clone(&timed);
    let count = urls.len();
    let all: Vec<Url> = urls.to_vec();
    let mut turns = (0..count * profile.count.max(1)).map(move |turn| turn % count);
    let mut last = None;
    browse(1, move |got| {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let one = last.and_then(|at: usize| kept.get_mut(at));
        if let (Some(got), Some(one)) = (got.first(), one) {
            one.add(got);
        }
        last = turns.next();
        let next = last.and_then(|at| all.get(at).cloned());
        next.map(|url| Ask::get(url, &headers)).into_iter().collect()
    })?;
    let timed = std::mem::take(&mut *timed.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(timed)
}

fn tell(profile: &Profile, rows: &[Row], timed: &[Timed]) -> Sheet {
    let mut sheet = Sheet::new(&format!("Components of {}, each alone", profile.url));
    let Some((page, parts)) = timed.split_first() else { return sheet };
    if let Some(failure) = page.lost() {
        sheet.say(Tone::Doubt, format!("the page could not be had: {failure}"));
        return sheet;
    }
    let whole = page.median();
    let mut grid =
        Grid::new("Components", &["component", "calls", "in the page", "alone", "of the page", ""]);
    let mut told = Vec::new();
    let (mut sum, mut lost) = (Duration::ZERO, 0);
    for (row, part) in rows.iter().zip(parts) {
        let alone = part.median();
        let share = alone.as_secs_f64() / whole.as_secs_f64().max(1e-9) * 100.0;
        let calls = u32::try_from(row.calls).unwrap_or(u32::MAX);
        sum += alone.saturating_mul(calls);
        lost += usize::from(part.lost().is_some());
        let tone = if part.failure.is_some() { Tone::Bad } else { Tone::Plain };
        grid.add(
            tone,
            vec![
                format!("{} {}", row.script, row.path),
                row.calls.to_string(),
                show(row.total),
                show(alone),
                format!("{share:.1} %"),
                part.failure.clone().unwrap_or_default(),
            ],
        );
        told.push(json!({
            "script": row.script, "path": row.path, "calls": row.calls, "alone_us": us(alone),
            "in_page_us": us(row.total), "share_of_page": share / 100.0, "failure": part.failure,
        }));
    }
    let difference = match sum > whole {
        true => format!(
            "{} more: what the page does once is done again for each (overlap)",
            show(sum.saturating_sub(whole))
        ),
        false => {
            format!("{} less: the page's own work (overhead)", show(whole.saturating_sub(sum)))
        }
    };
    sheet.say(
        Tone::Plain,
        format!(
            "the page takes {}, its components alone {} together: {difference}",
            show(whole),
            show(sum)
        ),
    );
    let clock = if page.is_by_server { "server's" } else { "client's" };
    sheet.say(
        Tone::Plain,
        format!("times are medians of {} by the {clock} clock", profile.count.max(1)),
    );
    if lost > 0 {
        sheet.say(
            Tone::Doubt,
            format!("{lost} components cannot be drawn alone, and count as nothing"),
        );
    }
    sheet.parts.push(Part::Grid(grid));
    sheet.json = json!({
        "url": profile.url, "clock": clock, "page_us": us(whole), "sum_us": us(sum), "components": told,
    });
    sheet
}

fn us(time: Duration) -> Value {
    Value::from(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_addresses_without_colons() {
        assert_eq!(
            address("/content/en/jcr:content/nav bar"),
            "/content/en/_jcr_content/nav%20bar.html"
        );
    }
}
