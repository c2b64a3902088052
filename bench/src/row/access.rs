//! C4: what access control costs for each node, with 1,000 policies.
//!
//! Pages lie in sections of ten; each of 1,000 sections has a policy of four entries, for users and groups that the
//! viewer is and is not; every fourth has restrictions. A decision is timed alone, for nodes in random order; and listings
//! are timed side by side for the viewer and for the program itself, so that the difference is what the door adds.

use std::hint::black_box;
use std::time::SystemTime;

use tympan_content::{NodePath, Property, Repository, Subtree, Value, ValueType, Viewer};

use crate::alternate::{Spread, alternate};
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::random::Random;
use crate::{Outcome, cpu};

const ROW: &str = "C4";
/// Sections, each with a policy.
const POLICIES: usize = 1_000;
/// Pages in a section.
const PAGES: usize = 10;
/// Decisions between two readings of the clock.
const TURN: usize = 200_000;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let pairs = context.pairs();
    let repository = Repository::in_memory()?;
    build(&repository)?;
    let viewer = tympan_content::Viewer::of_user(Some("ann"));
    let mut figures = vec![decisions(&repository, &viewer, pairs)?];
    figures.push(listings(&repository, &viewer, pairs)?);
    figures.extend(commits(&repository, &viewer, pairs)?);
    Ok(figures)
}

fn build(repository: &Repository) -> Outcome<()> {
    repository.install_initial_policies(SystemTime::UNIX_EPOCH)?;
    let mut session = repository.session("system")?;
    session.accounts().add_user("ann", "no password")?;
    for group in ["red", "blue", "green"] {
        session.accounts().add_group(group)?;
    }
    session.accounts().add_member("red", "ann")?;
    session.accounts().add_member("blue", "red")?;
    let mut content = Subtree::new("content", "sling:Folder");
    for section in 0..POLICIES {
        let mut folder =
            Subtree::new(format!("s{section}"), "cq:Page").with_child(policy(section)?);
        for page in 0..PAGES {
            let content = Subtree::new("jcr:content", "nt:unstructured")
                .with_property("jcr:title", Property::text(format!("Page {page}")));
            folder.put_child(Subtree::new(format!("p{page}"), "cq:Page").with_child(content));
        }
        content.put_child(folder);
    }
    session.put_node(&NodePath::new("/content")?, content)?;
    session.commit("build", SystemTime::UNIX_EPOCH)?;
    Ok(())
}

/// Makes the policy of a section: visible to `ann` in all sections but every tenth.
fn policy(section: usize) -> Outcome<Subtree> {
    let kind = if section.is_multiple_of(10) { "rep:DenyACE" } else { "rep:GrantACE" };
    let entries = [
        ("everyone", "rep:GrantACE"),
        ("blue", kind),
        ("green", "rep:DenyACE"),
        ("bob", "rep:DenyACE"),
    ];
    let mut policy = Subtree::new("rep:policy", "rep:ACL");
    for (number, (principal, kind)) in entries.into_iter().enumerate() {
        let mut entry = Subtree::new(format!("entry{number}"), kind)
            .with_property("rep:principalName", Property::text(principal))
            .with_property("rep:privileges", Property::parse_list(ValueType::Name, ["jcr:read"])?);
        if section.is_multiple_of(4) {
            let glob = Property::text("/*p*");
            entry = entry.with_child(
                Subtree::new("rep:restrictions", "rep:Restrictions")
                    .with_property("rep:glob", glob),
            );
        }
        policy.put_child(entry);
    }
    Ok(policy)
}

/// Times decisions for nodes in random order.
fn decisions(repository: &Repository, viewer: &Viewer, pairs: usize) -> Outcome<Figure> {
    let mut random = Random::new(4);
    let paths: Vec<NodePath> = (0..TURN / 10)
        .map(|_| {
            let (section, page) = (random.below(POLICIES), random.below(PAGES));
            NodePath::new(&format!("/content/s{section}/p{page}/jcr:content"))
        })
        .collect::<Result<_, _>>()?;
    let seen = repository.snapshot()?.as_viewer(viewer);
    let turn = || -> Outcome<f64> {
        let (count, seconds) = cpu::spent(|| {
            let rounds = (0..10).flat_map(|_| &paths);
            rounds.filter(|path| seen.can_see(black_box(path), "nt:unstructured")).count()
        });
        if count == 0 || count == TURN {
            return Err("the policies decide nothing".into());
        }
        Ok(seconds * 1e9 / TURN as f64)
    };
    let [times] = alternate(pairs, [&mut || turn()])?;
    let spread = Spread::of(times);
    let what = format!("decision about a node, {POLICIES} policies, CPU");
    Ok(Figure::spread(ROW, what, &spread, "ns").goal(Goal::AtMost(200.0)))
}

/// Times listings of all sections for a viewer and for the program itself.
fn listings(repository: &Repository, viewer: &Viewer, pairs: usize) -> Outcome<Figure> {
    let whole = repository.snapshot()?;
    let seen = whole.as_viewer(viewer);
    let turn = |snapshot: &tympan_content::Snapshot| -> Outcome<f64> {
        let root = snapshot.node(&NodePath::new("/content")?)?.ok_or("no content")?;
        let (nodes, seconds) = cpu::spent(|| root.listed_descendants());
        let nodes = nodes?.len();
        Ok(seconds * 1e9 / (POLICIES * (PAGES + 2)).max(nodes) as f64)
    };
    let sides = alternate(pairs, [&mut || turn(&seen), &mut || turn(&whole)])?;
    let [with, without] = sides.map(Spread::of);
    let added = (with.median - without.median).max(0.0);
    let note = format!("{:.0} ns with the door, {:.0} ns without", with.median, without.median);
    let figure =
        Figure::value(ROW, "a node of a deep listing: what the door adds, CPU", added, "ns");
    Ok(figure.goal(Goal::AtMost(200.0)).note(note))
}

/// Times the first look after a commit that changed no policy, and after one that changed one.
fn commits(repository: &Repository, viewer: &Viewer, pairs: usize) -> Outcome<[Figure; 2]> {
    let mut number = 0;
    let mut turn = |changes_policy: bool| -> Outcome<f64> {
        number += 1;
        let mut session = repository.session("system")?;
        if changes_policy {
            let path = NodePath::new(&format!("/content/s{}/rep:policy", number % POLICIES))?;
            session.put_node(&path, policy(number)?)?;
        } else {
            let path = NodePath::new(&format!("/content/s{}/p0/jcr:content", number % POLICIES))?;
            session.set_property(&path, "number", Value::Long(number as i64).into())?;
        }
        session.commit("change", SystemTime::UNIX_EPOCH)?;
        let snapshot = repository.snapshot()?;
        let (seen, seconds) = cpu::spent(|| snapshot.as_viewer(viewer));
        black_box(seen);
        Ok(seconds * 1e6)
    };
    let [other] = alternate(pairs, [&mut || turn(false)])?.map(Spread::of);
    let [policy] = alternate(pairs, [&mut || turn(true)])?.map(Spread::of);
    Ok([
        Figure::spread(ROW, "first look after a commit without policies, CPU", &other, "us"),
        Figure::spread(ROW, "first look after a commit of a policy, CPU", &policy, "us"),
    ])
}
