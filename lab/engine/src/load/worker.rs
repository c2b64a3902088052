//! One thread of the engine.
//!
//! Sockets are registered once, edge-triggered. A kernel timer wakes the thread for the next due user or arrival,
//! because the millisecond resolution of `epoll_wait` would add lag of the generator's own. Setting the timer is
//! expensive, above all in a virtual machine, where it took half of the thread's time at 10,000 arrivals a second.
//! Therefore the timer is set only when nothing else is to do and the next deadline is farther away than the time to
//! fall asleep and wake up.
//!
//! A single arrival and its response take five system calls: setting the timer, two waits, a write and a read. The
//! timer's own count is never read: setting it again clears it, and its event is edge-triggered.
//!
//! An arrival without a free user waits for one poll of events before a user is created for it, and one user is created
//! between two polls. A connection takes as long as several exchanges, so creating one for each arrival in the meantime
//! would need ever more of them: after a short delay the generator would open connections at full speed, while the
//! responses that would free its users remain unread. For the same reason the number of events per poll is small while
//! arrivals are due.
//!
//! Lag is measured up to the moment at which a request is passed to the system, including the time of everything
//! processed before it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tympan_lab_plan::ArrivalSchedule;

use super::user_due_times::{UserDueTimes, timer_duration};
use super::{LoadRunState, UserStep, UserTurn, VirtualUser};
use crate::measurement::SampleRecorder;
use crate::net::{
    ExchangeFailure, ExchangeOutcome, ExchangeProgress, SendAttempt, TargetConnection,
    TargetRequest,
};

/// Creates a user for an arrival; `None` if the maximum is reached.
pub(super) type ArrivalUserFactory = Box<dyn FnMut() -> Option<Box<dyn VirtualUser>> + Send>;

/// The work assigned to one worker.
pub(super) struct WorkerAssignment {
    /// Users of the closed model with their start times since the start of the run.
    pub(super) users: Vec<(Duration, Box<dyn VirtualUser>)>,
    /// Arrivals of the open model.
    pub(super) arrivals: Option<(ArrivalSchedule, ArrivalUserFactory)>,
    /// Time after which users are told to finish.
    pub(super) stop_after: Option<Duration>,
    /// Time limit for exchanges in progress after that.
    pub(super) drain_timeout: Duration,
}

/// The event token of the timer; connections count from 0.
const TIMER_TOKEN: u64 = u64::MAX;
/// Size of the read buffer in bytes.
const READ_BUFFER_SIZE: usize = 64 * 1024;
/// Shorter waits are busy-waited: about the cost of setting a timer, falling asleep and waking up.
const BUSY_WAIT_LIMIT: Duration = Duration::from_micros(15);
/// Maximum number of events per poll.
const MAX_EVENTS: usize = 256;
/// Maximum number of events per poll while arrivals are due: reading this many responses delays an arrival by a tenth
/// of a millisecond.
const MAX_EVENTS_WITH_ARRIVALS: usize = 16;
/// Interval between timeout checks of waiting exchanges.
const TIMEOUT_CHECK_INTERVAL: Duration = Duration::from_millis(10);

struct VirtualUserSlot {
    user: Option<Box<dyn VirtualUser>>,
    connection_indices: Vec<usize>,
    /// Number of exchanges in progress.
    running_exchanges: usize,
    queued_requests: VecDeque<(usize, TargetRequest)>,
    /// Maximum number of concurrent requests per host; if `None`, the limit applies to all hosts together.
    max_per_host: Option<usize>,
    outcomes: Vec<Option<Box<ExchangeOutcome>>>,
    due_at: Instant,
    has_due_time: bool,
    /// The scheduled time of the next turn, if it came from a timer or the schedule.
    scheduled_at: Option<Instant>,
}

struct ConnectionSlot {
    connection: TargetConnection,
    generation: u32,
    user_index: usize,
    /// Index of the user's request in progress.
    request_index: usize,
    is_busy: bool,
}

