//! Commands that this program starts itself with, to read pictures; and the studio that they are started by.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tympan_content::BlobContent;
use tympan_jobs::asset::{
    Encoding, Fit, Limits, Order, RenditionOrder, Size, Start, Studio, StudioOptions, ToolBounds,
};

use crate::args;
use crate::command::{Fault, Outcome};
use crate::config::Config;
use crate::open_program::OPEN_PROGRAM;

/// Memory for pictures of all processes at once unless configured.
const MEMORY: u64 = 1 << 30;

/// How much what nobody waits for stands behind what people wait for.
const NICENESS: i32 = 10;

/// Who waits for what a studio draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Visitors and editors: the priority of the server.
    Now,
    /// Nobody: a low priority.
    Later,
}

/// Returns how many processors there are.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Makes a studio whose processes are this program.
pub(crate) fn studio(config: &Config, urgency: Urgency) -> Arc<Studio> {
    let start = |command: &str| Start {
        program: OPEN_PROGRAM.into(),
        arguments: vec![OsString::from(command)],
    };
    Arc::new(Studio::new(StudioOptions {
        draw: start(args::DRAW_PICTURES),
        tool: start(args::RUN_TOOL),
        programs: std::env::var_os("PATH"),
        memory: config.assets.memory.map_or(MEMORY, |memory| memory.0),
        idle: cores(),
        niceness: if urgency == Urgency::Now { 0 } else { NICENESS },
    }))
}

/// Draws for another process of this program.
pub(crate) fn draw_pictures() -> Outcome {
    tympan_jobs::asset::draw_pictures()
        .map(|()| ExitCode::SUCCESS)
        .map_err(|error| Fault::cannot_run(format!("cannot draw: {error}")))
}

/// Runs another program with bounds.
pub(crate) fn run_tool(tool: &args::RunTool) -> Outcome {
    let time = Duration::from_secs(tool.seconds);
    let most = ToolBounds { memory: tool.memory, time, niceness: tool.niceness };
    let error = tympan_jobs::asset::run_tool(&tool.program, &tool.arguments, most);
    Err(Fault::cannot_run(format!("cannot run `{}`: {error}", tool.program)))
}

/// Draws the four standard renditions of a file into a folder, for measurements.
pub(crate) fn draw_file(arguments: &args::DrawFile) -> Outcome {
    let studio = studio(&Config::default(), Urgency::Now);
    let size = |width, height| Size { width, height };
    let order = |name: &str, within, encoding| RenditionOrder {
        name: name.to_owned(),
        within,
        fit: Fit::Inside,
        encoding,
    };
    let order = Order {
        renditions: vec![
            order("web.jpg", size(1280, 1280), Encoding::Jpeg(arguments.quality)),
            order("319.png", size(319, 319), Encoding::Png),
            order("140.png", size(140, 100), Encoding::Png),
            order("48.png", size(48, 48), Encoding::Png),
        ],
        metadata: true,
        declared: String::new(),
        limits: Limits::default(),
    };
    let open = || -> io::Result<BlobContent> {
        let file = std::fs::File::open(&arguments.file)?;
        let length = file.metadata()?.len();
        Ok(BlobContent::File { file, length })
    };
    let drawn = studio.draw(&open, &order);
    let drawn = drawn.map_err(|error| Fault::cannot_run(crate::home::chain(&error)))?;
    for rendition in &drawn.renditions {
        let file = arguments.folder.join(&rendition.name);
        std::fs::write(&file, &rendition.bytes).map_err(|error| {
            Fault::cannot_run(format!("cannot write `{}`: {error}", file.display()))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
