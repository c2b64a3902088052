//! The processes that draw, started when they are needed and used again and again.
//!
//! In: a blob and an [`Order`]. Out: a [`Drawn`], or why there is none.
//!
//! Invariants
//! * A file that crashes, fills or stalls a process costs that process and nothing else.
//! * The memory that all of them take for pictures at once stays under [`StudioOptions::memory`]: each says what it is
//!   about to take, and waits until it is free.
//!
//! Not here: how many draw at once. That is for the queue that calls; each call uses one process.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tympan_content::BlobContent;

use super::channel::{Answer, BYTES, GO, Request, hand_over, read_bytes, read_json, write_json};
use super::format::Format;
use super::order::{Drawn, Limits, MetadataValue, Order};
use super::packet_pdf::Appendix;
use super::tool::Tools;

/// A process is replaced after this many files: what its libraries leak goes with it.
const MAX_FILES: u32 = 500;
/// The most bytes of one rendition.
const MAX_RENDITION: u64 = 256 << 20;
/// How long a process may take to end after it closed its channel.
const CLOSED: Duration = Duration::from_secs(5);

/// How a program is started: what comes before its own arguments, too.
#[derive(Debug, Clone)]
pub struct Start {
    /// The program, usually this one.
    pub program: PathBuf,
    /// What makes it do what is wanted.
    pub arguments: Vec<OsString>,
}

/// What a studio needs to know.
#[derive(Debug, Clone)]
pub struct StudioOptions {
    /// A program whose main function calls [`super::draw_pictures`].
    pub draw: Start,
    /// A program that runs another one with [`super::run_tool`]: memory in bytes, seconds, niceness, program and arguments
    /// follow.
    pub tool: Start,
    /// Where other programs are looked for, as `PATH` writes it; without, there are none.
    pub programs: Option<OsString>,
    /// Memory for pictures of all processes at once.
    pub memory: u64,
    /// How many processes are kept while nothing is drawn.
    pub idle: usize,
    /// How much its processes stand behind others: 0 not at all, 19 most. A process can only step further back, so that
    /// what visitors wait for needs a studio of its own.
    pub niceness: i32,
}

