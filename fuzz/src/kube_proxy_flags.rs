//! The agent in kube-proxy's place accepts arbitrary arguments, one per line, or refuses them with an error
//! text.

use pathproof::config::Surroundings;
use pathproof_kube_proxy_compat::{Action, read, resolve};

pub(crate) fn check(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let words: Vec<String> = text.lines().map(str::to_owned).collect();
    match read(&words) {
        Err(error) => assert!(!error.to_string().is_empty()),
        // Not with --config, because its file would be read.
        Ok(Action::Run(settings)) if settings.get("config").is_none() => {
            return match resolve(&settings, &Surroundings::default(), &|_| true) {
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
