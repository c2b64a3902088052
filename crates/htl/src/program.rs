//! Programs: what scripts are compiled to. A flat list of steps per function, so that markup of any depth takes no stack.

use std::sync::Arc;

use crate::error::{HtlDiagnostic, ScriptPlace};
use crate::escape::DisplayContext;
use crate::syntax::CompareOperator;

/// A range of the source, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SourceRange {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// A compiled script.
#[derive(Debug)]
pub(crate) struct ScriptProgram {
    pub(crate) name: Arc<str>,
    /// Steps write ranges of it, so that literal markup is not copied.
    pub(crate) source: String,
    /// The script itself, then its templates.
    pub(crate) functions: Vec<ScriptFunction>,
    /// Variables that no statement of the script sets.
    pub(crate) outer_names: Vec<OuterName>,
    pub(crate) warnings: Vec<HtlDiagnostic>,
}

/// What a variable is that no statement sets.
#[derive(Debug)]
pub(crate) enum OuterName {
    /// A template of the script: the index of its function.
    Template(usize),
    /// A variable of the host, in lower case.
    Host(Arc<str>),
}

/// The script's main part, or a template.
#[derive(Debug)]
pub(crate) struct ScriptFunction {
    /// The name of a template, in lower case; empty for the main part.
    pub(crate) name: Arc<str>,
    /// The parameters, in lower case; they have the first slots.
    pub(crate) parameters: Vec<Arc<str>>,
    pub(crate) slots: usize,
    pub(crate) steps: Vec<ProgramStep>,
}

/// The place of a variable in a call.
pub(crate) type Slot = usize;
/// The index of a step.
pub(crate) type StepIndex = usize;

