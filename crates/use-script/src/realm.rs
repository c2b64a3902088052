//! A realm: an engine with the global object of one component's scripts, entered for each run and each read.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rquickjs::context::{EvalOptions, intrinsic};
use rquickjs::{Array, Context, Ctx, Exception, Function, Object, Persistent, Runtime, Value};
use tympan_htl::{HtlBudget, HtlLimit, HtlObject, HtlOptions, HtlValue, ScriptPlace};

use crate::conversion::{option_map, to_htl};
use crate::error::{Error, Result};
use crate::host::{UseScript, UseScriptHost};
use crate::host_function::host_functions;
use crate::limited_allocator::LimitedAllocator;
use crate::limits::UseScriptLimits;

/// What a realm has: the language without modules, threads, typed arrays and big integers.
type Intrinsics = (
    intrinsic::Eval,
    intrinsic::Date,
    intrinsic::RegExpCompiler,
    intrinsic::RegExp,
    intrinsic::Json,
    intrinsic::Proxy,
    intrinsic::MapSet,
    intrinsic::Promise,
    intrinsic::WeakRef,
);

const BOOTSTRAP: &str = include_str!("bootstrap.js");

/// The name of the bootstrap in stacks of calls.
const BOOTSTRAP_NAME: &str = "use-api";

/// The line in front of a script, so that its variables are its own.
const SCRIPT_HEAD: &str = "(function(use,console,log,module,exports){\n";
const SCRIPT_END: &str = "\n})";

/// The engine asks whether to go on after this number of calls and iterations; they count as steps.
const STEPS_PER_POLL: u64 = 10_000;

/// The steps of a realm's creation, and of a run.
const STEPS_PER_REALM: u64 = 1_000;
const STEPS_PER_RUN: u64 = 100;

/// So many bytes of text that enter or leave the engine, or are compiled, count as a step.
const BYTES_PER_STEP: usize = 16;

/// So many bytes that the engine allocates count as a step, once there are [`COUNTED_ALLOCATION_BYTES`].
const ALLOCATED_BYTES_PER_STEP: usize = 64;
const COUNTED_ALLOCATION_BYTES: usize = 4096;

/// The memory for exceptions of exceeded limits.
const RESERVED_MEMORY_BYTES: usize = 512 << 10;
const MAX_RESERVED_ALLOCATION_BYTES: usize = 64 << 10;

/// So many items of a list, or characters of a text, that an operation of the engine visits count as a step.
const ITEMS_PER_STEP: u64 = 8;

/// With less stack than this, nothing is run.
const MIN_STACK_BYTES: usize = 32 << 10;

/// Maximum number of bytes of an exception's message.
const MAX_MESSAGE_BYTES: usize = 1000;

/// The scripts of one component of one request. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct UseScriptRealm(Rc<Realm>);

impl UseScriptRealm {
    /// Starts an engine. The stack of all runs is counted from the caller's frame.
    ///
    /// # Errors
    /// If there is not enough memory, or the budget is used up.
    pub fn new(
        host: Rc<dyn UseScriptHost>,
        budget: HtlBudget,
        limits: UseScriptLimits,
    ) -> Result<Self> {
        let state = Rc::new(RealmState {
            host,
            budget,
            limits,
            objects: RefCell::default(),
            is_running: Cell::new(false),
            exceeded: Cell::new(None),
            started: Cell::new(Instant::now()),
            run_time: Cell::new(Duration::ZERO),
            uncounted_bytes: Cell::new(0),
            memory: Cell::new(0),
        });
        let name: Arc<str> = BOOTSTRAP_NAME.into();
        let engine_error = |error: rquickjs::Error| Error::Engine {
            place: begin(&name),
            message: error.to_string(),
        };
        state
            .budget
            .spend_steps(STEPS_PER_REALM)
            .map_err(|limit| Error::Budget { place: begin(&name), limit })?;
        let allocator = LimitedAllocator(Rc::clone(&state));
        let runtime = Runtime::new_with_alloc(allocator).map_err(engine_error)?;
        runtime.set_max_stack_size(limits.stack_bytes);
        let polled = Rc::clone(&state);
        runtime.set_interrupt_handler(Some(Box::new(move || {
            polled.is_interrupted_after(STEPS_PER_POLL)
        })));
        let context = Context::custom::<Intrinsics>(&runtime).map_err(engine_error)?;
        let api = context
            .with(|ctx| {
                let bootstrap: Function<'_> =
                    ctx.eval_with_options(BOOTSTRAP, eval_options(BOOTSTRAP_NAME))?;
                let api: Object<'_> = bootstrap.call((host_functions(&ctx, &state)?,))?;
                Ok(Persistent::save(&ctx, api))
            })
            .map_err(engine_error)?;
        Ok(Self(Rc::new(Realm { api, context, state, stack_base: stack_address() })))
    }

