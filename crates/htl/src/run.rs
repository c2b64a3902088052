//! The interpreter: runs the steps of a function, evaluates expressions and their options.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use crate::budget::{HtlBudget, HtlLimit};
use crate::compiler::VOID_ELEMENTS;
use crate::error::{Error, HostError, Result};
use crate::escape::DisplayContext;
use crate::format::{
    DateFormat, NumberPattern, format_date_pattern, format_number, has_placeholder,
    next_placeholder, parse_fixed_zone,
};
use crate::host::{
    HtlHost, HtlOptions, HtlUseRequest, HtlUseResult, ResourceInclusion, ScriptInclusion,
    TranslationRequest,
};
use crate::operation::{
    ItemSource, LoopStatus, compare, float_of, is_same_item, items_of, named_property, number_of,
    property_of, simple_value,
};
use crate::program::{
    AttributeMapStep, AttributePart, AttributeStep, AttributeValue, CallStep, ComputedValue,
    ContextChoice, LoopStep, OuterName, ProgramExpression, ProgramStep, ScriptFunction,
    ScriptProgram, Slot, StepIndex, ValueOptions,
};
use crate::uri::{QueryParameters, UriOptions, change_uri, join_paths};
use crate::value::{HtlDate, HtlList, HtlObject, HtlTemplate, HtlValue};

/// Lists that scripts make may contain this many lists within each other.
const MAX_LIST_DEPTH: u32 = 64;
/// So many bytes of text that is built count as a step.
const BYTES_PER_STEP: usize = 16;

/// Runs the main part of a script.
pub(crate) fn run_script(
    program: &Arc<ScriptProgram>,
    host: &mut dyn HtlHost,
    budget: &HtlBudget,
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut run = ScriptRun { host, budget, host_values: HashMap::new() };
    run.call(program, 0, Vec::new(), out).map_err(|fault| fault.place(program, 0))
}

/// Why a run ends, with or without the place.
enum RunFault {
    Host(HostError),
    Evaluation(String),
    Budget(HtlLimit),
    Placed(Error),
}

impl RunFault {
    fn place(self, program: &ScriptProgram, offset: u32) -> Error {
        let place = || program.place(offset);
        match self {
            Self::Host(source) => Error::Host { place: place(), source },
            Self::Evaluation(message) => Error::Evaluation { place: place(), message },
            Self::Budget(limit) => Error::Budget { place: place(), limit },
            Self::Placed(error) => error,
        }
    }
}

impl From<HostError> for RunFault {
    /// An error of a script that the host ran has its place already.
    fn from(error: HostError) -> Self {
        match error.into_script_error() {
            Ok(error) => Self::Placed(error),
            Err(error) => Self::Host(error),
        }
    }
}

impl From<HtlLimit> for RunFault {
    fn from(limit: HtlLimit) -> Self {
        Self::Budget(limit)
    }
}

type RunResult<T> = Result<T, RunFault>;

/// The run of a script with its templates and those that it calls.
struct ScriptRun<'a> {
    host: &'a mut dyn HtlHost,
    budget: &'a HtlBudget,
    /// Variables of the host that were asked for.
    host_values: HashMap<Arc<str>, HtlValue>,
}

/// A call of a function.
struct CallFrame<'a> {
    program: &'a Arc<ScriptProgram>,
    slots: Vec<HtlValue>,
    /// The values of the program's outer names that were read.
    outer: Vec<Option<HtlValue>>,
    loops: Vec<LoopState>,
}

/// A loop that is running.
struct LoopState {
    items: HtlList,
    next: usize,
    step: usize,
    end: usize,
    item: Slot,
    status: Option<Slot>,
}

impl CallFrame<'_> {
    fn value(&self, slot: Slot) -> &HtlValue {
        self.slots.get(slot).unwrap_or(&HtlValue::Null)
    }

    fn set(&mut self, slot: Slot, value: HtlValue) {
        if let Some(variable) = self.slots.get_mut(slot) {
            *variable = value;
        }
    }

    /// Sets the variables of a loop's next item; returns false at its end.
    fn advance_loop(&mut self) -> bool {
        let Some(state) = self.loops.last_mut() else { return false };
        let index = state.next;
        let item = state.items.get(index).filter(|_| index <= state.end);
        let Some(item) = item.cloned() else {
            self.loops.pop();
            return false;
        };
        state.next = index.saturating_add(state.step);
        let (slot, status, length) = (state.item, state.status, state.items.len());
        self.set(slot, item);
        if let Some(status) = status {
            self.set(status, LoopStatus::value(index, length));
        }
        true
    }
}

