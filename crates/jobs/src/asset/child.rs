//! The process that draws: it takes one file after the other from its standard input and answers there.
//!
//! Decoders of pictures are where hostile files strike. Whatever one does to this process, the server goes on: memory,
//! processor time and files are bounded before the first byte is read, and the server ends what takes too long.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::channel::{Answer, GO, Request, read_json, take_over, write_bytes, write_json};
use super::decode::Fault;
use super::draw::draw;
use super::packet_pdf::appendix;

/// Address space beside what an order may take: the program itself, its threads, fonts.
const OWN_MEMORY: u64 = 1 << 30;
/// The stack of the thread that draws: deep drawings end on it, not beyond it.
const STACK_BYTES: usize = 32 << 20;

fn bound(resource: Resource, most: u64) -> io::Result<()> {
    let maximum = rustix::process::getrlimit(resource).maximum;
    Ok(setrlimit(
        resource,
        Rlimit { current: Some(most.min(maximum.unwrap_or(u64::MAX))), maximum },
    )?)
}

/// Draws for the server until it closes the channel: what the process of a [`super::Studio`] runs.
///
/// It bounds this process first, so nothing else can be done in it afterwards.
///
/// # Errors
/// If the channel fails in the middle of an order, or the system refuses the bounds.
pub fn draw_pictures() -> io::Result<()> {
    bound(Resource::Core, 0)?;
    bound(Resource::Fsize, 0)?;
    bound(Resource::Nofile, 64)?;
    // Libraries print; nothing of that may get into the channel.
    let mut input = File::from(rustix::io::dup(std::io::stdin())?);
    let mut output = input.try_clone()?;
    std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || {
            while serve(&mut input, &mut output)? {}
            Ok(())
        })?
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("a decoder failed")))
}

/// Takes one order; false when there are no more.
fn serve(input: &mut File, output: &mut File) -> io::Result<bool> {
    let request: Request = match read_json(input) {
        Ok(request) => request,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        Err(error) => return Err(error),
    };
    // One that may not step back works as well, only less politely.
    rustix::process::setpriority_process(None, request.niceness).ok();
    let limits = request.order.limits;
    bound(Resource::As, OWN_MEMORY + limits.memory + request.length)?;
    bound(Resource::Cpu, cpu_seconds() + limits.seconds)?;
    let bytes = match take_over(&*input)? {
        Some(file) => match read_exactly(file, request.length) {
            Ok(bytes) => bytes,
            Err(error) => {
                write_json(output, &Answer::Unread(error.to_string()))?;
                return Ok(true);
            }
        },
        None => read_exactly(&mut *input, request.length)?,
    };
    if let Some(wanted) = request.append {
        match appendix(&bytes, wanted) {
            Ok(None) => write_json(output, &Answer::Appended(None))?,
            Ok(Some((appended, names))) => {
                write_json(output, &Answer::Appended(Some(names)))?;
                write_bytes(output, &appended)?;
            }
            Err(reason) => write_json(output, &Answer::Refused(reason))?,
        }
        return Ok(true);
    }
    let reserve = |need: u64| {
        let mut ask = || -> io::Result<u8> {
            write_json(output, &Answer::Need(need))?;
            let mut answer = [0];
            input.read_exact(&mut answer)?;
            let [answer] = answer;
            Ok(answer)
        };
        match ask() {
            Ok(GO) => Ok(()),
            _ => Err(Fault::new("there is not enough memory to draw it")),
        }
    };
    let answer = draw(&bytes, &request.order, reserve);
    let mut output = BufWriter::new(&*output);
    match answer {
        Ok(drawn) => {
            let answer = Answer::Drawn(drawn);
            write_json(&mut output, &answer)?;
            if let Answer::Drawn(drawn) = &answer {
                let pictures = drawn.renditions.iter().map(|rendition| &rendition.bytes);
                pictures.into_iter().try_for_each(|picture| write_bytes(&mut output, picture))?;
            }
        }
        Err(Fault(reason)) => write_json(&mut output, &Answer::Refused(reason))?,
    }
    output.flush()?;
    Ok(true)
}

fn read_exactly(source: impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(usize::MAX));
    source.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// Returns the processor time that this process has had, in whole seconds.
fn cpu_seconds() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(used.tv_sec).unwrap_or(0) + 1
}

/// What another program may take.
#[derive(Debug, Clone, Copy)]
pub struct ToolBounds {
    /// Address space in bytes.
    pub memory: u64,
    /// Processor time.
    pub time: Duration,
    /// How much it stands behind others.
    pub niceness: i32,
}

/// Runs another program in the place of this process, bounded in memory and time: what a [`super::Studio`] starts for
/// formats that other programs read.
///
/// It returns only if the system refuses the bounds or there is no such program.
pub fn run_tool(program: &str, arguments: &[String], most: ToolBounds) -> io::Error {
    use std::os::unix::process::CommandExt;
    let bounds = || -> io::Result<()> {
        rustix::process::setpriority_process(None, most.niceness).ok();
        bound(Resource::Core, 0)?;
        bound(Resource::As, most.memory)?;
        bound(Resource::Cpu, most.time.as_secs())
    };
    match bounds() {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    }
}
