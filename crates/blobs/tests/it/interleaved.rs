//! Three repositories that store, refer, mark and sweep at the same time: whatever the order of their steps, nothing
//! that one of them refers to disappears.
//!
//! The code under test runs as it is, on a thread for each repository. Every access to the place is a step, and at each
//! a schedule says whose turn it is: a seed, or all schedules with few changes of turn. Each step takes an hour.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tympan_blobs::garbage_collection::{
    MarkWriter, StorageMember, SweepClock, SweepOptions, register_member, sweep_storage,
};
use tympan_blobs::{BlobContent, BlobId, ListedBlob, ReadBlobs, Result, WriteBlobs};

const HOUR: Duration = Duration::from_hours(1);
const GRACE: Duration = Duration::from_hours(24);
const WINDOW: Duration = Duration::from_hours(48);
const REPOSITORIES: usize = 3;
const NAMES: [&str; REPOSITORIES] = ["a", "b", "c"];

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// Whose turn it is. One thread runs at a time: the others wait at their next step.
#[derive(Default)]
struct Turnstile {
    state: Mutex<Turns>,
    changed: Condvar,
}

#[derive(Default)]
struct Turns {
    waiting: BTreeSet<usize>,
    live: usize,
    turn: Option<usize>,
}

impl Turnstile {
    /// Waits until it is this repository's turn to take a step.
    fn step(&self, who: usize) {
        let mut state = lock(&self.state);
        state.waiting.insert(who);
        self.changed.notify_all();
        while state.turn != Some(who) {
            state = self.changed.wait(state).unwrap();
        }
        state.turn = None;
        state.waiting.remove(&who);
    }

    fn end(&self) {
        lock(&self.state).live -= 1;
        self.changed.notify_all();
    }

    /// Waits until everybody stands at a step, and returns who does.
    fn settle(&self) -> Vec<usize> {
        let mut state = lock(&self.state);
        while state.turn.is_some() || state.waiting.len() < state.live {
            state = self.changed.wait(state).unwrap();
        }
        state.waiting.iter().copied().collect()
    }

    fn let_go(&self, who: usize) {
        lock(&self.state).turn = Some(who);
        self.changed.notify_all();
    }
}

/// How a place moves what it discards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// In one step, and the time goes with it.
    Folder,
    /// As a copy whose original is removed then; touches are objects of their own.
    Bucket,
}

/// How long a turn to sweep lasts: longer than anything here takes.
const TURN: Duration = Duration::from_hours(100_000);

/// What all repositories share.
struct World {
    kind: Kind,
    turn: Duration,
    turnstile: Turnstile,
    hours: AtomicU64,
    held: Mutex<Held>,
    /// What each repository refers to.
    refs: [Mutex<BTreeSet<BlobId>>; REPOSITORIES],
}

#[derive(Default)]
struct Held {
    live: BTreeMap<BlobId, SystemTime>,
    /// When what lies in a bucket was touched.
    touched: BTreeMap<BlobId, SystemTime>,
    trash: BTreeMap<BlobId, SystemTime>,
    notes: BTreeMap<String, (Bytes, SystemTime)>,
    purged: u64,
    restored: u64,
}

impl World {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + HOUR * u32::try_from(self.hours.load(Ordering::SeqCst)).unwrap()
    }

    /// Returns what is referred to and can no longer be read.
    fn lost(&self) -> Option<String> {
        let held = lock(&self.held);
        for (who, refs) in self.refs.iter().enumerate() {
            for id in lock(refs).iter() {
                if !held.live.contains_key(id) && !held.trash.contains_key(id) {
                    return Some(format!("repository {who} refers to {id}, which is gone"));
                }
            }
        }
        None
    }
}

/// The place as one repository sees it. Discarding and touching take their steps as a folder or a bucket takes them.
struct Place {
    world: Arc<World>,
    who: usize,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory")
    }
}

impl Place {
    fn step(&self) -> (MutexGuard<'_, Held>, SystemTime) {
        self.world.turnstile.step(self.who);
        self.world.hours.fetch_add(1, Ordering::SeqCst);
        (lock(&self.world.held), self.world.now())
    }
}

/// What a bucket does otherwise than a folder: each request is a step.
impl Place {
    fn touch_object(&self, id: &BlobId) -> bool {
        if !self.step().0.live.contains_key(id) {
            return false;
        }
        {
            let (mut held, now) = self.step();
            held.touched.insert(*id, now);
        }
        self.step().0.live.contains_key(id)
    }

