//! From tables of system calls to filters that the kernel runs.
//!
//! All are made once, before anybody forks: a child installs bytes that it inherited.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::tables::{self, Call, Only};
use crate::sys::trap;

/// Why a thread is not confined.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    /// A table cannot be translated.
    #[error("the table of system calls cannot be translated: {0}")]
    Translate(#[from] BackendError),
    /// The kernel does not take it.
    #[error("the kernel does not take the filter of system calls: {0}")]
    Install(#[from] seccompiler::Error),
}

/// The kinds of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The main thread of a template, and so of all its copies: it serves what it is asked for, forks, makes the VM and
    /// serves its devices.
    Main,
    /// The thread of a vCPU.
    Vcpu,
    /// The main thread of a copy that writes a template down.
    Writer,
}

impl Kind {
    /// As it is called in a log.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Vcpu => "vcpu",
            Self::Writer => "writer",
        }
    }

    const fn table(self) -> &'static [Call] {
        match self {
            Self::Main => tables::MAIN,
            Self::Vcpu => tables::VCPU,
            Self::Writer => tables::WRITER,
        }
    }
}

#[derive(Debug)]
struct Filters {
    main: BpfProgram,
    vcpu: BpfProgram,
    writer: BpfProgram,
    absent: BpfProgram,
}

/// A process that was never confined has none.
static FILTERS: OnceLock<Filters> = OnceLock::new();

/// Makes all filters.
pub(super) fn prepare() -> Result<(), FilterError> {
    let filters = Filters {
        main: allow(Kind::Main.table())?,
        vcpu: allow(Kind::Vcpu.table())?,
        writer: allow(Kind::Writer.table())?,
        absent: pretend_absent()?,
    };
    FILTERS.get_or_init(|| filters);
    Ok(())
}

/// Confines this thread, and all that it starts, to what its kind may do. In a process that was not confined this does
/// nothing: there are no others but those of tests.
pub(crate) fn confine(kind: Kind) -> Result<(), FilterError> {
    let Some(filters) = FILTERS.get() else { return Ok(()) };
    trap::name_thread(kind.name());
    match kind {
        Kind::Main => {
            seccompiler::apply_filter(&filters.absent)?;
            seccompiler::apply_filter(&filters.main)?;
        }
        Kind::Vcpu => seccompiler::apply_filter(&filters.vcpu)?,
        Kind::Writer => seccompiler::apply_filter(&filters.writer)?,
    }
    Ok(())
}

/// Allows what is in the table; the rest ends the process.
fn allow(table: &[Call]) -> Result<BpfProgram, BackendError> {
    translate(rules(table)?, SeccompAction::Trap, SeccompAction::Allow)
}

/// Says of some calls that this kernel does not have them: the C library then makes others, which can be looked into.
fn pretend_absent() -> Result<BpfProgram, BackendError> {
    translate(rules(tables::ABSENT)?, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS.unsigned_abs()))
}

fn rules(table: &[Call]) -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in table {
        rules.entry(call.number).or_default().extend(alternatives(call.only)?);
    }
    Ok(rules)
}

fn translate(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(rules, otherwise, matched, TargetArch::x86_64)?.try_into()
}

/// One rule for each value that an argument may have; none at all when anything goes.
fn alternatives(only: Only) -> Result<Vec<SeccompRule>, BackendError> {
    let condition = |index, op, value| SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value);
    let argument = |index, op, value| SeccompRule::new(vec![condition(index, op, value)?]);
    match only {
        Only::Any => Ok(Vec::new()),
        Only::Is(index, values) => values.iter().map(|value| argument(index, SeccompCmpOp::Eq, *value)).collect(),
        Only::Are(values) => {
            let all = values.iter().map(|(index, value)| condition(*index, SeccompCmpOp::Eq, *value));
            Ok(vec![SeccompRule::new(all.collect::<Result<_, _>>()?)?])
        }
        Only::Without(index, bits) => Ok(vec![argument(index, SeccompCmpOp::MaskedEq(bits), 0)?]),
        Only::Ioctl(mask, requests) => {
            requests.iter().map(|request| argument(1, SeccompCmpOp::MaskedEq(mask), *request)).collect()
        }
    }
}
