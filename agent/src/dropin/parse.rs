//! The words of a command line, taken apart as kube-proxy takes them apart (pflag 1.0.9): nothing
//! is judged here but the form.
//!
//! One thing is different: a long flag that kube-proxy does not know is no error. Whether it takes
//! the next word cannot be known; it does where that word does not begin with a dash, since
//! kube-proxy takes no arguments.

use thiserror::Error;

use super::flags::Flag;

/// One thing that was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said<'a> {
    /// The words that it took. Of several letters in one word the first has it.
    pub words: &'a [String],
    /// What it is.
    pub what: What<'a>,
}

/// What was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What<'a> {
    /// A flag of kube-proxy, and its value.
    Flag(&'static Flag, &'a str),
    /// A flag that kube-proxy does not know: its name, and its value if it had one.
    Unknown(&'a str, Option<&'a str>),
    /// A word that belongs to no flag.
    Argument(&'a str),
    /// `--`: what follows is no flag.
    Terminator,
}

/// A word that kube-proxy would not take either.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WordError {
    /// Neither a name nor a terminator.
    #[error("{word:?} is no flag: give --NAME=VALUE")]
    Syntax {
        /// What was said.
        word: String,
    },
    /// A single dash and no such letter.
    #[error(
        "{word:?}: there is no flag -{letter}; flags of more than one letter begin with two dashes"
    )]
    Letter {
        /// What was said.
        word: String,
        /// Which.
        letter: char,
    },
    /// The last word, and it needs a value.
    #[error("--{name} needs a value: give --{name}=VALUE")]
    NoValue {
        /// Which.
        name: &'static str,
    },
}

/// The value of a flag that stands alone.
const ALONE: &str = "true";

/// Takes the words apart, in their order. Every word is in the result once.
///
/// # Errors
/// The first word that cannot be taken.
pub fn parse(words: &[String]) -> Result<Vec<Said<'_>>, WordError> {
    let mut said = Vec::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let rest = &words[at..];
        let taken = match word.strip_prefix("--") {
            Some("") => {
                said.push(one(rest, 1, What::Terminator));
                let rest = rest.iter().skip(1);
                said.extend(rest.map(|word| argument(std::slice::from_ref(word))));
                break;
            }
            Some(long) => take_long(long, rest, &mut said)?,
            None => match word.strip_prefix('-') {
                Some("") | None => {
                    said.push(argument(&rest[..1]));
                    1
                }
                Some(letters) => take_letters(letters, rest, &mut said)?,
            },
        };
        at += taken;
    }
    Ok(said)
}

fn one<'a>(words: &'a [String], taken: usize, what: What<'a>) -> Said<'a> {
    Said {
        words: words.get(..taken).unwrap_or_default(),
        what,
    }
}

fn argument(word: &[String]) -> Said<'_> {
    let text = word.first().map_or("", String::as_str);
    Said {
        words: word,
        what: What::Argument(text),
    }
}

/// `--name`, `--name=value`, `--name value`. Says how many words that took.
fn take_long<'a>(
    long: &'a str,
    words: &'a [String],
    said: &mut Vec<Said<'a>>,
) -> Result<usize, WordError> {
    if long.starts_with(['-', '=']) {
        return Err(WordError::Syntax {
            word: format!("--{long}"),
        });
    }
    let (name, value) = match long.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (long, None),
    };
    let next = words.get(1).map(String::as_str);
    let (taken, what) = match (Flag::named(name), value) {
        (Some(flag), Some(value)) => (1, What::Flag(flag, value)),
        (Some(flag), None) if flag.value.is_none() => (1, What::Flag(flag, ALONE)),
        (Some(flag), None) => (2, What::Flag(flag, needed(flag, next)?)),
        (None, Some(value)) => (1, What::Unknown(name, Some(value))),
        (None, None) => match next.filter(|next| !next.starts_with('-')) {
            Some(next) => (2, What::Unknown(name, Some(next))),
            None => (1, What::Unknown(name, None)),
        },
    };
    said.push(one(words, taken, what));
    Ok(taken)
}

fn needed<'a>(flag: &Flag, value: Option<&'a str>) -> Result<&'a str, WordError> {
    value.ok_or(WordError::NoValue { name: flag.name })
}

/// `-v2`, `-v=2`, `-v 2`, and letters that stand alone before it.
fn take_letters<'a>(
    letters: &'a str,
    words: &'a [String],
    said: &mut Vec<Said<'a>>,
) -> Result<usize, WordError> {
    let mut rest = letters;
    let first = said.len();
    let mut taken = 1;
    while let Some(letter) = rest.chars().next() {
        let flag = Flag::lettered(letter).ok_or_else(|| WordError::Letter {
            word: format!("-{letters}"),
            letter,
        })?;
        rest = &rest[letter.len_utf8()..];
        let value = match rest.strip_prefix('=').filter(|value| !value.is_empty()) {
            Some(value) => {
                rest = "";
                value
            }
            None if flag.value.is_none() => ALONE,
            None if !rest.is_empty() => std::mem::take(&mut rest),
            None => {
                taken = 2;
                needed(flag, words.get(1).map(String::as_str))?
            }
        };
        said.push(one(words, 0, What::Flag(flag, value)));
    }
    if let Some(said) = said.get_mut(first) {
        said.words = words.get(..taken).unwrap_or_default();
    }
    Ok(taken)
}

#[cfg(test)]
mod tests;
