//! Whatever is said to the agent in kube-proxy's place, one word to a line: every word is taken
//! once, or the line is refused with a sentence.

use pathproof::config::Surroundings;
use pathproof::dropin::parse::parse;
use pathproof::dropin::wanted::Wanted;
use pathproof::dropin::{read, resolve};

pub(crate) fn check(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let words: Vec<String> = text.lines().map(str::to_owned).collect();
    if let Ok(said) = parse(&words) {
        let again: Vec<String> = said.iter().flat_map(|said| said.words.to_vec()).collect();
        assert_eq!(again, words);
    }
    match read(&words) {
        Err(error) => assert!(!error.to_string().is_empty()),
        // A file of --config would be read.
        Ok(Wanted::Run(settings)) if settings.config.is_none() => {
            return match resolve(*settings, &Surroundings::default(), &|_| true) {
                Ok(_) => true,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    false
                }
            };
        }
        Ok(_) => {}
    }
    false
}