pub(super) struct LoadWorker {
    epoll_fd: OwnedFd,
    timer_fd: OwnedFd,
    armed_until: Option<Instant>,
    started_at: Instant,
    user_slots: Vec<VirtualUserSlot>,
    /// Users of the open model that are free for an arrival.
    free_users: Vec<usize>,
    /// Arrivals that wait for a free user.
    waiting_arrivals: VecDeque<Instant>,
    /// True if some arrivals were already waiting at the last poll.
    arrival_waited_at_poll: bool,
    /// True if the maximum number of users is reached: arrivals then wait for the target.
    is_user_limit_reached: bool,
    ready_users: VecDeque<usize>,
    due_times: UserDueTimes,
    connection_slots: Vec<Option<ConnectionSlot>>,
    free_connection_slots: Vec<usize>,
    next_generation: u32,
    busy_connections: usize,
    /// Number of exchanges begun since the last poll.
    exchanges_since_poll: usize,
    has_timeouts: bool,
    next_timeout_check: Instant,
    next_arrival_at: Option<Instant>,
    assignment: WorkerAssignment,
    stop_at: Option<Instant>,
    drain_deadline: Option<Instant>,
    active_users: usize,
    read_buffer: Box<[u8]>,
    recorder: SampleRecorder,
    run_state: Arc<LoadRunState>,
    #[cfg(test)]
    syscall_counts: SyscallCounts,
}

/// Counts of system calls.
#[cfg(test)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SyscallCounts {
    epoll_waits: u64,
    timer_sets: u64,
}

impl std::fmt::Debug for LoadWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadWorker").field("users", &self.user_slots.len()).finish_non_exhaustive()
    }
}

impl LoadWorker {
    pub(super) fn new(
        started: Instant,
        duty: WorkerAssignment,
        recorder: SampleRecorder,
        crowd: Arc<LoadRunState>,
    ) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let clock = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        epoll::add(
            &epoll,
            &clock,
            epoll::EventData::new_u64(TIMER_TOKEN),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        Ok(Self {
            epoll_fd: epoll,
            timer_fd: clock,
            armed_until: None,
            started_at: started,
            user_slots: Vec::new(),
            free_users: Vec::new(),
            waiting_arrivals: VecDeque::new(),
            arrival_waited_at_poll: false,
            is_user_limit_reached: false,
            ready_users: VecDeque::new(),
            due_times: UserDueTimes::default(),
            connection_slots: Vec::new(),
            free_connection_slots: Vec::new(),
            next_generation: 0,
            busy_connections: 0,
            exchanges_since_poll: 0,
            has_timeouts: false,
            next_timeout_check: started,
            next_arrival_at: None,
            stop_at: duty.stop_after.map(|after| started + after),
            drain_deadline: None,
            assignment: duty,
            active_users: 0,
            read_buffer: vec![0; READ_BUFFER_SIZE].into_boxed_slice(),
            recorder,
            run_state: crowd,
            #[cfg(test)]
            syscall_counts: SyscallCounts::default(),
        })
    }

    /// Runs until every user has left.
    pub(super) fn run(mut self) -> rustix::io::Result<()> {
        for (start, user) in std::mem::take(&mut self.assignment.users) {
            let due = self.started_at + start;
            let slot = self.add_user(user, due);
            self.schedule_user(slot, due);
        }
        self.schedule_next_arrival();
        let most =
            if self.assignment.arrivals.is_some() { MAX_EVENTS_WITH_ARRIVALS } else { MAX_EVENTS };
        let mut events: Vec<epoll::Event> = Vec::with_capacity(most);
        loop {
            self.wake_due_users(Instant::now());
            self.run_ready_users();
            self.create_user_for_arrival();
            let now = Instant::now();
            self.recorder.flush_finished_second(
                now,
                self.run_state.active_users(),
                thread_cpu_time,
            );
            self.enforce_deadlines(now);
            if self.is_finished() {
                break;
            }
            self.wait_for_events(&mut events, now)?;
        }
        self.recorder.flush_interval(self.run_state.active_users(), thread_cpu_time());
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.ready_users.is_empty()
            && self.active_users == 0
            && self.next_arrival_at.is_none()
            && self.waiting_arrivals.is_empty()
    }

    fn add_user(&mut self, user: Box<dyn VirtualUser>, due: Instant) -> usize {
        self.active_users += 1;
        self.user_slots.push(VirtualUserSlot {
            user: Some(user),
            connection_indices: Vec::new(),
            running_exchanges: 0,
            queued_requests: VecDeque::new(),
            max_per_host: None,
            outcomes: Vec::new(),
            due_at: due,
            has_due_time: false,
            scheduled_at: None,
        });
        self.user_slots.len() - 1
    }

    fn schedule_user(&mut self, slot: usize, due: Instant) {
        if let Some(slot) = self.user_slots.get_mut(slot) {
            slot.due_at = due;
            slot.has_due_time = true;
        }
        self.due_times.add(due, slot);
    }

    fn schedule_next_arrival(&mut self) {
        let next = self.assignment.arrivals.as_mut().and_then(|(schedule, _)| schedule.next());
        self.next_arrival_at = next.map(|at| self.started_at + at);
    }