    /// Runs a script with the options of `data-sly-use` as properties of `this`, and returns its value.
    ///
    /// # Errors
    /// If the script cannot be parsed, throws, or exceeds a limit.
    pub fn run(&self, script: &UseScript, options: &HtlOptions) -> Result<HtlValue> {
        self.0.enter(&script.path, |ctx, api| {
            let state = &self.0.state;
            state.spend(ctx, STEPS_PER_RUN)?;
            let body = compile(ctx, state, script)?;
            let options = option_map(ctx, state, options)?;
            let run: Function<'_> = api.get("run")?;
            let value: Value<'_> = run.call((&*script.path, body, options))?;
            to_htl(&self.0, ctx, api, value, &script.path)
        })
    }

    /// Compiles a script without running it.
    ///
    /// # Errors
    /// If the script cannot be parsed, or exceeds a limit.
    pub(crate) fn compile(&self, script: &UseScript) -> Result<()> {
        self.0.enter(&script.path, |ctx, _| compile(ctx, &self.0.state, script).map(drop))
    }
}

/// A realm with its engine.
pub(crate) struct Realm {
    // Values of the engine are dropped in front of the engine.
    api: Persistent<Object<'static>>,
    context: Context,
    state: Rc<RealmState>,
    stack_base: usize,
}

impl fmt::Debug for Realm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Realm").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Realm {
    /// Returns the state that the host's functions share.
    pub(crate) fn state(&self) -> &RealmState {
        &self.state
    }

    /// Calls a function with the engine and the functions of the bootstrap; `script` is named by errors without a place.
    pub(crate) fn enter<R>(
        &self,
        script: &Arc<str>,
        work: impl for<'js> FnOnce(&Ctx<'js>, &Object<'js>) -> rquickjs::Result<R>,
    ) -> Result<R> {
        if let Some(error) = self.exceeded_error(script) {
            return Err(error);
        }
        let engine_error =
            |message: &str| Error::Engine { place: begin(script), message: message.to_owned() };
        if self.state.is_running.replace(true) {
            return Err(engine_error("a value of a script was read while a script runs"));
        }
        let stack = self.stack_base.abs_diff(stack_address());
        let stack_left = self.state.limits.stack_bytes.saturating_sub(stack);
        let result = if stack_left < MIN_STACK_BYTES {
            Err(engine_error("templates and scripts are nested too deeply to run this one"))
        } else {
            self.context.runtime().set_max_stack_size(stack_left);
            self.state.started.set(Instant::now());
            let result = self.context.with(|ctx| {
                let api = self.api.clone().restore(&ctx);
                let api = match api {
                    Ok(api) => api,
                    Err(error) => return Err(engine_error(&error.to_string())),
                };
                work(&ctx, &api).map_err(|error| self.failure(&ctx, &api, &error, script))
            });
            let run_time = self.state.run_time.get() + self.state.started.get().elapsed();
            self.state.run_time.set(run_time);
            result
        };
        self.state.is_running.set(false);
        // A script may have caught the exception of a limit.
        match self.exceeded_error(script) {
            Some(error) => Err(error),
            None => result,
        }
    }

    fn exceeded_error(&self, script: &Arc<str>) -> Option<Error> {
        let place = begin(script);
        Some(match self.state.exceeded.get()? {
            ExceededLimit::Budget(limit) => Error::Budget { place, limit },
            ExceededLimit::RunTime => Error::RunTime { place, limit: self.state.limits.run_time },
        })
    }

    /// Describes the exception that is pending after an error.
    fn failure<'js>(
        &self,
        ctx: &Ctx<'js>,
        api: &Object<'js>,
        error: &rquickjs::Error,
        script: &Arc<str>,
    ) -> Error {
        if !error.is_exception() {
            return Error::Exception { place: begin(script), message: error.to_string() };
        }
        let thrown = ctx.catch();
        let describe = || -> rquickjs::Result<(String, String)> {
            let describe: Function<'js> = api.get("describe")?;
            let parts: Array<'js> = describe.call((thrown,))?;
            Ok((parts.get(0)?, parts.get(1)?))
        };
        let (message, stack) = describe().unwrap_or_else(|_| {
            // The description of an exception is a script, too.
            drop(ctx.catch());
            ("an exception that cannot be described".to_owned(), String::new())
        });
        let place = innermost_place(&stack).unwrap_or_else(|| begin(script));
        let end = message.floor_char_boundary(MAX_MESSAGE_BYTES);
        let message = message.get(..end).unwrap_or_default().to_owned();
        Error::Exception { place, message }
    }
}

