//! The classes and scripts that a script uses, and the properties that it asks them for.
//!
//! In: a compiled script. Out: one [`HtlUse`] for each `data-sly-use`, for reports about a site; nothing runs.

use std::collections::{BTreeSet, HashMap};

use crate::error::ScriptPlace;
use crate::program::{
    AttributePart, AttributeValue, CallStep, ComputedValue, ContextChoice, HtlScript,
    ProgramExpression, ProgramStep, ScriptFunction, Slot, ValueOptions,
};

/// A `data-sly-use` of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HtlUse {
    /// The variable, in lower case.
    pub identifier: String,
    /// The name of the class or script; `None` if it is computed.
    pub target: Option<String>,
    /// The place of the statement.
    pub place: ScriptPlace,
    /// The properties that expressions read, with what they read from these: `title`, `link.url`, `items[].title`.
    pub members: BTreeSet<String>,
    /// True if the object is also given to a template, a script or a resource, which may read more.
    pub is_passed_on: bool,
}

impl HtlScript {
    /// Returns what the script uses, in the order of the source within the script and within each template.
    ///
    /// Properties are followed through `data-sly-set`, `data-sly-test` and loops, and not into other templates.
    #[must_use]
    pub fn uses(&self) -> Vec<HtlUse> {
        let mut uses = Vec::new();
        for function in &self.0.functions {
            let mut collector = UseCollector { uses, variables: HashMap::new() };
            collector.collect(self, function);
            uses = collector.uses;
        }
        uses
    }
}

/// A value that was read from the object of a statement.
#[derive(Debug, Clone)]
struct UsedValue {
    /// The index of the statement.
    position: usize,
    /// The properties that lead to the value; empty for the object itself.
    member: String,
}

/// Collects the statements of one function.
struct UseCollector {
    uses: Vec<HtlUse>,
    /// The variables that hold objects of statements, or values from them.
    variables: HashMap<Slot, UsedValue>,
}

impl UseCollector {
    fn collect(&mut self, script: &HtlScript, function: &ScriptFunction) {
        for step in &function.steps {
            match step {
                ProgramStep::Use(step) => {
                    self.visit_call(&step.call, false);
                    let target = match &step.call.target.root {
                        ProgramExpression::Text(text) => Some(text.to_string()),
                        _ => None,
                    };
                    self.variables.insert(
                        step.slot,
                        UsedValue { position: self.uses.len(), member: String::new() },
                    );
                    self.uses.push(HtlUse {
                        identifier: step.name.to_string(),
                        target,
                        place: script.0.place(step.call.target.offset),
                        members: BTreeSet::new(),
                        is_passed_on: false,
                    });
                }
                ProgramStep::Set(slot, value) => {
                    self.visit_value(value);
                    self.assign(*slot, &value.root, "");
                }
                ProgramStep::LoopBegin(step) => {
                    self.visit_value(&step.collection);
                    let bounds = [&step.begin, &step.step, &step.end];
                    bounds.into_iter().flatten().for_each(|bound| self.visit(bound));
                    self.assign(step.item, &step.collection.root, "[]");
                }
                ProgramStep::Output(value, _) => self.visit_value(value),
                ProgramStep::Attribute(step) => match &step.value {
                    AttributeValue::Single(value) => self.visit_value(value),
                    AttributeValue::Mixed(parts) => {
                        for part in parts {
                            if let AttributePart::Value(value) = part {
                                self.visit_value(value);
                            }
                        }
                    }
                    AttributeValue::Literal(_) | AttributeValue::Absent => {}
                },
                ProgramStep::Include(step)
                | ProgramStep::Resource(step)
                | ProgramStep::Call(step) => self.visit_call(step, true),
                ProgramStep::Source(_)
                | ProgramStep::Fixed(_)
                | ProgramStep::Jump(_)
                | ProgramStep::JumpUnless(..)
                | ProgramStep::JumpIf(..)
                | ProgramStep::AttributeMap(_)
                | ProgramStep::Raw(_)
                | ProgramStep::JumpIfVoidElement(..)
                | ProgramStep::LoopNext(_)
                | ProgramStep::LoopEnd => {}
            }
        }
    }

    fn visit_call(&mut self, call: &CallStep, passes_on: bool) {
        self.visit_value(&call.target);
        for (_, value) in &call.options {
            self.visit(value);
            if passes_on
                && let Some(UsedValue { position, member }) = self.resolve(value)
                && member.is_empty()
                && let Some(statement) = self.uses.get_mut(position)
            {
                statement.is_passed_on = true;
            }
        }
    }

    fn visit_value(&mut self, value: &ComputedValue) {
        self.visit(&value.root);
        let Some(options) = value.options.as_deref() else { return };
        let ValueOptions { i18n: _, locale, hint, basename, format, kind, timezone, join, .. } =
            options;
        let single = [locale, hint, basename, format, kind, timezone, join];
        single.into_iter().flatten().for_each(|option| self.visit(option));
        options.uri.iter().for_each(|(_, option)| self.visit(option));
        if let Some(ContextChoice::Computed(context)) = &options.context {
            self.visit(context);
        }
    }

    /// Records the properties that an expression reads.
    fn visit(&mut self, expression: &ProgramExpression) {
        match expression {
            ProgramExpression::Path(base, keys) => {
                if let Some(UsedValue { position, member }) = self.resolve(expression)
                    && let Some(statement) = self.uses.get_mut(position)
                {
                    statement.members.insert(member);
                }
                self.visit(base);
                keys.iter().for_each(|key| self.visit(key));
            }
            ProgramExpression::List(items)
            | ProgramExpression::And(items)
            | ProgramExpression::Or(items) => items.iter().for_each(|item| self.visit(item)),
            ProgramExpression::Not(value) => self.visit(value),
            ProgramExpression::Contains { item, container } => {
                self.visit(item);
                self.visit(container);
            }
            ProgramExpression::Compare(_, left, right) => {
                self.visit(left);
                self.visit(right);
            }
            ProgramExpression::Choice(parts) => parts.iter().for_each(|part| self.visit(part)),
            ProgramExpression::Joined(values) => {
                values.iter().for_each(|value| self.visit_value(value));
            }
            ProgramExpression::Null
            | ProgramExpression::Boolean(_)
            | ProgramExpression::Integer(_)
            | ProgramExpression::Float(_)
            | ProgramExpression::Text(_)
            | ProgramExpression::Local(_)
            | ProgramExpression::Outer(_) => {}
        }
    }

    /// Records that a variable holds the value of an expression, or an item of it.
    fn assign(&mut self, slot: Slot, expression: &ProgramExpression, suffix: &str) {
        match self.resolve(expression) {
            Some(UsedValue { position, member }) => {
                let member = format!("{member}{suffix}");
                self.variables.insert(slot, UsedValue { position, member });
            }
            None => {
                self.variables.remove(&slot);
            }
        }
    }

    /// Returns where the value of an expression comes from, if it was read from the object of a statement.
    fn resolve(&self, expression: &ProgramExpression) -> Option<UsedValue> {
        match expression {
            ProgramExpression::Local(slot) => self.variables.get(slot).cloned(),
            ProgramExpression::Path(base, keys) => {
                let UsedValue { position, mut member } = self.resolve(base)?;
                for key in keys {
                    match key {
                        ProgramExpression::Text(name) if member.is_empty() => {
                            member.push_str(name);
                        }
                        ProgramExpression::Text(name) => {
                            member.push('.');
                            member.push_str(name);
                        }
                        _ => member.push_str("[]"),
                    }
                }
                Some(UsedValue { position, member })
            }
            _ => None,
        }
    }
}
