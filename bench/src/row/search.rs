//! C3: full text over many pages: the first page of results, catching up after a commit, building anew.
//!
//! Pages have a title and five texts of words drawn as words of a language are: a few stand on every page, most on
//! few. The narrow word stands on one page in a thousand, the over-general one on all of them. The index lies in files
//! on the disk that the program's build is on. 100,000 pages; 10,000 in a quick run. Building anew is measured in turn
//! with the library alone (`plain_index`) on the same text.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tympan_blobs::MemoryBlobStore;
use tympan_content::{NodePath, Property, Repository, Subtree};
use tympan_content_query::{FullTextExpression, FullTextIndex, FullTextRequest};
use tympan_search::{SearchIndex, SearchIndexOptions};
use tympan_store::LocalStore;

use super::plain_index::{self, Text};
use crate::alternate::{Spread, alternate, ratio};
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::random::Random;
use crate::{Outcome, cpu};

const ROW: &str = "C3";
/// Words that there are.
const WORDS: usize = 50_000;
/// Words of one text, and texts of one page.
const WORDS_PER_TEXT: usize = 60;
const TEXTS: usize = 5;
const PAGES_PER_SECTION: usize = 500;
/// Queries of one turn, and catch-ups that are measured.
const TURN: usize = 20;
const CATCH_UPS: usize = 40;
/// Builds of each side that are measured.
const BUILDS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(3600);
/// One page in so many has the narrow word.
const NARROW: usize = 1_000;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let pages = if context.is_quick { 10_000 } else { 100_000 };
    let pairs = context.pairs();
    eprintln!("building {pages} pages");
    let repository = Repository::open(
        Arc::new(LocalStore::open_in_memory()?),
        Arc::new(MemoryBlobStore::default()),
    )?;
    let texts = load(&repository, pages)?;
    let mut figures = builds(context, &repository, &texts)?;
    drop(texts);
    let folder = context.new_folder("search-")?;
    let index = SearchIndex::open(repository.clone(), &folder, SearchIndexOptions::default())?;
    wait_until_built(&index)?;
    for (what, expression) in expressions() {
        figures.push(query_figure(&index, what, &expression, pairs)?);
    }
    let turn = |expression: &FullTextExpression| first_pages(&index, expression);
    let (narrow, general) =
        (FullTextExpression::Term("narrow".to_owned()), FullTextExpression::Term(word(0)));
    let [general_costs, narrow_costs] =
        &alternate(pairs, [&mut || turn(&general), &mut || turn(&narrow)])?;
    figures.push(
        Figure::spread(
            ROW,
            "over-general word, relative",
            &ratio(general_costs, narrow_costs, |cost| *cost),
            "x",
        )
        .against("narrow word"),
    );
    figures.extend(catch_ups(&repository, &index, pages)?);
    Ok(figures)
}

/// What one build took.
struct Built {
    /// Megabytes of text in a second of the clock.
    rate: f64,
    cpu_seconds: f64,
    note: String,
}

