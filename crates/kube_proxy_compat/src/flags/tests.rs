use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Parsed names and values.
fn flags(text: &str) -> Result<Vec<(String, String)>, DropInError> {
    Ok(parse(&words(text))?.iter().map(pair).collect())
}

fn pair(given: &Given<'_>) -> (String, String) {
    match given {
        Given::Known(flag, value) => (flag.name.to_owned(), (*value).to_owned()),
        Given::Unknown(name) => (format!("?{name}"), String::new()),
    }
}

#[rstest]
#[case::joined("--kubeconfig=/k", &[("kubeconfig", "/k")])]
#[case::two_words("--kubeconfig /k", &[("kubeconfig", "/k")])]
#[case::a_value_with_a_dash("--master -x --v 2", &[("master", "-x"), ("v", "2")])]
#[case::a_value_with_equals("--feature-gates=A=true,B=false", &[("feature-gates", "A=true,B=false")])]
#[case::empty("--metrics-bind-address= --v=1", &[("metrics-bind-address", ""), ("v", "1")])]
#[case::alone("--cleanup --v=1", &[("cleanup", "true"), ("v", "1")])]
#[case::false_("--cleanup=false", &[("cleanup", "false")])]
#[case::underscores("--healthz_bind_address=1.2.3.4", &[("healthz-bind-address", "1.2.3.4")])]
#[case::letter("-v2", &[("v", "2")])]
#[case::letter_equals("-v=2", &[("v", "2")])]
#[case::letter_and_word("-v 2 --cleanup", &[("v", "2"), ("cleanup", "true")])]
#[case::letters("-hv4", &[("help", "true"), ("v", "4")])]
#[case::letter_false("-h=false", &[("help", "false")])]
#[case::unknown("--new=1", &[("?new", "")])]
#[case::unknown_and_word("--new 1 --v=2", &[("?new", ""), ("v", "2")])]
#[case::unknown_alone("--new --v=2", &[("?new", ""), ("v", "2")])]
#[case::unknown_at_the_end("--new", &[("?new", "")])]
#[case::terminator("--v=1 --", &[("v", "1")])]
#[case::deprecated("--healthz-port 0", &[("healthz-port", "0")])]
fn as_kube_proxy_reads_them(#[case] text: &str, #[case] expected: &[(&str, &str)]) {
    let expected: Vec<(String, String)> = expected
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    assert_eq!(flags(text).unwrap(), expected);
}

#[rstest]
#[case("-kubeconfig=/k", "there is no flag -k")]
#[case("-vx -é", "there is no flag -é")]
#[case("-h=", "there is no flag -=")]
#[case("---v", "\"---v\" is not a flag")]
#[case("--=1", "\"--=1\" is not a flag")]
#[case("--v=1 --config", "--config needs a value")]
#[case("-v", "--v needs a value")]
#[case("--masquerade-all false", "but \"false\" is one")]
#[case("- x", "but \"-\" is one")]
#[case("--v=1 -- --v=2", "but \"--v=2\" is one")]
fn what_kube_proxy_refuses(#[case] text: &str, #[case] expected: &str) {
    let error = flags(text).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

/// A flag as a user may write it: its words, and the expected name and value.
fn a_flag() -> impl Strategy<Value = (Vec<String>, String, String)> {
    let known = (0..FLAGS.len(), "[ -~]{0,12}", any::<bool>());
    let known = known.prop_map(|(index, value, joined)| {
        let Flag { name, value: kind } = FLAGS[index];
        let words = match (joined, kind) {
            (true, _) => vec![format!("--{name}={value}")],
            (false, "") => return (vec![format!("--{name}")], name.to_owned(), ALONE.to_owned()),
            (false, _) => vec![format!("--{name}"), value.clone()],
        };
        (words, name.to_owned(), value)
    });
    let unknown = ("x[a-z]{1,8}", "[a-z0-9.:/]{1,8}", any::<bool>());
    let unknown = unknown.prop_map(|(name, value, joined)| {
        let words = match joined {
            true => vec![format!("--{name}={value}")],
            false => vec![format!("--{name}"), value],
        };
        (words, format!("?{name}"), String::new())
    });
    prop_oneof![4 => known, 1 => unknown]
}

proptest! {
    #[test]
    fn no_given_flag_is_lost(said in prop::collection::vec(a_flag(), 0..12)) {
        let words: Vec<String> = said.iter().flat_map(|(words, ..)| words.clone()).collect();
        let found: Vec<(String, String)> = parse(&words).unwrap().iter().map(pair).collect();
        let meant: Vec<(String, String)> = said
            .into_iter()
            .map(|(_, name, value)| (name, value))
            .collect();
        prop_assert_eq!(found, meant);
    }

    #[test]
    fn any_words_are_accepted_or_refused_in_a_sentence(
        words in prop::collection::vec("-{0,3}[a-zé=_0-9-]{0,10}|\\PC{0,12}", 0..12)
    ) {
        if let Err(error) = read(&words) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn names_are_in_order_and_each_is_found() {
    assert!(FLAGS.is_sorted_by(|a, b| a.name < b.name));
    for flag in FLAGS {
        assert_eq!(Flag::named(flag.name), Some(flag));
        assert_eq!(Flag::named(&flag.name.replace('-', "_")), Some(flag));
    }
    assert_eq!(Flag::named("nonsense"), None);
}

#[test]
fn fifteen_flags_have_an_effect() {
    let means = |flag: &&Flag| flag.meaning().is_some();
    assert_eq!(FLAGS.iter().filter(means).count(), 15);
}
