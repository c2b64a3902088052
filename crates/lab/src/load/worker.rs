//! One thread of the engine.
//!
//! Sockets are registered once, edge-triggered; a timer of the kernel wakes the thread for the next due user or arrival,
//! because the whole milliseconds of `epoll_wait` would be a lag of the generator's own. Setting it is dear, above all in a
//! virtual machine, where it took half of the thread's time at 10,000 arrivals a second. So it is set only when nothing
//! else is to do and the next moment is farther off than it takes to fall asleep and wake up.
//!
//! A single arrival and its answer take five calls of the system: setting the timer, two waits, a write and a read. The
//! timer's own count is never read: setting it again clears it, and its event comes by an edge.
//!
//! An arrival without a free user waits for one look at what has come before a user is made for it, and one is made between
//! two looks. A connection takes as long as several exchanges, so that making one for each arrival that comes meanwhile
//! would need ever more of them: after a moment's delay the generator would open connections for all it is worth, while the
//! answers that free its users wait to be read. For the same reason few events are taken at a time while arrivals come.
//!
//! Lag counts to the moment at which a request is handed to the system, behind whatever else had its turn before.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, clock_gettime,
    timerfd_create, timerfd_settime,
};

use super::timer::{Timers, until};
use super::{Crowd, Schedule, Step, Turn, User};
use crate::net::{Attempt, Connection, Failure, Progress, Reply, Request};
use crate::record::Recorder;

/// Makes a user for an arrival; `None` when there may be no more.
pub(super) type Hire = Box<dyn FnMut() -> Option<Box<dyn User>> + Send>;

/// What one worker has to do.
pub(super) struct Duty {
    /// Users of the closed model and when they start, since the start of the run.
    pub(super) users: Vec<(Duration, Box<dyn User>)>,
    /// Arrivals of the open model.
    pub(super) arrivals: Option<(Schedule, Hire)>,
    /// When everyone is asked to finish.
    pub(super) stop_after: Option<Duration>,
    /// How long exchanges under way may still take then.
    pub(super) drain: Duration,
}

/// The event of the timer; connections count from 0.
const TIMER: u64 = u64::MAX;
/// Bytes read at once.
const BUFFER: usize = 64 * 1024;
/// What is due sooner is waited for awake: about what it costs to set a timer, fall asleep and wake up.
const AWAKE: Duration = Duration::from_micros(15);
/// Events taken at a time.
const EVENTS: usize = 256;
/// Events taken at a time while arrivals come: reading so many answers delays an arrival by a tenth of a millisecond.
const EVENTS_BESIDE_ARRIVALS: usize = 16;
/// How often waiting exchanges are compared with their time limits.
const LOOK_AT_LIMITS: Duration = Duration::from_millis(10);

struct Slot {
    user: Option<Box<dyn User>>,
    connections: Vec<usize>,
    /// Exchanges under way.
    running: usize,
    waiting: VecDeque<(usize, Request)>,
    /// Requests at a time to one host; else the number is for all hosts together.
    per_host: Option<usize>,
    replies: Vec<Option<Box<Reply>>>,
    due: Instant,
    is_timed: bool,
    /// When the next turn was to be, if a timer or the schedule said so.
    planned: Option<Instant>,
}

struct Place {
    connection: Connection,
    generation: u32,
    user: usize,
    /// Which of the user's requests is under way.
    request: usize,
    is_busy: bool,
}

pub(super) struct Worker {
    epoll: OwnedFd,
    clock: OwnedFd,
    armed: Option<Instant>,
    started: Instant,
    slots: Vec<Slot>,
    /// Users of the open model that wait for an arrival.
    free: Vec<usize>,
    /// Arrivals that wait for a user.
    queue: VecDeque<Instant>,
    /// Whether some of them waited already when the worker last looked at what had come.
    has_looked: bool,
    /// Whether there are as many users as there may be: then it is the target that arrivals wait for.
    is_full: bool,
    ready: VecDeque<usize>,
    timers: Timers,
    places: Vec<Option<Place>>,
    holes: Vec<usize>,
    generation: u32,
    busy: usize,
    /// Exchanges that have begun since the last look at events.
    begun: usize,
    has_limits: bool,
    next_look: Instant,
    next_arrival: Option<Instant>,
    duty: Duty,
    stop_at: Option<Instant>,
    give_up_at: Option<Instant>,
    alive: usize,
    buffer: Box<[u8]>,
    recorder: Recorder,
    crowd: Arc<Crowd>,
    #[cfg(test)]
    calls: Calls,
}

