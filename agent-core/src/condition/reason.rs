//! The reasons: stable words in CamelCase, one for each state and cause of a verdict.
//! docs/behaviour.md lists them; rules of other programs match them.

use crate::cause::{Cause, State, Why};

/// Why the condition has its status. Also the reason of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// New connections get through.
    Proven,
    /// They get through again, and that has to last before /livez answers 200.
    Recovering,
    /// The node is being removed; its datapath is not known to be broken.
    Leaving,
    /// Nothing is proven yet in this boot.
    Starting,
    /// New connections go to endpoints that left.
    Stale,
    /// No new connection gets through.
    Broken(Option<Cause>),
    /// Single Services are broken.
    Degraded(Option<Cause>),
    /// Failures, not confirmed.
    Suspect(Option<Cause>),
    /// Nothing can be said.
    Unknown(Option<Why>),
}

impl Reason {
    /// Of a state, where nothing outranks it.
    pub(crate) fn of(state: State, cause: Option<Cause>, why: Option<Why>) -> Self {
        match state {
            State::Proven => Reason::Proven,
            State::Starting => Reason::Starting,
            State::Stale => Reason::Stale,
            State::Broken => Reason::Broken(cause),
            State::Degraded => Reason::Degraded(cause),
            State::Suspect => Reason::Suspect(cause),
            State::Unknown => Reason::Unknown(why),
        }
    }

    /// All of them.
    pub fn all() -> Vec<Reason> {
        let mut all = vec![
            Reason::Proven,
            Reason::Recovering,
            Reason::Leaving,
            Reason::Starting,
            Reason::Stale,
        ];
        for with in [Reason::Broken, Reason::Degraded, Reason::Suspect] {
            all.push(with(None));
            all.extend(Cause::ALL.map(|cause| with(Some(cause))));
        }
        all.push(Reason::Unknown(None));
        all.extend(Why::ALL.map(|why| Reason::Unknown(Some(why))));
        all
    }

    /// As the API shows it.
    pub fn name(self) -> String {
        let by_cause = |state: &str, cause: Option<Cause>| {
            format!(
                "Datapath{state}{}",
                cause.map_or_else(String::new, |cause| camel(cause.name()))
            )
        };
        match self {
            Reason::Proven => "DatapathProven".to_owned(),
            Reason::Recovering => "DatapathRecovering".to_owned(),
            Reason::Leaving => "NodeLeaving".to_owned(),
            Reason::Starting => "DatapathStarting".to_owned(),
            Reason::Stale => "DatapathStale".to_owned(),
            Reason::Broken(cause) => by_cause("Broken", cause),
            Reason::Degraded(cause) => by_cause("Degraded", cause),
            Reason::Suspect(cause) => by_cause("Suspect", cause),
            Reason::Unknown(why) => format!(
                "DatapathUnknown{}",
                why.map_or_else(String::new, |why| camel(why.name()))
            ),
        }
    }

    /// Of a name; `None` for one of another release.
    pub fn parse(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|reason| reason.name() == name)
    }
}

/// `no_data` to `NoData`.
fn camel(snake: &str) -> String {
    let mut text = String::with_capacity(snake.len());
    for word in snake.split('_') {
        let mut letters = word.chars();
        text.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        text.push_str(letters.as_str());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_camel_case_and_read_back() {
        for reason in Reason::all() {
            let name = reason.name();
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
            assert!(name.starts_with(|c: char| c.is_ascii_uppercase()), "{name}");
            // The API allows 128 characters for an Event's reason.
            assert!(name.len() <= 64, "{name}");
            assert_eq!(Reason::parse(&name), Some(reason));
        }
        assert_eq!(Reason::parse("KubeletReady"), None);
    }
}