    fn discard_object(&self, id: &BlobId, unused_since: SystemTime) -> bool {
        let is_old = |at: Option<SystemTime>| at.is_none_or(|at| at < unused_since);
        match self.step().0.live.get(id).copied() {
            put @ Some(_) if is_old(put) => {}
            _ => return false,
        }
        if !is_old(self.step().0.touched.get(id).copied()) {
            return false;
        }
        {
            let (mut held, now) = self.step();
            if !held.live.contains_key(id) {
                return false;
            }
            held.trash.insert(*id, now);
        }
        self.step().0.live.remove(id);
        if is_old(self.step().0.touched.get(id).copied()) {
            self.step().0.touched.remove(id);
            return true;
        }
        let (mut held, now) = self.step();
        // A copy of what is not there fails.
        if held.trash.contains_key(id) {
            held.live.insert(*id, now);
        }
        false
    }

    fn undelete_object(&self, id: &BlobId) -> bool {
        if !self.step().0.trash.contains_key(id) {
            return false;
        }
        if !self.step().0.live.contains_key(id) {
            let (mut held, now) = self.step();
            if !held.trash.contains_key(id) {
                return false;
            }
            held.live.insert(*id, now);
        }
        let (mut held, _) = self.step();
        held.restored += 1;
        held.trash.remove(id).is_some()
    }
}

impl ReadBlobs for Place {
    fn open(&self, _id: &BlobId) -> Result<Option<BlobContent>> {
        unreachable!("nothing here reads blobs")
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        Ok(self.step().0.live.contains_key(id))
    }

    fn list(&self, visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()> {
        let (listed, touched) = {
            let (held, _) = self.step();
            (held.live.clone(), held.touched.clone())
        };
        for (id, put) in listed {
            let modified = touched.get(&id).copied().unwrap_or(put).max(put);
            assert!(visit(ListedBlob { id, modified }).is_continue());
        }
        Ok(())
    }

    fn open_note(&self, name: &str) -> Result<Option<BlobContent>> {
        Ok(self.step().0.notes.get(name).map(|(bytes, _)| BlobContent::Bytes(bytes.clone())))
    }

    fn list_notes(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        let (held, _) = self.step();
        let notes = held.notes.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(notes.map(|(name, (_, at))| (name.clone(), *at)).collect())
    }
}

impl WriteBlobs for Place {
    fn put(&self, source: &mut dyn Read) -> Result<BlobId> {
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes).unwrap();
        let id = BlobId::hash_of(&bytes);
        if !self.touch(&id)? {
            let (mut held, now) = self.step();
            held.live.insert(id, now);
        }
        Ok(id)
    }

    fn put_named(&self, _id: &BlobId, _source: &mut dyn Read) -> Result<()> {
        unreachable!("nothing here sends blobs by name")
    }

    fn touch(&self, id: &BlobId) -> Result<bool> {
        if self.world.kind == Kind::Bucket {
            return Ok(self.touch_object(id));
        }
        {
            let (mut held, now) = self.step();
            match held.live.get_mut(id) {
                Some(modified) => *modified = now,
                None => return Ok(false),
            }
        }
        Ok(self.step().0.live.contains_key(id))
    }

    fn delete(&self, id: &BlobId) -> Result<bool> {
        Ok(self.step().0.live.remove(id).is_some())
    }

    fn discard(&self, id: &BlobId, unused_since: SystemTime) -> Result<bool> {
        if self.world.kind == Kind::Bucket {
            return Ok(self.discard_object(id, unused_since));
        }
        if self.step().0.live.get(id).is_none_or(|modified| *modified >= unused_since) {
            return Ok(false);
        }
        {
            let (mut held, _) = self.step();
            let Some(modified) = held.live.remove(id) else { return Ok(false) };
            held.trash.insert(*id, modified);
        }
        let (mut held, now) = self.step();
        match held.trash.get(id).copied() {
            Some(modified) if modified >= unused_since => {
                held.trash.remove(id);
                held.live.insert(*id, modified);
                Ok(false)
            }
            Some(_) => {
                held.trash.insert(*id, now);
                Ok(true)
            }
            None => Ok(true),
        }
    }