    fn wake_due_users(&mut self, now: Instant) {
        while let Some((due, user)) = self.due_times.take_due(now) {
            self.wake_user(user, due);
        }
        while let Some(due) = self.next_arrival_at
            && due <= now
        {
            self.schedule_next_arrival();
            self.admit_arrival(due);
        }
        if self.next_arrival_at.is_none() && self.assignment.arrivals.is_some() {
            for user in std::mem::take(&mut self.free_users) {
                self.remove_user(user);
            }
        }
    }

    fn wake_user(&mut self, user: usize, due: Instant) {
        let Some(slot) = self.user_slots.get_mut(user) else { return };
        if !slot.has_due_time || slot.due_at != due {
            return;
        }
        slot.has_due_time = false;
        slot.scheduled_at = Some(due);
        self.ready_users.push_back(user);
    }

    /// Assigns an arrival to a free user, or queues it if there is none.
    fn admit_arrival(&mut self, due: Instant) {
        if let Some(user) = self.free_users.pop() {
            self.assign_arrival(user, due, Some(due));
            return self.ready_users.push_back(user);
        }
        if self.is_user_limit_reached {
            self.recorder.record_late_arrival();
        }
        self.waiting_arrivals.push_back(due);
    }

    /// Assigns an arrival to a user; a delay after `planned` is attributed to the generator.
    fn assign_arrival(&mut self, user: usize, due: Instant, planned: Option<Instant>) {
        if let Some(slot) = self.user_slots.get_mut(user) {
            slot.due_at = due;
            slot.scheduled_at = planned;
        }
    }

    /// Returns true if an arrival is waiting that a new user could handle.
    fn needs_new_user(&self) -> bool {
        !self.is_user_limit_reached && !self.waiting_arrivals.is_empty()
    }

    /// Creates a user for the arrival that has waited longest, if no response has freed one since.
    fn create_user_for_arrival(&mut self) {
        if !self.arrival_waited_at_poll || !self.needs_new_user() {
            return;
        }
        self.arrival_waited_at_poll = false;
        let hired = self.assignment.arrivals.as_mut().and_then(|(_, hire)| hire());
        match (hired, self.waiting_arrivals.front().copied()) {
            (Some(user), Some(due)) => {
                self.waiting_arrivals.pop_front();
                self.run_state.record_user_start();
                let user = self.add_user(user, due);
                self.assign_arrival(user, due, Some(due));
                self.run_user_turn(user);
            }
            _ => {
                self.is_user_limit_reached = true;
                self.waiting_arrivals.iter().for_each(|_| self.recorder.record_late_arrival());
            }
        }
    }

    fn run_ready_users(&mut self) {
        // Users that become ready again wait for the next turn; if connecting fails immediately, that is all users,
        // without end.
        for _ in 0..self.ready_users.len() {
            let Some(user) = self.ready_users.pop_front() else { return };
            self.run_user_turn(user);
        }
    }

    fn run_user_turn(&mut self, index: usize) {
        let Some(slot) = self.user_slots.get_mut(index) else { return };
        let Some(mut user) = slot.user.take() else { return };
        let replies = slot.outcomes.drain(..).flatten().collect();
        let now = Instant::now();
        if let Some(planned) = slot.scheduled_at.take() {
            self.recorder.record_lag(now.saturating_duration_since(planned));
        }
        let mut turn = UserTurn {
            now,
            due_at: slot.due_at,
            outcomes: replies,
            is_stopping: self.drain_deadline.is_some(),
            recorder: &mut self.recorder,
            drops_connections: false,
        };
        let step = user.next_step(&mut turn);
        let (now, drops_connections) = (turn.now, turn.drops_connections);
        slot.user = Some(user);
        if drops_connections {
            for connection in std::mem::take(&mut slot.connection_indices) {
                self.close_connection(connection);
            }
        }
        self.apply_step(index, step, now);
    }

    fn apply_step(&mut self, index: usize, step: UserStep, now: Instant) {
        match step {
            UserStep::Fetch(request) => self.fetch_one(index, request),
            UserStep::FetchAll { requests, max_parallel: parallel } => {
                self.fetch_all(index, requests, parallel.max(1))
            }
            UserStep::FetchPerHost { requests, max_parallel_per_host: parallel } => {
                let all = requests.len();
                if let Some(slot) = self.user_slots.get_mut(index) {
                    slot.max_per_host = Some(parallel.max(1));
                }
                self.fetch_all(index, requests, all);
            }
            UserStep::WaitUntil(due) => self.schedule_user(index, due),
            UserStep::Yield => self.ready_users.push_back(index),
            UserStep::AwaitArrival => self.await_arrival(index, now),
            UserStep::Leave => self.remove_user(index),
        }
    }

