//! Conditions on words beside others, by an index that knows words in the plural.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tympan_content::{ChunkId, JCR_CONTENT, NodePath, Repository, Subtree, Value};
use tympan_content_query::{
    FullTextExpression, FullTextHit, FullTextIndex, FullTextIndexStatus, FullTextPage,
    FullTextRequest, QueryEngine, QueryRequest, ReadableTextFn, Result, parse_sql2,
};

use crate::test_session::{commit, path};

/// An index of pages. Of a word and what has an `s` behind it, it makes no difference.
#[derive(Debug, Clone)]
struct Plural {
    root: ChunkId,
    /// Path, words, and the names of properties with words.
    documents: Vec<(NodePath, Vec<String>, Vec<String>)>,
    searches: Arc<AtomicU64>,
    is_built: bool,
}

fn stem(word: &str) -> String {
    word.trim_end_matches('s').to_lowercase()
}

fn gather(node: &Subtree, words: &mut Vec<String>, names: &mut Vec<String>) {
    for (name, property) in &node.properties {
        for value in property.values() {
            if let Value::String(text) = value {
                words.extend(text.split(' ').map(stem));
                names.push(name.clone());
            }
        }
    }
    node.children.iter().for_each(|child| gather(child, words, names));
}

impl Plural {
    fn of(repository: &Repository) -> Self {
        let snapshot = repository.snapshot().unwrap();
        let site = snapshot.read_subtree(&path("/content")).unwrap().unwrap();
        let documents = site.children.iter().map(|page| {
            let (mut words, mut names) = (Vec::new(), Vec::new());
            gather(page, &mut words, &mut names);
            (path(&format!("/content/{}", page.name)), words, names)
        });
        let documents = documents.collect();
        Self { root: snapshot.root_id(), documents, searches: Arc::default(), is_built: true }
    }
}

impl FullTextIndex for Plural {
    fn search(&self, request: &FullTextRequest) -> Result<FullTextPage> {
        self.searches.fetch_add(1, Ordering::Relaxed);
        let FullTextExpression::Term(word) = &request.expression else {
            panic!("one word is asked")
        };
        let matches = |(path, words, names): &&(NodePath, Vec<String>, Vec<String>)| {
            words.contains(&stem(word))
                && request.ancestor.as_ref().is_none_or(|below| path.is_within(below))
                && request.property.as_ref().is_none_or(|name| names.contains(name))
        };
        let mut hits: Vec<FullTextHit> = self
            .documents
            .iter()
            .filter(matches)
            .map(|(path, words, _)| FullTextHit {
                path: path.clone(),
                score: words.len() as f32,
                excerpt: Some(format!("of {path}")),
            })
            .collect();
        hits.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.path.cmp(&b.path)));
        let estimate = hits.len() as u64;
        if let Some(after) = &request.after {
            hits.retain(|hit| {
                hit.score < after.score || (hit.score == after.score && hit.path > after.path)
            });
        }
        hits.truncate(request.limit);
        Ok(FullTextPage {
            hits,
            facets: Vec::new(),
            estimated_total: estimate,
            indexed_root: self.root,
        })
    }

    fn suggest(&self, _: &str, _: usize, _: Option<ReadableTextFn<'_>>) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn spellcheck(&self, _: &str, _: usize, _: Option<ReadableTextFn<'_>>) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn indexed_root(&self) -> Option<ChunkId> {
        Some(self.root)
    }

    fn pinned_state(&self) -> Option<Arc<dyn FullTextIndex>> {
        self.is_built.then(|| Arc::new(self.clone()) as Arc<dyn FullTextIndex>)
    }

    fn covers(&self, path: &NodePath) -> bool {
        !path.as_str().starts_with("/tmp")
    }

    fn has_property(&self, property: &str) -> Result<bool> {
        Ok(self.documents.iter().any(|(_, _, names)| names.iter().any(|name| name == property)))
    }
}

/// 300 pages with `boats`, of which three have a template of their own; every third has some words more.
fn site() -> Repository {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let mut site = Subtree::new("content", "sling:Folder");
    for number in 0..300 {
        let text = if number % 3 == 0 { "red boats at sea" } else { "boats" };
        let template = if number % 100 == 7 { "/conf/rare" } else { "/conf/usual" };
        let mut content = Subtree::new(JCR_CONTENT, "cq:PageContent")
            .with_property("cq:template", template)
            .with_property("text", text);
        if number == 5 {
            content.properties.remove("text");
            let child = Subtree::new("text", "nt:unstructured").with_property("words", "an anchor");
            content = content.with_child(child);
        }
        if number == 6 {
            content = content.with_property("text", "anchor chain");
        }
        site.put_child(Subtree::new(format!("p{number}"), "cq:Page").with_child(content));
    }
    session.put_node(&path("/content"), site).unwrap();
    let content = Subtree::new(JCR_CONTENT, "cq:PageContent")
        .with_property("cq:template", "/conf/rare")
        .with_property("text", "boat");
    let outside = Subtree::new("tmp", "sling:Folder")
        .with_child(Subtree::new("out", "cq:Page").with_child(content));
    session.put_node(&path("/tmp"), outside).unwrap();
    commit(&mut session);
    repository.build_indexes().unwrap();
    repository
}

fn engine(repository: &Repository) -> (QueryEngine, Arc<AtomicU64>) {
    let engine = QueryEngine::default();
    let index = Plural::of(repository);
    let searches = index.searches.clone();
    engine.set_full_text_index(Arc::new(index));
    (engine, searches)
}