    fn undelete(&self, id: &BlobId) -> Result<bool> {
        if self.world.kind == Kind::Bucket {
            return Ok(self.undelete_object(id));
        }
        let (mut held, now) = self.step();
        let is_there = held.trash.remove(id).is_some();
        if is_there {
            held.live.insert(*id, now);
            held.restored += 1;
        }
        Ok(is_there)
    }

    fn list_trash(&self, visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()> {
        let listed = self.step().0.trash.clone();
        for (id, modified) in listed {
            assert!(visit(ListedBlob { id, modified }).is_continue());
        }
        Ok(())
    }

    fn purge(&self, id: &BlobId) -> Result<bool> {
        let (mut held, _) = self.step();
        held.purged += 1;
        Ok(held.trash.remove(id).is_some())
    }

    fn write_note(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (mut held, now) = self.step();
        held.notes.insert(name.to_owned(), (Bytes::copy_from_slice(bytes), now));
        Ok(())
    }

    fn create_note(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let (mut held, now) = self.step();
        if held.notes.contains_key(name) {
            return Ok(false);
        }
        held.notes.insert(name.to_owned(), (Bytes::copy_from_slice(bytes), now));
        Ok(true)
    }

    fn delete_note(&self, name: &str) -> Result<bool> {
        Ok(self.step().0.notes.remove(name).is_some())
    }
}

/// What a repository does, one after the other.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// Stores a blob and commits a reference to it.
    Refer(u8),
    /// Commits a reference without sending the bytes, as the receiver of an activation does.
    ReferNamed(u8),
    Drop(u8),
    Mark,
    Sweep,
    /// Lets an hour pass.
    Wait,
}

struct Repository {
    place: Place,
    member: StorageMember,
    turns: u32,
    scratch: std::path::PathBuf,
}

impl Repository {
    fn refs(&self) -> &Mutex<BTreeSet<BlobId>> {
        &self.place.world.refs[self.place.who]
    }

    /// Commits within the time in which it has to, else stores anew.
    fn refer(&self, blob: u8, store: impl Fn()) {
        loop {
            let began = self.place.world.now();
            store();
            if self.place.world.now() < began + GRACE {
                lock(self.refs()).insert(BlobId::hash_of(&[blob]));
                return;
            }
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Refer(blob) => self.refer(blob, || {
                self.place.put(&mut &[blob][..]).unwrap();
            }),
            Act::ReferNamed(blob) => self.refer(blob, || {
                if !self.place.touch(&BlobId::hash_of(&[blob])).unwrap() {
                    self.place.put(&mut &[blob][..]).unwrap();
                }
            }),
            Act::Drop(blob) => {
                lock(self.refs()).remove(&BlobId::hash_of(&[blob]));
            }
            Act::Mark => {
                let mut marks = MarkWriter::begin(self.place.world.now(), &self.scratch);
                // The look takes its time.
                self.place.world.turnstile.step(self.place.who);
                lock(self.refs()).iter().for_each(|id| marks.add(id).unwrap());
                self.turns += 1;
                marks
                    .publish(
                        &self.place,
                        &self.member,
                        &format!("t{}x{}", self.turns, self.place.who),
                    )
                    .unwrap();
            }
            Act::Wait => drop(self.place.step()),
            Act::Sweep => {
                let world = self.place.world.clone();
                let options = SweepOptions {
                    grace_period: GRACE,
                    trash_retention: WINDOW,
                    sweeper_name: Some(self.member.id.clone()),
                    lease_duration: world.turn,
                    clock: SweepClock::new(move || world.now()),
                    ..SweepOptions::with_defaults(self.place.world.now(), self.scratch.clone())
                };
                // It comes again while somebody else sweeps, but not for ever: a schedule may let nobody else go on.
                for _ in 0..10 {
                    let done =
                        sweep_storage(&self.place, &options, &mut || ControlFlow::Continue(()));
                    if done.unwrap().occupied_until.is_none() {
                        return;
                    }
                }
            }
        }
    }
}

/// What came of one schedule.
struct Outcome {
    lost: Option<String>,
    purged: u64,
    restored: u64,
    /// Who could have taken each step, and who did.
    steps: Vec<(Vec<usize>, usize)>,
}

/// Runs scripts to their end; `choose` says who takes the next step of those who wait.
fn run(
    scripts: &[Vec<Act>; REPOSITORIES],
    names: [&str; REPOSITORIES],
    scratch: &Path,
    choose: impl FnMut(usize, &[usize]) -> usize,
) -> Outcome {
    run_in((Kind::Folder, TURN), (scripts, names), scratch, choose)
}

