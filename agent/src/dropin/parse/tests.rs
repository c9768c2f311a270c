use proptest::prelude::*;
use rstest::rstest;

use super::super::flags::{FLAGS, Part};
use super::*;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Names and values, as they are found.
fn flags(text: &str) -> Result<Vec<(String, String)>, WordError> {
    let words = words(text);
    let said = parse(&words)?;
    let pair = |said: &Said<'_>| match said.what {
        What::Flag(flag, value) => (flag.name.to_owned(), value.to_owned()),
        What::Unknown(name, value) => (format!("?{name}"), value.unwrap_or("-").to_owned()),
        What::Argument(word) => ("argument".to_owned(), word.to_owned()),
        What::Terminator => ("--".to_owned(), String::new()),
    };
    Ok(said.iter().map(pair).collect())
}

#[rstest]
#[case::joined("--kubeconfig=/k", &[("kubeconfig", "/k")])]
#[case::two_words("--kubeconfig /k", &[("kubeconfig", "/k")])]
#[case::a_value_with_a_dash("--master -x --v 2", &[("master", "-x"), ("v", "2")])]
#[case::a_value_with_equals("--feature-gates=A=true,B=false", &[("feature-gates", "A=true,B=false")])]
#[case::empty("--metrics-bind-address= --v=1", &[("metrics-bind-address", ""), ("v", "1")])]
#[case::alone("--cleanup --v=1", &[("cleanup", "true"), ("v", "1")])]
#[case::false_("--cleanup=false", &[("cleanup", "false")])]
#[case::alone_takes_no_word("--masquerade-all false", &[("masquerade-all", "true"), ("argument", "false")])]
#[case::underscores("--healthz_bind_address=1.2.3.4", &[("healthz-bind-address", "1.2.3.4")])]
#[case::letter("-v2", &[("v", "2")])]
#[case::letter_equals("-v=2", &[("v", "2")])]
#[case::letter_and_word("-v 2 --cleanup", &[("v", "2"), ("cleanup", "true")])]
#[case::letters("-hv4", &[("help", "true"), ("v", "4")])]
#[case::letter_false("-h=false", &[("help", "false")])]
#[case::unknown("--new=1", &[("?new", "1")])]
#[case::unknown_and_word("--new 1 --v=2", &[("?new", "1"), ("v", "2")])]
#[case::unknown_alone("--new --v=2", &[("?new", "-"), ("v", "2")])]
#[case::unknown_at_the_end("--new", &[("?new", "-")])]
#[case::dash("- x", &[("argument", "-"), ("argument", "x")])]
#[case::terminator("--v=1 -- --v=2", &[("v", "1"), ("--", ""), ("argument", "--v=2")])]
#[case::deprecated("--healthz-port 0", &[("healthz-port", "0")])]
fn as_kube_proxy_reads_them(#[case] text: &str, #[case] expected: &[(&str, &str)]) {
    let expected: Vec<(String, String)> = expected
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    assert_eq!(flags(text), Ok(expected));
}

#[rstest]
#[case("-kubeconfig=/k", "there is no flag -k")]
#[case("-vx -é", "there is no flag -é")]
#[case("-h=", "there is no flag -=")]
#[case("---v", "\"---v\" is no flag")]
#[case("--=1", "\"--=1\" is no flag")]
#[case("--v=1 --config", "--config needs a value")]
#[case("-v", "--v needs a value")]
fn what_kube_proxy_refuses(#[case] text: &str, #[case] expected: &str) {
    let error = flags(text).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

/// A flag as somebody may write it: its words, and what is meant.
fn a_flag() -> impl Strategy<Value = (Vec<String>, String, String)> {
    let known = (0..FLAGS.len(), "[ -~]{0,12}", any::<bool>());
    let known = known.prop_map(|(index, value, joined)| {
        let flag = &FLAGS[index];
        let name = flag.name.to_owned();
        match (joined, flag.value) {
            (true, _) => (vec![format!("--{name}={value}")], name, value),
            (false, Some(_)) => (vec![format!("--{name}"), value.clone()], name, value),
            (false, None) => (vec![format!("--{name}")], name, ALONE.to_owned()),
        }
    });
    let unknown = ("x[a-z]{1,8}", "[a-z0-9.:/]{1,8}", any::<bool>());
    let unknown = unknown.prop_map(|(name, value, joined)| match joined {
        true => (vec![format!("--{name}={value}")], name, value),
        false => (vec![format!("--{name}"), value.clone()], name, value),
    });
    prop_oneof![4 => known, 1 => unknown]
}

proptest! {
    #[test]
    fn nothing_that_was_said_is_lost(said in prop::collection::vec(a_flag(), 0..12)) {
        let words: Vec<String> = said.iter().flat_map(|(words, ..)| words.clone()).collect();
        let found = parse(&words).unwrap();
        let found: Vec<(String, String)> = found
            .iter()
            .map(|found| match found.what {
                What::Flag(flag, value) => (flag.name.to_owned(), value.to_owned()),
                What::Unknown(name, value) => (name.to_owned(), value.unwrap().to_owned()),
                _ => panic!("{found:?}"),
            })
            .collect();
        let meant: Vec<(String, String)> = said
            .into_iter()
            .map(|(_, name, value)| (name, value))
            .collect();
        prop_assert_eq!(found, meant);
    }

    #[test]
    fn every_word_is_in_the_result_once(
        words in prop::collection::vec("-{0,3}[a-zé=_0-9-]{0,10}|\\PC{0,12}", 0..12)
    ) {
        if let Ok(said) = parse(&words) {
            let again: Vec<String> = said.iter().flat_map(|said| said.words.to_vec()).collect();
            prop_assert_eq!(again, words);
        }
    }
}

#[test]
fn what_means_something_is_in_the_table_once() {
    let parts: Vec<Part> = FLAGS.iter().filter_map(|flag| flag.part).collect();
    let once: std::collections::HashSet<Part> = parts.iter().copied().collect();
    assert_eq!(once.len(), parts.len());
}