/// Why nothing was drawn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrawError {
    /// The file is to blame; trying again gives the same.
    #[error("{0}")]
    File(String),
    /// Somebody killed the process, as systems do that are short of memory; trying again can help, and may not.
    #[error("the process that draws it was killed: memory may be short")]
    Killed,
    /// The time was over before the process had its share of it: the machine may have too much to do.
    #[error(
        "drawing it took longer than {limit} s, in which it had {had} s of processor time: the machine may be overloaded"
    )]
    Slow {
        /// How long it may take, in seconds.
        limit: u64,
        /// The processor time that it had, in seconds.
        had: u64,
    },
    /// The machine is to blame; trying again can help.
    #[error("cannot {action}")]
    System {
        /// What was tried, as a verb and its object.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// The processes that draw.
#[derive(Debug)]
pub struct Studio {
    options: StudioOptions,
    idle: Mutex<Vec<Painter>>,
    memory: Memory,
    pub(crate) tools: Tools,
}

impl Studio {
    /// Makes a studio; processes start when they are needed.
    #[must_use]
    pub fn new(options: StudioOptions) -> Self {
        let memory = Memory {
            most: options.memory,
            free: Mutex::new(options.memory),
            freed: Condvar::new(),
        };
        let programs = options.programs.as_deref();
        let tools = Tools::find(options.tool.clone(), options.niceness, programs);
        Self { options, idle: Mutex::default(), memory, tools }
    }

    /// Draws what is wanted of a file. `open` gives its bytes, and again if a process has to be replaced.
    ///
    /// # Errors
    /// [`DrawError`] says whether trying again can help.
    pub fn draw(
        &self,
        open: &dyn Fn() -> io::Result<BlobContent>,
        order: &Order,
    ) -> Result<Drawn, DrawError> {
        let format = first_bytes(&open().map_err(system("read the original"))?);
        match format {
            Some(format) if self.tools.can_read(format) => self.draw_with_tool(format, open, order),
            Some(format) if self.tools.may_read_otherwise(format) => {
                self.draw_here(open, order).or_else(|refusal| match refusal {
                    DrawError::File(_) => self.draw_otherwise(format, open, order, refusal),
                    _ => Err(refusal),
                })
            }
            Some(format) => self.draw_here(open, order).map(|mut drawn| {
                let missing = self.tools.missing_for(format);
                let missing = missing.filter(|_| !order.renditions.is_empty());
                drawn.warnings.extend(missing.map(|name| {
                    format!(
                        "there is no preview: it takes the program `{name}`, which is not installed"
                    )
                }));
                drawn
            }),
            None => self.draw_here(open, order),
        }
        .and_then(|drawn| self.tools.finish(drawn, order))
    }

    /// Returns the numbers of the processes that wait for work.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        self.idle.lock().iter().map(|painter| painter.child.id()).collect()
    }

    /// Lets another program make a picture of the file, and draws that.
    fn draw_with_tool(
        &self,
        format: Format,
        open: &dyn Fn() -> io::Result<BlobContent>,
        order: &Order,
    ) -> Result<Drawn, DrawError> {
        // What the file itself says: its kind, its metadata.
        let plain = Order { renditions: Vec::new(), ..order.clone() };
        let mut drawn = self.draw_here(open, &plain)?;
        if order.renditions.is_empty() {
            return Ok(drawn);
        }
        let source = open().map_err(system("read the original"))?;
        let picture = match self.tools.read(format, source, order) {
            Ok(picture) => bytes::Bytes::from(picture),
            Err(DrawError::File(reason)) if !format.is_still() && format != Format::Tiff => {
                // A document without a preview is still a document.
                drawn.warnings.push(format!("there is no preview: {reason}"));
                return Ok(drawn);
            }
            Err(error) => return Err(error),
        };
        let pictured = Order { metadata: false, declared: "image/png".to_owned(), ..order.clone() };
        let made = self.draw_here(&|| Ok(BlobContent::Bytes(picture.clone())), &pictured)?;
        drawn.renditions = made.renditions;
        drawn.warnings.extend(made.warnings);
        drawn.size = drawn.size.or(made.size.filter(|_| format.is_still()));
        Ok(drawn)
    }

    /// Lets another program read a picture that is refused here; if it cannot either, the refusal stands.
    fn draw_otherwise(
        &self,
        format: Format,
        open: &dyn Fn() -> io::Result<BlobContent>,
        order: &Order,
        refusal: DrawError,
    ) -> Result<Drawn, DrawError> {
        match self.draw_with_tool(format, open, order) {
            Err(DrawError::File(_)) => Err(refusal),
            drawn => drawn,
        }
    }

    /// Returns what is appended to a PDF so that it says these properties; nothing if it says them already.
    pub(crate) fn append(
        &self,
        open: &dyn Fn() -> io::Result<BlobContent>,
        wanted: Vec<(String, MetadataValue)>,
    ) -> Result<Option<Appendix>, DrawError> {
        let order = Order {
            renditions: Vec::new(),
            metadata: true,
            declared: String::new(),
            limits: Limits::default(),
        };
        match self.ask(open, (order, Some(wanted)))? {
            Made::Appended(appendix) => Ok(appendix),
            Made::Drawn(_) => Err(lost_its_way()),
        }
    }

    fn draw_here(
        &self,
        open: &dyn Fn() -> io::Result<BlobContent>,
        order: &Order,
    ) -> Result<Drawn, DrawError> {
        match self.ask(open, (order.clone(), None))? {
            Made::Drawn(drawn) => Ok(drawn),
            Made::Appended(_) => Err(lost_its_way()),
        }
    }

    /// Lets a process do what is wished.
    fn ask(
        &self,
        open: &dyn Fn() -> io::Result<BlobContent>,
        (order, append): (Order, Option<Vec<(String, MetadataValue)>>),
    ) -> Result<Made, DrawError> {
        let request = Request { order, length: 0, niceness: self.options.niceness, append };
        // Taken out of the guard first: the lock must not be held while one draws.
        let kept = self.idle.lock().pop();
        if let Some(painter) = kept {
            let source = open().map_err(system("read the original"))?;
            match self.ask_one(painter, &source, request.clone()) {
                // It may have died while it waited: of that, the file is innocent. A guilty one ends the next as well.
                Err(Trouble::BeforeOrder | Trouble::Ended(_) | Trouble::Killed) => {}
                other => return other.map_err(Trouble::into_error),
            }
        }
        let source = open().map_err(system("read the original"))?;
        let painter = self.start().map_err(system("start the process that draws"))?;
        self.ask_one(painter, &source, request).map_err(Trouble::into_error)
    }

    fn start(&self) -> io::Result<Painter> {
        let (channel, other) = UnixStream::pair()?;
        let Start { program, arguments } = &self.options.draw;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::from(OwnedFd::from(other)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .env_clear()
            // Pictures are a few large pieces of memory: in large pages, where the system gives them to who asks, most of
            // the faults are gone, which are a sixth of the processor time otherwise.
            .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
            // A terminal's Ctrl-C is for the server, which lets the work that runs end.
            .process_group(0)
            .spawn()?;
        Ok(Painter { child, channel, files: 0 })
    }

    fn ask_one(
        &self,
        mut painter: Painter,
        source: &BlobContent,
        mut request: Request,
    ) -> Result<Made, Trouble> {
        request.length = source.length();
        let result = painter.ask(source, &request, &self.memory);
        painter.files += 1;
        if matches!(result, Ok(_) | Err(Trouble::File(_))) && painter.files < MAX_FILES {
            let mut idle = self.idle.lock();
            if idle.len() < self.options.idle {
                idle.push(painter);
            }
            return result;
        }
        result
    }
}

/// What a process made.
enum Made {
    Drawn(Drawn),
    Appended(Option<Appendix>),
}

fn lost_its_way() -> DrawError {
    DrawError::File(LOST.to_owned())
}

const LOST: &str = "the process that draws it lost its way";

/// What may go wrong with a process.
enum Trouble {
    /// It was gone before it had its order.
    BeforeOrder,
    /// The file is to blame.
    File(String),
    /// The machine is to blame.
    System(DrawError),
    /// The process ended by itself.
    Ended(String),
    /// The process was killed by something else.
    Killed,
    /// The process was ended, as it took too long.
    TooLong(String),
    /// The same, and it had little of the processors in that time.
    Slow { limit: u64, had: u64 },
}

impl Trouble {
    fn into_error(self) -> DrawError {
        match self {
            Self::File(reason) | Self::Ended(reason) | Self::TooLong(reason) => {
                DrawError::File(reason)
            }
            Self::System(error) => error,
            Self::Killed => DrawError::Killed,
            Self::Slow { limit, had } => DrawError::Slow { limit, had },
            Self::BeforeOrder => DrawError::System {
                action: "start the process that draws",
                source: io::Error::other("it ended at once"),
            },
        }
    }
}

/// One process and the channel to it.
#[derive(Debug)]
struct Painter {
    child: Child,
    channel: UnixStream,
    files: u32,
}

impl Drop for Painter {
    fn drop(&mut self) {
        // It may have ended by itself; then this changes nothing.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Painter {
    fn ask(
        &mut self,
        source: &BlobContent,
        request: &Request,
        memory: &Memory,
    ) -> Result<Made, Trouble> {
        let Self { child, channel, .. } = self;
        let asked = Asked { order: &request.order, before: processor_time(child.id()) };
        let order = asked.order;
        let until = Instant::now() + Duration::from_secs(order.limits.seconds);
        let mut channel = Timed { stream: channel, until };
        write_json(&mut channel, request).map_err(|_| Trouble::BeforeOrder)?;
        send(source, &mut channel);
        let mut reserved = None;
        loop {
            match read_json(&mut channel).map_err(|error| trouble(child, &error, asked))? {
                Answer::Need(bytes) => {
                    // The time that it waits for others is not the file's fault.
                    let begun = Instant::now();
                    reserved = Some(memory.reserve(bytes));
                    channel.until += begun.elapsed();
                    channel.write_all(&[GO]).map_err(|error| trouble(child, &error, asked))?;
                }
                Answer::Refused(reason) => return Err(Trouble::File(reason)),
                Answer::Unread(reason) => {
                    let error = system("read the original")(io::Error::other(reason));
                    return Err(Trouble::System(error));
                }
                Answer::Drawn(mut drawn) => {
                    for rendition in &mut drawn.renditions {
                        rendition.bytes = read_bytes(&mut channel, MAX_RENDITION)
                            .map_err(|error| trouble(child, &error, asked))?;
                    }
                    drop(reserved);
                    return Ok(Made::Drawn(drawn));
                }
                Answer::Appended(None) => return Ok(Made::Appended(None)),
                Answer::Appended(Some(names)) => {
                    let appended = read_bytes(&mut channel, MAX_RENDITION)
                        .map_err(|error| trouble(child, &error, asked))?;
                    return Ok(Made::Appended(Some((appended, names))));
                }
            }
        }
    }
}

/// An order, and the processor time that the process had had before it.
#[derive(Clone, Copy)]
struct Asked<'a> {
    order: &'a Order,
    before: Duration,
}

/// Returns the processor time that a process has had; none if it is gone.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything: in the program and in the kernel, in hundredths of a second.
    let numbers = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(11);
    let hundredths = numbers.take(2).filter_map(|number| number.parse::<u64>().ok()).sum::<u64>();
    Duration::from_millis(hundredths * 10)
}