/// How often the system was asked.
#[cfg(test)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Calls {
    looks: u64,
    settings: u64,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("users", &self.slots.len()).finish_non_exhaustive()
    }
}

impl Worker {
    pub(super) fn new(
        started: Instant,
        duty: Duty,
        recorder: Recorder,
        crowd: Arc<Crowd>,
    ) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let clock = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        epoll::add(
            &epoll,
            &clock,
            epoll::EventData::new_u64(TIMER),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        Ok(Self {
            epoll,
            clock,
            armed: None,
            started,
            slots: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            has_looked: false,
            is_full: false,
            ready: VecDeque::new(),
            timers: Timers::default(),
            places: Vec::new(),
            holes: Vec::new(),
            generation: 0,
            busy: 0,
            begun: 0,
            has_limits: false,
            next_look: started,
            next_arrival: None,
            stop_at: duty.stop_after.map(|after| started + after),
            give_up_at: None,
            duty,
            alive: 0,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            recorder,
            crowd,
            #[cfg(test)]
            calls: Calls::default(),
        })
    }

    /// Works until every user has left.
    pub(super) fn run(mut self) -> rustix::io::Result<()> {
        for (start, user) in std::mem::take(&mut self.duty.users) {
            let due = self.started + start;
            let slot = self.add_user(user, due);
            self.set_timer(slot, due);
        }
        self.plan_arrival();
        let most = if self.duty.arrivals.is_some() { EVENTS_BESIDE_ARRIVALS } else { EVENTS };
        let mut events: Vec<epoll::Event> = Vec::with_capacity(most);
        loop {
            self.wake_due(Instant::now());
            self.give_turns();
            self.hire();
            let now = Instant::now();
            self.recorder.tick(now, self.crowd.active(), thread_cpu);
            self.look_at_ends(now);
            if self.is_over() {
                break;
            }
            self.wait(&mut events, now)?;
        }
        self.recorder.flush(self.crowd.active(), thread_cpu());
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.ready.is_empty()
            && self.alive == 0
            && self.next_arrival.is_none()
            && self.queue.is_empty()
    }

    fn add_user(&mut self, user: Box<dyn User>, due: Instant) -> usize {
        self.alive += 1;
        self.slots.push(Slot {
            user: Some(user),
            connections: Vec::new(),
            running: 0,
            waiting: VecDeque::new(),
            per_host: None,
            replies: Vec::new(),
            due,
            is_timed: false,
            planned: None,
        });
        self.slots.len() - 1
    }