    fn await_arrival(&mut self, index: usize, now: Instant) {
        if self.assignment.arrivals.is_none() {
            if let Some(slot) = self.user_slots.get_mut(index) {
                slot.due_at = now;
            }
            self.ready_users.push_back(index);
            return;
        }
        match self.waiting_arrivals.pop_front() {
            Some(due) => {
                // If the maximum number of users is reached, the arrival waited for the target's responses.
                let planned = (!self.is_user_limit_reached).then_some(due);
                self.assign_arrival(index, due, planned);
                self.ready_users.push_back(index);
            }
            None if self.next_arrival_at.is_none() => self.remove_user(index),
            None => self.free_users.push(index),
        }
    }

    fn remove_user(&mut self, index: usize) {
        let Some(slot) = self.user_slots.get_mut(index) else { return };
        if slot.user.take().is_none() {
            return;
        }
        self.active_users -= 1;
        for connection in std::mem::take(&mut slot.connection_indices) {
            self.close_connection(connection);
        }
        self.run_state.record_user_end();
    }

    fn fetch_one(&mut self, index: usize, request: TargetRequest) {
        let Some(slot) = self.user_slots.get_mut(index) else { return };
        slot.outcomes.push(None);
        slot.running_exchanges += 1;
        self.start_exchange(index, 0, request, SendAttempt::First, Instant::now());
    }

    fn fetch_all(&mut self, index: usize, requests: Vec<TargetRequest>, parallel: usize) {
        let Some(slot) = self.user_slots.get_mut(index) else { return };
        if requests.is_empty() {
            self.ready_users.push_back(index);
            return;
        }
        slot.outcomes.resize_with(requests.len(), || None);
        slot.queued_requests.extend(requests.into_iter().enumerate());
        for _ in 0..parallel {
            self.start_queued_requests(index);
        }
    }

    fn start_queued_requests(&mut self, index: usize) {
        let Some(queue_index) = self.startable_request(index) else { return };
        let Some(slot) = self.user_slots.get_mut(index) else { return };
        let Some((number, request)) = slot.queued_requests.remove(queue_index) else { return };
        slot.running_exchanges += 1;
        self.start_exchange(index, number, request, SendAttempt::First, Instant::now());
    }

    /// Returns the first waiting request whose host has capacity for another.
    fn startable_request(&self, index: usize) -> Option<usize> {
        let slot = self.user_slots.get(index)?;
        let Some(most) = slot.max_per_host else {
            return (!slot.queued_requests.is_empty()).then_some(0);
        };
        slot.queued_requests.iter().position(|(_, request)| {
            let busy = slot.connection_indices.iter().filter(|&&connection_index| {
                matches!(self.connection_slots.get(connection_index), Some(Some(entry))
                    if entry.is_busy && entry.connection.is_connected_to(&request.target))
            });
            busy.count() < most
        })
    }

    fn start_exchange(
        &mut self,
        index: usize,
        number: usize,
        request: TargetRequest,
        attempt: SendAttempt,
        started: Instant,
    ) {
        self.has_timeouts |= request.connect_timeout.is_some() || request.idle_timeout.is_some();
        let connection_index = match self.idle_connection(index, &request) {
            Some(connection_index) => connection_index,
            None => match self.open_connection(index, &request) {
                Ok(connection_index) => connection_index,
                Err(failure) => return self.deliver_failure(index, number, failure, started),
            },
        };
        let Some(Some(entry)) = self.connection_slots.get_mut(connection_index) else { return };
        entry.is_busy = true;
        entry.request_index = number;
        self.busy_connections += 1;
        self.exchanges_since_poll += 1;
        let progress =
            entry.connection.begin_exchange((request, attempt), started, &mut self.read_buffer);
        self.handle_progress(connection_index, progress);
    }

    fn idle_connection(&self, index: usize, request: &TargetRequest) -> Option<usize> {
        let slot = self.user_slots.get(index)?;
        slot.connection_indices.iter().copied().find(|&connection_index| {
            matches!(self.connection_slots.get(connection_index), Some(Some(entry))
                if !entry.is_busy && entry.connection.is_connected_to(&request.target))
        })
    }

