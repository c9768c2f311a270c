//! A verdict with its sentences, as the document has it. They are for people and for `jq`: who
//! reads a report back takes the findings.

use serde::ser::Error as _;
use serde::{Serialize as _, Serializer};
use serde_json::Value;

use crate::explain;
use crate::verdict::Verdict;

pub(super) fn serialize<S: Serializer>(
    verdict: &Verdict,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut document = serde_json::to_value(verdict).map_err(S::Error::custom)?;
    document["reason"] = verdict.reason().into();
    for (index, family) in verdict.families.iter().enumerate() {
        let of = &mut document["families"][index];
        of["reason"] = verdict.reason_of(family).into();
        for (index, lane) in family.lanes.iter().enumerate() {
            let sentence = explain::sentence(family.family, lane, verdict.at);
            let lane: &mut Value = &mut of["lanes"][index];
            lane["sentence"] = sentence.into();
        }
    }
    document.serialize(serializer)
}

#[cfg(test)]
mod tests {
    use crate::report::{Report, sample};

    #[test]
    fn sentences_stand_beside_findings_and_a_reader_needs_none() {
        for report in [
            sample::broken(),
            sample::blind(),
            sample::probed::filtered(),
        ] {
            let json = serde_json::to_value(&report).unwrap();
            let verdict = &json["verdict"];
            assert_eq!(verdict["reason"], report.verdict.reason());
            assert!(verdict["finding"]["rule"].is_string(), "{verdict}");
            let family = &verdict["families"][0];
            assert_eq!(family["reason"], verdict["reason"]);
            for lane in family["lanes"].as_array().into_iter().flatten() {
                assert!(lane["sentence"].as_str().unwrap().starts_with("IPv4 "));
            }
            let back: Report = serde_json::from_value(json).unwrap();
            assert_eq!(back, report);
        }
    }
}