/// Measures building from nothing, in turn with the library alone.
fn builds(context: &Context, repository: &Repository, texts: &[Text]) -> Outcome<Vec<Figure>> {
    let bytes = texts.iter().map(|text| text.title.len() + text.texts.len()).sum::<usize>();
    let megabytes = bytes as f64 / 1e6;
    let mut ours = || -> Outcome<Built> {
        let folder = context.new_folder("built-")?;
        let begin = Instant::now();
        let (built, cpu_seconds) = cpu::spent(|| -> Outcome<SearchIndex> {
            let index =
                SearchIndex::open(repository.clone(), &folder, SearchIndexOptions::default())?;
            wait_until_built(&index)?;
            Ok(index)
        });
        let elapsed = begin.elapsed().as_secs_f64();
        let status = built?.status(SystemTime::now())?;
        let note = format!(
            "{megabytes:.1} MB of text; index of {:.1} MB in {} segments",
            status.bytes as f64 / 1e6,
            status.segments
        );
        std::fs::remove_dir_all(&folder)?;
        Ok(Built { rate: megabytes / elapsed, cpu_seconds, note })
    };
    let mut plain = || -> Outcome<Built> {
        let folder = context.new_folder("plain-")?;
        let begin = Instant::now();
        let cpu_seconds = plain_index::build(&folder, texts)?;
        let rate = megabytes / begin.elapsed().as_secs_f64();
        std::fs::remove_dir_all(&folder)?;
        Ok(Built { rate, cpu_seconds, note: String::new() })
    };
    let [ours, plain] = alternate(BUILDS, [&mut ours, &mut plain])?;
    let rates = |built: &[Built]| Spread::of(built.iter().map(|one| one.rate));
    let each_second =
        |built: &[Built]| Spread::of(built.iter().map(|one| megabytes / one.cpu_seconds)).median;
    let note = ours.first().map(|built| built.note.clone()).unwrap_or_default();
    let beside = ratio(&ours, &plain, |built| built.cpu_seconds);
    let costs = format!(
        "{:.1} MB of text each second of CPU, the library alone {:.1} MB",
        each_second(&ours),
        each_second(&plain)
    );
    Ok(vec![
        Figure::spread(ROW, "build from nothing, text per second", &rates(&ours), "MB/s")
            .goal(Goal::AtLeast(20.0))
            .note(note),
        Figure::spread(ROW, "the library alone, text per second", &rates(&plain), "MB/s"),
        Figure::spread(ROW, "build from nothing, CPU", &beside, "x")
            .against("Tantivy alone")
            .note(costs),
    ])
}

fn wait_until_built(index: &SearchIndex) -> Outcome<()> {
    if index.wait_until_current(PATIENCE) {
        return Ok(());
    }
    Err(format!("the index was not built: {:?}", index.status(SystemTime::now())).into())
}

/// The searches that are measured.
fn expressions() -> Vec<(&'static str, FullTextExpression)> {
    let term = |text: String| FullTextExpression::Term(text);
    vec![
        ("narrow word", term("narrow".to_owned())),
        ("word on every page", term(word(0))),
        ("two words on every page", FullTextExpression::And(vec![term(word(0)), term(word(1))])),
        (
            "either of two words on every page",
            FullTextExpression::Or(vec![term(word(0)), term(word(1))]),
        ),
        (
            "phrase of two words on every page",
            FullTextExpression::Phrase(format!("{} {}", word(0), word(1))),
        ),
        ("prefix of a tenth of all words", FullTextExpression::Prefix("w1".to_owned())),
    ]
}

fn query_figure(
    index: &SearchIndex,
    what: &str,
    expression: &FullTextExpression,
    pairs: usize,
) -> Outcome<Figure> {
    let mut costs = Vec::new();
    for _ in 0..=pairs {
        costs.push(first_pages(index, expression)?);
    }
    // The first one warms up.
    costs.remove(0);
    costs.sort_by(f64::total_cmp);
    let median = costs.get(costs.len() / 2).copied().unwrap_or_default();
    let hits = index.search(&request(expression))?.estimated_total;
    let is_goal = ["narrow word", "word on every page"].contains(&what);
    let goal = if is_goal { Goal::AtMost(5.0) } else { Goal::None };
    let figure = Figure::value(ROW, format!("first page, CPU: {what}"), median, "ms");
    Ok(figure.goal(goal).note(format!("about {hits} hits")))
}

/// Returns the milliseconds of CPU that a first page costs.
fn first_pages(index: &SearchIndex, expression: &FullTextExpression) -> Outcome<f64> {
    let request = request(expression);
    let (searched, seconds) = cpu::spent(|| -> Outcome<()> {
        for _ in 0..TURN {
            index.search(&request)?;
        }
        Ok(())
    });
    searched?;
    Ok(seconds * 1000.0 / TURN as f64)
}

fn request(expression: &FullTextExpression) -> FullTextRequest {
    FullTextRequest {
        expression: expression.clone(),
        property: None,
        node_types: Vec::new(),
        ancestor: None,
        after: None,
        limit: 20,
        facets: Vec::new(),
        wants_excerpt: true,
    }
}