    fn open_connection(
        &mut self,
        index: usize,
        request: &TargetRequest,
    ) -> Result<usize, ExchangeFailure> {
        let connection = TargetConnection::open(&request.target)?;
        self.next_generation = self.next_generation.wrapping_add(1);
        let connection_index = match self.free_connection_slots.pop() {
            Some(connection_index) => connection_index,
            None => {
                self.connection_slots.push(None);
                self.connection_slots.len() - 1
            }
        };
        let data = (u64::from(self.next_generation) << 32) | connection_index as u64;
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        let added =
            epoll::add(&self.epoll_fd, connection.socket(), epoll::EventData::new_u64(data), flags);
        if added.is_err() {
            self.free_connection_slots.push(connection_index);
            return Err(ExchangeFailure::ResourcesExhausted);
        }
        if let Some(entry) = self.connection_slots.get_mut(connection_index) {
            let generation = self.next_generation;
            *entry = Some(ConnectionSlot {
                connection,
                generation,
                user_index: index,
                request_index: 0,
                is_busy: false,
            });
        }
        if let Some(slot) = self.user_slots.get_mut(index) {
            slot.connection_indices.push(connection_index);
        }
        Ok(connection_index)
    }

    fn deliver_failure(
        &mut self,
        index: usize,
        number: usize,
        failure: ExchangeFailure,
        started: Instant,
    ) {
        let now = Instant::now();
        let reply = Box::new(ExchangeOutcome {
            started_at: started,
            connect_time: now.saturating_duration_since(started),
            first_byte_at: now,
            ended_at: now,
            sent_bytes: 0,
            received_bytes: 0,
            result: Err(failure),
            is_connection_reusable: false,
            retry: None,
        });
        self.deliver_outcome(index, number, reply);
    }

    fn handle_progress(&mut self, connection_index: usize, progress: ExchangeProgress) {
        match progress {
            ExchangeProgress::Pending => {}
            ExchangeProgress::Closed => self.drop_connection(connection_index),
            ExchangeProgress::Done(mut reply) => {
                let Some(Some(entry)) = self.connection_slots.get_mut(connection_index) else {
                    return;
                };
                let (user, number) = (entry.user_index, entry.request_index);
                if entry.is_busy {
                    entry.is_busy = false;
                    self.busy_connections -= 1;
                }
                if !reply.is_connection_reusable {
                    self.drop_connection(connection_index);
                }
                match reply.retry.take() {
                    Some((request, attempt)) => {
                        if attempt == SendAttempt::Repeated && reply.sent_bytes > 0 {
                            self.recorder.record_repeated_request();
                        }
                        self.start_exchange(user, number, request, attempt, reply.started_at);
                    }
                    None => self.deliver_outcome(user, number, reply),
                }
            }
        }
    }

    fn deliver_outcome(&mut self, index: usize, number: usize, reply: Box<ExchangeOutcome>) {
        let Some(slot) = self.user_slots.get_mut(index) else { return };
        slot.running_exchanges = slot.running_exchanges.saturating_sub(1);
        slot.due_at = reply.ended_at;
        if let Some(outcome) = slot.outcomes.get_mut(number) {
            *outcome = Some(reply);
        }
        if !slot.queued_requests.is_empty() {
            self.start_queued_requests(index);
        } else if slot.running_exchanges == 0 {
            self.ready_users.push_back(index);
        }
    }

    /// Closes a connection and removes it from its user.
    fn drop_connection(&mut self, connection_index: usize) {
        if let Some(Some(entry)) = self.connection_slots.get(connection_index)
            && let Some(slot) = self.user_slots.get_mut(entry.user_index)
        {
            slot.connection_indices.retain(|&candidate| candidate != connection_index);
        }
        self.close_connection(connection_index);
    }

    fn close_connection(&mut self, connection_index: usize) {
        if let Some(entry) = self.connection_slots.get_mut(connection_index)
            && let Some(entry) = entry.take()
        {
            self.busy_connections -= usize::from(entry.is_busy);
            self.free_connection_slots.push(connection_index);
        }
    }

    /// Returns the time at which users are told to finish. A schedule ends by itself at the same time; its late
    /// arrivals are still sent, because they would be hidden otherwise.
    fn stop_time(&self) -> Option<Instant> {
        let has_schedule = self.next_arrival_at.is_some() || !self.waiting_arrivals.is_empty();
        let grace = if has_schedule { self.assignment.drain_timeout } else { Duration::ZERO };
        self.stop_at.map(|at| at + grace)
    }