/// Returns the plan of a statement and its rows with their scores, read in pages of `limit`.
fn run(repository: &Repository, statement: &str, limit: Option<u64>) -> (String, Vec<String>) {
    let (engine, _) = engine(repository);
    let snapshot = repository.snapshot().unwrap();
    let query = parse_sql2(statement).unwrap();
    let mut request = QueryRequest { limit, ..QueryRequest::new(query) };
    let explanation = engine.explain(&snapshot, &request, false).unwrap();
    let mut rows = Vec::new();
    loop {
        let page = engine.query_page(&snapshot, &request).unwrap();
        rows.extend(page.rows.iter().map(|row| {
            let excerpt = row.excerpt.as_deref().unwrap_or("-");
            format!("{} {} {excerpt}", row.node().unwrap().path().name(), row.score)
        }));
        request.cursor = page.cursor;
        if request.cursor.is_none() {
            return (explanation.steps[0].index.clone(), rows);
        }
    }
}

#[test]
fn a_rare_value_is_looked_up_in_its_index_and_then_in_the_full_text() {
    let repository = site();
    let rare = "SELECT [rep:excerpt(.)] FROM [cq:Page] AS a WHERE CONTAINS(a.*, 'boat') AND [jcr:content/cq:template] = '/conf/rare'";
    let expected = ["p107 4 of /content/p107", "p207 7 of /content/p207", "p7 4 of /content/p7"];
    for limit in [None, Some(1), Some(2)] {
        let (plan, rows) = run(&repository, rare, limit);
        assert!(plan.starts_with("property cqTemplate"), "{limit:?}: {plan}");
        assert!(plan.ends_with("each looked up in the full text"), "{limit:?}: {plan}");
        let mut rows = rows;
        rows.sort();
        assert_eq!(rows, expected, "{limit:?}");
    }
    // The same rows, and in the order of scores where that is wanted.
    let by_score = format!("{rare} ORDER BY [jcr:score] DESC");
    for limit in [None, Some(1)] {
        let (_, rows) = run(&repository, &by_score, limit);
        assert_eq!(rows, [expected[1], expected[0], expected[2]], "{limit:?}");
    }
}

#[test]
fn a_frequent_value_and_a_rare_word_begin_with_the_word() {
    let repository = site();
    let statement = "SELECT * FROM [cq:Page] AS a WHERE CONTAINS(a.*, 'anchor') AND [jcr:content/cq:template] = '/conf/usual'";
    let (plan, rows) = run(&repository, statement, None);
    assert_eq!((&*plan, rows.len()), ("full text", 2));
}

#[test]
fn a_union_gives_a_row_once_that_only_a_stem_has_found() {
    let repository = site();
    for order in ["", " ORDER BY [jcr:path]", " ORDER BY [jcr:score] DESC"] {
        let parts = [
            "SELECT * FROM [cq:Page] AS a WHERE CONTAINS(a.*, 'boat')",
            "SELECT * FROM [cq:Page] AS a WHERE [jcr:content/cq:template] = '/conf/rare'",
        ];
        for [first, second] in [[0, 1], [1, 0]] {
            let statement = format!("{} UNION {}{order}", parts[first], parts[second]);
            for limit in [None, Some(7)] {
                let (_, mut rows) = run(&repository, &statement, limit);
                let count = rows.len();
                rows.sort();
                rows.dedup_by_key(|row| row.split(' ').next().unwrap().to_owned());
                // All pages but the two without the word, and the one that the index does not cover.
                assert_eq!((count, rows.len()), (299, 299), "{statement} {limit:?}");
            }
        }
    }
}

#[test]
fn a_name_of_properties_and_of_nodes_finds_the_words_of_both() {
    let repository = site();
    let statement = "SELECT * FROM [cq:PageContent] AS a WHERE CONTAINS(a.[text], 'anchor')";
    let (plan, rows) = run(&repository, statement, None);
    assert_eq!((&*plan, rows.len()), ("full text", 2), "{rows:?}");
}

#[test]
fn a_page_tells_whether_the_index_had_the_state_that_was_asked() {
    let repository = site();
    let (with, without) = (engine(&repository).0, QueryEngine::default());
    let building = QueryEngine::default();
    building.set_full_text_index(Arc::new(Plural { is_built: false, ..Plural::of(&repository) }));
    let before = repository.snapshot().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.set_property(&path("/tmp"), "note", "out of the index".into()).unwrap();
    commit(&mut session);
    let beside = repository.snapshot().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.set_property(&path("/content/p1/jcr:content"), "text", "boats".into()).unwrap();
    session.set_property(&path("/content/p1/jcr:content"), "note", "boats".into()).unwrap();
    commit(&mut session);
    let after = repository.snapshot().unwrap();
    let words = "SELECT * FROM [cq:Page] AS a WHERE CONTAINS(a.*, 'boat')";
    let values = "SELECT * FROM [cq:Page] AS a WHERE [jcr:content/cq:template] = '/conf/rare'";
    for (engine, snapshot, statement, expected) in [
        (&with, &before, words, FullTextIndexStatus::Current),
        (&with, &beside, words, FullTextIndexStatus::Current),
        (&with, &after, words, FullTextIndexStatus::Stale),
        (&with, &after, values, FullTextIndexStatus::Unused),
        (&without, &after, words, FullTextIndexStatus::Unused),
        (&building, &after, words, FullTextIndexStatus::Building),
        (&building, &after, values, FullTextIndexStatus::Unused),
    ] {
        let request = QueryRequest::new(parse_sql2(statement).unwrap());
        let page = engine.query_page(snapshot, &request).unwrap();
        assert_eq!(page.full_text_status, expected, "{statement}");
        assert!(!page.rows.is_empty());
    }
}