/// Measures the time from a commit until the index answers with it: found by the follower itself, and told of it, as
/// the server tells it after each request that may write.
fn catch_ups(repository: &Repository, index: &SearchIndex, pages: usize) -> Outcome<[Figure; 2]> {
    let mut random = Random::new(99);
    let mut once = |is_woken: bool| -> Outcome<f64> {
        let path = NodePath::new(&format!("{}/jcr:content", page_path(random.below(pages))))?;
        let mut session = repository.session("bench")?;
        let title = Property::text(format!("fresh{}", random.below(1_000_000)));
        session.set_property(&path, "jcr:title", title)?;
        let root = session.commit("save", SystemTime::now())?;
        if is_woken {
            index.wake_follower();
        }
        let begin = Instant::now();
        while index.indexed_root() != Some(root) {
            if begin.elapsed() > Duration::from_secs(60) {
                return Err("the index does not catch up".into());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(begin.elapsed().as_secs_f64() * 1000.0)
    };
    let mut alone = Vec::new();
    let mut woken = Vec::new();
    for _ in 0..CATCH_UPS {
        alone.push(once(false)?);
        woken.push(once(true)?);
    }
    let figure = |what: &str, mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        let at = |share: f64| {
            times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default()
        };
        let worst = times.last().copied().unwrap_or_default();
        Figure::value(ROW, what, at(0.95), "ms")
            .goal(Goal::AtMost(100.0))
            .note(format!("median {:.1} ms, worst {worst:.1} ms of {CATCH_UPS}", at(0.5)))
    };
    Ok([
        figure("catch-up after a commit, 95 of 100", alone),
        figure("catch-up after a commit that it is told of, 95 of 100", woken),
    ])
}

/// Loads pages and returns their texts.
fn load(repository: &Repository, pages: usize) -> Outcome<Vec<Text>> {
    let mut random = Random::new(7);
    let mut texts = Vec::with_capacity(pages);
    for section in 0..pages.div_ceil(PAGES_PER_SECTION) {
        let mut session = repository.session("bench")?;
        let first = section * PAGES_PER_SECTION;
        let parent = page_path(first);
        let parent = parent.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
        session.put_node(&NodePath::new(&parent)?, Subtree::new("", "sling:Folder"))?;
        for number in first..(first + PAGES_PER_SECTION).min(pages) {
            let title = words(&mut random, 5, number);
            let mut text =
                Text { path: page_path(number), title: title.clone(), texts: String::new() };
            let mut content = Subtree::new("jcr:content", "cq:PageContent")
                .with_property("sling:resourceType", Property::text("bench/components/page"))
                .with_property("jcr:title", Property::text(title));
            for number_of_text in 0..TEXTS {
                let words = words(&mut random, WORDS_PER_TEXT, number * TEXTS + number_of_text);
                text.texts.push_str(&words);
                text.texts.push('\n');
                content.put_child(
                    Subtree::new(format!("text{number_of_text}"), "nt:unstructured")
                        .with_property("text", Property::text(words)),
                );
            }
            let page = Subtree::new("", "cq:Page").with_child(content);
            session.put_node(&NodePath::new(&text.path)?, page)?;
            texts.push(text);
        }
        session.commit("load", SystemTime::UNIX_EPOCH)?;
    }
    Ok(texts)
}

fn page_path(number: usize) -> String {
    format!("/section{}/page{number}", number / PAGES_PER_SECTION)
}

/// Draws words: the rank of a word is about one over its frequency, and two stand in every text.
fn words(random: &mut Random, count: usize, number: usize) -> String {
    let mut text = format!("{} {}", word(0), word(1));
    if number.is_multiple_of(NARROW * TEXTS) && count > 5 {
        text.push_str(" narrow");
    }
    for _ in 2..count {
        let share = random.below(1_000_000) as f64 / 1e6;
        let rank = (WORDS as f64).powf(share) as usize;
        text.push(' ');
        text.push_str(&word(rank));
    }
    text
}

/// Returns the word of a rank: of about the length that words have, and no stem of another.
fn word(rank: usize) -> String {
    format!("w{rank:x}q")
}
