//! The decoder process: it receives one file after the other on its standard input, and responds there.
//!
//! Image decoders are the target of hostile files. The server survives whatever a file does to this process: memory,
//! processor time and files are limited before the first byte is read, and the server kills a process that takes too
//! long.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::asset_file_error::AssetFileError;
use crate::decoder_channel::{
    BEGIN_DECODING_MARKER, DecoderMessage, FramedProcessingRequest, read_json,
    receive_file_descriptor, write_json, write_length_prefixed,
};
use crate::pdf_xmp_packet::build_pdf_appendix;
use crate::rendition_generator::render_asset_file;

/// Address space beyond the memory limit of a request: for the program itself, its threads and fonts.
const BASE_MEMORY_BYTES: u64 = 1 << 30;
/// Stack size of the processing thread. Deeply nested drawings overflow this stack instead of other memory.
const RENDERING_STACK_BYTES: usize = 32 << 20;

fn set_resource_limit(resource: Resource, most: u64) -> io::Result<()> {
    let maximum = rustix::process::getrlimit(resource).maximum;
    Ok(setrlimit(
        resource,
        Rlimit { current: Some(most.min(maximum.unwrap_or(u64::MAX))), maximum },
    )?)
}

/// Processes requests until the server closes the channel. This is the main function of a process in a
/// [`super::DecoderProcessPool`].
///
/// It first limits this process, which cannot be used for anything else afterwards.
///
/// # Errors
/// If the channel fails during a request, or the system rejects the limits.
pub fn run_decoder_process() -> io::Result<()> {
    set_resource_limit(Resource::Core, 0)?;
    set_resource_limit(Resource::Fsize, 0)?;
    set_resource_limit(Resource::Nofile, 64)?;
    // Libraries print to standard output; their text must not enter the channel.
    let mut input = File::from(rustix::io::dup(std::io::stdin())?);
    let mut output = input.try_clone()?;
    std::thread::Builder::new()
        .stack_size(RENDERING_STACK_BYTES)
        .spawn(move || {
            while serve_request(&mut input, &mut output)? {}
            Ok(())
        })?
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("a decoder panicked")))
}

/// Processes one request. Returns false when there are no more.
fn serve_request(input: &mut File, output: &mut File) -> io::Result<bool> {
    let framed_request: FramedProcessingRequest = match read_json(input) {
        Ok(framed_request) => framed_request,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        Err(error) => return Err(error),
    };
    // The process works without the lower priority, too.
    rustix::process::setpriority_process(None, framed_request.niceness).ok();
    let limits = framed_request.request.limits;
    set_resource_limit(Resource::As, BASE_MEMORY_BYTES + limits.memory + framed_request.length)?;
    set_resource_limit(Resource::Cpu, cpu_seconds() + limits.seconds)?;
    let bytes = match receive_file_descriptor(&*input)? {
        Some(file) => match read_exactly(file, framed_request.length) {
            Ok(bytes) => bytes,
            Err(error) => {
                write_json(output, &DecoderMessage::Unread(error.to_string()))?;
                return Ok(true);
            }
        },
        None => read_exactly(&mut *input, framed_request.length)?,
    };
    if let Some(properties) = framed_request.append {
        match build_pdf_appendix(&bytes, properties) {
            Ok(None) => write_json(output, &DecoderMessage::Appended(None))?,
            Ok(Some((appended, names))) => {
                write_json(output, &DecoderMessage::Appended(Some(names)))?;
                write_length_prefixed(output, &appended)?;
            }
            Err(reason) => write_json(output, &DecoderMessage::Refused(reason))?,
        }
        return Ok(true);
    }
    let reserve = |need: u64| {
        let mut request_memory = || -> io::Result<u8> {
            write_json(output, &DecoderMessage::Need(need))?;
            let mut reply = [0];
            input.read_exact(&mut reply)?;
            let [reply] = reply;
            Ok(reply)
        };
        match request_memory() {
            Ok(BEGIN_DECODING_MARKER) => Ok(()),
            _ => Err(AssetFileError::new("there is not enough memory to render it")),
        }
    };
    let outcome = render_asset_file(&bytes, &framed_request.request, reserve);
    let mut output = BufWriter::new(&*output);
    match outcome {
        Ok(result) => {
            let message = DecoderMessage::Rendered(result);
            write_json(&mut output, &message)?;
            if let DecoderMessage::Rendered(result) = &message {
                let renditions = result.renditions.iter().map(|rendition| &rendition.bytes);
                renditions
                    .into_iter()
                    .try_for_each(|bytes| write_length_prefixed(&mut output, bytes))?;
            }
        }
        Err(AssetFileError(reason)) => write_json(&mut output, &DecoderMessage::Refused(reason))?,
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

/// Returns the processor time used by this process, in whole seconds.
fn cpu_seconds() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(used.tv_sec).unwrap_or(0) + 1
}

/// Resource limits of an external program.
#[derive(Debug, Clone, Copy)]
pub struct ToolLimits {
    /// Address space in bytes.
    pub memory_bytes: u64,
    /// Processor time.
    pub cpu_time: Duration,
    /// Niceness.
    pub niceness: i32,
}

/// Replaces this process with another program, limited in memory and time. A [`super::DecoderProcessPool`] starts it
/// for formats that external programs read.
///
/// It returns only if the system rejects the limits or the program does not exist.
pub fn run_tool(program: &str, arguments: &[String], most: ToolLimits) -> io::Error {
    use std::os::unix::process::CommandExt;
    let bounds = || -> io::Result<()> {
        rustix::process::setpriority_process(None, most.niceness).ok();
        set_resource_limit(Resource::Core, 0)?;
        set_resource_limit(Resource::As, most.memory_bytes)?;
        set_resource_limit(Resource::Cpu, most.cpu_time.as_secs())
    };
    match bounds() {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    }
}
