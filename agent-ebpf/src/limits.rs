//! Budgets: how many connections of one source are followed, how many anomalies are reported.
//! Lost updates between CPUs make a limit a little looser, never tighter than stated.

use agent_common::abi;
use agent_common::evidence::Budget;
use agent_common::service::Address;

use crate::maps::{BUDGETS, LIMITER};

/// Takes one from a source's budget; a source that cannot be remembered has one left.
#[inline(always)]
pub fn take_source(source: &Address, now: u64) -> bool {
    let window = now >> abi::BUDGET_WINDOW_SHIFT;
    let Some(budget) = BUDGETS.get_ptr_mut(source) else {
        let first = Budget {
            window,
            used: 1,
            padding: 0,
        };
        let _ = BUDGETS.insert(source, first, 0);
        return true;
    };
    take(budget, window, abi::BUDGET_PER_WINDOW)
}

/// Takes one from this CPU's budget of reports.
#[inline(always)]
pub fn take_report(now: u64) -> bool {
    let Some(budget) = LIMITER.get_ptr_mut(0) else {
        return false;
    };
    take(
        budget,
        now >> abi::CPU_REPORT_WINDOW_SHIFT,
        abi::CPU_REPORTS,
    )
}

#[inline(always)]
fn take(budget: *mut Budget, window: u64, most: u32) -> bool {
    // SAFETY: a map value's pointer is valid until the program ends; integers may be torn by
    // nobody, since each field is one aligned word.
    let budget = unsafe { &mut *budget };
    if budget.window != window {
        budget.window = window;
        budget.used = 0;
    }
    if budget.used >= most {
        return false;
    }
    budget.used += 1;
    true
}