/// A step of a function.
#[derive(Debug)]
pub(crate) enum ProgramStep {
    /// Writes a part of the source.
    Source(SourceRange),
    /// Writes fixed text.
    Fixed(&'static str),
    /// Writes a value, escaped for the context unless it names one itself.
    Output(Box<ComputedValue>, DisplayContext),
    /// Sets a variable.
    Set(Slot, Box<ComputedValue>),
    /// Continues elsewhere.
    Jump(StepIndex),
    /// Continues elsewhere unless a variable counts as true.
    JumpUnless(Slot, StepIndex),
    /// Continues elsewhere if a variable counts as true.
    JumpIf(Slot, StepIndex),
    /// Writes an attribute.
    Attribute(Box<AttributeStep>),
    /// Writes the attributes of a map.
    AttributeMap(Box<AttributeMapStep>),
    /// Writes the value of a variable as it is: the checked name of an element.
    Raw(Slot),
    /// Continues elsewhere if a variable is the name of an element without end tag.
    JumpIfVoidElement(Slot, StepIndex),
    Use(Box<UseStep>),
    /// Includes a script.
    Include(Box<CallStep>),
    /// Includes a resource.
    Resource(Box<CallStep>),
    /// Calls a template.
    Call(Box<CallStep>),
    /// Begins a loop, or continues behind it if there is nothing to show.
    LoopBegin(Box<LoopStep>),
    /// Sets the variables of the next item, or ends the loop and continues elsewhere.
    LoopNext(StepIndex),
    /// Ends a loop whose content is replaced.
    LoopEnd,
}

/// A `data-sly-use`.
#[derive(Debug)]
pub(crate) struct UseStep {
    pub(crate) slot: Slot,
    /// The name of the variable, in lower case.
    pub(crate) name: Arc<str>,
    pub(crate) call: CallStep,
}

/// A statement that takes a value and options.
#[derive(Debug)]
pub(crate) struct CallStep {
    pub(crate) target: ComputedValue,
    pub(crate) options: Vec<(Arc<str>, ProgramExpression)>,
}

/// A `data-sly-list` or `data-sly-repeat`.
#[derive(Debug)]
pub(crate) struct LoopStep {
    pub(crate) collection: ComputedValue,
    pub(crate) begin: Option<ProgramExpression>,
    pub(crate) step: Option<ProgramExpression>,
    pub(crate) end: Option<ProgramExpression>,
    pub(crate) item: Slot,
    /// The variable with `index`, `first` and the like, if the script reads it.
    pub(crate) status: Option<Slot>,
    /// Where a loop that shows nothing continues.
    pub(crate) exit: StepIndex,
}

/// An attribute whose value is computed.
#[derive(Debug)]
pub(crate) struct AttributeStep {
    /// The name with the white space in front of it.
    pub(crate) name_source: Option<SourceRange>,
    /// The name.
    pub(crate) name: Arc<str>,
    /// The quote around the value.
    pub(crate) quote: u8,
    pub(crate) value: AttributeValue,
    /// The variables of maps that come behind the attribute in the tag and replace its value, the last one first.
    pub(crate) maps: Vec<Slot>,
    /// The context of a value without an explicit one.
    pub(crate) hint: DisplayContext,
}

/// The value of an attribute.
#[derive(Debug)]
pub(crate) enum AttributeValue {
    /// A single expression: true and false show and hide the attribute.
    Single(ComputedValue),
    /// Texts and expressions.
    Mixed(Vec<AttributePart>),
    /// The attribute as it stands in the source.
    Literal(SourceRange),
    /// No attribute unless a map has it.
    Absent,
}

/// A part of an attribute's value.
#[derive(Debug)]
pub(crate) enum AttributePart {
    Source(SourceRange),
    Value(ComputedValue),
}

/// A `data-sly-attribute` without a name.
#[derive(Debug)]
pub(crate) struct AttributeMapStep {
    pub(crate) map: Slot,
    /// Names, in lower case, that other parts of the tag write.
    pub(crate) ignored: Vec<Arc<str>>,
    /// Maps behind this one, which replace its entries.
    pub(crate) later_maps: Vec<Slot>,
    pub(crate) offset: u32,
}

/// An expression with the options that change its value.
#[derive(Debug)]
pub(crate) struct ComputedValue {
    /// The byte of the source at which it begins.
    pub(crate) offset: u32,
    pub(crate) root: ProgramExpression,
    pub(crate) options: Option<Box<ValueOptions>>,
}

/// The options that change a value.
#[derive(Debug, Default)]
pub(crate) struct ValueOptions {
    pub(crate) i18n: bool,
    pub(crate) locale: Option<ProgramExpression>,
    pub(crate) hint: Option<ProgramExpression>,
    pub(crate) basename: Option<ProgramExpression>,
    pub(crate) format: Option<ProgramExpression>,
    pub(crate) kind: Option<ProgramExpression>,
    pub(crate) timezone: Option<ProgramExpression>,
    pub(crate) join: Option<ProgramExpression>,
    pub(crate) uri: Vec<(Arc<str>, ProgramExpression)>,
    pub(crate) context: Option<ContextChoice>,
}

/// The option `context`.
#[derive(Debug)]
pub(crate) enum ContextChoice {
    /// A literal; `None` if there is no such context.
    Fixed(Option<DisplayContext>),
    /// Any other expression.
    Computed(ProgramExpression),
}

/// An expression with its variables resolved.
#[derive(Debug)]
pub(crate) enum ProgramExpression {
    Null,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(Arc<str>),
    /// A variable of the function.
    Local(Slot),
    /// The index of a name in [`ScriptProgram::outer_names`].
    Outer(usize),
    List(Vec<ProgramExpression>),
    Path(Box<ProgramExpression>, Vec<ProgramExpression>),
    Not(Box<ProgramExpression>),
    And(Vec<ProgramExpression>),
    Or(Vec<ProgramExpression>),
    Contains {
        item: Box<ProgramExpression>,
        container: Box<ProgramExpression>,
    },
    Compare(CompareOperator, Box<ProgramExpression>, Box<ProgramExpression>),
    Choice(Box<[ProgramExpression; 3]>),
    /// Texts and values, one after the other.
    Joined(Vec<ComputedValue>),
}

/// A compiled script. Clones are cheap and share the program; threads can run it at the same time.
#[derive(Debug, Clone)]
pub struct HtlScript(pub(crate) Arc<ScriptProgram>);

impl HtlScript {
    /// Returns the name that the script was compiled with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns what is probably a mistake although it compiles, such as an output in a `<script>` without a context,
    /// which writes nothing.
    #[must_use]
    pub fn warnings(&self) -> &[HtlDiagnostic] {
        &self.0.warnings
    }

    /// Returns the names of the templates, in lower case.
    pub fn template_names(&self) -> impl Iterator<Item = &str> {
        self.0.functions.iter().skip(1).map(|function| &*function.name)
    }
}

impl ScriptProgram {
    /// Returns a part of the source.
    pub(crate) fn text(&self, range: SourceRange) -> &str {
        self.source.get(range.start as usize..range.end as usize).unwrap_or_default()
    }

    /// Returns the place of a byte of the source.
    pub(crate) fn place(&self, offset: u32) -> ScriptPlace {
        place_of(&self.name, &self.source, offset as usize)
    }
}

/// Counts lines and columns up to a byte.
pub(crate) fn place_of(name: &Arc<str>, source: &str, offset: usize) -> ScriptPlace {
    let before = source.get(..offset.min(source.len())).unwrap_or(source);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count();
    let column = before.get(line_start..).unwrap_or_default().chars().count();
    let number = |count: usize| u32::try_from(count + 1).unwrap_or(u32::MAX);
    ScriptPlace { script: Arc::clone(name), line: number(line), column: number(column) }
}