    /// Ends exchanges that exceed their time limits, and the run at its end time.
    fn enforce_deadlines(&mut self, now: Instant) {
        let is_time = self.stop_time().is_some_and(|at| now >= at) || self.run_state.is_stopping();
        if is_time && self.drain_deadline.is_none() {
            self.drain_deadline = Some(now + self.assignment.drain_timeout);
            self.wake_all_for_stop();
        }
        if self.drain_deadline.is_some_and(|at| now >= at) && self.busy_connections > 0 {
            self.abort_exchanges(|_| Some(ExchangeFailure::RunEnded));
        }
        if self.has_timeouts && now >= self.next_timeout_check {
            self.next_timeout_check = now + TIMEOUT_CHECK_INTERVAL;
            self.abort_exchanges(|connection| connection.timeout_failure(now));
        }
    }

    /// Wakes all waiting users so that they can finish.
    fn wake_all_for_stop(&mut self) {
        let left = self.assignment.arrivals.take().map_or(0, |(schedule, _)| schedule.count());
        let next = usize::from(self.next_arrival_at.take().is_some());
        self.recorder.record_unsent_arrivals((left + next + self.waiting_arrivals.len()) as u64);
        self.waiting_arrivals.clear();
        for user in self.due_times.take_all() {
            if let Some(slot) = self.user_slots.get_mut(user)
                && slot.has_due_time
            {
                slot.has_due_time = false;
                self.ready_users.push_back(user);
            }
        }
        for user in std::mem::take(&mut self.free_users) {
            self.remove_user(user);
        }
    }

    fn abort_exchanges(&mut self, why: impl Fn(&TargetConnection) -> Option<ExchangeFailure>) {
        for connection_index in 0..self.connection_slots.len() {
            let Some(Some(entry)) = self.connection_slots.get_mut(connection_index) else {
                continue;
            };
            if entry.is_busy
                && let Some(failure) = why(&entry.connection)
            {
                let progress = entry.connection.abandon_exchange(failure);
                self.handle_progress(connection_index, progress);
            }
        }
    }

    fn wait_for_events(
        &mut self,
        events: &mut Vec<epoll::Event>,
        now: Instant,
    ) -> rustix::io::Result<()> {
        let next = if self.ready_users.is_empty() { self.next_deadline() } else { None };
        let is_armed = next.is_none() || self.armed_until == next;
        let has_time = |next: Instant| next.saturating_duration_since(now) > BUSY_WAIT_LIMIT;
        let may_sleep =
            self.ready_users.is_empty() && !self.needs_new_user() && next.is_none_or(has_time);
        // Data may have arrived that makes setting the timer unnecessary, but hardly if everything in progress was sent
        // since the last poll.
        let may_have_come = self.busy_connections > self.exchanges_since_poll;
        if !may_sleep || (!is_armed && may_have_come) {
            self.poll_events(events, Duration::ZERO)?;
        }
        if may_sleep && events.is_empty() {
            if let Some(next) = next.filter(|_| !is_armed) {
                self.arm_timer(next)?;
            }
            // Limit the wait: intervals must be handed over, and another worker may have requested a stop.
            self.poll_events(events, Duration::from_millis(50))?;
        }
        for event in events.drain(..) {
            let data = event.data.u64();
            if data == TIMER_TOKEN {
                self.armed_until = None;
                continue;
            }
            let connection_index = usize::try_from(data & 0xFFFF_FFFF).unwrap_or(usize::MAX);
            let Some(Some(entry)) = self.connection_slots.get_mut(connection_index) else {
                continue;
            };
            // An event of this batch may be older than the connection that now occupies its slot.
            if u64::from(entry.generation) != data >> 32 {
                continue;
            }
            let progress = entry.connection.handle_ready(&mut self.read_buffer);
            self.handle_progress(connection_index, progress);
        }
        Ok(())
    }

    /// Waits for events, up to the given time.
    fn poll_events(
        &mut self,
        events: &mut Vec<epoll::Event>,
        at_most: Duration,
    ) -> rustix::io::Result<()> {
        self.exchanges_since_poll = 0;
        self.arrival_waited_at_poll = self.needs_new_user();
        #[cfg(test)]
        {
            self.syscall_counts.epoll_waits += 1;
        }
        let at_most = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        match epoll::wait(&self.epoll_fd, rustix::buffer::spare_capacity(events), Some(&at_most)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the next time at which work is due regardless of socket events.
    fn next_deadline(&self) -> Option<Instant> {
        let look =
            (self.has_timeouts && self.busy_connections > 0).then_some(self.next_timeout_check);
        let give_up = self.drain_deadline.or_else(|| self.stop_time());
        [self.due_times.next_due(), self.next_arrival_at, look, give_up].into_iter().flatten().min()
    }

    /// Arms the kernel timer.
    fn arm_timer(&mut self, next: Instant) -> rustix::io::Result<()> {
        let wait = timer_duration(next, Instant::now());
        let timer = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            },
        };
        timerfd_settime(&self.timer_fd, TimerfdTimerFlags::empty(), &timer)?;
        self.armed_until = Some(next);
        #[cfg(test)]
        {
            self.syscall_counts.timer_sets += 1;
        }
        Ok(())
    }
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(stop_after: Duration, drain: Duration) -> LoadWorker {
        let (sender, _) = std::sync::mpsc::channel();
        let started = Instant::now();
        let duty = WorkerAssignment {
            users: Vec::new(),
            arrivals: None,
            stop_after: Some(stop_after),
            drain_timeout: drain,
        };
        let recorder = SampleRecorder::new(0, started, sender, None);
        LoadWorker::new(started, duty, recorder, Arc::default()).unwrap()
    }