/// Says why the channel failed.
fn trouble(child: &mut Child, error: &io::Error, asked: Asked<'_>) -> Trouble {
    let order = asked.order;
    if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) {
        let (limit, had) = (order.limits.seconds, processor_time(child.id()));
        let had = had.saturating_sub(asked.before).as_secs();
        if had < limit / 2 {
            return Trouble::Slow { limit, had };
        }
        return Trouble::TooLong(format!("drawing it took longer than {} s", order.limits.seconds));
    }
    // One that closed the channel is about to end by itself, and its ending tells why.
    match wait_a_moment(child) {
        Ok(Some(status)) if is_killed(status) => Trouble::Killed,
        Ok(Some(status)) => Trouble::Ended(ending(status, order)),
        Ok(None) => Trouble::Ended(LOST.to_owned()),
        Err(source) => Trouble::System(system("wait for the process that draws")(source)),
    }
}

/// Tells whether somebody else ended a process: no fault of a file does it with these signals.
pub(crate) fn is_killed(status: ExitStatus) -> bool {
    const HANG_UP: i32 = 1;
    const INTERRUPT: i32 = 2;
    const QUIT: i32 = 3;
    const KILL: i32 = 9;
    const TERMINATE: i32 = 15;
    matches!(status.signal(), Some(HANG_UP | INTERRUPT | QUIT | KILL | TERMINATE))
}