    fn set_timer(&mut self, slot: usize, due: Instant) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.due = due;
            slot.is_timed = true;
        }
        self.timers.add(due, slot);
    }

    fn plan_arrival(&mut self) {
        let next = self.duty.arrivals.as_mut().and_then(|(schedule, _)| schedule.next());
        self.next_arrival = next.map(|at| self.started + at);
    }

    fn wake_due(&mut self, now: Instant) {
        while let Some((due, user)) = self.timers.take_due(now) {
            self.wake(user, due);
        }
        while let Some(due) = self.next_arrival
            && due <= now
        {
            self.plan_arrival();
            self.receive(due);
        }
        if self.next_arrival.is_none() && self.duty.arrivals.is_some() {
            for user in std::mem::take(&mut self.free) {
                self.leave(user);
            }
        }
    }

    fn wake(&mut self, user: usize, due: Instant) {
        let Some(slot) = self.slots.get_mut(user) else { return };
        if !slot.is_timed || slot.due != due {
            return;
        }
        slot.is_timed = false;
        slot.planned = Some(due);
        self.ready.push_back(user);
    }

    /// Gives an arrival to a user; without a free one it waits.
    fn receive(&mut self, due: Instant) {
        if let Some(user) = self.free.pop() {
            self.hand_over(user, due, Some(due));
            return self.ready.push_back(user);
        }
        if self.is_full {
            self.recorder.late();
        }
        self.queue.push_back(due);
    }

    /// Tells a user of its arrival; `planned` is the moment from which it is the generator who is late.
    fn hand_over(&mut self, user: usize, due: Instant, planned: Option<Instant>) {
        if let Some(slot) = self.slots.get_mut(user) {
            slot.due = due;
            slot.planned = planned;
        }
    }

    /// Reports whether an arrival waits that a new user could receive.
    fn wants_user(&self) -> bool {
        !self.is_full && !self.queue.is_empty()
    }

    /// Makes a user for the arrival that has waited longest, if no answer has freed one since.
    fn hire(&mut self) {
        if !self.has_looked || !self.wants_user() {
            return;
        }
        self.has_looked = false;
        let hired = self.duty.arrivals.as_mut().and_then(|(_, hire)| hire());
        match (hired, self.queue.front().copied()) {
            (Some(user), Some(due)) => {
                self.queue.pop_front();
                self.crowd.note_start();
                let user = self.add_user(user, due);
                self.hand_over(user, due, Some(due));
                self.give_turn(user);
            }
            _ => {
                self.is_full = true;
                self.queue.iter().for_each(|_| self.recorder.late());
            }
        }
    }

    fn give_turns(&mut self) {
        // Those who are ready again wait for the next turn: where connecting fails at once, that is everybody, for ever.
        for _ in 0..self.ready.len() {
            let Some(user) = self.ready.pop_front() else { return };
            self.give_turn(user);
        }
    }

    fn give_turn(&mut self, index: usize) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        let Some(mut user) = slot.user.take() else { return };
        let replies = slot.replies.drain(..).flatten().collect();
        let now = Instant::now();
        if let Some(planned) = slot.planned.take() {
            self.recorder.lag(now.saturating_duration_since(planned));
        }
        let mut turn = Turn {
            now,
            due: slot.due,
            replies,
            is_stopping: self.give_up_at.is_some(),
            recorder: &mut self.recorder,
            drops_connections: false,
        };
        let step = user.next(&mut turn);
        let (now, drops_connections) = (turn.now, turn.drops_connections);
        slot.user = Some(user);
        if drops_connections {
            for connection in std::mem::take(&mut slot.connections) {
                self.close(connection);
            }
        }
        self.take_step(index, step, now);
    }

    fn take_step(&mut self, index: usize, step: Step, now: Instant) {
        match step {
            Step::Fetch(request) => self.fetch_one(index, request),
            Step::FetchAll { requests, parallel } => self.fetch(index, requests, parallel.max(1)),
            Step::FetchHosts { requests, parallel } => {
                let all = requests.len();
                if let Some(slot) = self.slots.get_mut(index) {
                    slot.per_host = Some(parallel.max(1));
                }
                self.fetch(index, requests, all);
            }
            Step::Wait(due) => self.set_timer(index, due),
            Step::Again => self.ready.push_back(index),
            Step::Rest => self.rest(index, now),
            Step::End => self.leave(index),
        }
    }

    fn rest(&mut self, index: usize, now: Instant) {
        if self.duty.arrivals.is_none() {
            if let Some(slot) = self.slots.get_mut(index) {
                slot.due = now;
            }
            self.ready.push_back(index);
            return;
        }
        match self.queue.pop_front() {
            Some(due) => {
                // Where there may be no more users, it waited for the target's answers.
                let planned = (!self.is_full).then_some(due);
                self.hand_over(index, due, planned);
                self.ready.push_back(index);
            }
            None if self.next_arrival.is_none() => self.leave(index),
            None => self.free.push(index),
        }
    }

    fn leave(&mut self, index: usize) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        if slot.user.take().is_none() {
            return;
        }
        self.alive -= 1;
        for connection in std::mem::take(&mut slot.connections) {
            self.close(connection);
        }
        self.crowd.note_end();
    }

    fn fetch_one(&mut self, index: usize, request: Request) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        slot.replies.push(None);
        slot.running += 1;
        self.start(index, 0, (request, Attempt::First), Instant::now());
    }

    fn fetch(&mut self, index: usize, requests: Vec<Request>, parallel: usize) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        if requests.is_empty() {
            self.ready.push_back(index);
            return;
        }
        slot.replies.resize_with(requests.len(), || None);
        slot.waiting.extend(requests.into_iter().enumerate());
        for _ in 0..parallel {
            self.start_waiting(index);
        }
    }

    fn start_waiting(&mut self, index: usize) {
        let Some(place) = self.startable(index) else { return };
        let Some(slot) = self.slots.get_mut(index) else { return };
        let Some((number, request)) = slot.waiting.remove(place) else { return };
        slot.running += 1;
        self.start(index, number, (request, Attempt::First), Instant::now());
    }

    /// Returns the first waiting request whose host takes one more.
    fn startable(&self, index: usize) -> Option<usize> {
        let slot = self.slots.get(index)?;
        let Some(most) = slot.per_host else { return (!slot.waiting.is_empty()).then_some(0) };
        slot.waiting.iter().position(|(_, request)| {
            let busy = slot.connections.iter().filter(|&&place| {
                matches!(self.places.get(place), Some(Some(entry))
                    if entry.is_busy && entry.connection.leads_to(&request.target))
            });
            busy.count() < most
        })
    }

    fn start(
        &mut self,
        index: usize,
        number: usize,
        (request, attempt): (Request, Attempt),
        started: Instant,
    ) {
        self.has_limits |= request.connect_timeout.is_some() || request.response_timeout.is_some();
        let place = match self.idle_connection(index, &request) {
            Some(place) => place,
            None => match self.connect(index, &request) {
                Ok(place) => place,
                Err(failure) => return self.fail(index, number, failure, started),
            },
        };
        let Some(Some(entry)) = self.places.get_mut(place) else { return };
        entry.is_busy = true;
        entry.request = number;
        self.busy += 1;
        self.begun += 1;
        let progress = entry.connection.begin((request, attempt), started, &mut self.buffer);
        self.take_progress(place, progress);
    }

    fn idle_connection(&self, index: usize, request: &Request) -> Option<usize> {
        let slot = self.slots.get(index)?;
        slot.connections.iter().copied().find(|&place| {
            matches!(self.places.get(place), Some(Some(entry))
                if !entry.is_busy && entry.connection.leads_to(&request.target))
        })
    }

    fn connect(&mut self, index: usize, request: &Request) -> Result<usize, Failure> {
        let connection = Connection::open(&request.target)?;
        self.generation = self.generation.wrapping_add(1);
        let place = match self.holes.pop() {
            Some(place) => place,
            None => {
                self.places.push(None);
                self.places.len() - 1
            }
        };
        let data = (u64::from(self.generation) << 32) | place as u64;
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        let added =
            epoll::add(&self.epoll, connection.socket(), epoll::EventData::new_u64(data), flags);
        if added.is_err() {
            self.holes.push(place);
            return Err(Failure::Exhausted);
        }
        if let Some(entry) = self.places.get_mut(place) {
            let generation = self.generation;
            *entry =
                Some(Place { connection, generation, user: index, request: 0, is_busy: false });
        }
        if let Some(slot) = self.slots.get_mut(index) {
            slot.connections.push(place);
        }
        Ok(place)
    }

    fn fail(&mut self, index: usize, number: usize, failure: Failure, started: Instant) {
        let now = Instant::now();
        let reply = Box::new(Reply {
            started,
            connect: now.saturating_duration_since(started),
            first_byte: now,
            ended: now,
            sent: 0,
            received: 0,
            result: Err(failure),
            kept_alive: false,
            again: None,
        });
        self.deliver(index, number, reply);
    }

    fn take_progress(&mut self, place: usize, progress: Progress) {
        match progress {
            Progress::Pending => {}
            Progress::Dead => self.forget(place),
            Progress::Done(mut reply) => {
                let Some(Some(entry)) = self.places.get_mut(place) else { return };
                let (user, number) = (entry.user, entry.request);
                if entry.is_busy {
                    entry.is_busy = false;
                    self.busy -= 1;
                }
                if !reply.kept_alive {
                    self.forget(place);
                }
                match reply.again.take() {
                    Some((request, attempt)) => {
                        if attempt == Attempt::Repeated && reply.sent > 0 {
                            self.recorder.repeat();
                        }
                        self.start(user, number, (request, attempt), reply.started);
                    }
                    None => self.deliver(user, number, reply),
                }
            }
        }
    }

    fn deliver(&mut self, index: usize, number: usize, reply: Box<Reply>) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        slot.running = slot.running.saturating_sub(1);
        slot.due = reply.ended;
        if let Some(place) = slot.replies.get_mut(number) {
            *place = Some(reply);
        }
        if !slot.waiting.is_empty() {
            self.start_waiting(index);
        } else if slot.running == 0 {
            self.ready.push_back(index);
        }
    }

    /// Closes a connection and takes it from its user.
    fn forget(&mut self, place: usize) {
        if let Some(Some(entry)) = self.places.get(place)
            && let Some(slot) = self.slots.get_mut(entry.user)
        {
            slot.connections.retain(|&known| known != place);
        }
        self.close(place);
    }

    fn close(&mut self, place: usize) {
        if let Some(entry) = self.places.get_mut(place)
            && let Some(entry) = entry.take()
        {
            self.busy -= usize::from(entry.is_busy);
            self.holes.push(place);
        }
    }

    /// Returns when everyone is asked to finish. A schedule ends by itself at the same time; what of it is late is still
    /// sent, or it would be hidden.
    fn stop_moment(&self) -> Option<Instant> {
        let has_schedule = self.next_arrival.is_some() || !self.queue.is_empty();
        let grace = if has_schedule { self.duty.drain } else { Duration::ZERO };
        self.stop_at.map(|at| at + grace)
    }

    /// Ends what took too long, and the run when it is time.
    fn look_at_ends(&mut self, now: Instant) {
        let is_time = self.stop_moment().is_some_and(|at| now >= at) || self.crowd.is_stopping();
        if is_time && self.give_up_at.is_none() {
            self.give_up_at = Some(now + self.duty.drain);
            self.dismiss();
        }
        if self.give_up_at.is_some_and(|at| now >= at) && self.busy > 0 {
            self.end_exchanges(|_| Some(Failure::Unfinished));
        }
        if self.has_limits && now >= self.next_look {
            self.next_look = now + LOOK_AT_LIMITS;
            self.end_exchanges(|connection| connection.overdue(now));
        }
    }

    /// Lets everyone finish who waits.
    fn dismiss(&mut self) {
        let left = self.duty.arrivals.take().map_or(0, |(schedule, _)| schedule.count());
        let next = usize::from(self.next_arrival.take().is_some());
        self.recorder.unsent((left + next + self.queue.len()) as u64);
        self.queue.clear();
        for user in self.timers.take_all() {
            if let Some(slot) = self.slots.get_mut(user)
                && slot.is_timed
            {
                slot.is_timed = false;
                self.ready.push_back(user);
            }
        }
        for user in std::mem::take(&mut self.free) {
            self.leave(user);
        }
    }

    fn end_exchanges(&mut self, why: impl Fn(&Connection) -> Option<Failure>) {
        for place in 0..self.places.len() {
            let Some(Some(entry)) = self.places.get_mut(place) else { continue };
            if entry.is_busy
                && let Some(failure) = why(&entry.connection)
            {
                let progress = entry.connection.abandon(failure);
                self.take_progress(place, progress);
            }
        }
    }

    fn wait(&mut self, events: &mut Vec<epoll::Event>, now: Instant) -> rustix::io::Result<()> {
        let next = if self.ready.is_empty() { self.next_moment() } else { None };
        let is_armed = next.is_none() || self.armed == next;
        let has_time = |next: Instant| next.saturating_duration_since(now) > AWAKE;
        let may_sleep = self.ready.is_empty() && !self.wants_user() && next.is_none_or(has_time);
        // Something may have come that makes setting the timer needless, but hardly where all that is under way was sent
        // since the last look.
        let may_have_come = self.busy > self.begun;
        if !may_sleep || (!is_armed && may_have_come) {
            self.look(events, Duration::ZERO)?;
        }
        if may_sleep && events.is_empty() {
            if let Some(next) = next.filter(|_| !is_armed) {
                self.arm(next)?;
            }
            // Once in a while in any case: seconds are handed over, and another worker may have asked to stop.
            self.look(events, Duration::from_millis(50))?;
        }
        for event in events.drain(..) {
            let data = event.data.u64();
            if data == TIMER {
                self.armed = None;
                continue;
            }
            let place = usize::try_from(data & 0xFFFF_FFFF).unwrap_or(usize::MAX);
            let Some(Some(entry)) = self.places.get_mut(place) else { continue };
            // An event of this batch may be older than the connection that now has its place.
            if u64::from(entry.generation) != data >> 32 {
                continue;
            }
            let progress = entry.connection.ready(&mut self.buffer);
            self.take_progress(place, progress);
        }
        Ok(())
    }

    /// Waits for events, at most so long.
    fn look(
        &mut self,
        events: &mut Vec<epoll::Event>,
        at_most: Duration,
    ) -> rustix::io::Result<()> {
        self.begun = 0;
        self.has_looked = self.wants_user();
        #[cfg(test)]
        {
            self.calls.looks += 1;
        }
        let at_most = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&at_most)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the next moment at which there is something to do whatever the sockets say.
    fn next_moment(&self) -> Option<Instant> {
        let look = (self.has_limits && self.busy > 0).then_some(self.next_look);
        let give_up = self.give_up_at.or_else(|| self.stop_moment());
        [self.timers.next(), self.next_arrival, look, give_up].into_iter().flatten().min()
    }

    /// Sets the kernel's timer.
    fn arm(&mut self, next: Instant) -> rustix::io::Result<()> {
        let wait = until(next, Instant::now());
        let timer = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            },
        };
        timerfd_settime(&self.clock, TimerfdTimerFlags::empty(), &timer)?;
        self.armed = Some(next);
        #[cfg(test)]
        {
            self.calls.settings += 1;
        }
        Ok(())
    }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(stop_after: Duration, drain: Duration) -> Worker {
        let (sender, _) = std::sync::mpsc::channel();
        let started = Instant::now();
        let duty = Duty { users: Vec::new(), arrivals: None, stop_after: Some(stop_after), drain };
        let recorder = Recorder::new(0, started, sender, None);
        Worker::new(started, duty, recorder, Arc::default()).unwrap()
    }

    #[test]
    fn what_is_late_is_waited_for_asleep() {
        let (stop_after, drain) = (Duration::from_secs(1), Duration::from_secs(5));
        let mut worker = worker(stop_after, drain);
        assert_eq!(worker.next_moment(), Some(worker.started + stop_after));
        worker.queue.push_back(worker.started);
        assert_eq!(worker.next_moment(), Some(worker.started + stop_after + drain));
    }

    /// The moment that the timer was set for may pass while the worker is at other things.
    #[test]
    fn a_worker_hears_what_comes_also_after_the_moment_it_was_to_wake() {
        let mut worker = worker(Duration::ZERO, Duration::ZERO);
        let moment = worker.next_moment().unwrap();
        worker.arm(moment).unwrap();
        // The timer's own event stands for those of sockets; it comes a nanosecond after the timer was set.
        let mut waits = 0..1_000_000;
        while worker.armed.is_some() && waits.next().is_some() {
            worker.wait(&mut Vec::with_capacity(8), Instant::now()).unwrap();
        }
        assert_eq!(worker.armed, None);
    }

    /// Nothing reads the timer's count between two settings, and each of them is heard.
    #[test]
    fn a_timer_that_is_set_again_is_heard_again() {
        let mut worker = worker(Duration::from_secs(600), Duration::ZERO);
        for round in 1..=3 {
            worker.arm(Instant::now()).unwrap();
            let mut looks = 0..1000;
            while worker.armed.is_some() && looks.next().is_some() {
                let mut events = Vec::with_capacity(8);
                worker.look(&mut events, Duration::from_secs(10)).unwrap();
                if events.iter().any(|event| event.data.u64() == TIMER) {
                    worker.armed = None;
                }
            }
            assert_eq!(worker.armed, None, "round {round}");
        }
    }

    /// A target that takes connections and never answers, and a request for it.
    fn silent() -> (std::net::TcpListener, Request) {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let request = Request {
            target: crate::net::Target::resolve(false, "127.0.0.1", port).unwrap(),
            bytes: b"GET / HTTP/1.1\r\n\r\n"[..].into(),
            is_head: false,
            keep: crate::net::Keep::Nothing,
            keep_alive: true,
            connect_timeout: None,
            response_timeout: None,
        };
        (listener, request)
    }

    const HOUR: Duration = Duration::from_secs(3600);

    /// A worker of the open model that may have so many users, whom each arrival keeps for an hour.
    struct Open {
        worker: Worker,
        told: std::sync::mpsc::Receiver<crate::record::Interval>,
    }

    #[derive(Debug)]
    struct Slow;

    impl User for Slow {
        fn next(&mut self, turn: &mut Turn<'_>) -> Step {
            Step::Wait(turn.now + HOUR)
        }
    }

    impl Open {
        fn new(mut users: usize) -> Self {
            let (sender, told) = std::sync::mpsc::channel();
            let started = Instant::now();
            let hire: Hire = Box::new(move || {
                users = users.checked_sub(1)?;
                Some(Box::new(Slow))
            });
            let schedule = Schedule::new(crate::load::Process::Uniform, 1.0, HOUR, 0);
            let duty = Duty {
                users: Vec::new(),
                arrivals: Some((schedule, hire)),
                stop_after: None,
                drain: HOUR,
            };
            let recorder = Recorder::new(0, started, sender, None);
            let mut worker = Worker::new(started, duty, recorder, Arc::default()).unwrap();
            worker.next_arrival = Some(started + HOUR);
            Self { worker, told }
        }

        fn arrive(&mut self) {
            self.worker.receive(self.worker.started);
            self.worker.give_turns();
        }

        /// Looks at what has come, which is nothing.
        fn look(&mut self) {
            self.worker.look(&mut Vec::with_capacity(8), Duration::ZERO).unwrap();
        }

        /// Lets the first user have its answer.
        fn answer(&mut self) {
            self.worker.rest(0, self.worker.started);
            self.worker.give_turns();
        }

        /// Returns how many users there are, and how many arrivals wait.
        fn counts(&self) -> (usize, usize) {
            (self.worker.slots.len(), self.worker.queue.len())
        }

        /// Returns how many lags and how many late arrivals were noted since the last call.
        fn noted(&mut self) -> (u64, u64) {
            self.worker.recorder.flush(0, Duration::ZERO);
            let interval = self.told.try_recv().unwrap();
            (interval.lag.count(), interval.late)
        }
    }

    #[test]
    fn a_user_is_made_only_for_an_arrival_that_no_answer_gave_one_to() {
        let mut open = Open::new(9);
        open.arrive();
        open.arrive();
        open.worker.hire();
        assert_eq!(open.counts(), (0, 2), "answers may wait to be read");
        open.look();
        open.worker.hire();
        open.worker.hire();
        assert_eq!(open.counts(), (1, 1), "one between two looks");
        open.arrive();
        open.answer();
        assert_eq!(open.counts(), (1, 1), "the user that is free takes who has waited longest");
        open.look();
        open.worker.hire();
        assert_eq!(open.counts(), (2, 0));
        assert_eq!(open.noted(), (3, 0), "each is sent once, and how late it was is noted");
    }

    #[test]
    fn a_wait_for_the_target_is_no_lag_of_the_generator() {
        let mut open = Open::new(1);
        open.arrive();
        open.look();
        open.worker.hire();
        open.arrive();
        open.arrive();
        assert_eq!(open.noted(), (1, 0), "it is not known yet that there may be no more users");
        open.look();
        open.worker.hire();
        open.arrive();
        assert_eq!((open.counts(), open.noted()), ((1, 3), (0, 3)));
        assert!(!open.worker.wants_user(), "or it would never sleep");
        (0..4).for_each(|_| open.answer());
        assert_eq!((open.counts(), open.noted()), ((1, 0), (0, 0)));
        // What finds a free user is the generator's business still.
        open.arrive();
        assert_eq!((open.counts(), open.noted()), ((1, 0), (1, 0)));
    }

    #[derive(Debug)]
    struct Nobody;

    impl User for Nobody {
        fn next(&mut self, _: &mut Turn<'_>) -> Step {
            Step::Rest
        }
    }

    /// What the system is asked before the thread sleeps until the next arrival.
    #[test]
    fn nothing_is_looked_for_where_nothing_can_have_come() {
        let (_listener, request) = silent();
        let hour = Duration::from_secs(3600);
        let mut worker = worker(hour, Duration::ZERO);
        let calls = |worker: &mut Worker| {
            worker.calls = Calls::default();
            // Of two waits the first may end by what connecting tells.
            worker.wait(&mut Vec::with_capacity(8), Instant::now()).unwrap();
            worker.calls
        };
        let user = worker.add_user(Box::new(Nobody), worker.started);
        worker.fetch_one(user, request.clone());
        assert_eq!((worker.busy, worker.begun), (1, 1));
        let (looks, settings) = (1, 1);
        assert_eq!(calls(&mut worker), Calls { looks, settings });
        // The timer stands: it is not set again, and one look is enough.
        assert_eq!(calls(&mut worker), Calls { looks, settings: 0 });
        // Another moment, and an answer that may have come: a look tells whether to sleep at all.
        worker.next_arrival = Some(worker.started + hour / 2);
        assert_eq!((worker.busy, worker.begun), (1, 0));
        assert_eq!(calls(&mut worker), Calls { looks: 2, settings });
    }
}
