//! Lists that are missing or damaged, and the rows of `lines.txt`.

use super::*;

#[test]
fn a_list_that_is_missing_names_the_command_that_records_it() {
    let mut set = set("kubeadm-nftables");
    set.remove("nodes");
    set.remove("configmaps");
    let lines = lines(read(&set));
    assert_eq!(worst(&lines).3, Exit::Unknown);
    let nodes = find(&lines, "not read", "nodes.json: No such file");
    assert_eq!(nodes.remedy, "kubectl get nodes --output=json > nodes.json");
    let maps = find(&lines, "not read", "configmaps.json");
    let words = "kubectl get configmaps --namespace=kube-system --ignore-not-found kube-proxy ";
    assert!(maps.remedy.starts_with(words), "{}", maps.remedy);
    // Without them nothing is claimed about nodes and kube-proxy's port.
    assert!(!lines.iter().any(|line| line.check == "kernel"));
    assert_eq!(find(&lines, "proxy", "mode unknown").verdict, "ok");
    assert_eq!(find(&lines, "port 10256", "(unknown)").verdict, "unknown");
}

#[test]
fn a_folder_without_lists_is_unknown_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = read::cluster(&args(&folder.path().join("missing"))).unwrap();
    let lines = lines(cluster);
    assert_eq!(lines.len(), 8);
    assert!(
        lines.iter().all(|line| line.verdict == "unknown"),
        "{lines:#?}"
    );
}

#[rstest]
#[case("{")]
#[case("[]")]
#[case("Warning: something\n{}")]
fn a_file_that_is_not_a_list_is_an_error(#[case] text: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("nodes.json"), text).unwrap();
    let error = read::cluster(&args(folder.path())).map(drop).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("nodes did not print a list in JSON"),
        "{error}"
    );
}

/// kubectl prints a List, one object if one name was given, and nothing if no object has it.
#[test]
fn an_object_and_an_empty_text_are_lists_too() {
    let folder = tempfile::tempdir().unwrap();
    let namespace = json!({ "metadata": { "name": "pathproof" } }).to_string();
    fs::write(folder.path().join("namespaces.json"), namespace).unwrap();
    fs::write(folder.path().join("configmaps.json"), "\n").unwrap();
    let cluster = read::cluster(&args(folder.path())).unwrap();
    assert!(cluster.find("namespaces", "pathproof").is_some());
    assert!(cluster.has("configmaps") && cluster.list("configmaps").is_empty());
}

/// Every line names a page and a section that exist, and has a remedy unless all is well.
#[test]
fn every_line_is_whole() {
    let rows = LINES
        .lines()
        .filter(|row| !row.is_empty() && !row.starts_with('#'));
    for row in rows {
        let fields: Vec<&str> = row.split(" | ").collect();
        let [key, verdict, _, page, sentence, remedy @ ..] = &*fields else {
            panic!("{row}");
        };
        assert!(VERDICTS.iter().any(|known| known.0 == *verdict), "{row}");
        assert!(!sentence.ends_with('.'), "{row}");
        // The remedy of a list that was not recorded is a command.
        let expected = usize::from(*verdict != "ok" && *key != "not recorded");
        assert_eq!(remedy.len(), expected, "{row}");
        let (file, section) = page.split_once('#').unwrap_or((*page, ""));
        let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{row}: {error}"));
        let headings = text.lines().filter(|line| line.starts_with('#'));
        let mut anchors = headings.map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = |sign: &char| sign.is_alphanumeric() || " -_".contains(*sign);
            words
                .chars()
                .filter(kept)
                .collect::<String>()
                .replace(' ', "-")
        });
        assert!(
            section.is_empty() || anchors.any(|anchor| anchor == section),
            "{row}"
        );
    }
}

/// A key without a row would make an empty line.
#[test]
fn every_key_of_the_code_has_its_line() {
    for code in [
        include_str!("../../preflight.rs"),
        include_str!("../balancers.rs"),
        include_str!("../network.rs"),
        include_str!("../platform.rs"),
        include_str!("../read.rs"),
    ] {
        let keys = code.split("line(\"").skip(1);
        for key in keys.filter_map(|rest| rest.split('"').next()) {
            assert!(!line(key, "").check.is_empty(), "{key}");
        }
    }
}
