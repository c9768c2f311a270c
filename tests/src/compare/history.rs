//! The course of a node's verdict after an event, and whether a simulated course equals the kernel's. Nothing here
//! plays a case.

use std::fmt;

use pathproof_facts::cause::{Cause, State};

/// A verdict, and the status of /livez with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub state: State,
    pub livez: u16,
    pub cause: Option<Cause>,
}

/// Verdicts in order, without times, up to the first 503. Later ones depend on when the fault is repaired.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct History {
    /// Each state once, in the order of first occurrence: a state that comes and goes depends on moments.
    states: Vec<State>,
    fails: bool,
    /// Cause of the 503.
    cause: Option<Cause>,
}

impl History {
    /// `moments`: the one in force at the event, and all later ones.
    pub fn of(moments: impl IntoIterator<Item = Moment>) -> Self {
        let (mut states, mut fails, mut cause) = (Vec::new(), false, None);
        for moment in moments {
            if !states.contains(&moment.state) {
                states.push(moment.state);
            }
            if moment.livez == 503 {
                (fails, cause) = (true, moment.cause);
                break;
            }
        }
        Self {
            states,
            fails,
            cause,
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states: Vec<&str> = self.states.iter().map(|state| state.name()).collect();
        let status = if self.fails { 503 } else { 200 };
        write!(f, "{}: {status}", states.join(", "))?;
        self.cause
            .map_or(Ok(()), |cause| write!(f, " ({})", cause.name()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// 503 on one side only.
    Answer,
    /// Another cause of the 503.
    Cause,
    /// Other states, or another order.
    States,
}

/// The first difference from the simulated history that is most alike; `None` if one of them is the kernel's.
pub fn compare(simulated: &[History], kernel: &History) -> Option<Difference> {
    let mut alike: Vec<&History> = simulated.iter().collect();
    alike.retain(|one| one.fails == kernel.fails);
    if alike.is_empty() {
        return Some(Difference::Answer);
    }
    // The simulator models neither routes nor neighbours, so it never names these causes.
    let is_looked_up = kernel.cause.is_some_and(Cause::is_looked_up);
    alike.retain(|one| is_looked_up || one.cause == kernel.cause);
    if alike.is_empty() {
        return Some(Difference::Cause);
    }
    let is_known = alike.iter().any(|one| one.states == kernel.states);
    (!is_known).then_some(Difference::States)
}

#[cfg(test)]
mod tests {
    use State::{Broken, Degraded, Proven, Suspect};

    use super::*;
    use crate::prelude::*;

    fn history(moments: &[(State, u16, Option<Cause>)]) -> History {
        let moments = moments.iter();
        History::of(moments.map(|(state, livez, cause)| Moment {
            state: *state,
            livez: *livez,
            cause: *cause,
        }))
    }

    fn fails(states: &[State], cause: Cause) -> History {
        let calm = states.iter().map(|state| (*state, 200, None));
        let moments: Vec<_> = calm.chain([(Broken, 503, Some(cause))]).collect();
        history(&moments)
    }

    #[test]
    fn a_history_has_each_state_once_and_ends_with_503() {
        let moments = [
            (Proven, 200, None),
            (Suspect, 200, Some(Cause::Lost)),
            (Proven, 200, None),
            (Suspect, 200, None),
            (Broken, 503, Some(Cause::Leaked)),
            (Degraded, 200, None),
        ];
        let history = history(&moments);
        assert_eq!(history, fails(&[Proven, Suspect], Cause::Leaked));
        assert_eq!(history.to_string(), "proven, suspect, broken: 503 (leaked)");
    }

    #[rstest]
    #[case::one_of_the_simulated(fails(&[Proven, Suspect], Cause::Lost), None)]
    #[case::another_one(fails(&[Proven], Cause::Refused), None)]
    #[case::never_503(history(&[(Proven, 200, None), (Suspect, 200, None)]), Some(Difference::Answer))]
    #[case::no_seed_has_this_cause(fails(&[Proven, Suspect], Cause::Stale), Some(Difference::Cause))]
    #[case::a_route_was_looked_up(fails(&[Proven, Suspect], Cause::NoRoute), None)]
    #[case::only_with_another_cause(fails(&[Proven], Cause::Lost), Some(Difference::States))]
    #[case::another_state(fails(&[Proven, Degraded], Cause::Lost), Some(Difference::States))]
    #[case::another_order(fails(&[Suspect, Proven], Cause::Lost), Some(Difference::States))]
    fn the_kernels_history_must_be_simulated(
        #[case] kernel: History,
        #[case] difference: Option<Difference>,
    ) {
        let simulated = [
            fails(&[Proven, Suspect], Cause::Lost),
            fails(&[Proven], Cause::Refused),
        ];
        assert_eq!(compare(&simulated, &kernel), difference);
    }

    #[test]
    fn a_503_that_no_seed_has_is_a_difference() {
        let calm = history(&[(Proven, 200, None)]);
        let kernel = fails(&[Proven], Cause::Lost);
        assert_eq!(compare(&[calm], &kernel), Some(Difference::Answer));
    }
}