impl ScriptRun<'_> {
    fn call(
        &mut self,
        program: &Arc<ScriptProgram>,
        function: usize,
        arguments: Vec<HtlValue>,
        out: &mut Vec<u8>,
    ) -> RunResult<()> {
        let _depth = self.budget.enter_call()?;
        let Some(function) = program.functions.get(function) else { return Ok(()) };
        let mut slots = arguments;
        slots.resize(function.slots.max(slots.len()), HtlValue::Null);
        let outer = vec![None; program.outer_names.len()];
        let mut frame = CallFrame { program, slots, outer, loops: Vec::new() };
        let mut at = 0;
        while let Some(step) = function.steps.get(at) {
            at = self.step(&mut frame, function, step, at + 1, out).map_err(|fault| {
                // Steps without a place of their own belong to the one in front of them.
                let steps = function.steps.get(..=at).unwrap_or_default();
                let offset = steps.iter().rev().find_map(step_offset);
                RunFault::Placed(fault.place(program, offset.unwrap_or_default()))
            })?;
        }
        Ok(())
    }

    /// Runs a step; returns the index of the following one.
    fn step(
        &mut self,
        frame: &mut CallFrame<'_>,
        function: &ScriptFunction,
        step: &ProgramStep,
        next: StepIndex,
        out: &mut Vec<u8>,
    ) -> RunResult<StepIndex> {
        self.budget.spend_steps(1)?;
        match step {
            ProgramStep::Source(range) => self.write(frame.program.text(*range), out)?,
            ProgramStep::Fixed(text) => self.write(text, out)?,
            ProgramStep::Output(computed, context) => {
                self.output(frame, computed, *context, out)?
            }
            ProgramStep::Set(slot, computed) => {
                let value = self.computed(frame, computed)?;
                frame.set(*slot, value);
            }
            ProgramStep::Jump(target) => return Ok(*target),
            ProgramStep::JumpUnless(slot, target) if !frame.value(*slot).is_true() => {
                return Ok(*target);
            }
            ProgramStep::JumpIf(slot, target) if frame.value(*slot).is_true() => {
                return Ok(*target);
            }
            ProgramStep::JumpIfVoidElement(slot, target) => {
                let name = frame.value(*slot).as_text().unwrap_or_default();
                if VOID_ELEMENTS.iter().any(|void| void.eq_ignore_ascii_case(name)) {
                    return Ok(*target);
                }
            }
            ProgramStep::JumpUnless(..) | ProgramStep::JumpIf(..) => {}
            ProgramStep::Raw(slot) => {
                let name = frame.value(*slot).clone();
                self.write(name.as_text().unwrap_or_default(), out)?;
            }
            ProgramStep::Attribute(attribute) => self.attribute(frame, attribute, out)?,
            ProgramStep::AttributeMap(map) => self.attribute_map(frame, map, out)?,
            ProgramStep::Use(step) => {
                let value = self.use_object(frame, &step.call)?;
                frame.set(step.slot, value);
            }
            ProgramStep::Include(call) => self.include(frame, call, out)?,
            ProgramStep::Resource(call) => self.resource(frame, call, out)?,
            ProgramStep::Call(call) => self.call_template(frame, call, out)?,
            ProgramStep::LoopBegin(step) => {
                if !self.begin_loop(frame, step)? {
                    return Ok(step.exit);
                }
            }
            ProgramStep::LoopNext(exit) => {
                if !frame.advance_loop() {
                    return Ok(*exit);
                }
            }
            ProgramStep::LoopEnd => {
                frame.loops.pop();
            }
        }
        debug_assert!(next <= function.steps.len());
        Ok(next)
    }

    fn write(&self, text: &str, out: &mut Vec<u8>) -> RunResult<()> {
        self.budget.spend_bytes(text.len())?;
        out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    /// Returns the text of a value, unless it is longer than the output may be.
    fn text<'v>(&self, value: &'v HtlValue) -> RunResult<Cow<'v, str>> {
        if let HtlValue::Text(text) = value {
            return Ok(Cow::Borrowed(text));
        }
        let mut text = String::new();
        self.append_text(value, &mut text)?;
        Ok(Cow::Owned(text))
    }

    fn append_text(&self, value: &HtlValue, out: &mut String) -> RunResult<()> {
        let before = out.len();
        let limit = usize::try_from(self.budget.bytes_left()).unwrap_or(usize::MAX);
        if !value.write_text(out, limit) {
            return Err(self.budget.output_limit().into());
        }
        self.budget.spend_steps(((out.len() - before) / BYTES_PER_STEP) as u64)?;
        Ok(())
    }

    fn output(
        &mut self,
        frame: &mut CallFrame<'_>,
        computed: &ComputedValue,
        context: DisplayContext,
        out: &mut Vec<u8>,
    ) -> RunResult<()> {
        let value = self.computed(frame, computed)?;
        if value.is_null() {
            return Ok(());
        }
        let text = self.text(&value)?;
        if has_context(computed) {
            return self.write(&text, out);
        }
        self.write(&context.apply(&text), out)
    }

    /// Evaluates an expression and applies its options.
    fn computed(
        &mut self,
        frame: &mut CallFrame<'_>,
        computed: &ComputedValue,
    ) -> RunResult<HtlValue> {
        let value = self.evaluate(frame, &computed.root);
        let value = match (&computed.options, value) {
            (Some(options), Ok(value)) => self.apply_options(frame, value, options),
            (_, value) => value,
        };
        value.map_err(|fault| RunFault::Placed(fault.place(frame.program, computed.offset)))
    }

    fn evaluate(
        &mut self,
        frame: &mut CallFrame<'_>,
        expression: &ProgramExpression,
    ) -> RunResult<HtlValue> {
        self.budget.spend_steps(1)?;
        Ok(match expression {
            ProgramExpression::Null => HtlValue::Null,
            ProgramExpression::Boolean(value) => HtlValue::Boolean(*value),
            ProgramExpression::Integer(number) => HtlValue::Integer(*number),
            ProgramExpression::Float(number) => HtlValue::Float(*number),
            ProgramExpression::Text(text) => HtlValue::Text(Arc::clone(text)),
            ProgramExpression::Local(slot) => frame.value(*slot).clone(),
            ProgramExpression::Outer(index) => self.outer_value(frame, *index)?,
            ProgramExpression::List(items) => {
                let items: RunResult<HtlList> =
                    items.iter().map(|item| self.evaluate(frame, item)).collect();
                let items = items?;
                if items.depth() > MAX_LIST_DEPTH {
                    let message = format!("more than {MAX_LIST_DEPTH} lists within each other");
                    return Err(RunFault::Evaluation(message));
                }
                HtlValue::List(items)
            }
            ProgramExpression::Path(base, keys) => {
                let mut value = self.evaluate(frame, base)?;
                for key in keys {
                    value = match key {
                        ProgramExpression::Text(name) => named_property(&value, name)?,
                        key => {
                            let key = self.evaluate(frame, key)?;
                            property_of(&value, &key)?
                        }
                    };
                }
                value
            }
            ProgramExpression::Not(operand) => {
                HtlValue::Boolean(!self.evaluate(frame, operand)?.is_true())
            }
            ProgramExpression::And(operands) => self.first_with(frame, operands, false)?,
            ProgramExpression::Or(operands) => self.first_with(frame, operands, true)?,
            ProgramExpression::Contains { item, container } => {
                let item = self.evaluate(frame, item)?;
                let container = self.evaluate(frame, container)?;
                HtlValue::Boolean(self.contains(&item, &container)?)
            }
            ProgramExpression::Compare(operator, left, right) => {
                let left = self.evaluate(frame, left)?;
                let right = self.evaluate(frame, right)?;
                HtlValue::Boolean(compare(*operator, &left, &right).map_err(RunFault::Evaluation)?)
            }
            ProgramExpression::Choice(parts) => {
                let [condition, first, second] = &**parts;
                let is_true = self.evaluate(frame, condition)?.is_true();
                self.evaluate(frame, if is_true { first } else { second })?
            }
            ProgramExpression::Joined(parts) => {
                let mut text = String::new();
                for part in parts {
                    let value = self.computed(frame, part)?;
                    self.append_text(&value, &mut text)?;
                }
                text.into()
            }
        })
    }

    /// Returns the first operand that is true or false as told, or the last one.
    fn first_with(
        &mut self,
        frame: &mut CallFrame<'_>,
        operands: &[ProgramExpression],
        is_true: bool,
    ) -> RunResult<HtlValue> {
        let mut value = HtlValue::Null;
        for operand in operands {
            value = self.evaluate(frame, operand)?;
            if value.is_true() == is_true {
                break;
            }
        }
        Ok(value)
    }

    /// Returns a variable that no statement of the script sets.
    fn outer_value(&mut self, frame: &mut CallFrame<'_>, index: usize) -> RunResult<HtlValue> {
        if let Some(Some(value)) = frame.outer.get(index) {
            return Ok(value.clone());
        }
        let value = match frame.program.outer_names.get(index) {
            Some(OuterName::Template(function)) => HtlValue::Template(HtlTemplate {
                program: Arc::clone(frame.program),
                function: *function,
            }),
            Some(OuterName::Host(name)) => match self.host_values.get(name) {
                Some(value) => value.clone(),
                None => {
                    let value = self.host.global(name)?.unwrap_or_default();
                    self.host_values.insert(Arc::clone(name), value.clone());
                    value
                }
            },
            None => HtlValue::Null,
        };
        if let Some(place) = frame.outer.get_mut(index) {
            *place = Some(value.clone());
        }
        Ok(value)
    }

    fn contains(&self, item: &HtlValue, container: &HtlValue) -> RunResult<bool> {
        let (item, container) = (simple_value(item), simple_value(container));
        match (&*item, &*container) {
            (HtlValue::Text(part), HtlValue::Text(text)) => {
                self.budget.spend_steps((text.len() / BYTES_PER_STEP) as u64)?;
                Ok(text.contains(&**part))
            }
            (HtlValue::Text(name), HtlValue::Object(object)) => Ok(object.contains(name)?),
            (item, container) => {
                let items = self.collect_items(container)?;
                self.budget.spend_steps(items.len() as u64)?;
                Ok(items.iter().any(|other| is_same_item(other, item)))
            }
        }
    }

    fn collect_items(&self, value: &HtlValue) -> RunResult<HtlList> {
        match items_of(value)? {
            ItemSource::List(items) => Ok(items),
            ItemSource::Iterator(items) => {
                let counted = items.map(|item| {
                    self.budget.spend_steps(1)?;
                    Ok(item?)
                });
                counted.collect()
            }
        }
    }

    fn options(
        &mut self,
        frame: &mut CallFrame<'_>,
        options: &[(Arc<str>, ProgramExpression)],
    ) -> RunResult<HtlOptions> {
        options
            .iter()
            .map(|(name, value)| Ok((Arc::clone(name), self.evaluate(frame, value)?)))
            .collect()
    }

    fn use_object(&mut self, frame: &mut CallFrame<'_>, call: &CallStep) -> RunResult<HtlValue> {
        let target = self.computed(frame, &call.target)?;
        let name = self.text(&target)?;
        let options = self.options(frame, &call.options)?;
        let script = &*frame.program.name;
        let request = HtlUseRequest { name: &name, options: &options, script };
        Ok(match self.host.use_object(&request)? {
            HtlUseResult::Object(value) => value,
            HtlUseResult::Templates(script) => HtlValue::object(TemplateLibrary(script.0)),
        })
    }

    fn call_template(
        &mut self,
        frame: &mut CallFrame<'_>,
        call: &CallStep,
        out: &mut Vec<u8>,
    ) -> RunResult<()> {
        let template = match self.computed(frame, &call.target)? {
            HtlValue::Template(template) => template,
            HtlValue::Null => {
                let message = "`data-sly-call` takes a template; there is none of this name";
                return Err(RunFault::Evaluation(message.to_owned()));
            }
            _ => {
                let message = "`data-sly-call` takes a template; this value is none";
                return Err(RunFault::Evaluation(message.to_owned()));
            }
        };
        let Some(function) = template.program.functions.get(template.function) else {
            return Ok(());
        };
        let mut arguments = vec![HtlValue::Null; function.parameters.len()];
        for (name, value) in &call.options {
            let position =
                function.parameters.iter().position(|other| other.eq_ignore_ascii_case(name));
            if let Some(argument) = position.and_then(|position| arguments.get_mut(position)) {
                *argument = self.evaluate(frame, value)?;
            }
        }
        self.call(&template.program, template.function, arguments, out)
    }

    fn include(
        &mut self,
        frame: &mut CallFrame<'_>,
        call: &CallStep,
        out: &mut Vec<u8>,
    ) -> RunResult<()> {
        let target = self.computed(frame, &call.target)?;
        let options = self.options(frame, &call.options)?;
        let mut path = self.text(&target)?;
        if path.is_empty() {
            let option = options.text("file").or_else(|| options.text("path"));
            path = Cow::Owned(option.unwrap_or_default());
        }
        let path = extended_path(&path, &options);
        if path.is_empty() {
            let message = "`data-sly-include` takes the path of a script; this one is empty";
            return Err(RunFault::Evaluation(message.to_owned()));
        }
        let script = &*frame.program.name;
        let inclusion = ScriptInclusion { path: &path, options: &options, script };
        self.included(out, |host, out| host.include_script(&inclusion, out))
    }

    fn resource(
        &mut self,
        frame: &mut CallFrame<'_>,
        call: &CallStep,
        out: &mut Vec<u8>,
    ) -> RunResult<()> {
        let mut target = self.computed(frame, &call.target)?;
        let options = self.options(frame, &call.options)?;
        if !target.is_true()
            && let Some(path) = options.value("path").or_else(|| options.value("file"))
        {
            target = path.clone();
        }
        let is_extended =
            options.value("prependPath").is_some() || options.value("appendPath").is_some();
        let path = match &target {
            HtlValue::Object(object) if object.primitive().is_none() => {
                let path =
                    if is_extended { named_property(&target, "path")? } else { HtlValue::Null };
                path.as_text().map(|path| extended_path(path, &options))
            }
            target => Some(extended_path(&self.text(target)?, &options)),
        };
        let script = &*frame.program.name;
        let inclusion =
            ResourceInclusion { target: &target, path: path.as_deref(), options: &options, script };
        self.included(out, |host, out| host.include_resource(&inclusion, out))
    }

    /// Counts the bytes that the host writes, besides those that scripts counted with the same budget.
    fn included(
        &mut self,
        out: &mut Vec<u8>,
        include: impl FnOnce(&mut dyn HtlHost, &mut Vec<u8>) -> Result<(), HostError>,
    ) -> RunResult<()> {
        let (length, left) = (out.len(), self.budget.bytes_left());
        let _depth = self.budget.enter_call()?;
        include(&mut *self.host, out)?;
        let written = out.len().saturating_sub(length) as u64;
        let counted = left.saturating_sub(self.budget.bytes_left());
        let bytes = usize::try_from(written.saturating_sub(counted)).unwrap_or(usize::MAX);
        Ok(self.budget.spend_bytes(bytes)?)
    }

    /// Begins a loop; returns false if it shows nothing.
    fn begin_loop(&mut self, frame: &mut CallFrame<'_>, step: &LoopStep) -> RunResult<bool> {
        let collection = self.computed(frame, &step.collection)?;
        let items = self.collect_items(&collection)?;
        if items.is_empty() {
            return Ok(false);
        }
        let mut number = |name: &str, option: &Option<ProgramExpression>, default: f64| {
            let Some(option) = option else { return Ok(default) };
            let value = self.evaluate(frame, option)?;
            let number = float_of(&simple_value(&value));
            number
                .ok_or_else(|| RunFault::Evaluation(format!("the option `{name}` takes a number")))
        };
        #[expect(clippy::cast_precision_loss, reason = "lists are shorter than 2^52")]
        let length = items.len() as f64;
        let begin = number("begin", &step.begin, 0.0)?;
        let interval = number("step", &step.step, 1.0)?;
        let end = number("end", &step.end, length)?;
        // Sling shows nothing for an end of zero.
        if !(begin < length && begin >= 0.0 && interval > 0.0 && end > 0.0) {
            return Ok(false);
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and a cast of larger numbers saturates"
        )]
        let (next, interval, end) = (begin as usize, (interval as usize).max(1), end as usize);
        let (item, status) = (step.item, step.status);
        frame.loops.push(LoopState { items, next, step: interval, end, item, status });
        Ok(true)
    }

    fn attribute(
        &mut self,
        frame: &mut CallFrame<'_>,
        step: &AttributeStep,
        out: &mut Vec<u8>,
    ) -> RunResult<()> {
        for map in &step.maps {
            let value = named_property(frame.value(*map), &step.name)?;
            if is_shown(&value) {
                return self.attribute_text(frame, step, &value, Some(step.hint), b'"', out);
            }
        }
        match &step.value {
            AttributeValue::Absent => Ok(()),
            AttributeValue::Literal(range) => self.write(frame.program.text(*range), out),
            AttributeValue::Single(computed) => {
                let value = self.computed(frame, computed)?;
                let context = if has_context(computed) { None } else { Some(step.hint) };
                self.attribute_text(frame, step, &value, context, step.quote, out)
            }
            AttributeValue::Mixed(parts) => {
                let mut text = String::new();
                for part in parts {
                    match part {
                        AttributePart::Source(range) => text.push_str(frame.program.text(*range)),
                        AttributePart::Value(computed) => {
                            let value = self.computed(frame, computed)?;
                            if has_context(computed) {
                                self.append_text(&value, &mut text)?;
                            } else {
                                text.push_str(&step.hint.apply(&self.text(&value)?));
                            }
                        }
                    }
                }
                self.attribute_text(frame, step, &text.into(), None, step.quote, out)
            }
        }
    }

    /// Writes an attribute, if its value shows it.
    fn attribute_text(
        &self,
        frame: &CallFrame<'_>,
        step: &AttributeStep,
        value: &HtlValue,
        context: Option<DisplayContext>,
        quote: u8,
        out: &mut Vec<u8>,
    ) -> RunResult<()> {
        let Some(text) = self.shown_text(value, context)? else { return Ok(()) };
        match step.name_source {
            Some(range) => self.write(frame.program.text(range), out)?,
            None => {
                self.write(" ", out)?;
                self.write(&step.name, out)?;
            }
        }
        self.attribute_value(text.as_deref(), quote, out)
    }

    /// Returns the text of an attribute: `None` for no attribute, `Some(None)` for one without a value.
    fn shown_text(
        &self,
        value: &HtlValue,
        context: Option<DisplayContext>,
    ) -> RunResult<Option<Option<Arc<str>>>> {
        let value = simple_value(value);
        match &*value {
            HtlValue::Null | HtlValue::Boolean(false) => Ok(None),
            HtlValue::Boolean(true) => Ok(Some(None)),
            value => {
                let text = self.text(value)?;
                let text: Arc<str> = match context {
                    Some(context) => context.apply(&text).into(),
                    None => text.into(),
                };
                Ok(if text.trim().is_empty() { None } else { Some(Some(text)) })
            }
        }
    }

    fn attribute_value(&self, text: Option<&str>, quote: u8, out: &mut Vec<u8>) -> RunResult<()> {
        let Some(text) = text else { return Ok(()) };
        let quote = if quote == b'\'' { "'" } else { "\"" };
        self.write("=", out)?;
        self.write(quote, out)?;
        self.write(text, out)?;
        self.write(quote, out)
    }

    fn attribute_map(
        &mut self,
        frame: &mut CallFrame<'_>,
        step: &AttributeMapStep,
        out: &mut Vec<u8>,
    ) -> RunResult<()> {
        let map = frame.value(step.map).clone();
        let keys = match &map {
            HtlValue::Map(_) | HtlValue::Object(_) => self.collect_items(&map)?,
            _ => return Ok(()),
        };
        for key in &*keys {
            self.budget.spend_steps(1)?;
            let key = self.text(key)?;
            let name = DisplayContext::AttributeName.apply(&key);
            let is_ignored = || step.ignored.iter().any(|other| other.eq_ignore_ascii_case(&name));
            if name.is_empty() || is_ignored() {
                continue;
            }
            let mut is_replaced = false;
            for later in &step.later_maps {
                is_replaced |= is_shown(&named_property(frame.value(*later), &key)?);
            }
            if is_replaced {
                continue;
            }
            let value = named_property(&map, &key)?;
            let context = DisplayContext::of_attribute(&name);
            if let Some(text) = self.shown_text(&value, Some(context))? {
                self.write(" ", out)?;
                self.write(&name, out)?;
                self.attribute_value(text.as_deref(), b'"', out)?;
            }
        }
        Ok(())
    }

    /// Applies the options of an expression, in Sling's order: translation, format, join, address, context.
    fn apply_options(
        &mut self,
        frame: &mut CallFrame<'_>,
        value: HtlValue,
        options: &ValueOptions,
    ) -> RunResult<HtlValue> {
        let mut value = value;
        let locale = self.optional_text(frame, options.locale.as_ref())?;
        let locale = locale.filter(|locale| !locale.trim().is_empty());
        if options.i18n {
            value = self.translated(frame, &value, options, locale.as_deref())?;
        }
        if let Some(format) = &options.format {
            let argument = self.evaluate(frame, format)?;
            value = self.formatted(frame, &value, &argument, options, locale.as_deref())?;
        }
        if let Some(separator) = &options.join {
            let separator = self.evaluate(frame, separator)?;
            value = self.joined(value, &separator)?;
        }
        if !options.uri.is_empty() {
            let uri_options = self.uri_options(frame, &options.uri)?;
            value = change_uri(&self.text(&value)?, &uri_options).into();
        }
        let context = match &options.context {
            None => return Ok(value),
            Some(ContextChoice::Fixed(context)) => *context,
            Some(ContextChoice::Computed(name)) => {
                let name = self.evaluate(frame, name)?;
                name.as_text().and_then(DisplayContext::find)
            }
        };
        match context {
            Some(DisplayContext::Unsafe) => Ok(value),
            // An output without a value has no number either.
            Some(context) if !value.is_null() => {
                Ok(context.apply(&self.text(&value)?).as_ref().into())
            }
            Some(DisplayContext::Number) => Ok("0".into()),
            Some(_) | None => Ok("".into()),
        }
    }

    fn optional_text(
        &mut self,
        frame: &mut CallFrame<'_>,
        option: Option<&ProgramExpression>,
    ) -> RunResult<Option<String>> {
        let Some(option) = option else { return Ok(None) };
        let value = self.evaluate(frame, option)?;
        if value.is_null() { Ok(None) } else { Ok(Some(self.text(&value)?.into_owned())) }
    }

    fn translated(
        &mut self,
        frame: &mut CallFrame<'_>,
        value: &HtlValue,
        options: &ValueOptions,
        locale: Option<&str>,
    ) -> RunResult<HtlValue> {
        let hint = self.optional_text(frame, options.hint.as_ref())?;
        let basename = self.optional_text(frame, options.basename.as_ref())?;
        let text = self.text(value)?;
        let (hint, basename) = (hint.as_deref(), basename.as_deref());
        let request = TranslationRequest { text: &text, locale, hint, basename };
        match self.host.translate(&request)? {
            Some(translation) => Ok(translation.into()),
            None => Ok(text.as_ref().into()),
        }
    }

    fn formatted(
        &mut self,
        frame: &mut CallFrame<'_>,
        value: &HtlValue,
        argument: &HtlValue,
        options: &ValueOptions,
        locale: Option<&str>,
    ) -> RunResult<HtlValue> {
        let pattern = self.text(value)?.into_owned();
        let kind = self.optional_text(frame, options.kind.as_ref())?;
        let argument = simple_value(argument);
        let is_plain = !has_placeholder(&pattern);
        let is_date = matches!(&*argument, HtlValue::Date(_)) && is_plain;
        let is_number = float_of(&argument).is_some() && is_plain;
        match kind.as_deref() {
            Some("string") => self.filled(&pattern, &argument),
            Some("date") => self.dated(frame, &pattern, &argument, options, locale),
            _ if is_date => self.dated(frame, &pattern, &argument, options, locale),
            Some("number") => self.numbered(&pattern, &argument, locale),
            _ if is_number => self.numbered(&pattern, &argument, locale),
            Some("whitespace") => Ok(pattern.trim().into()),
            _ => self.filled(&pattern, &argument),
        }
    }

    /// Replaces placeholders.
    fn filled(&self, pattern: &str, argument: &HtlValue) -> RunResult<HtlValue> {
        let single;
        let arguments: &[HtlValue] = match argument {
            HtlValue::List(items) => items,
            HtlValue::Null => &[],
            HtlValue::Object(object) if object.primitive().is_none() => {
                single = self.collect_items(argument)?;
                &single
            }
            _ => std::slice::from_ref(argument),
        };
        let mut text = String::new();
        let mut rest = pattern;
        while let Some((range, number)) = next_placeholder(rest) {
            text.push_str(rest.get(..range.start).unwrap_or_default());
            if let Some(argument) = arguments.get(number) {
                self.append_text(argument, &mut text)?;
            }
            rest = rest.get(range.end..).unwrap_or_default();
        }
        text.push_str(rest);
        Ok(text.into())
    }

    fn dated(
        &mut self,
        frame: &mut CallFrame<'_>,
        pattern: &str,
        argument: &HtlValue,
        options: &ValueOptions,
        locale: Option<&str>,
    ) -> RunResult<HtlValue> {
        let HtlValue::Date(date) = argument else { return Ok(HtlValue::Null) };
        let zone = self.optional_text(frame, options.timezone.as_ref())?;
        let mut date = *date;
        if let Some(zone) = &zone {
            // Java takes UTC for a zone that it does not know.
            let offset =
                parse_fixed_zone(zone).or_else(|| self.host.zone_offset(zone, date.millis));
            date = HtlDate { offset_minutes: offset.unwrap_or(0), ..date };
        }
        let locale = locale.map_or_else(|| self.host.locale().into_owned(), str::to_owned);
        if let Some(text) = self.host.format_date(date, pattern, &locale) {
            return Ok(text.into());
        }
        let format = DateFormat { pattern, locale: &locale, zone: zone.as_deref() };
        format_date_pattern(date, format).map(HtlValue::from).map_err(RunFault::Evaluation)
    }

    fn numbered(
        &mut self,
        pattern: &str,
        argument: &HtlValue,
        locale: Option<&str>,
    ) -> RunResult<HtlValue> {
        let number = match number_of(argument) {
            Some(HtlValue::Integer(number)) => number.to_string(),
            Some(HtlValue::Float(number)) if number.is_finite() => number.to_string(),
            Some(HtlValue::Float(number)) if number.is_nan() => return Ok("NaN".into()),
            Some(HtlValue::Float(number)) => {
                return Ok(if number > 0.0 { "\u{221e}" } else { "-\u{221e}" }.into());
            }
            _ => return Ok(HtlValue::Null),
        };
        let pattern = NumberPattern::parse(pattern).map_err(RunFault::Evaluation)?;
        let locale = locale.map_or_else(|| self.host.locale().into_owned(), str::to_owned);
        Ok(format_number(&number, &pattern, &locale).into())
    }

    fn joined(&self, value: HtlValue, separator: &HtlValue) -> RunResult<HtlValue> {
        if value.as_text().is_some() {
            return Ok(value);
        }
        let items = self.collect_items(&value)?;
        if items.is_empty()
            && !matches!(value, HtlValue::List(_) | HtlValue::Map(_) | HtlValue::Object(_))
        {
            return Ok(value);
        }
        let separator = self.text(separator)?;
        let mut text = String::new();
        for (number, item) in items.iter().enumerate() {
            if number > 0 {
                text.push_str(&separator);
            }
            self.append_text(item, &mut text)?;
            self.budget.spend_steps(1 + (separator.len() / BYTES_PER_STEP) as u64)?;
        }
        Ok(text.into())
    }

    fn uri_options(
        &mut self,
        frame: &mut CallFrame<'_>,
        options: &[(Arc<str>, ProgramExpression)],
    ) -> RunResult<UriOptions> {
        const TEXTS: [&str; 10] = [
            "scheme",
            "domain",
            "path",
            "prependPath",
            "appendPath",
            "extension",
            "suffix",
            "prependSuffix",
            "appendSuffix",
            "fragment",
        ];
        let mut all = UriOptions::default();
        for (name, expression) in options {
            let value = self.evaluate(frame, expression)?;
            match &**name {
                "selectors" => all.selectors = Some(self.text_parts(&value, Some('.'))?),
                "addSelectors" => all.add_selectors = self.text_parts(&value, Some('.'))?,
                "removeSelectors" => all.remove_selectors = self.text_parts(&value, Some('.'))?,
                "query" => all.query = Some(self.parameters(&value)?),
                "addQuery" => all.add_query = self.parameters(&value)?,
                "removeQuery" => all.remove_query = self.text_parts(&value, None)?,
                name => {
                    if let Some(name) = TEXTS.iter().find(|text| **text == name) {
                        all.texts.push((name, self.text(&value)?.into_owned()));
                    }
                }
            }
        }
        Ok(all)
    }

    /// Returns the texts of a list, or the parts of a text.
    fn text_parts(&self, value: &HtlValue, separator: Option<char>) -> RunResult<Vec<String>> {
        match (value, separator) {
            (HtlValue::Null, _) => Ok(Vec::new()),
            (HtlValue::Text(text), Some(separator)) => Ok(text
                .split(separator)
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect()),
            _ => {
                let items = self.collect_items(value)?;
                items.iter().map(|item| Ok(self.text(item)?.into_owned())).collect()
            }
        }
    }

    /// Returns the parameters of a query from a map, whose values may be lists.
    fn parameters(&self, map: &HtlValue) -> RunResult<QueryParameters> {
        let mut parameters = Vec::new();
        if !matches!(map, HtlValue::Map(_) | HtlValue::Object(_)) {
            return Ok(parameters);
        }
        for key in &*self.collect_items(map)? {
            let name = self.text(key)?;
            let value = named_property(map, &name)?;
            let values = match &value {
                HtlValue::List(values) => values.clone(),
                _ => std::iter::once(value).collect(),
            };
            for value in &*values {
                self.budget.spend_steps(1)?;
                parameters.push((name.clone().into_owned(), self.text(value)?.into_owned()));
            }
        }
        Ok(parameters)
    }
}