/// A limit that was exceeded; nothing runs in the realm afterwards.
#[derive(Debug, Clone, Copy)]
enum ExceededLimit {
    Budget(HtlLimit),
    RunTime,
}

/// The part of a realm that the host's functions and the engine's polls use.
#[derive(Debug)]
pub(crate) struct RealmState {
    pub(crate) host: Rc<dyn UseScriptHost>,
    budget: HtlBudget,
    limits: UseScriptLimits,
    /// Objects of the host that scripts hold, by number.
    objects: RefCell<Vec<Rc<dyn HtlObject>>>,
    is_running: Cell<bool>,
    exceeded: Cell<Option<ExceededLimit>>,
    /// The start of the current run. The clock only ends runs; no value depends on it.
    started: Cell<Instant>,
    /// The time of all earlier runs.
    run_time: Cell<Duration>,
    /// Bytes that were allocated and are not counted as steps yet.
    uncounted_bytes: Cell<usize>,
    /// Bytes that the engine has.
    memory: Cell<usize>,
}

impl RealmState {
    /// Counts steps.
    pub(crate) fn spend(&self, ctx: &Ctx<'_>, steps: u64) -> rquickjs::Result<()> {
        self.spend_steps(steps).map_err(|limit| {
            Exception::throw_message(ctx, &format!("the limit of {limit} is exceeded"))
        })
    }

    /// Counts the steps of a text.
    pub(crate) fn spend_bytes(&self, ctx: &Ctx<'_>, bytes: usize) -> rquickjs::Result<()> {
        self.spend(ctx, 1 + (bytes / BYTES_PER_STEP) as u64)
    }

    fn spend_steps(&self, steps: u64) -> Result<(), HtlLimit> {
        self.budget
            .spend_steps(steps)
            .inspect_err(|limit| self.exceeded.set(Some(ExceededLimit::Budget(*limit))))
    }

    /// Adds an object of the host; returns its number.
    pub(crate) fn add_object(&self, object: &Rc<dyn HtlObject>) -> usize {
        let mut objects = self.objects.borrow_mut();
        objects.push(Rc::clone(object));
        objects.len() - 1
    }

    /// Returns the object of the host with a number.
    pub(crate) fn object(&self, number: usize) -> Option<Rc<dyn HtlObject>> {
        self.objects.borrow().get(number).cloned()
    }

    /// Counts steps and reads the clock; returns true if the running script must end.
    fn is_interrupted_after(&self, steps: u64) -> bool {
        let run_time = self.run_time.get() + self.started.get().elapsed();
        if self.exceeded.get().is_none()
            && self.spend_steps(steps).is_ok()
            && run_time > self.limits.run_time
        {
            self.exceeded.set(Some(ExceededLimit::RunTime));
        }
        self.exceeded.get().is_some()
    }