/// Runs scripts in a place of some kind.
fn run_in(
    (kind, turn): (Kind, Duration),
    (scripts, names): (&[Vec<Act>; REPOSITORIES], [&str; REPOSITORIES]),
    scratch: &Path,
    mut choose: impl FnMut(usize, &[usize]) -> usize,
) -> Outcome {
    let world = Arc::new(World {
        kind,
        turn,
        turnstile: Turnstile::default(),
        hours: AtomicU64::new(1_000),
        held: Mutex::default(),
        refs: Default::default(),
    });
    lock(&world.turnstile.state).live = REPOSITORIES;
    let mut steps = Vec::new();
    let mut lost = None;
    std::thread::scope(|scope| {
        for (who, script) in scripts.iter().enumerate() {
            let place = Place { world: world.clone(), who };
            let member =
                StorageMember { id: names[who].to_owned(), name: format!("repository {who}") };
            let mut repository =
                Repository { place, member, turns: 0, scratch: scratch.to_owned() };
            scope.spawn(move || {
                let now = repository.place.world.now();
                register_member(&repository.place, &repository.member, now).unwrap();
                script.iter().for_each(|act| repository.act(*act));
                repository.place.world.turnstile.end();
            });
        }
        loop {
            let waiting = world.turnstile.settle();
            if waiting.is_empty() {
                break;
            }
            if lost.is_none() {
                lost = world.lost();
            }
            let who = choose(steps.len(), &waiting);
            steps.push((waiting, who));
            world.turnstile.let_go(who);
        }
    });
    let lost = lost.or_else(|| world.lost());
    let held = lock(&world.held);
    Outcome { lost, purged: held.purged, restored: held.restored, steps }
}

/// A sequence of numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

fn script(random: &mut Random) -> Vec<Act> {
    let mut acts: Vec<Act> = (0..8)
        .map(|_| {
            let blob = u8::try_from(random.below(3)).unwrap();
            match random.below(9) {
                0 | 1 => Act::Refer(blob),
                2 => Act::ReferNamed(blob),
                3 | 4 => Act::Drop(blob),
                5 | 6 => Act::Mark,
                _ => Act::Sweep,
            }
        })
        .collect();
    acts.extend([Act::Mark, Act::Sweep].repeat(3));
    acts
}

fn run_seeded(seed: u64, kind: Kind, scratch: &Path) -> Outcome {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let scripts = [script(&mut random), script(&mut random), script(&mut random)];
    let mut current = 0;
    run_in((kind, TURN), (&scripts, NAMES), scratch, |_, waiting| {
        // Mostly somebody goes on for a while, as in life.
        if !waiting.contains(&current) || random.below(4) == 0 {
            current = waiting[random.below(waiting.len())];
        }
        current
    })
}

/// How many orders are tried; `TYMPAN_INTERLEAVINGS` says another number.
fn orders() -> u64 {
    std::env::var("TYMPAN_INTERLEAVINGS").ok().and_then(|count| count.parse().ok()).unwrap_or(100)
}

fn check_orders(kind: Kind) {
    let dir = tempfile::tempdir().unwrap();
    let (mut purged, mut restored) = (0, 0);
    for seed in 1..=orders() {
        let outcome = run_seeded(seed, kind, dir.path());
        assert_eq!(outcome.lost, None, "{kind:?}, seed {seed}");
        purged += outcome.purged;
        restored += outcome.restored;
    }
    // Sweeps that never remove anything would lose nothing, too.
    assert!(purged > 0 && restored > 0, "{kind:?}: {purged} purged, {restored} restored");
}

#[test]
fn no_order_of_marks_and_sweeps_loses_what_someone_refers_to() {
    check_orders(Kind::Folder);
}

#[test]
fn no_order_loses_what_lies_in_a_bucket() {
    check_orders(Kind::Bucket);
}