    #[test]
    fn what_is_late_is_waited_for_asleep() {
        let (stop_after, drain) = (Duration::from_secs(1), Duration::from_secs(5));
        let mut worker = worker(stop_after, drain);
        assert_eq!(worker.next_deadline(), Some(worker.started_at + stop_after));
        worker.waiting_arrivals.push_back(worker.started_at);
        assert_eq!(worker.next_deadline(), Some(worker.started_at + stop_after + drain));
    }

    /// The time that the timer was set for may pass while the worker is busy.
    #[test]
    fn a_worker_hears_what_comes_also_after_the_moment_it_was_to_wake() {
        let mut worker = worker(Duration::ZERO, Duration::ZERO);
        let deadline = worker.next_deadline().unwrap();
        worker.arm_timer(deadline).unwrap();
        // The timer event stands in for socket events; it fires a nanosecond after the timer was set.
        let mut waits = 0..1_000_000;
        while worker.armed_until.is_some() && waits.next().is_some() {
            worker.wait_for_events(&mut Vec::with_capacity(8), Instant::now()).unwrap();
        }
        assert_eq!(worker.armed_until, None);
    }

    /// The timer's count is not read between two settings, and each setting triggers an event.
    #[test]
    fn a_timer_that_is_set_again_is_heard_again() {
        let mut worker = worker(Duration::from_secs(600), Duration::ZERO);
        for round in 1..=3 {
            worker.arm_timer(Instant::now()).unwrap();
            let mut looks = 0..1000;
            while worker.armed_until.is_some() && looks.next().is_some() {
                let mut events = Vec::with_capacity(8);
                worker.poll_events(&mut events, Duration::from_secs(10)).unwrap();
                if events.iter().any(|event| event.data.u64() == TIMER_TOKEN) {
                    worker.armed_until = None;
                }
            }
            assert_eq!(worker.armed_until, None, "round {round}");
        }
    }

    /// Returns a target that accepts connections and never responds, and a request for it.
    fn silent() -> (std::net::TcpListener, TargetRequest) {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let request = TargetRequest {
            target: crate::net::LoadTarget::resolve(false, "127.0.0.1", port).unwrap(),
            encoded_bytes: b"GET / HTTP/1.1\r\n\r\n"[..].into(),
            is_head: false,
            retention: crate::net::ResponseRetention::Nothing,
            uses_keep_alive: true,
            connect_timeout: None,
            idle_timeout: None,
        };
        (listener, request)
    }

    const HOUR: Duration = Duration::from_secs(3600);

    /// A worker of the open model with a limited number of users, each of which is busy for an hour per arrival.
    struct OpenModelWorker {
        worker: LoadWorker,
        interval_receiver: std::sync::mpsc::Receiver<crate::measurement::WorkerInterval>,
    }

    #[derive(Debug)]
    struct SlowUser;

    impl VirtualUser for SlowUser {
        fn next_step(&mut self, turn: &mut UserTurn<'_>) -> UserStep {
            UserStep::WaitUntil(turn.now + HOUR)
        }
    }

    impl OpenModelWorker {
        fn new(mut users: usize) -> Self {
            let (sender, receiver) = std::sync::mpsc::channel();
            let started = Instant::now();
            let hire: ArrivalUserFactory = Box::new(move || {
                users = users.checked_sub(1)?;
                Some(Box::new(SlowUser))
            });
            let schedule =
                ArrivalSchedule::new(tympan_lab_plan::ArrivalProcess::Uniform, 1.0, HOUR, 0);
            let duty = WorkerAssignment {
                users: Vec::new(),
                arrivals: Some((schedule, hire)),
                stop_after: None,
                drain_timeout: HOUR,
            };
            let recorder = SampleRecorder::new(0, started, sender, None);
            let mut worker = LoadWorker::new(started, duty, recorder, Arc::default()).unwrap();
            worker.next_arrival_at = Some(started + HOUR);
            Self { worker, interval_receiver: receiver }
        }