/// Waits for a process whose channel is closed; one that goes on without it is killed, and nothing returned.
pub(crate) fn wait_a_moment(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + CLOSED;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// Says in words how a process ended.
fn ending(status: ExitStatus, order: &Order) -> String {
    const ABORTED: i32 = 6;
    const OUT_OF_TIME: i32 = 24;
    let memory = order.limits.memory >> 20;
    match status.signal() {
        Some(OUT_OF_TIME) => {
            format!("drawing it took more than {} s of processor time", order.limits.seconds)
        }
        Some(ABORTED) => {
            format!("drawing it took more than {memory} MiB of memory, or a decoder failed")
        }
        Some(signal) => format!("drawing it ended the process with signal {signal}"),
        None => format!("drawing it ended the process: {status}"),
    }
}

/// Gives the process the file: open, so that it reads it at its own pace and priority. A process that stops listening has
/// something to say, so that a failure here means nothing yet.
fn send(source: &BlobContent, channel: &mut Timed<'_>) {
    match source {
        BlobContent::File { file, .. } => hand_over(channel.stream, file).ok(),
        BlobContent::Bytes(bytes) => {
            channel.write_all(&[BYTES]).and_then(|()| channel.write_all(bytes)).ok()
        }
    };
}

/// Returns what a blob is by its first bytes; nothing if they do not say.
pub(crate) fn media_type_of(source: &BlobContent) -> Option<&'static str> {
    first_bytes(source)?.media_type()
}

/// Recognizes a blob by its first bytes.
fn first_bytes(source: &BlobContent) -> Option<Format> {
    use std::os::unix::fs::FileExt;
    match source {
        BlobContent::Bytes(bytes) => Format::of(bytes),
        BlobContent::File { file, .. } => {
            let mut head = vec![0; 4096];
            let count = file.read_at(&mut head, 0).ok()?;
            Format::of(head.get(..count)?)
        }
    }
}

pub(crate) fn system(action: &'static str) -> impl Fn(io::Error) -> DrawError {
    move |source| DrawError::System { action, source }
}

/// A socket on which everything together must be done by a time.
struct Timed<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        (&mut &*self.stream).read(target)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        (&mut &*self.stream).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Memory that is handed out and comes back.
#[derive(Debug)]
struct Memory {
    most: u64,
    free: Mutex<u64>,
    freed: Condvar,
}

impl Memory {
    /// Waits until so many bytes are free. One that wants more than all waits for all.
    fn reserve(&self, bytes: u64) -> Reserved<'_> {
        let bytes = bytes.min(self.most);
        let mut free = self.free.lock();
        while *free < bytes {
            self.freed.wait(&mut free);
        }
        *free -= bytes;
        Reserved { memory: self, bytes }
    }
}

struct Reserved<'a> {
    memory: &'a Memory,
    bytes: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        *self.memory.free.lock() += self.bytes;
        self.memory.freed.notify_all();
    }
}