/// Returns how many of the schedules lose a blob in which one repository discards it in a bucket, at any of its steps
/// another one begins to refer to it, and a third one sweeps meanwhile, up to any of its steps.
fn losses_of_two_sweepers(turn: Duration) -> usize {
    let dir = tempfile::tempdir().unwrap();
    // All have marked more than the grace after the blob was put and given up.
    let given_up =
        [&[Act::Refer(1), Act::Drop(1)][..], &[Act::Wait; 30], &[Act::Mark, Act::Mark]].concat();
    let begun = [given_up, vec![Act::Mark], vec![Act::Mark]];
    let ends = [vec![Act::Sweep], vec![Act::ReferNamed(1), Act::Mark], vec![Act::Sweep; 2]];
    let place = (Kind::Bucket, turn);
    let steps_of = |outcome: &Outcome| -> Vec<usize> {
        let by = |who| outcome.steps.iter().filter(|(_, one)| *one == who).count();
        (0..REPOSITORIES).map(by).collect()
    };
    let in_parts = |scripts: &[Vec<Act>; REPOSITORIES], parts: &[(usize, usize)]| {
        let mut parts = std::collections::VecDeque::from(parts.to_vec());
        run_in(place, (scripts, NAMES), dir.path(), |_, waiting| {
            while let Some((who, left)) = parts.front_mut() {
                if *left > 0 && waiting.contains(who) {
                    *left -= 1;
                    return *who;
                }
                parts.pop_front();
            }
            waiting[0]
        })
    };
    let before = steps_of(&in_parts(&begun, &[]));
    let first = [(0, before[0]), (1, before[1]), (2, before[2])];
    let scripts: [Vec<Act>; REPOSITORIES] =
        std::array::from_fn(|who| [&begun[who][..], &ends[who][..]].concat());
    let all = steps_of(&in_parts(&scripts, &first));
    let mut losses = 0;
    for discarding in 0..=all[0] - before[0] {
        for sweeping in 0..=all[2] - before[2] {
            let then = [(0, discarding), (1, usize::MAX), (2, sweeping), (0, usize::MAX)];
            let outcome = in_parts(&scripts, &[&first[..], &then].concat());
            losses += usize::from(outcome.lost.is_some());
        }
    }
    losses
}

#[test]
fn two_sweepers_of_a_bucket_take_turns() {
    assert_eq!(losses_of_two_sweepers(TURN), 0);
    // Without turns blobs are lost: that is noticed here.
    assert!(losses_of_two_sweepers(Duration::ZERO) > 0);
}

/// A home that was copied and kept its name: why copies have to take another one, and that a loss is noticed here.
#[test]
fn two_repositories_of_one_name_lose_blobs() {
    let dir = tempfile::tempdir().unwrap();
    let wait = [Act::Sweep; 8];
    let copy = [&wait[..], &[Act::Mark], &wait, &[Act::Mark], &wait].concat();
    let scripts = [vec![Act::Refer(1), Act::Mark], copy, Vec::new()];
    let outcome = run(&scripts, ["a", "a", "a"], dir.path(), |_, waiting| waiting[0]);
    assert!(outcome.lost.is_some(), "the marks of the copy stand in for those of the original");
}

/// One repository refers anew to what the others gave up, while another marks and sweeps, with the third one marking:
/// in all schedules with up to two changes of turn that nobody asked for.
#[test]
fn all_schedules_with_two_changes_of_turn() {
    let dir = tempfile::tempdir().unwrap();
    let scripts = [
        vec![Act::Refer(1), Act::Mark, Act::Drop(1), Act::Mark, Act::Sweep, Act::Sweep],
        vec![Act::Mark, Act::ReferNamed(1), Act::Mark],
        vec![Act::Mark],
    ];
    let mut schedules = vec![Vec::<(usize, usize)>::new()];
    let mut count = 0;
    while let Some(changes) = schedules.pop() {
        let mut current = 0;
        let outcome = run(&scripts, NAMES, dir.path(), |step, waiting| {
            let asked = changes.iter().find(|(at, _)| *at == step).map(|(_, who)| *who);
            let next = asked.unwrap_or(current);
            current = if waiting.contains(&next) { next } else { waiting[0] };
            current
        });
        assert_eq!(outcome.lost, None, "changes of turn: {changes:?}");
        count += 1;
        if changes.len() == 2 {
            continue;
        }
        let from = changes.last().map_or(0, |(at, _)| at + 1);
        for (at, (waiting, who)) in outcome.steps.iter().enumerate().skip(from) {
            let others = waiting.iter().filter(|other| *other != who);
            schedules.extend(others.map(|other| {
                let mut more = changes.clone();
                more.push((at, *other));
                more
            }));
        }
    }
    assert!(count > 1_000, "{count} schedules");
}