        fn arrive(&mut self) {
            self.worker.admit_arrival(self.worker.started_at);
            self.worker.run_ready_users();
        }

        /// Polls for events; there are none.
        fn look(&mut self) {
            self.worker.poll_events(&mut Vec::with_capacity(8), Duration::ZERO).unwrap();
        }

        /// Completes the exchange of the first user.
        fn answer(&mut self) {
            self.worker.await_arrival(0, self.worker.started_at);
            self.worker.run_ready_users();
        }

        /// Returns the number of users and the number of waiting arrivals.
        fn counts(&self) -> (usize, usize) {
            (self.worker.user_slots.len(), self.worker.waiting_arrivals.len())
        }

        /// Returns the number of lags and late arrivals recorded since the last call.
        fn noted(&mut self) -> (u64, u64) {
            self.worker.recorder.flush_interval(0, Duration::ZERO);
            let interval = self.interval_receiver.try_recv().unwrap();
            (interval.lag.count(), interval.late_arrivals)
        }
    }

    #[test]
    fn a_user_is_made_only_for_an_arrival_that_no_answer_gave_one_to() {
        let mut open = OpenModelWorker::new(9);
        open.arrive();
        open.arrive();
        open.worker.create_user_for_arrival();
        assert_eq!(open.counts(), (0, 2), "answers may wait to be read");
        open.look();
        open.worker.create_user_for_arrival();
        open.worker.create_user_for_arrival();
        assert_eq!(open.counts(), (1, 1), "one between two looks");
        open.arrive();
        open.answer();
        assert_eq!(open.counts(), (1, 1), "the user that is free takes who has waited longest");
        open.look();
        open.worker.create_user_for_arrival();
        assert_eq!(open.counts(), (2, 0));
        assert_eq!(open.noted(), (3, 0), "each is sent once, and how late it was is noted");
    }

    #[test]
    fn a_wait_for_the_target_is_no_lag_of_the_generator() {
        let mut open = OpenModelWorker::new(1);
        open.arrive();
        open.look();
        open.worker.create_user_for_arrival();
        open.arrive();
        open.arrive();
        assert_eq!(open.noted(), (1, 0), "it is not known yet that there may be no more users");
        open.look();
        open.worker.create_user_for_arrival();
        open.arrive();
        assert_eq!((open.counts(), open.noted()), ((1, 3), (0, 3)));
        assert!(!open.worker.needs_new_user(), "or it would never sleep");
        (0..4).for_each(|_| open.answer());
        assert_eq!((open.counts(), open.noted()), ((1, 0), (0, 0)));
        // The delay of an arrival that finds a free user is still attributed to the generator.
        open.arrive();
        assert_eq!((open.counts(), open.noted()), ((1, 0), (1, 0)));
    }

    #[derive(Debug)]
    struct IdleUser;

    impl VirtualUser for IdleUser {
        fn next_step(&mut self, _: &mut UserTurn<'_>) -> UserStep {
            UserStep::AwaitArrival
        }
    }

    /// Checks the system calls that are made before the thread sleeps until the next arrival.
    #[test]
    fn nothing_is_looked_for_where_nothing_can_have_come() {
        let (_listener, request) = silent();
        let hour = Duration::from_secs(3600);
        let mut worker = worker(hour, Duration::ZERO);
        let calls = |worker: &mut LoadWorker| {
            worker.syscall_counts = SyscallCounts::default();
            // The first of two waits may end with the event of connecting.
            worker.wait_for_events(&mut Vec::with_capacity(8), Instant::now()).unwrap();
            worker.syscall_counts
        };
        let user = worker.add_user(Box::new(IdleUser), worker.started_at);
        worker.fetch_one(user, request.clone());
        assert_eq!((worker.busy_connections, worker.exchanges_since_poll), (1, 1));
        let (looks, settings) = (1, 1);
        assert_eq!(calls(&mut worker), SyscallCounts { epoll_waits: looks, timer_sets: settings });
        // The timer is already armed: it is not set again, and one poll is enough.
        assert_eq!(calls(&mut worker), SyscallCounts { epoll_waits: looks, timer_sets: 0 });
        // With another deadline and a response that may have arrived, a poll determines whether to sleep at all.
        worker.next_arrival_at = Some(worker.started_at + hour / 2);
        assert_eq!((worker.busy_connections, worker.exchanges_since_poll), (1, 0));
        assert_eq!(calls(&mut worker), SyscallCounts { epoll_waits: 2, timer_sets: settings });
    }
}