/// The templates of a script that was loaded with `data-sly-use`.
#[derive(Debug)]
struct TemplateLibrary(Arc<ScriptProgram>);

impl HtlObject for TemplateLibrary {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        let functions = &self.0.functions;
        let found = functions.iter().rposition(|function| function.name.eq_ignore_ascii_case(name));
        let template = found.filter(|function| *function > 0).map(|function| {
            HtlValue::Template(HtlTemplate { program: Arc::clone(&self.0), function })
        });
        Ok(template)
    }
}

/// Returns a path with the options `prependPath` and `appendPath`.
fn extended_path(path: &str, options: &HtlOptions) -> String {
    let prepended = options.text("prependPath").unwrap_or_default();
    let appended = options.text("appendPath").unwrap_or_default();
    join_paths([&prepended, path, &appended])
}

fn has_context(computed: &ComputedValue) -> bool {
    computed.options.as_ref().is_some_and(|options| options.context.is_some())
}

/// Returns true for a value in a map that replaces an attribute.
fn is_shown(value: &HtlValue) -> bool {
    simple_value(value).is_true()
}

/// Returns the byte of the source that a step comes from, if it has one of its own.
fn step_offset(step: &ProgramStep) -> Option<u32> {
    Some(match step {
        ProgramStep::Source(range) => range.start,
        ProgramStep::Output(computed, _) | ProgramStep::Set(_, computed) => computed.offset,
        ProgramStep::Attribute(step) => match (&step.value, step.name_source) {
            (AttributeValue::Single(computed), _) => computed.offset,
            (_, Some(range)) => range.start,
            _ => return None,
        },
        ProgramStep::AttributeMap(step) => step.offset,
        ProgramStep::Use(step) => step.call.target.offset,
        ProgramStep::Include(call) | ProgramStep::Resource(call) | ProgramStep::Call(call) => {
            call.target.offset
        }
        ProgramStep::LoopBegin(step) => step.collection.offset,
        ProgramStep::Fixed(_)
        | ProgramStep::Raw(_)
        | ProgramStep::Jump(_)
        | ProgramStep::JumpUnless(..)
        | ProgramStep::JumpIf(..)
        | ProgramStep::JumpIfVoidElement(..)
        | ProgramStep::LoopNext(_)
        | ProgramStep::LoopEnd => return None,
    })
}