    /// Counts an operation of the engine on this number of items or characters.
    pub(crate) fn count_operation(&self, ctx: &Ctx<'_>, items: f64) -> rquickjs::Result<()> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "what is out of range exceeds any budget, or counts nothing"
        )]
        let steps = items as u64 / ITEMS_PER_STEP;
        if self.is_interrupted_after(steps) {
            return Err(Exception::throw_message(ctx, "the limit of the script is exceeded"));
        }
        Ok(())
    }

    /// Returns true if the engine may take so many bytes, and counts them as steps.
    ///
    /// When a limit is exceeded, small allocations have a reserve: without memory for the exception that ends a script,
    /// the engine would throw one that scripts catch.
    pub(crate) fn may_allocate(&self, bytes: usize) -> bool {
        let memory = self.memory.get().saturating_add(bytes);
        if memory > self.limits.memory_bytes && !self.is_exceeded() {
            return false;
        }
        let uncounted = self.uncounted_bytes.get().saturating_add(bytes);
        // The engine itself also allocates while no script runs.
        if !self.is_running.get() || uncounted < COUNTED_ALLOCATION_BYTES {
            self.uncounted_bytes.set(uncounted);
        } else {
            self.uncounted_bytes.set(0);
            self.is_interrupted_after((uncounted / ALLOCATED_BYTES_PER_STEP) as u64);
        }
        !self.is_exceeded()
            || (bytes <= MAX_RESERVED_ALLOCATION_BYTES
                && memory <= self.limits.memory_bytes.saturating_add(RESERVED_MEMORY_BYTES))
    }

    /// Counts memory that the engine took.
    pub(crate) fn add_memory(&self, bytes: usize) {
        self.memory.set(self.memory.get().saturating_add(bytes));
    }

    /// Counts memory that the engine gave back.
    pub(crate) fn remove_memory(&self, bytes: usize) {
        self.memory.set(self.memory.get().saturating_sub(bytes));
    }

    /// Returns true if a limit is exceeded.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.exceeded.get().is_some()
    }
}

/// Compiles a script to a function.
pub(crate) fn compile<'js>(
    ctx: &Ctx<'js>,
    state: &RealmState,
    script: &UseScript,
) -> rquickjs::Result<Function<'js>> {
    state.spend_bytes(ctx, script.source.len())?;
    let source = script.source.trim_start_matches('\u{feff}');
    let text = [SCRIPT_HEAD, source, SCRIPT_END].concat();
    ctx.eval_with_options(text, eval_options(&script.path))
}

fn eval_options(name: &str) -> EvalOptions {
    let mut options = EvalOptions::default();
    options.strict = false;
    options.filename = Some(name.to_owned());
    options
}

/// Returns the beginning of a script, for errors without a place.
fn begin(script: &Arc<str>) -> ScriptPlace {
    ScriptPlace { script: Arc::clone(script), line: 1, column: 1 }
}

/// Returns the first place in a stack of calls that lies in a script.
fn innermost_place(stack: &str) -> Option<ScriptPlace> {
    stack.lines().find_map(|line| {
        let call = line.trim();
        let call = call.strip_prefix("at ").unwrap_or(call);
        let place = call.rsplit_once('(').map_or(call, |(_, place)| place.trim_end_matches(')'));
        let (place, column) = place.rsplit_once(':')?;
        let (script, line) = place.rsplit_once(':')?;
        let (line, column): (u32, u32) = (line.parse().ok()?, column.parse().ok()?);
        // The head is the first line.
        let line = line.saturating_sub(1).max(1);
        (script != BOOTSTRAP_NAME).then(|| ScriptPlace { script: script.into(), line, column })
    })
}

/// Returns an address in the current frame.
fn stack_address() -> usize {
    let marker = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&marker)).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(stack: &str, expected: &str) {
        let place =
            innermost_place(stack).map_or_else(|| "-".to_owned(), |place| place.to_string());
        assert_eq!(place, expected);
    }

    #[test]
    fn finds_the_innermost_place_of_a_script() {
        check(
            "    at f (/apps/a.js:4:7)\n    at <anonymous> (/apps/a.js:2:50)\n",
            "/apps/a.js:3:7",
        );
        check("    at decode (use-api:9:1)\n    at /apps/a.js:2:50\n", "/apps/a.js:1:50");
        check("    at map (native)\n    at <eval> (/apps/a:b.js:3:1)\n", "/apps/a:b.js:2:1");
        check("    at use-api:1:1", "-");
        check("", "-");
    }
}
