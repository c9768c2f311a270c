//! `pathproof version`.

use agent_common::abi::ABI_VERSION;

use super::Exit;
use crate::args::{Output, VersionArgs};

/// Of this binary.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Prints it.
pub fn run(said: &VersionArgs) -> Exit {
    super::print(&text(said.output))
}

fn text(output: Output) -> String {
    match output {
        Output::Text => {
            format!("pathproof {VERSION} (layouts shared with the kernel: {ABI_VERSION})\n")
        }
        Output::Json => {
            format!(
                "{}\n",
                serde_json::json!({ "version": VERSION, "abi": ABI_VERSION })
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_name_the_version() {
        assert!(text(Output::Text).starts_with(&format!("pathproof {VERSION} ")));
        let json: serde_json::Value = serde_json::from_str(&text(Output::Json)).unwrap();
        assert_eq!(json["version"], VERSION);
        assert_eq!(json["abi"], ABI_VERSION);
    }
}
